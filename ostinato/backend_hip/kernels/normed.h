// Rows of x that are normalised on their way into a product, and their products with rows of any weight.
#pragma once
#include "blocks.h"

// With a gain, x * factor * gain: RMS norm, kept in f32.
template <class X>
struct Normed {
    const X* values;
    const f32* gain;
    f32 factor;
    DEVICE f32 at(i64 k) const {
        const f32 x = widen(values[k]);
        return gain == nullptr ? x : x * factor * gain[k];
    }
};

// By a whole block: thread by thread the columns thread, thread + threads, ..., then the tree.
template <class X>
DEVICE Normed<X> normed_row(const X* x, const f32* gain, i64 columns, f32 eps) {
    if (gain == nullptr) return {x, gain, 1.0f};
    f32 squares = 0.0f;
    for (i64 k = thread_index(); k < columns; k += thread_count()) squares = fmaf(widen(x[k]), widen(x[k]), squares);
    return {x, gain, 1.0f / sqrtf(block_sum(squares) / static_cast<f32>(columns) + eps)};
}

// By a group of lanes: every lane the products of the columns lane, lane + 32, ..., then the tree. So its bits depend on
// the rows of x and of the weight alone.
template <class X, class W>
DEVICE f32 dot(const Normed<X>& x, const W* weight, i64 columns) {
    f32 sum = 0.0f;
    for (i64 k = group_lane(); k < columns; k += GROUP) sum = fmaf(x.at(k), weight_at(weight, k), sum);
    return group_sum(sum);
}
