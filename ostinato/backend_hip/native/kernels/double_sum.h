// The sum of float32 values in double, in one fixed tree: what a result that is one number of very many is made of.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

OST_INLINE double double_sum(const float* values, int64_t count) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int u = 0; u < 8; ++u) sums[u] += static_cast<double>(values[i + u]);
    }
    for (int u = 0; u < 8; ++u) {
        if (i + u < count) sums[u] += static_cast<double>(values[i + u]);
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace ost::OST_UNIT
