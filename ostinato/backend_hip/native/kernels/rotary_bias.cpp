// Bias, split-half rotation and the change from token-major to head-major order, in one pass.
#include "rotary.h"

namespace ost::OST_UNIT {

namespace {

// One head with pairs (i, half + i); elements from 2 * half on only get their bias.
template <class X, class Y>
OST_INLINE void rotate(const X* x, const float* bias, const float* cosine, const float* sine, Y* y, int64_t half,
                       int64_t width) {
    for (int64_t i = 0; i < half; i += VW) {
        const int n = static_cast<int>(smaller(VW, half - i));
        vf a = load_lanes(x + i, n) + load_lanes(bias + i, n);
        vf b = load_lanes(x + half + i, n) + load_lanes(bias + half + i, n);
        turn(a, b, load_lanes(cosine + i, n), load_lanes(sine + i, n));
        store_lanes(y + i, a, n);
        store_lanes(y + half + i, b, n);
    }
    for (int64_t i = 2 * half; i < width; i += VW) {
        const int n = static_cast<int>(smaller(VW, width - i));
        store_lanes(y + i, load_lanes(x + i, n) + load_lanes(bias + i, n), n);
    }
}

}  // namespace

// Operands x [B,T,H,D], bias [H,D], cos and sin [B,T,half], count? of batches, y [B,H,T,D].
void rope_split_half_bias_bthd(const Call& call) {
    const int64_t batches = call.integer(0), tokens = call.integer(1), heads = call.integer(2), width = call.integer(3);
    const int64_t half = call.integer(4);
    const int64_t valid = valid_rows(call, 4, batches);
    if (empty(call, valid, tokens, heads, width)) return;
    if (half < 0 || half > width / 2) return report(call, OST_INVALID_ARGUMENT);
    const int64_t size = area(batches, tokens, heads, width), table = area(batches, tokens, half);
    with_float_dtype(call, call.integer(5), [&](auto x_type) {
        with_float_dtype(call, call.integer(6), [&](auto y_type) {
            using X = decltype(x_type);
            using Y = decltype(y_type);
            if (!covers(call, 0, size, sizeof(X)) || !covers(call, 1, area(heads, width), 4) ||
                !covers(call, 2, table, 4) || !covers(call, 3, table, 4) || !covers(call, 5, size, sizeof(Y))) {
                return;
            }
            const X* x = call.pointer<const X>(0);
            const float* bias = call.pointer<const float>(1);
            const float* cosine = call.pointer<const float>(2);
            const float* sine = call.pointer<const float>(3);
            Y* y = call.pointer<Y>(5);
            const double cost = 2 * kStreamNanoseconds * static_cast<double>(heads * width);
            for_rows(call, valid * tokens, cost, [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    const int64_t batch = row / tokens, token = row % tokens;
                    for (int64_t h = 0; h < heads; ++h) {
                        rotate(x + (row * heads + h) * width, bias + h * width, cosine + row * half, sine + row * half,
                               y + ((batch * heads + h) * tokens + token) * width, half, width);
                    }
                }
            });
        });
    });
}

}  // namespace ost::OST_UNIT
