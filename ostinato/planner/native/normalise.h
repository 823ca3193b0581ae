// From buffers to items: see `Normal`.
#pragma once

#include <vector>

#include "problem.h"
#include "stop.h"

namespace ost::plan {

// Throws std::overflow_error, naming the time, where a placement could pass 2^63 - 1 bytes. It takes no notice of an end that `stop` asks for, unless that throws.
Normal normalise(const std::vector<Buffer>& buffers, const Stop& stop);

}  // namespace ost::plan
