// Gradients of the operators on elements, and what else a training step does with elements: casts of columns, dropout,
// and sums of gradients in place.
#include "random.h"
#include "runs.h"

DEVICE f32 sigmoid_of(f32 x) { return 1.0f / (1.0f + expf(-x)); }

// Of x s(x): s (1 + x (1 - s)), where 1 - s is the sigmoid of -x, so that it keeps its digits.
DEVICE f32 silu_slope(f32 x) { return sigmoid_of(x) * fmaf(x, sigmoid_of(-x), 1.0f); }

// Past 15 the slopes of both forms of gelu are 0 and 1 in f32. NaN stays.
DEVICE f32 within_tails(f32 x) { return x > 15.0f ? 15.0f : x < -15.0f ? -15.0f : x; }

// P(x) + x p(x), with the normal distribution and its density.
DEVICE f32 gelu_slope(f32 at) {
    const f32 x = within_tails(at);
    return fmaf(x, 0.39894228f * expf(-0.5f * x * x), 0.5f * erfcf(x * -0.70710678f));
}

// Of x s(u) with u = 2 sqrt(2 / pi) (x + 0.044715 x^3): s + x u' s (1 - s).
DEVICE f32 gelu_tanh_slope(f32 at) {
    const f32 x = within_tails(at), square = x * x;
    const f32 u = x * fmaf(square, 0.044715f, 1.0f) * 1.59576912f;
    const f32 steep = fmaf(square, 0.134145f, 1.0f) * 1.59576912f;
    const f32 s = sigmoid_of(u);
    return fmaf(x * steep, s * sigmoid_of(-u), s);
}

// y = gradient * slope(x).
template <class X, class Y, class F>
DEVICE void by_slope(const f32* gradient, const X* x, Y* y, i64 size, F slope) {
    for_runs(size, aligned(gradient) && aligned(x) && aligned(y), [=](i64 i, auto n) {
        f32 values[n.value], gradients[n.value];
        take(x + i, values);
        take(gradient + i, gradients);
#pragma unroll
        for (int k = 0; k < n.value; ++k) values[k] = gradients[k] * slope(values[k]);
        give(y + i, values);
    });
}

template <class X, class Y>
DEVICE void silu_backward(const f32* gradient, const X* x, Y* y, i64 size, Status) {
    by_slope(gradient, x, y, size, [](f32 value) { return silu_slope(value); });
}

template <class X, class Y>
DEVICE void gelu_backward(const f32* gradient, const X* x, Y* y, i64 size, Status) {
    by_slope(gradient, x, y, size, [](f32 value) { return gelu_slope(value); });
}

template <class X, class Y>
DEVICE void gelu_tanh_backward(const f32* gradient, const X* x, Y* y, i64 size, Status) {
    by_slope(gradient, x, y, size, [](f32 value) { return gelu_tanh_slope(value); });
}

// By the result of the forward operator.
template <class X, class Y>
DEVICE void tanh_backward(const f32* gradient, const X* x, Y* y, i64 size, Status) {
    by_slope(gradient, x, y, size, [](f32 value) { return (1.0f - value) * (1.0f + value); });
}

// Rows of gate and up lie so many elements apart: they may be columns of one joint product. So do those of the results.
template <class X, class Y>
DEVICE void swiglu_gradients(const f32* gradient, const X* gate, const X* up, Y* by_gate, Y* by_up, i64 rows, i64 width,
                             i64 gate_stride, i64 up_stride, i64 stride) {
    const bool one = gate_stride == width && up_stride == width && stride == width;  // all rows are one
    const bool whole = aligned(gradient) && aligned(gate) && aligned(up) && aligned(by_gate) && aligned(by_up) &&
                       (one || (width | gate_stride | up_stride | stride) % RUN == 0);
    for_row_runs(one ? 1 : rows, one ? rows * width : width, whole, [=](i64 row, i64 i, auto n) {
        f32 gates[n.value], ups[n.value], gradients[n.value];
        take(gate + row * gate_stride + i, gates);
        take(up + row * up_stride + i, ups);
        take(gradient + row * width + i, gradients);
#pragma unroll
        for (int k = 0; k < n.value; ++k) {
            const f32 s = sigmoid_of(gates[k]), slope = s * fmaf(gates[k], sigmoid_of(-gates[k]), 1.0f);
            ups[k] = gradients[k] * ups[k] * slope;
            gates[k] = gradients[k] * (gates[k] * s);
        }
        give(by_gate + row * stride + i, ups);
        give(by_up + row * stride + i, gates);
    });
}

template <class X, class Y>
DEVICE void swiglu_backward(const f32* gradient, const X* gate, const X* up, Y* by_gate, Y* by_up, i64 rows, i64 width,
                            i64 gate_stride, i64 up_stride, Status) {
    swiglu_gradients(gradient, gate, up, by_gate, by_up, rows, width, gate_stride, up_stride, width);
}

// Both side by side.
template <class X, class Y>
DEVICE void swiglu_joint_backward(const f32* gradient, const X* gate, const X* up, Y* y, i64 rows, i64 width,
                                  i64 gate_stride, i64 up_stride, Status) {
    swiglu_gradients(gradient, gate, up, y, y + width, rows, width, gate_stride, up_stride, 2 * width);
}

// Rows of x, `step` elements apart, in another type: heads that are columns of a joint product.
template <class X, class Y>
DEVICE void cast_columns(const X* x, Y* y, i64 rows, i64 width, i64 step, Status) {
    const bool whole = aligned(x) && aligned(y) && (width | step) % RUN == 0;
    for_row_runs(rows, width, whole, [=](i64 row, i64 i, auto n) {
        f32 values[n.value];
        take(x + row * step + i, values);
        give(y + row * width + i, values);
    });
}

// What x adds to a, in the bytes of a.
DEVICE void accumulate(f32* a, const f32* x, i64 size, Status) {
    for_runs(size, aligned(a) && aligned(x), [=](i64 i, auto n) {
        f32 sums[n.value], values[n.value];
        take(a + i, sums);
        take(x + i, values);
#pragma unroll
        for (int k = 0; k < n.value; ++k) sums[k] += values[k];
        give(a + i, sums);
    });
}

// An element stays where its word of random numbers is at least `threshold`, and is multiplied by `factor`. Words follow
// from the seed, the step, the stream and the element's place, four places a counter.
template <class X>
DEVICE void dropout(const X* x, const i64* seed, const i32* step, X* y, i64 size, i64 threshold, i64 stream, f64 factor,
                    Status) {
    const u64 key = static_cast<u64>(*seed);
    const u32 second = static_cast<u32>(*step), third = static_cast<u32>(stream);
    const f32 by = static_cast<f32>(factor);
    for_runs(size, aligned(x) && aligned(y), [=](i64 i, auto n) {
        const RandomWords words = philox(key, static_cast<u64>(i / RUN), second, third);
        f32 values[n.value];
        take(x + i, values);
#pragma unroll
        for (int k = 0; k < n.value; ++k) {
            const u32 word = words.at(static_cast<int>((i + k) % RUN));
            values[k] = word >= threshold ? values[k] * by : 0.0f;
        }
        give(y + i, values);
    });
}
