// What the rotations share.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

void rope_split_half_bias_bthd(const Call& call);  // rotary_bias.cpp
void rope_store(const Call& call);                 // rope_store.cpp
void rope_backward(const Call& call);              // rope_backward.cpp

// The pair (a, b) by the angle of c and s.
OST_INLINE void turn(vf& a, vf& b, vf c, vf s) {
    const vf first = fma(a, c, -(b * s));
    b = fma(b, c, a * s);
    a = first;
}

// One head with pairs (i, half + i); y may be x.
template <class X, class Y>
OST_INLINE void rotate_split_half(const X* x, const float* cosine, const float* sine, Y* y, int64_t half) {
    int64_t i = 0;
    for (; i + VW <= half; i += VW) {
        vf a = load(x + i), b = load(x + half + i);
        turn(a, b, load(cosine + i), load(sine + i));
        store(y + i, a);
        store(y + half + i, b);
    }
    if (i < half) {
        const int n = static_cast<int>(half - i);
        vf a = load_n(x + i, n), b = load_n(x + half + i, n);
        turn(a, b, load_n(cosine + i, n), load_n(sine + i, n));
        store_n(y + i, a, n);
        store_n(y + half + i, b, n);
    }
}

}  // namespace ost::OST_UNIT
