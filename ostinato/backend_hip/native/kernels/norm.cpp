// RMS norm, alone and with the residual addition before it, layer norm, vectors of length one, and softmax over rows.
//
// Sums are kept in four vectors that are added in one fixed tree (norm.h). The fused kernel norms the sum as it was
// stored, rounded to its dtype, so that fusing the two changes no bit.
#include "exponential.h"
#include "norm.h"

namespace ost::OST_UNIT {

namespace {

struct Moments {
    float sum;
    float squares;
};
// Sum and sum of squares of value(d, lanes) over a row; lanes not in use must be zero.
template <class F>
OST_INLINE Moments moments(int64_t width, const F& value) {
    vf sums[4] = {zero(), zero(), zero(), zero()};
    vf squares[4] = {zero(), zero(), zero(), zero()};
    const auto take = [&](int i, vf x) __attribute__((always_inline)) {
        sums[i] = sums[i] + x;
        squares[i] = fma(x, x, squares[i]);
    };
    int64_t d = 0;
    for (; d + 4 * VW <= width; d += 4 * VW) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) take(i, value(d + i * VW, VW));
    }
    for (int i = 0; d < width; d += VW, ++i) take(i, value(d, static_cast<int>(smaller(VW, width - d))));
    return {sum((sums[0] + sums[1]) + (sums[2] + sums[3])), sum((squares[0] + squares[1]) + (squares[2] + squares[3]))};
}

void rms_norm(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(3), [&](auto x_type) {
        with_float_dtype(call, call.integer(4), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            if (!covers(call, 0, area(capacity, width), sizeof(X)) || !covers(call, 1, width, sizeof(float)) ||
                !covers(call, 3, area(capacity, width), sizeof(Y))) {
                return;
            }
            const X* x = call.pointer<const X>(0);
            const float* gain = call.pointer<const float>(1);
            Y* y = call.pointer<Y>(3);
            const double cost = 2 * kStreamNanoseconds * static_cast<double>(width);
            for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    const X* from = x + row * width;
                    normalise(from, gain, y + row * width, width, inverse_mean_square(from, width, epsilon));
                }
            });
        });
    });
}

void add_rms_norm(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    const int64_t rows = valid_rows(call, 3, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(3), [&](auto x_type) {
        with_float_dtype(call, call.integer(4), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            const int64_t count = area(capacity, width);
            if (!covers(call, 0, count, sizeof(X)) || !covers(call, 1, count, sizeof(X)) ||
                !covers(call, 2, width, sizeof(float)) || !covers(call, 4, count, sizeof(X)) ||
                !covers(call, 5, count, sizeof(Y))) {
                return;
            }
            const X* left = call.pointer<const X>(0);
            const X* right = call.pointer<const X>(1);
            const float* gain = call.pointer<const float>(2);
            X* added = call.pointer<X>(4);
            Y* y = call.pointer<Y>(5);
            const double cost = 3 * kStreamNanoseconds * static_cast<double>(width);
            for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    const X* a = left + row * width;
                    const X* b = right + row * width;
                    X* s = added + row * width;
                    const float total = squares(width, [a, b, s](int64_t d, int n) {
                        store_lanes(s + d, load_lanes(a + d, n) + load_lanes(b + d, n), n);
                        return load_lanes(s + d, n);
                    });
                    normalise(s, gain, y + row * width, width, inverse_root(total, width, epsilon));
                }
            });
        });
    });
}

// The mean is corrected by the mean of the differences to it, whose squares give the variance: a row far from zero, or
// without any spread, loses nothing to the rounding of its first mean.
template <class X, class Y>
OST_INLINE void layer_norm_row(const X* x, const float* gain, const float* bias, Y* y, int64_t width, float epsilon) {
    const auto size = static_cast<float>(width);
    const float first = moments(width, [x](int64_t d, int n) { return load_lanes(x + d, n); }).sum / size;
    const Moments around = moments(width, [x, first](int64_t d, int n) {
        const vf difference = load_lanes(x + d, n) - splat(first);
        return n == VW ? difference : keep_first(difference, n, zero());
    });
    const float rest = around.sum / size;
    const float variance = around.squares / size - rest * rest;
    const vf inverse = splat(1.0f / __builtin_sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon));
    for_vectors(width, [&](int64_t d, int n) {
        const vf centred = load_lanes(x + d, n) - splat(first) - splat(rest);
        const vf scaled = centred * inverse * load_lanes(gain + d, n);
        store_lanes(y + d, bias == nullptr ? scaled : scaled + load_lanes(bias + d, n), n);
    });
}

void layer_norm(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    const int64_t rows = valid_rows(call, 3, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(3), [&](auto x_type) {
        with_float_dtype(call, call.integer(4), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            const float* bias = call.pointer<const float>(2);
            if (!covers(call, 0, area(capacity, width), sizeof(X)) || !covers(call, 1, width, sizeof(float)) ||
                (bias != nullptr && !covers(call, 2, width, sizeof(float))) ||
                !covers(call, 4, area(capacity, width), sizeof(Y))) {
                return;
            }
            const X* x = call.pointer<const X>(0);
            const float* gain = call.pointer<const float>(1);
            Y* y = call.pointer<Y>(4);
            const double cost = 4 * kStreamNanoseconds * static_cast<double>(width);
            for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    layer_norm_row(x + row * width, gain, bias, y + row * width, width, epsilon);
                }
            });
        });
    });
}

void l2_normalize(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    const int64_t rows = valid_rows(call, 1, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(3), [&](auto type) {
        using T = decltype(type);
        const int64_t count = area(capacity, width);
        if (!covers(call, 0, count, sizeof(T)) || !covers(call, 2, count, sizeof(T))) return;
        const T* x = call.pointer<const T>(0);
        T* y = call.pointer<T>(2);
        const double cost = 2 * kStreamNanoseconds * static_cast<double>(width);
        for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const T* from = x + row * width;
                T* to = y + row * width;
                const float length =
                    __builtin_sqrtf(squares(width, [from](int64_t d, int n) { return load_lanes(from + d, n); }));
                const vf divisor = splat(length < epsilon ? epsilon : length);  // NaN stays
                for_vectors(width,
                            [&](int64_t d, int n) { store_lanes(to + d, load_lanes(from + d, n) / divisor, n); });
            }
        });
    });
}

// The three passes of a softmax row: largest, exponentials and their sum, division. NaN anywhere and +inf give NaN.
template <class X, class Y>
OST_INLINE void softmax_row(const X* x, Y* y, int64_t width) {
    const vf lowest = splat(-kInfinity);
    vf high = lowest;
    for_vectors(width, [&](int64_t d, int n) { high = maximum(keep_first(load_lanes(x + d, n), n, lowest), high); });
    const float top = largest(high);
    const float shift = top == -kInfinity ? 0.0f : top;
    const auto total = static_cast<float>(exponential_sum(x, width, shift));
    const vf divisor = splat(total == 0.0f ? 1.0f : total);  // zero: all -inf, which gives zeros
    for_vectors(width,
                [&](int64_t d, int n) { store_lanes(y + d, exp(load_lanes(x + d, n) - splat(shift)) / divisor, n); });
}

// With `causal`, row i of each square of rows sees its first i + 1 entries, and the others become zero unread.
OST_INLINE void softmax_rows(const Call& call, bool causal) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 1, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(2), [&](auto x_type) {
        with_float_dtype(call, call.integer(3), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            const int64_t count = area(capacity, width);
            if (!covers(call, 0, count, sizeof(X)) || !covers(call, 2, count, sizeof(Y))) return;
            const X* x = call.pointer<const X>(0);
            Y* y = call.pointer<Y>(2);
            const double cost = 2 * kExponentialNanoseconds * static_cast<double>(width);
            for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    const int64_t visible = causal ? row % width + 1 : width;
                    Y* to = y + row * width;
                    softmax_row(x + row * width, to, visible);
                    for (int64_t i = visible; i < width; ++i) narrow(0.0f, to[i]);
                }
            });
        });
    });
}

void softmax(const Call& call) { softmax_rows(call, false); }
void causal_softmax(const Call& call) { softmax_rows(call, true); }

constexpr KernelEntry entries[] = {
    {"rms_norm", rms_norm, 4, 5, 1u << 2},
    {"add_rms_norm", add_rms_norm, 6, 5, 1u << 3},
    {"layer_norm", layer_norm, 5, 5, (1u << 2) | (1u << 3)},
    {"l2_normalize", l2_normalize, 3, 4, 1u << 1},
    {"softmax", softmax, 3, 4, 1u << 1},
    {"causal_softmax", causal_softmax, 3, 4, 1u << 1},
};

}  // namespace

KernelTable norm_kernels();
KernelTable norm_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
