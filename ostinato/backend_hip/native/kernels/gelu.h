// The gelu activation in its two forms.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

// x F(x), F the cumulative function of the normal distribution, as max(x, 0) - |x| Q(|x|) with the tail
// Q(t) = 1 - F(t) = e^(-t^2/2) u P(u), u = 1 / (1 + c t). P is a polynomial fitted here for the least largest relative
// error over t in [0, 14], 2.1e-8; so the tail keeps its digits, as it would not in 1 + erf. Past 14.5 the tail is
// zero.

// Q(t) for t in [0, 14.5], with the power e^(-t^2/2).
OST_INLINE vf normal_tail(vf t, vf power) {
    const vf u = splat(1.0f) / fma(splat(0.345f), t, splat(1.0f));
    vf p = splat(-0.028381953f);
    p = fma(p, u, splat(0.145281941f));
    p = fma(p, u, splat(-0.27117303f));
    p = fma(p, u, splat(0.187196597f));
    p = fma(p, u, splat(-0.0376016051f));
    p = fma(p, u, splat(0.111799568f));
    p = fma(p, u, splat(0.117238291f));
    p = fma(p, u, splat(0.138020888f));
    p = fma(p, u, splat(0.137619287f));
    return u * p * power;
}
OST_INLINE vf gelu(vf x) {
    const vf t = minimum(splat(14.5f), absolute(x));  // keeps NaN
    return maximum(splat(0.0f), x) - t * normal_tail(t, exp(t * t * splat(-0.5f)));
}

// F(x) + x times the density of the normal distribution.
OST_INLINE vf gelu_slope(vf x) {
    const vf t = minimum(splat(14.5f), absolute(x));
    const vf power = exp(t * t * splat(-0.5f)), tail = normal_tail(t, power);
    const vf below = select(x < splat(0.0f), tail, splat(1.0f) - tail);
    const vf within = minimum(splat(14.5f), maximum(splat(-14.5f), x));  // the density past it is zero
    return fma(within * splat(0.398942280f), power, below);
}

// The sigmoid of x and that of -x, which is the rest to 1 and keeps its digits. Below -87 they stay 1e-38 and 1.
struct SigmoidPair {
    vf is, rest;
};
OST_INLINE SigmoidPair sigmoid_pair(vf x) {
    const vf power = exp(minimum(splat(87.0f), -x));  // keeps NaN
    const vf is = splat(1.0f) / (splat(1.0f) + power);
    return {is, power * is};
}

// x / 2 (1 + tanh(s)) = x / (1 + e^(-2 s)) with s = sqrt(2 / pi) (x + 0.044715 x^3).
OST_INLINE vf gelu_tanh(vf x) {
    const vf cubic = fma(x * x, splat(0.044715f), splat(1.0f));
    return x / (splat(1.0f) + exp(x * cubic * splat(-1.59576912f)));
}
// Its derivative s + x s (1 - s) times twice the derivative of the argument, with the sigmoid s of twice the argument.
OST_INLINE vf gelu_tanh_slope(vf x) {
    const vf near = minimum(splat(14.5f), maximum(splat(-14.5f), x));  // past it s is 0 or 1
    const vf square = near * near;
    const SigmoidPair s = sigmoid_pair(near * fma(square, splat(0.044715f), splat(1.0f)) * splat(1.59576912f));
    const vf inner = fma(square, splat(3 * 0.044715f), splat(1.0f)) * splat(1.59576912f);
    return fma(near * s.is, s.rest * inner, s.is);
}

}  // namespace ost::OST_UNIT
