// The sum of squares of a row and what it is divided by, shared by the normalisations and by products that normalise
// their input: both have the same bits.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

// Sum of squares of value(d, lanes) over a row, kept in four vectors that are added in one fixed tree.
template <class F>
OST_INLINE float squares(int64_t width, const F& value) {
    vf sums[4] = {zero(), zero(), zero(), zero()};
    int64_t d = 0;
    for (; d + 4 * VW <= width; d += 4 * VW) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const vf x = value(d + i * VW, VW);
            sums[i] = fma(x, x, sums[i]);
        }
    }
    for (int i = 0; d < width; d += VW, ++i) {
        const vf x = value(d, static_cast<int>(smaller(VW, width - d)));
        sums[i] = fma(x, x, sums[i]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

OST_INLINE float inverse_root(float squares_sum, int64_t width, float epsilon) {
    return 1.0f / __builtin_sqrtf(squares_sum / static_cast<float>(width) + epsilon);
}

// What RMS norm multiplies a row by, beside its gain.
template <class T>
OST_INLINE float inverse_mean_square(const T* x, int64_t width, float epsilon) {
    return inverse_root(squares(width, [x](int64_t d, int n) { return load_lanes(x + d, n); }), width, epsilon);
}

// f(first column, lanes in use) for each vector of a row; lanes < VW only in the last.
template <class F>
OST_INLINE void for_vectors(int64_t width, const F& f) {
    int64_t d = 0;
    for (; d + VW <= width; d += VW) f(d, VW);
    if (d < width) f(d, static_cast<int>(width - d));
}

template <class X, class Y>
OST_INLINE void normalise(const X* x, const float* gain, Y* y, int64_t width, float inverse) {
    const vf factor = splat(inverse);
    for_vectors(width, [&](int64_t d, int n) {
        store_lanes(y + d, load_lanes(x + d, n) * factor * load_lanes(gain + d, n), n);
    });
}

}  // namespace ost::OST_UNIT
