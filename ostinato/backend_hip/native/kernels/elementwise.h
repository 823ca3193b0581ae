// Kernels of the elementwise family that live in files of their own.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

void cast(const Call& call);         // cast.cpp
void copy(const Call& call);         // movement.cpp
void gather_rows(const Call& call);  // movement.cpp
void concat(const Call& call);       // movement.cpp
void repeat_pair(const Call& call);  // movement.cpp

}  // namespace ost::OST_UNIT
