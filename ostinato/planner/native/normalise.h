// From buffers to items: see `Normal`.
#pragma once

#include <vector>

#include "problem.h"

namespace ost::plan {

// Throws std::overflow_error, naming the time, where a placement could pass 2^63 - 1 bytes.
Normal normalise(const std::vector<Buffer>& buffers);

}  // namespace ost::plan
