// The sum of exponentials of a row, which softmax, cross entropy and sampling are made of.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

// Sum of e^(x - shift): float32 within blocks of 64 vectors, double over blocks.
template <class X>
OST_INLINE double exponential_sum(const X* x, int64_t width, float shift) {
    constexpr int64_t block = 64 * VW;
    const vf offset = splat(shift);
    double total = 0;
    for (int64_t first = 0; first < width; first += block) {
        const int64_t end = smaller(width, first + block);
        vf sums[2] = {zero(), zero()};
        int64_t i = first;
        for (; i + 2 * VW <= end; i += 2 * VW) {
            sums[0] = sums[0] + exp(load(x + i) - offset);
            sums[1] = sums[1] + exp(load(x + i + VW) - offset);
        }
        for (; i < end; i += VW) {
            const int64_t n = smaller(VW, end - i);
            const vf value = n == VW ? load(x + i) : load_n(x + i, static_cast<int>(n));
            sums[0] = sums[0] + keep_first(exp(value - offset), n, zero());
        }
        total += static_cast<double>(sum(sums[0] + sums[1]));
    }
    return total;
}

}  // namespace ost::OST_UNIT
