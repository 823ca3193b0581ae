// Rotations backwards: pairs turned by the opposite angle, from a gradient whose rows may be head-major to token-major
// memory, in the dtype that the product behind it reads.
#include "rotary.h"

namespace ost::OST_UNIT {

namespace {

// Pairs (i, half + i).
template <class Y>
OST_INLINE void turn_halves(const float* x, const float* cosine, const float* sine, Y* y, int64_t half) {
    for (int64_t i = 0; i < half; i += VW) {
        const int n = static_cast<int>(smaller(VW, half - i));
        vf a = load_lanes(x + i, n), b = load_lanes(x + half + i, n);
        turn(a, b, load_lanes(cosine + i, n), -load_lanes(sine + i, n));
        store_lanes(y + i, a, n);
        store_lanes(y + half + i, b, n);
    }
}

// Pairs (2i, 2i + 1).
template <class Y>
OST_INLINE void turn_neighbours(const float* x, const float* cosine, const float* sine, Y* y, int64_t half) {
    for (int64_t i = 0; i < half; i += VW) {
        const int n = static_cast<int>(smaller(VW, half - i));
        alignas(64) float first[VW] = {}, second[VW] = {};
        for (int j = 0; j < n; ++j) {
            first[j] = x[2 * (i + j)];
            second[j] = x[2 * (i + j) + 1];
        }
        vf a = load(first), b = load(second);
        turn(a, b, load_lanes(cosine + i, n), -load_lanes(sine + i, n));
        store(first, a);
        store(second, b);
        for (int j = 0; j < n; ++j) {
            narrow(first[j], y[2 * (i + j)]);
            narrow(second[j], y[2 * (i + j) + 1]);
        }
    }
}

}  // namespace

// Operands gradient, cos, sin [tokens, half], y [tokens, heads, width]. Params: sequences, tokens of each, heads,
// width, half, elements between sequences, tokens and heads of the gradient, 1 where neighbours are pairs, dtype of y.
// Elements from 2 * half on pass. y may be a gradient of its dtype and order.
void rope_backward(const Call& call) {
    const int64_t batches = call.integer(0), tokens = call.integer(1), heads = call.integer(2), width = call.integer(3);
    const int64_t half = call.integer(4);
    const int64_t batch_step = call.integer(5), token_step = call.integer(6), head_step = call.integer(7);
    const bool neighbours = call.integer(8) != 0;
    if (empty(call, batches, tokens, heads, width)) return;
    if (half < 0 || half > width / 2 || batch_step < 0 || token_step < 0 || head_step < 0) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const int64_t outer = plus(area(batches - 1, batch_step), area(tokens - 1, token_step));
    const int64_t extent = plus(outer, plus(area(heads - 1, head_step), width));
    const int64_t table = area(batches, tokens, half);
    with_float_dtype(call, call.integer(9), [&](auto type) {
        using Y = decltype(type);
        if (!covers(call, 0, extent, 4) || !covers(call, 1, table, 4) || !covers(call, 2, table, 4) ||
            !covers(call, 3, area(batches, tokens, heads, width), sizeof(Y))) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const float* cosine = call.pointer<const float>(1);
        const float* sine = call.pointer<const float>(2);
        Y* y = call.pointer<Y>(3);
        const double cost = 2 * kStreamNanoseconds * static_cast<double>(heads * width);
        for_rows(call, batches * tokens, cost, [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const float* token = gradient + row / tokens * batch_step + row % tokens * token_step;
                for (int64_t h = 0; h < heads; ++h) {
                    const float* from = token + h * head_step;
                    Y* to = y + (row * heads + h) * width;
                    if (neighbours) {
                        turn_neighbours(from, cosine + row * half, sine + row * half, to, half);
                    } else {
                        turn_halves(from, cosine + row * half, sine + row * half, to, half);
                    }
                    convert_run(from + 2 * half, to + 2 * half, width - 2 * half);
                }
            }
        });
    });
}

}  // namespace ost::OST_UNIT
