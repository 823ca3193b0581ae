// What projections share: where their results go, and the way of those that take 16 bytes at a time for operands that
// are not aligned to them, which only odd views are.
#pragma once
#include "words.h"

// By one thread, in ascending order.
template <class X, class W>
DEVICE f32 plain_dot(const X* x, const W* weight, i64 columns) {
    f32 sum = 0.0f;
    for (i64 k = 0; k < columns; ++k) sum = fmaf(widen(x[k]), widen(weight[k]), sum);
    return sum;
}

// body(row, output) for every output of every row.
template <class F>
DEVICE void for_each_output(i64 rows, i64 outputs, F body) {
    const i64 step = element_step() * block_count_y();
    for (i64 i = first_element() + block_index_y() * element_step(); i < rows * outputs; i += step) {
        body(i / outputs, i % outputs);
    }
}

// Where an output of a row goes: to one of up to three results of n0, n1 and n2 columns, with its bias; with a residual
// of its shape and type, where there is one result, which may lie in its place.
template <class Y>
struct Results {
    Y *y0, *y1, *y2;
    i64 n0, n1, n2;
    const f32* bias;
    const Y* residual;
    DEVICE i64 count() const { return n0 + n1 + n2; }
    DEVICE void put(i64 row, i64 output, f32 sum) const {
        const bool first = output < n0, second = output < n0 + n1;
        Y* const to = first ? y0 + row * n0 + output : second ? y1 + row * n1 + (output - n0)
                                                              : y2 + row * n2 + (output - n0 - n1);
        if (bias != nullptr) sum += bias[output];
        if (residual != nullptr) sum += widen(residual[row * n0 + output]);
        narrow(sum, *to);
    }
};

DEVICE f32 gated(f32 gate, f32 up) { return gate / (1.0f + expf(-gate)) * up; }
