// What the kernels of attention share: how a product becomes a score and a score a weight, and where a window begins.
#pragma once
#include "device.h"

struct Scoring {
    f32 scale, cap;  // a cap c above 0 turns a scaled score s into c tanh(s / c)
    DEVICE f32 scaled(f32 product) const { return product * scale; }
    DEVICE f32 capped(f32 score) const { return cap * tanhf(score / cap); }
    DEVICE f32 operator()(f32 product) const { return cap > 0.0f ? capped(scaled(product)) : scaled(product); }
    // What a score grows by with its product.
    DEVICE f32 slope(f32 score) const {
        const f32 bend = score / cap;
        return cap > 0.0f ? scale * (1.0f - bend * bend) : scale;
    }
};

// e^(x - shift) where shift is the largest of values that x is one of; 0 where all of them are -inf.
DEVICE f32 shifted(f32 x, f32 shift) { return expf(x - (shift == -infinity() ? 0.0f : shift)); }

// Where the logarithm goes of what a token's weights were divided by: nowhere, or to [batches, heads, time].
struct NoLogSums {
    DEVICE void put(i64, i64, f32, f32) const {}
};
struct LogSums {
    f32* values;
    i64 time, heads;
    DEVICE void put(i64 token, i64 head, f32 peak, f32 sum) const {
        values[(token / time * heads + head) * time + token % time] = peak + logf(sum);
    }
};

// The first key that a token sees, by a window of so many keys that ends with its own position; 0 is no window.
DEVICE i64 window_start(i64 position, i64 window) { return window > 0 ? larger<i64>(0, position + 1 - window) : 0; }
