// Rotary embedding: the cosine and sine table of a batch of positions, and the split-half rotation.
#include <math.h>

#include "work.h"

namespace ost::OST_UNIT {

namespace {

// The angle is the float32 product that models were trained with; cosine and sine are taken in double and rounded once.
void rotary_table(const Call& call) {
    const int64_t capacity = call.integer(0), half = call.integer(1);
    const auto scale = static_cast<float>(call.real(2));
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, half)) return;
    if (!covers(call, 0, capacity, 4) || !covers(call, 1, half, 4) || !covers(call, 3, area(capacity, half), 4) ||
        !covers(call, 4, area(capacity, half), 4)) {
        return;
    }
    const auto* position = call.pointer<const int32_t>(0);
    const float* inverse_frequency = call.pointer<const float>(1);
    float* cosines = call.pointer<float>(3);
    float* sines = call.pointer<float>(4);
    for_rows(call, rows, 40.0 * static_cast<double>(half), [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const auto at = static_cast<float>(position[row]);
            for (int64_t i = 0; i < half; ++i) {
                const double angle = at * inverse_frequency[i];
                cosines[row * half + i] = static_cast<float>(::cos(angle)) * scale;
                sines[row * half + i] = static_cast<float>(::sin(angle)) * scale;
            }
        }
    });
}

// One head: y[i] = x[i] c[i] - x[i + half] s[i], y[i + half] = x[i + half] c[i] + x[i] s[i]; y may be x.
template <class T>
OST_INLINE void rotate(const T* x, const float* cosine, const float* sine, T* y, int64_t half) {
    int64_t i = 0;
    for (; i + VW <= half; i += VW) {
        const vf a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
        store(y + i, fma(a, c, -(b * s)));
        store(y + half + i, fma(b, c, a * s));
    }
    if (i < half) {
        const int n = static_cast<int>(half - i);
        const vf a = load_n(x + i, n), b = load_n(x + half + i, n), c = load_n(cosine + i, n), s = load_n(sine + i, n);
        store_n(y + i, fma(a, c, -(b * s)), n);
        store_n(y + half + i, fma(b, c, a * s), n);
    }
}

void rope_split_half(const Call& call) {
    const int64_t capacity = call.integer(0), heads = call.integer(1), width = call.integer(2), dtype = call.integer(3);
    const int64_t row_stride = call.integer(4), head_stride = call.integer(5), tokens = call.integer(6);
    const int64_t batch_stride = call.integer(7);
    const int64_t rows = valid_rows(call, 3, capacity);
    if (empty(call, rows, heads, width)) return;
    if (width % 2 != 0 || tokens <= 0 || row_stride < 0 || head_stride < 0 || batch_stride < 0) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const int64_t half = width / 2;
    const int64_t batches = area((capacity - 1) / tokens, batch_stride);
    const int64_t sequence = area(smaller(capacity, tokens) - 1, row_stride);
    const int64_t extent = plus(plus(batches, sequence), plus(area(heads - 1, head_stride), width));
    with_float_dtype(call, dtype, [&](auto type) {
        using T = decltype(type);
        if (!covers(call, 0, area(capacity, heads, width), sizeof(T)) || !covers(call, 1, area(capacity, half), 4) ||
            !covers(call, 2, area(capacity, half), 4) || !covers(call, 4, extent, sizeof(T))) {
            return;
        }
        const T* x = call.pointer<const T>(0);
        const float* cosine = call.pointer<const float>(1);
        const float* sine = call.pointer<const float>(2);
        T* y = call.pointer<T>(4);
        const double cost = 2 * kStreamNanoseconds * static_cast<double>(heads * width);
        for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                T* to = y + row / tokens * batch_stride + row % tokens * row_stride;
                for (int64_t h = 0; h < heads; ++h) {
                    const T* from = x + (row * heads + h) * width;
                    rotate(from, cosine + row * half, sine + row * half, to + h * head_stride, half);
                }
            }
        });
    });
}

constexpr KernelEntry entries[] = {
    {"rotary_table", rotary_table, 5, 3, 1u << 2},
    {"rope_split_half", rope_split_half, 5, 8, 1u << 3},
};

}  // namespace

KernelTable rotary_kernels();
KernelTable rotary_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
