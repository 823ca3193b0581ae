// What the kernels over rows of logits share: the largest value of a row and its first place. A block a row.
#pragma once
#include "device.h"

struct Smallest {
    DEVICE i64 operator()(i64 a, i64 b) const { return a < b ? a : b; }
};

// Largest value of a row, the same in every thread. NaN where the row holds NaN (or +inf beside it).
DEVICE f32 row_peak(const f32* x, i64 width) {
    f32 peak = -infinity();
    for (i64 i = thread_index(); i < width; i += thread_count()) peak = Largest()(peak, x[i]);
    return block_largest(peak);
}
// Whether something can be chosen from a row: no NaN, no +inf, not -inf alone.
DEVICE bool usable(f32 peak) { return peak > -infinity() && peak < infinity(); }

// The first place of a value that the row holds.
DEVICE i64 first_place(const f32* x, i64 width, f32 value) {
    i64 place = width;
    for (i64 i = thread_index(); i < width && place == width; i += thread_count()) {
        if (x[i] == value) place = i;
    }
    return block_reduce(place, Smallest());
}
