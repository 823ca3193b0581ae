// Gradients of activations, sums of gradients, and dropout: kernels that treat every element alone. A result may be
// stored over an operand of its dtype: each vector is read before it is written.
#include "gelu.h"
#include "philox.h"
#include "work.h"

namespace ost::OST_UNIT {

KernelTable elementwise_backward_kernels();

namespace {

// Operands gradient (float32), x, x_gradient. Params: count, dtypes of x and of x_gradient. f(gradient, x) is the
// result.
template <class F>
OST_INLINE void slope_kernel(const Call& call, double nanoseconds, const F& f) {
    const int64_t count = call.integer(0);
    if (empty(call, count)) return;
    with_float_dtype(call, call.integer(1), [&](auto x_type) {
        with_float_dtype(call, call.integer(2), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) ||
                !covers(call, 2, count, sizeof(Y))) {
                return;
            }
            const float* gradient = call.pointer<const float>(0);
            const X* x = call.pointer<const X>(1);
            Y* y = call.pointer<Y>(2);
            for_elements(call, count, nanoseconds, [=](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; i += VW) {
                    const int n = static_cast<int>(smaller(VW, end - i));
                    store_lanes(y + i, f(load_lanes(gradient + i, n), load_lanes(x + i, n)), n);
                }
            });
        });
    });
}

// s (1 + x (1 - s)). Past 104 on either side nothing changes, and infinity times zero is left out.
OST_INLINE vf silu_slope(vf x, const SigmoidPair& s) {
    const vf near = minimum(splat(104.0f), maximum(splat(-104.0f), x));
    return s.is * fma(near, s.rest, splat(1.0f));
}

void silu_backward(const Call& call) {
    slope_kernel(call, kExponentialNanoseconds, [](vf g, vf x) { return g * silu_slope(x, sigmoid_pair(x)); });
}

// Param 3: 0 for the exact form, 1 for the approximation by tanh.
void gelu_backward(const Call& call) {
    switch (call.integer(3)) {
        case 0: return slope_kernel(call, 2 * kExponentialNanoseconds, [](vf g, vf x) { return g * gelu_slope(x); });
        case 1:
            return slope_kernel(call, 2 * kExponentialNanoseconds, [](vf g, vf x) { return g * gelu_tanh_slope(x); });
        default: return report(call, OST_INVALID_ARGUMENT);
    }
}

void tanh_backward(const Call& call) {
    slope_kernel(call, 2 * kStreamNanoseconds, [](vf g, vf y) { return g * ((splat(1.0f) - y) * (splat(1.0f) + y)); });
}

template <class X, class Y>
OST_INLINE void swiglu_run(const float* gradient, const X* gate, const X* up, Y* by_gate, Y* by_up, int64_t begin,
                           int64_t end) {
    for (int64_t i = begin; i < end; i += VW) {
        const int n = static_cast<int>(smaller(VW, end - i));
        const vf g = load_lanes(gradient + i, n), x = load_lanes(gate + i, n), u = load_lanes(up + i, n);
        const SigmoidPair s = sigmoid_pair(x);
        store_lanes(by_gate + i, g * u * silu_slope(x, s), n);
        store_lanes(by_up + i, g * (x * s.is), n);
    }
}

// Operands gradient, gate, up, gate_gradient, up_gradient. Params: rows, runs in each, their width, elements from one
// run of gate, and of up, to the next, dtypes of gate and of its gradient.
void swiglu_backward(const Call& call) {
    const int64_t rows = call.integer(0), runs = call.integer(1), width = call.integer(2);
    const int64_t gate_stride = call.integer(3), up_stride = call.integer(4);
    if (empty(call, rows, runs, width)) return;
    with_float_dtype(call, call.integer(5), [&](auto x_type) {
        with_float_dtype(call, call.integer(6), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            const int64_t count = area(rows, runs), elements = area(count, width);
            if (!covers(call, 0, elements, 4) ||
                !covers(call, 1, plus(area(count - 1, gate_stride), width), sizeof(X)) ||
                !covers(call, 2, plus(area(count - 1, up_stride), width), sizeof(X)) ||
                !covers(call, 3, elements, sizeof(Y)) || !covers(call, 4, elements, sizeof(Y))) {
                return;
            }
            const float* gradient = call.pointer<const float>(0);
            const X* gate = call.pointer<const X>(1);
            const X* up = call.pointer<const X>(2);
            Y* by_gate = call.pointer<Y>(3);
            Y* by_up = call.pointer<Y>(4);
            constexpr double cost = 1.5 * kExponentialNanoseconds;
            if (gate_stride == width && up_stride == width) {
                return for_elements(call, elements, cost, [=](int64_t begin, int64_t end) {
                    swiglu_run(gradient, gate, up, by_gate, by_up, begin, end);
                });
            }
            for_rows(call, count, cost * static_cast<double>(width), [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    swiglu_run(gradient + row * width, gate + row * gate_stride, up + row * up_stride,
                               by_gate + row * width, by_up + row * width, 0, width);
                }
            });
        });
    });
}

// Operands x, y: y += x. Params: count, dtype of x.
void accumulate(const Call& call) {
    const int64_t count = call.integer(0);
    if (empty(call, count)) return;
    with_float_dtype(call, call.integer(1), [&](auto type) {
        using X = decltype(type);
        if (!covers(call, 0, count, sizeof(X)) || !covers(call, 1, count, 4)) return;
        const X* x = call.pointer<const X>(0);
        float* y = call.pointer<float>(1);
        for_elements(call, count, kStreamNanoseconds, [=](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i += VW) {
                const int n = static_cast<int>(smaller(VW, end - i));
                store_lanes(y + i, load_lanes(y + i, n) + load_lanes(x + i, n), n);
            }
        });
    });
}

constexpr double kDropoutNanoseconds = 12.0 / VW;

// Operands x, seed (int64), step (int32), y. Params: count, dtype, the least word that keeps an element, the stream,
// and what a kept element is multiplied by.
void dropout(const Call& call) {
    const int64_t count = call.integer(0), least = call.integer(2), stream = call.integer(3);
    const auto factor = static_cast<float>(call.real(4));
    if (empty(call, count)) return;
    if (least < 0 || least > UINT32_MAX) return report(call, OST_INVALID_ARGUMENT);
    with_float_dtype(call, call.integer(1), [&](auto type) {
        using T = decltype(type);
        if (!covers(call, 0, count, sizeof(T)) || !covers(call, 1, 1, 8) || !covers(call, 2, 1, 4) ||
            !covers(call, 3, count, sizeof(T))) {
            return;
        }
        const T* x = call.pointer<const T>(0);
        const auto seed = static_cast<uint64_t>(*call.pointer<const int64_t>(1));
        const auto step = static_cast<uint32_t>(*call.pointer<const int32_t>(2));
        T* y = call.pointer<T>(3);
        const auto low = static_cast<uint32_t>(least);
        for_elements(call, count, kDropoutNanoseconds, [=](int64_t begin, int64_t end) {
            const vf scale = splat(factor);
            for (int64_t i = begin; i < end; i += 4 * VW) {
                vu words[4];
                philox(static_cast<uint64_t>(i) / 4, step, static_cast<uint32_t>(stream), seed, words);
                for (int v = 0; v < 4; ++v) {
                    const int64_t at = i + v * VW;
                    if (at >= end) break;
                    const int n = static_cast<int>(smaller(VW, end - at));
                    const vf value = load_lanes(x + at, n) * scale;
                    store_lanes(y + at, select((vi)(words[v] >= low), value, zero()), n);
                }
            }
        });
    });
}

constexpr KernelEntry entries[] = {
    {"silu_backward", silu_backward, 3, 3, 0}, {"gelu_backward", gelu_backward, 3, 4, 0},
    {"tanh_backward", tanh_backward, 3, 3, 0}, {"swiglu_backward", swiglu_backward, 5, 7, 0},
    {"accumulate", accumulate, 2, 2, 0},       {"dropout", dropout, 4, 5, 0},
};

}  // namespace

KernelTable elementwise_backward_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
