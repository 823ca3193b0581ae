// Gradients of the normalisations and of softmax: of rows, and of gains and biases, which are sums over rows.
//
// A row's sums are taken as its normalisation takes them (norm.h), so that the factor that the backward pass works with
// has the bits of the forward one. Every element of a result is written after what lies in its place was read for the
// last time: a result may be stored over the gradient, over x, and over the addend.
#include "columns.h"
#include "norm.h"

namespace ost::OST_UNIT {

KernelTable norm_backward_kernels();

namespace {

// take(accumulator, first column, lanes) for each vector of a row, accumulators in turn.
template <class F>
OST_INLINE void walk(int64_t width, const F& take) {
    int64_t d = 0;
    for (; d + 4 * VW <= width; d += 4 * VW) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) take(i, d + i * VW, VW);
    }
    for (int i = 0; d < width; d += VW, ++i) take(i, d, static_cast<int>(smaller(VW, width - d)));
}
OST_INLINE float total(const vf (&sums)[4]) { return sum((sums[0] + sums[1]) + (sums[2] + sums[3])); }

// Calls f(X{}, Y{}) for the dtypes of x and of its gradient.
template <class F>
OST_INLINE void with_dtypes(const Call& call, int64_t x_dtype, int64_t y_dtype, const F& f) {
    with_float_dtype(call, x_dtype, [&](auto x) { with_float_dtype(call, y_dtype, [&](auto y) { f(x, y); }); });
}

// dx = r (h - x r^2 mean(h x)) + addend, h = gradient * gain.
template <class X, class Y>
OST_INLINE float rms_row(const float* gradient, const X* x, const float* gain, const float* addend, Y* y, int64_t width,
                         float epsilon) {
    vf squares[4] = {zero(), zero(), zero(), zero()};
    vf dots[4] = {zero(), zero(), zero(), zero()};
    walk(width, [&](int i, int64_t d, int n) __attribute__((always_inline)) {
        const vf value = load_lanes(x + d, n);
        squares[i] = fma(value, value, squares[i]);
        dots[i] = fma(load_lanes(gradient + d, n) * load_lanes(gain + d, n), value, dots[i]);
    });
    const float inverse = inverse_root(total(squares), width, epsilon);
    const vf r = splat(inverse), back = splat(inverse * (inverse * (total(dots) / static_cast<float>(width))));
    for_vectors(width, [&](int64_t d, int n) {
        const vf scaled = load_lanes(gradient + d, n) * load_lanes(gain + d, n);
        const vf slope = fma(-load_lanes(x + d, n), back, scaled);
        store_lanes(y + d, addend == nullptr ? slope * r : fma(slope, r, load_lanes(addend + d, n)), n);
    });
    return inverse;
}

// A row of float32 once more, in a dtype of 16 bits.
template <class Z>
OST_INLINE void round_row(const float* y, Z* rounded, int64_t width) {
    for_vectors(width, [&](int64_t d, int n) { store_lanes(rounded + d, load_lanes(y + d, n), n); });
}

// Operands gradient, x, gain, addend?, x_gradient, inverse_rms, rounded?. Params: rows, width, epsilon, dtypes of x,
// x_gradient and rounded, which is x_gradient once more and there only where that is float32.
void rms_norm_backward(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    if (empty(call, rows, width)) return;
    with_dtypes(call, call.integer(3), call.integer(4), [&](auto x_type, auto y_type) {
        using X = decltype(x_type);
        using Y = decltype(y_type);
        const int64_t count = area(rows, width);
        const float* addend = call.pointer<const float>(3);
        if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) || !covers(call, 2, width, 4) ||
            (addend != nullptr && !covers(call, 3, count, 4)) || !covers(call, 4, count, sizeof(Y)) ||
            !covers(call, 5, rows, 4) || (call.pointer<bf16>(6) != nullptr && !covers(call, 6, count, 2))) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const X* x = call.pointer<const X>(1);
        const float* gain = call.pointer<const float>(2);
        Y* y = call.pointer<Y>(4);
        float* inverse = call.pointer<float>(5);
        bf16* narrow = call.integer(5) == OST_BF16 ? call.pointer<bf16>(6) : nullptr;
        f16* half = call.integer(5) == OST_F16 ? call.pointer<f16>(6) : nullptr;
        for_rows(call, rows, 4 * kStreamNanoseconds * static_cast<double>(width), [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t at = row * width;
                inverse[row] = rms_row(gradient + at, x + at, gain, addend == nullptr ? nullptr : addend + at, y + at,
                                       width, epsilon);
                if constexpr (sizeof(Y) == sizeof(float)) {
                    if (narrow != nullptr) round_row(y + at, narrow + at, width);
                    if (half != nullptr) round_row(y + at, half + at, width);
                }
            }
        });
    });
}

struct Spread {
    float mean;
    float inverse;
};

// dx = r (h - mean(h) - c r^2 mean(h c)) + addend, h = gradient * gain, c = x - mean(x).
template <class X, class Y>
OST_INLINE Spread layer_row(const float* gradient, const X* x, const float* gain, const float* addend, Y* y,
                            int64_t width, float epsilon) {
    const auto size = static_cast<float>(width);
    double sums[8] = {};  // the mean is a result: in double, in one fixed tree
    for (int64_t d = 0; d < width; ++d) sums[d % 8] += static_cast<double>(widen(x[d]));
    const double mean_of_x =
        (((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))) /
        static_cast<double>(width);
    const auto first = static_cast<float>(mean_of_x);
    const auto rest = static_cast<float>(mean_of_x - static_cast<double>(first));
    vf squares[4] = {zero(), zero(), zero(), zero()};
    walk(width, [&](int i, int64_t d, int n) __attribute__((always_inline)) {
        const vf difference = load_lanes(x + d, n) - splat(first);
        const vf used = n == VW ? difference : keep_first(difference, n, zero());
        squares[i] = fma(used, used, squares[i]);
    });
    const float variance = total(squares) / size - rest * rest;
    const float inverse = 1.0f / __builtin_sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon);
    vf scaled_sums[4] = {zero(), zero(), zero(), zero()};
    vf dots[4] = {zero(), zero(), zero(), zero()};
    walk(width, [&](int i, int64_t d, int n) __attribute__((always_inline)) {
        const vf scaled = load_lanes(gradient + d, n) * load_lanes(gain + d, n);  // zero in lanes not in use
        scaled_sums[i] = scaled_sums[i] + scaled;
        dots[i] = fma(scaled, load_lanes(x + d, n) - splat(first) - splat(rest), dots[i]);
    });
    const vf mean = splat(total(scaled_sums) / size), r = splat(inverse);
    const vf back = splat(inverse * (inverse * (total(dots) / size)));
    for_vectors(width, [&](int64_t d, int n) {
        const vf scaled = load_lanes(gradient + d, n) * load_lanes(gain + d, n);
        const vf centred = load_lanes(x + d, n) - splat(first) - splat(rest);
        const vf slope = fma(-centred, back, scaled - mean);
        store_lanes(y + d, addend == nullptr ? slope * r : fma(slope, r, load_lanes(addend + d, n)), n);
    });
    return {first + rest, inverse};
}

// Operands gradient, x, gain, addend?, x_gradient, mean, inverse_deviation; params as of rms_norm_backward.
void layer_norm_backward(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    if (empty(call, rows, width)) return;
    with_dtypes(call, call.integer(3), call.integer(4), [&](auto x_type, auto y_type) {
        using X = decltype(x_type);
        using Y = decltype(y_type);
        const int64_t count = area(rows, width);
        const float* addend = call.pointer<const float>(3);
        if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) || !covers(call, 2, width, 4) ||
            (addend != nullptr && !covers(call, 3, count, 4)) || !covers(call, 4, count, sizeof(Y)) ||
            !covers(call, 5, rows, 4) || !covers(call, 6, rows, 4)) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const X* x = call.pointer<const X>(1);
        const float* gain = call.pointer<const float>(2);
        Y* y = call.pointer<Y>(4);
        float* mean = call.pointer<float>(5);
        float* inverse = call.pointer<float>(6);
        for_rows(call, rows, 7 * kStreamNanoseconds * static_cast<double>(width), [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t at = row * width;
                const Spread spread = layer_row(gradient + at, x + at, gain, addend == nullptr ? nullptr : addend + at,
                                                y + at, width, epsilon);
                mean[row] = spread.mean;
                inverse[row] = spread.inverse;
            }
        });
    });
}

// Operands gradient, x, inverse_rms, gain_gradient. Params: rows, width, dtype of x.
void rms_norm_gain_gradient(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (width == 0 || (rows != 0 && empty(call, rows, width))) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using X = decltype(type);
        const int64_t count = area(rows, width);
        if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) || !covers(call, 2, rows, 4) ||
            !covers(call, 3, width, 4)) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const X* x = call.pointer<const X>(1);
        const float* inverse = call.pointer<const float>(2);
        const auto term = [=](int64_t row, int64_t column, int n) __attribute__((always_inline)) {
            const int64_t at = row * width + column;
            return load_lanes(gradient + at, n) * (load_lanes(x + at, n) * splat(inverse[row]));
        };
        sum_columns(call, rows, width, call.pointer<float>(3), 2 * kStreamNanoseconds, term);
    });
}

// Operands gradient, x, mean, inverse_deviation, gain_gradient; params as of rms_norm_gain_gradient.
void layer_norm_gain_gradient(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (width == 0 || (rows != 0 && empty(call, rows, width))) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using X = decltype(type);
        const int64_t count = area(rows, width);
        if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) || !covers(call, 2, rows, 4) ||
            !covers(call, 3, rows, 4) || !covers(call, 4, width, 4)) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const X* x = call.pointer<const X>(1);
        const float* mean = call.pointer<const float>(2);
        const float* inverse = call.pointer<const float>(3);
        const auto term = [=](int64_t row, int64_t column, int n) __attribute__((always_inline)) {
            const int64_t at = row * width + column;
            return load_lanes(gradient + at, n) * ((load_lanes(x + at, n) - splat(mean[row])) * splat(inverse[row]));
        };
        sum_columns(call, rows, width, call.pointer<float>(4), 2 * kStreamNanoseconds, term);
    });
}

// Operands gradient, y. Params: rows, width.
void bias_gradient(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (width == 0 || (rows != 0 && empty(call, rows, width))) return;
    if (!covers(call, 0, area(rows, width), 4) || !covers(call, 1, width, 4)) return;
    const float* gradient = call.pointer<const float>(0);
    sum_columns(call, rows, width, call.pointer<float>(1), kStreamNanoseconds,
                [=](int64_t row, int64_t column, int n)
                    __attribute__((always_inline)) { return load_lanes(gradient + row * width + column, n); });
}

// Operands gradient, x, x_gradient. Params: rows, width, epsilon, dtypes of x and x_gradient. Of a row that is longer
// than epsilon, what lies along it is taken away; a shorter one was only multiplied.
void l2_normalize_backward(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    const auto epsilon = static_cast<float>(call.real(2));
    if (empty(call, rows, width)) return;
    with_dtypes(call, call.integer(3), call.integer(4), [&](auto x_type, auto y_type) {
        using X = decltype(x_type);
        using Y = decltype(y_type);
        const int64_t count = area(rows, width);
        if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) || !covers(call, 2, count, sizeof(Y))) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const X* x = call.pointer<const X>(1);
        Y* y = call.pointer<Y>(2);
        for_rows(call, rows, 4 * kStreamNanoseconds * static_cast<double>(width), [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const float* g = gradient + row * width;
                const X* from = x + row * width;
                Y* to = y + row * width;
                vf squares[4] = {zero(), zero(), zero(), zero()};
                vf dots[4] = {zero(), zero(), zero(), zero()};
                walk(width, [&](int i, int64_t d, int n) __attribute__((always_inline)) {
                    const vf value = load_lanes(from + d, n);
                    squares[i] = fma(value, value, squares[i]);
                    dots[i] = fma(load_lanes(g + d, n), value, dots[i]);
                });
                const float length = __builtin_sqrtf(total(squares));
                const bool shorter = length < epsilon;
                const vf divisor = splat(shorter ? epsilon : length);
                const vf along = splat(shorter ? 0.0f : total(dots) / length / length);
                for_vectors(width, [&](int64_t d, int n) {
                    store_lanes(to + d, fma(-load_lanes(from + d, n), along, load_lanes(g + d, n)) / divisor, n);
                });
            }
        });
    });
}

// Operands gradient, y, x_gradient. Params: rows, width, dtype of y, dtype of x_gradient. With `causal`, row i of each
// square of rows has i + 1 entries, and the others become zero.
OST_INLINE void softmax_rows(const Call& call, bool causal) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (empty(call, rows, width)) return;
    with_dtypes(call, call.integer(2), call.integer(3), [&](auto x_type, auto y_type) {
        using X = decltype(x_type);
        using Y = decltype(y_type);
        const int64_t count = area(rows, width);
        if (!covers(call, 0, count, 4) || !covers(call, 1, count, sizeof(X)) || !covers(call, 2, count, sizeof(Y))) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const X* y = call.pointer<const X>(1);
        Y* result = call.pointer<Y>(2);
        for_rows(call, rows, 4 * kStreamNanoseconds * static_cast<double>(width), [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t visible = causal ? row % width + 1 : width;
                const float* g = gradient + row * width;
                const X* p = y + row * width;
                Y* to = result + row * width;
                vf dots[4] = {zero(), zero(), zero(), zero()};
                walk(visible, [&](int i, int64_t d, int n) __attribute__((always_inline)) {
                    dots[i] = fma(load_lanes(g + d, n), load_lanes(p + d, n), dots[i]);
                });
                const vf mean = splat(total(dots));
                for_vectors(visible, [&](int64_t d, int n) {
                    store_lanes(to + d, load_lanes(p + d, n) * (load_lanes(g + d, n) - mean), n);
                });
                for (int64_t i = visible; i < width; ++i) narrow(0.0f, to[i]);
            }
        });
    });
}

void softmax_backward(const Call& call) { softmax_rows(call, false); }
void causal_softmax_backward(const Call& call) { softmax_rows(call, true); }

constexpr KernelEntry entries[] = {
    {"rms_norm_backward", rms_norm_backward, 7, 6, 1u << 3 | 1u << 6},
    {"rms_norm_gain_gradient", rms_norm_gain_gradient, 4, 3, 0},
    {"layer_norm_backward", layer_norm_backward, 7, 5, 1u << 3},
    {"layer_norm_gain_gradient", layer_norm_gain_gradient, 5, 3, 0},
    {"bias_gradient", bias_gradient, 2, 2, 0},
    {"l2_normalize_backward", l2_normalize_backward, 3, 5, 0},
    {"softmax_backward", softmax_backward, 3, 4, 0},
    {"causal_softmax_backward", causal_softmax_backward, 3, 4, 0},
};

}  // namespace

KernelTable norm_backward_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
