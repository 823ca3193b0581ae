// What the kernels over rows of logits share: the largest value of a row and its first place. A block a row.
#pragma once
#include "device.h"

struct Smallest {
    DEVICE i64 operator()(i64 a, i64 b) const { return a < b ? a : b; }
};

// body(place, value) for the places of a row that are this thread's, in ascending order. Several values are under way
// at once, so the body may write to no place but the one that it is given.
template <class F>
DEVICE void for_values(const f32* x, i64 width, F body) {
    constexpr int at_once = 8;
    const i64 step = thread_count();
    for (i64 first = thread_index(); first < width; first += at_once * step) {
        f32 values[at_once];
#pragma unroll
        for (int n = 0; n < at_once; ++n) values[n] = first + n * step < width ? x[first + n * step] : 0.0f;
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
            if (first + n * step < width) body(first + n * step, values[n]);
        }
    }
}

// Largest value of a row, the same in every thread. NaN where the row holds NaN (or +inf beside it).
DEVICE f32 row_peak(const f32* x, i64 width) {
    f32 peak = -infinity();
    for_values(x, width, [&](i64, f32 value) { peak = Largest()(peak, value); });
    return block_largest(peak);
}
// Whether something can be chosen from a row: no NaN, no +inf, not -inf alone.
DEVICE bool usable(f32 peak) { return peak > -infinity() && peak < infinity(); }

// The first place of a value that the row holds.
DEVICE i64 first_place(const f32* x, i64 width, f32 value) {
    i64 place = width;
    for_values(x, width, [&](i64 i, f32 found) { place = found == value && i < place ? i : place; });
    return block_reduce(place, Smallest());
}
