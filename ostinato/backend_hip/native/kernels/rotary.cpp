// Rotary embedding: the cosine and sine tables of a batch of positions, and the rotation in both pairings of elements.
#include <math.h>

#include "rotary.h"

namespace ost::OST_UNIT {

namespace {

// Rows of cosines and sines. The angle is the float32 product that models were trained with; cosine and sine are taken in
// double and rounded once. frequency(row) is a callable that gives the inverse frequency of each of `half` pairs.
template <class F>
OST_INLINE void make_tables(const Call& call, int64_t rows, int64_t half, float scale, float* cosines, float* sines,
                            double nanoseconds, const F& frequency) {
    const auto* position = call.pointer<const int32_t>(0);
    for_rows(call, rows, nanoseconds * static_cast<double>(half), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const auto at = static_cast<float>(position[row]);
            const auto inverse = frequency(row);
            for (int64_t i = 0; i < half; ++i) {
                const double angle = at * inverse(i);
                cosines[row * half + i] = static_cast<float>(::cos(angle)) * scale;
                sines[row * half + i] = static_cast<float>(::sin(angle)) * scale;
            }
        }
    });
}

constexpr double kTurnNanoseconds = 40.0;  // a cosine and a sine in double

void rotary_table(const Call& call) {
    const int64_t capacity = call.integer(0), half = call.integer(1);
    const auto scale = static_cast<float>(call.real(2));
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, half)) return;
    if (!covers(call, 0, capacity, 4) || !covers(call, 1, half, 4) || !covers(call, 3, area(capacity, half), 4) ||
        !covers(call, 4, area(capacity, half), 4)) {
        return;
    }
    const float* inverse = call.pointer<const float>(1);
    make_tables(call, rows, half, scale, call.pointer<float>(3), call.pointer<float>(4), kTurnNanoseconds,
                [=](int64_t) { return [=](int64_t i) { return inverse[i]; }; });
}

// The base grows with the length of the token's row past the positions that the model was trained with.
void rotary_table_dynamic(const Call& call) {
    const int64_t capacity = call.integer(0), half = call.integer(1), original = call.integer(4);
    const double theta = call.real(2), factor = call.real(3);
    const auto scale = static_cast<float>(call.real(5));
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, half)) return;
    if (half < 2 || original < 1) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, capacity, 4) || !covers(call, 1, capacity, 4) || !covers(call, 3, area(capacity, half), 4) ||
        !covers(call, 4, area(capacity, half), 4)) {
        return;
    }
    const auto* length = call.pointer<const int32_t>(1);
    const auto width = static_cast<double>(2 * half);
    make_tables(call, rows, half, scale, call.pointer<float>(3), call.pointer<float>(4), 2 * kTurnNanoseconds,
                [=](int64_t row) {
                    const auto longest = static_cast<double>(larger(length[row], original));
                    const double growth = factor * longest / static_cast<double>(original) - (factor - 1);
                    const double base = theta * ::pow(growth, width / (width - 2));
                    return [=](int64_t i) {
                        return static_cast<float>(::pow(base, static_cast<double>(-2 * i) / width));
                    };
                });
}

// One set of frequencies up to the positions that the model was trained with, another past them.
void rotary_table_longrope(const Call& call) {
    const int64_t capacity = call.integer(0), half = call.integer(1), original = call.integer(2);
    const auto scale = static_cast<float>(call.real(3));
    const int64_t rows = valid_rows(call, 4, capacity);
    if (empty(call, rows, half)) return;
    if (!covers(call, 0, capacity, 4) || !covers(call, 1, capacity, 4) || !covers(call, 2, half, 4) ||
        !covers(call, 3, half, 4) || !covers(call, 5, area(capacity, half), 4) ||
        !covers(call, 6, area(capacity, half), 4)) {
        return;
    }
    const auto* length = call.pointer<const int32_t>(1);
    const float* short_inverse = call.pointer<const float>(2);
    const float* long_inverse = call.pointer<const float>(3);
    make_tables(call, rows, half, scale, call.pointer<float>(5), call.pointer<float>(6), kTurnNanoseconds,
                [=](int64_t row) {
                    const float* inverse = length[row] > original ? long_inverse : short_inverse;
                    return [=](int64_t i) { return inverse[i]; };
                });
}

// Pairs (2i, 2i + 1) of up to VW pairs; lanes past n are zero.
template <class T>
OST_INLINE void rotate_neighbours(const T* x, vf cosine, vf sine, T* y, int n) {
    alignas(64) float first[VW] = {}, second[VW] = {};
    for (int i = 0; i < n; ++i) {
        first[i] = widen(x[2 * i]);
        second[i] = widen(x[2 * i + 1]);
    }
    vf a = load(first), b = load(second);
    turn(a, b, cosine, sine);
    store(first, a);
    store(second, b);
    for (int i = 0; i < n; ++i) {
        narrow(first[i], y[2 * i]);
        narrow(second[i], y[2 * i + 1]);
    }
}

// One head with pairs (2i, 2i + 1); y may be x.
template <class T>
OST_INLINE void rotate_interleaved(const T* x, const float* cosine, const float* sine, T* y, int64_t half) {
    int64_t i = 0;
    for (; i + VW <= half; i += VW) rotate_neighbours(x + 2 * i, load(cosine + i), load(sine + i), y + 2 * i, VW);
    if (i < half) {
        const int n = static_cast<int>(half - i);
        rotate_neighbours(x + 2 * i, load_n(cosine + i, n), load_n(sine + i, n), y + 2 * i, n);
    }
}

// Elements from 2 * half on pass. Params: rows, heads, width, half, dtype, strides of y (row, head), tokens of a batch,
// stride of a batch of y, elements from one row of x to the next.
template <class Rotate>
OST_INLINE void rope(const Call& call, const Rotate& rotate) {
    const int64_t capacity = call.integer(0), heads = call.integer(1), width = call.integer(2), half = call.integer(3);
    const int64_t dtype = call.integer(4), row_stride = call.integer(5), head_stride = call.integer(6);
    const int64_t tokens = call.integer(7), batch_stride = call.integer(8), step = call.integer(9);
    const int64_t rows = valid_rows(call, 3, capacity);
    if (empty(call, rows, heads, width)) return;
    if (half < 0 || half > width / 2 || tokens <= 0 || row_stride < 0 || head_stride < 0 || batch_stride < 0 ||
        step < 0) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const int64_t batches = area((capacity - 1) / tokens, batch_stride);
    const int64_t sequence = area(smaller(capacity, tokens) - 1, row_stride);
    const int64_t extent = plus(plus(batches, sequence), plus(area(heads - 1, head_stride), width));
    with_float_dtype(call, dtype, [&](auto type) {
        using T = decltype(type);
        if (!covers(call, 0, plus(area(capacity - 1, step), area(heads, width)), sizeof(T)) ||
            !covers(call, 1, area(capacity, half), 4) || !covers(call, 2, area(capacity, half), 4) ||
            !covers(call, 4, extent, sizeof(T))) {
            return;
        }
        const T* x = call.pointer<const T>(0);
        const float* cosine = call.pointer<const float>(1);
        const float* sine = call.pointer<const float>(2);
        T* y = call.pointer<T>(4);
        const auto passing = static_cast<size_t>(width - 2 * half) * sizeof(T);
        const double cost = 2 * kStreamNanoseconds * static_cast<double>(heads * width);
        for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                T* to = y + row / tokens * batch_stride + row % tokens * row_stride;
                for (int64_t h = 0; h < heads; ++h) {
                    const T* from = x + row * step + h * width;
                    T* head = to + h * head_stride;
                    rotate(from, cosine + row * half, sine + row * half, head, half);
                    if (passing > 0 && head != from) std::memcpy(head + 2 * half, from + 2 * half, passing);
                }
            }
        });
    });
}

void rope_split_half(const Call& call) {
    rope(call, [](const auto* x, const float* cosine, const float* sine, auto* y, int64_t half) {
        rotate_split_half(x, cosine, sine, y, half);
    });
}

void rope_interleaved(const Call& call) {
    rope(call, [](const auto* x, const float* cosine, const float* sine, auto* y, int64_t half) {
        rotate_interleaved(x, cosine, sine, y, half);
    });
}

constexpr KernelEntry entries[] = {
    {"rotary_table", rotary_table, 5, 3, 1u << 2},
    {"rotary_table_dynamic", rotary_table_dynamic, 5, 6, 1u << 2},
    {"rotary_table_longrope", rotary_table_longrope, 7, 4, 1u << 4},
    {"rope_split_half", rope_split_half, 5, 10, 1u << 3},
    {"rope_interleaved", rope_interleaved, 5, 10, 1u << 3},
    {"rope_split_half_bias_bthd", rope_split_half_bias_bthd, 6, 7, 1u << 4},
    {"rope_store", rope_store, 12, 17, 1u << 8},
    {"rope_backward", rope_backward, 4, 10, 0},
};

}  // namespace

KernelTable rotary_kernels();
KernelTable rotary_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
