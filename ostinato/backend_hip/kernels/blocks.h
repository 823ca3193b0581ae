// The block dtypes of GGUF files as they lie, and the value of one of their elements. Products and sums are rounded
// once each, in the order of ir/blocks.py, so values are those of the reference bit for bit.
#pragma once
#include "device.h"

struct q8_0 {
    f16 d;
    i8 q[32];
};
struct q4_0 {
    f16 d;
    u8 q[16];
};
struct q4_1 {
    f16 d, m;
    u8 q[16];
};
struct q5_0 {
    f16 d;
    u8 h[4], q[16];
};
struct q5_1 {
    f16 d, m;
    u8 h[4], q[16];
};
struct iq4_nl {
    f16 d;
    u8 q[16];
};
struct q4_k {
    f16 d, m;
    u8 s[12], q[128];
};
struct q5_k {
    f16 d, m;
    u8 s[12], h[32], q[128];
};
struct q6_k {
    u8 q[128], h[64];
    i8 s[16];
    f16 d;
};

// Values of one unit of a weight.
template <class W>
struct Unit {
    static constexpr int size = 1;
};
template <>
struct Unit<q8_0> {
    static constexpr int size = 32;
};
template <>
struct Unit<q4_0> : Unit<q8_0> {};
template <>
struct Unit<q4_1> : Unit<q8_0> {};
template <>
struct Unit<q5_0> : Unit<q8_0> {};
template <>
struct Unit<q5_1> : Unit<q8_0> {};
template <>
struct Unit<iq4_nl> : Unit<q8_0> {};
template <>
struct Unit<q4_k> {
    static constexpr int size = 256;
};
template <>
struct Unit<q5_k> : Unit<q4_k> {};
template <>
struct Unit<q6_k> : Unit<q4_k> {};

// Four bits of value i of 32: values 0..15 in the low and 16..31 in the high halves.
DEVICE int low_bits(const u8* q, int i) { return q[i & 15] >> (i / 16 * 4) & 15; }
DEVICE int fifth_bit(const u8* h, int i) { return (h[i / 8] >> (i & 7) & 1) << 4; }

DEVICE f32 value_of(f32 x, int) { return x; }
DEVICE f32 value_of(f16 x, int) { return widen(x); }
DEVICE f32 value_of(bf16 x, int) { return widen(x); }
DEVICE f32 value_of(const q8_0& b, int i) { return widen(b.d) * static_cast<f32>(b.q[i]); }
DEVICE f32 value_of(const q4_0& b, int i) { return widen(b.d) * static_cast<f32>(low_bits(b.q, i) - 8); }
DEVICE f32 value_of(const q4_1& b, int i) { return widen(b.d) * static_cast<f32>(low_bits(b.q, i)) + widen(b.m); }
DEVICE f32 value_of(const q5_0& b, int i) {
    return widen(b.d) * static_cast<f32>((low_bits(b.q, i) | fifth_bit(b.h, i)) - 16);
}
DEVICE f32 value_of(const q5_1& b, int i) {
    return widen(b.d) * static_cast<f32>(low_bits(b.q, i) | fifth_bit(b.h, i)) + widen(b.m);
}
DEVICE f32 value_of(const iq4_nl& b, int i) {
    constexpr i8 numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return widen(b.d) * static_cast<f32>(numbers[low_bits(b.q, i)]);
}

// Six bits each of scale and minimum of group g of 8.
DEVICE int scale_bits(const u8* s, int g) { return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6 << 4); }
DEVICE int minimum_bits(const u8* s, int g) { return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6 << 4); }

// Groups of 32; two of them share bytes.
template <class B>
DEVICE f32 with_minimum(const B& b, int g, int code) {
    const f32 scale = widen(b.d) * static_cast<f32>(scale_bits(b.s, g));
    const f32 minimum = widen(b.m) * static_cast<f32>(minimum_bits(b.s, g));
    return scale * static_cast<f32>(code) - minimum;
}
DEVICE int group_code(const u8* q, int i) { return q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }
DEVICE f32 value_of(const q4_k& b, int i) { return with_minimum(b, i / 32, group_code(b.q, i)); }
DEVICE f32 value_of(const q5_k& b, int i) {
    return with_minimum(b, i / 32, group_code(b.q, i) | (b.h[i % 32] >> (i / 32) & 1) << 4);
}

// Halves of 128: low bits in 64 bytes, high bits in 32; a scale for every 16 values.
DEVICE f32 value_of(const q6_k& b, int i) {
    const int half = i / 128, at = i % 128;
    const int low = b.q[half * 64 + at % 64] >> (at / 64 * 4) & 15;
    const int high = b.h[half * 32 + at % 32] >> (at / 32 * 2) & 3;
    return widen(b.d) * static_cast<f32>(b.s[i / 16]) * static_cast<f32>((low | high << 4) - 32);
}

// Value k of a row of a weight.
template <class W>
DEVICE f32 weight_at(const W* row, i64 k) {
    return value_of(row[k / Unit<W>::size], static_cast<int>(k % Unit<W>::size));
}
// Where row m of a weight of `columns` values begins.
template <class W>
DEVICE const W* weight_row(const W* weight, i64 m, i64 columns) {
    return weight + m * (columns / Unit<W>::size);
}
