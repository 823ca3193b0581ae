// What the rotations share.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

void rope_split_half_bias_bthd(const Call& call);  // rotary_bias.cpp

// The pair (a, b) by the angle of c and s.
OST_INLINE void turn(vf& a, vf& b, vf c, vf s) {
    const vf first = fma(a, c, -(b * s));
    b = fma(b, c, a * s);
    a = first;
}

}  // namespace ost::OST_UNIT
