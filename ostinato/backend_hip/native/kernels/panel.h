// Packed weights: panels of 32 output rows, interleaved so that one step along K reads 32 neighbours.
//
//   f32    [K][32] float                        f16  [K][32] half
//   bf16   [ceil(K/2)][32][2] bf16, the pair of k innermost (the operand order of a pairwise dot product)
//   q8_0   [K/32] { half d[32]; int8 q[32 k][32] }                 value = d * q
//   q4_0   [K/32] { half d[32]; uint8 q[16][32] }                  value = d * (q - 8)
//   q4_1   [K/32] { half d[32]; half m[32]; uint8 q[16][32] }      value = d * q + m
// Four-bit rows hold k = i in the low and k = i + 16 in the high half of each byte.
//
// A format here says how large its panels are and how to read VW-wide pieces of a step as floats. Products of a scale
// and a quant are exact in float (11 and at most 8 bits), so every path that decodes sees the same values.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

inline constexpr int kLanes = 32;  // rows of a panel
inline constexpr int kQuantBlock = 32;

// Reads as: the panel is a sequence of blocks of kBlock values of k, kBlockBytes each; within a block, decode() gives
// kStep consecutive k for C vectors of rows that start at row `column`; kSecondHalf says on which side of kBlock / 2 k is. Only formats with kTail may end inside a block.
struct PanelF32 {
    using X = float;
    static constexpr int kPerX = 1;
    static constexpr int kBlock = 8;
    static constexpr int kStep = 1;
    static constexpr int kStepBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock * kStepBytes;
    static constexpr bool kTail = true;
    static constexpr bool kStaged = false;  // tiles of many rows read it as it is
    template <int C>
    struct Scale {};
    template <int C>
    OST_INLINE void scale(const char*, int, Scale<C>&) {}
    template <bool kSecondHalf, int C>
    OST_INLINE void decode(const char* block, int k, int column, const Scale<C>&, vf (&b)[kStep][C]) {
        const auto* row = reinterpret_cast<const float*>(block + k * kStepBytes) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) b[0][c] = load(row + c * VW);
    }
};

struct PanelF16 {
    using X = float;
    static constexpr int kPerX = 1;
    static constexpr int kBlock = 8;
    static constexpr int kStep = 1;
    static constexpr int kStepBytes = kLanes * 2;
    static constexpr int kBlockBytes = kBlock * kStepBytes;
    static constexpr bool kTail = true;
    static constexpr bool kStaged = true;
    template <int C>
    struct Scale {};
    template <int C>
    OST_INLINE void scale(const char*, int, Scale<C>&) {}
    template <bool kSecondHalf, int C>
    OST_INLINE void decode(const char* block, int k, int column, const Scale<C>&, vf (&b)[kStep][C]) {
        const auto* row = reinterpret_cast<const f16*>(block + k * kStepBytes) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) b[0][c] = load(row + c * VW);
    }
};

struct PanelBf16 {
    using X = float;
    static constexpr int kPerX = 1;
    static constexpr int kBlock = 8;
    static constexpr int kStep = 2;
    static constexpr int kStepBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock / kStep * kStepBytes;
    static constexpr bool kTail = true;
    static constexpr bool kStaged = true;
    template <int C>
    struct Scale {};
    template <int C>
    OST_INLINE void scale(const char*, int, Scale<C>&) {}
    template <bool kSecondHalf, int C>
    OST_INLINE void decode(const char* block, int k, int column, const Scale<C>&, vf (&b)[kStep][C]) {
        const auto* row = reinterpret_cast<const int32_t*>(block + k / kStep * kStepBytes) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            const vi pair = load_i(row + c * VW);
            b[0][c] = bit_cast<vf>(pair << 16);
            b[1][c] = bit_cast<vf>(pair & splat_i(static_cast<int32_t>(0xffff0000u)));
        }
    }
};

struct PanelQ8 {
    using X = float;
    static constexpr int kPerX = 1;
    static constexpr int kBlock = kQuantBlock;
    static constexpr int kStep = 1;
    static constexpr int kStepBytes = kLanes;
    static constexpr int kBlockBytes = kLanes * 2 + kBlock * kLanes;
    static constexpr bool kTail = false;
    static constexpr bool kStaged = true;
    template <int C>
    struct Scale {
        vf d[C];
    };
    template <int C>
    OST_INLINE void scale(const char* block, int column, Scale<C>& s) {
        const auto* d = reinterpret_cast<const f16*>(block) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) s.d[c] = load(d + c * VW);
    }
    template <bool kSecondHalf, int C>
    OST_INLINE void decode(const char* block, int k, int column, const Scale<C>& s, vf (&b)[kStep][C]) {
        const char* row = block + kLanes * 2 + k * kStepBytes + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) b[0][c] = s.d[c] * load_i8(row + c * VW);
    }
};

template <bool kMinimum>
struct PanelQ4 {
    using X = float;
    static constexpr int kPerX = 1;
    static constexpr int kBlock = kQuantBlock;
    static constexpr int kStep = 1;
    static constexpr int kStepBytes = kLanes / 2;  // on average: a row of bytes is read twice
    static constexpr int kHeader = kLanes * (kMinimum ? 4 : 2);
    static constexpr int kBlockBytes = kHeader + kBlock / 2 * kLanes;
    static constexpr bool kTail = false;
    static constexpr bool kStaged = true;
    template <int C>
    struct Scale {
        vf d[C];
        vf m[C];
    };
    template <int C>
    OST_INLINE void scale(const char* block, int column, Scale<C>& s) {
        const auto* d = reinterpret_cast<const f16*>(block) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            s.d[c] = load(d + c * VW);
            // d * q - 8 d in one rounding is d * (q - 8), which is exact.
            s.m[c] = kMinimum ? load(d + kLanes + c * VW) : splat(-8.0f) * s.d[c];
        }
    }
    template <bool kSecondHalf, int C>
    OST_INLINE void decode(const char* block, int k, int column, const Scale<C>& s, vf (&b)[kStep][C]) {
        const char* row = block + kHeader + (k & 15) * kLanes + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            const vf q = kSecondHalf ? load_high4(row + c * VW) : load_low4(row + c * VW);
            b[0][c] = fma(s.d[c], q, s.m[c]);
        }
    }
};
using PanelQ40 = PanelQ4<false>;
using PanelQ41 = PanelQ4<true>;

// How products are made from one X element and one decoded vector.
template <class W>
OST_INLINE vf broadcast(const float* x) {
    return splat(*x);
}
template <class W>
OST_INLINE void accumulate(vf x, vf b, vf& total) {
    total = fma(x, b, total);
}

#if defined(__AVX512BF16__)
// bf16 weights with bf16 activations: exact products of pairs, added in float (k odd first, then even, unfused rounding
// as vdpbf16ps defines it). One X element is a pair.
struct PanelBf16Dot {
    using X = uint32_t;
    static constexpr int kPerX = 2;
    static constexpr int kBlock = 4;
    static constexpr int kStep = 1;
    static constexpr int kStepBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock * kStepBytes;
    static constexpr bool kTail = true;
    static constexpr bool kStaged = false;
    template <int C>
    struct Scale {};
    template <int C>
    OST_INLINE void scale(const char*, int, Scale<C>&) {}
    template <bool kSecondHalf, int C>
    OST_INLINE void decode(const char* block, int k, int column, const Scale<C>&, vf (&b)[kStep][C]) {
        const auto* row = reinterpret_cast<const float*>(block + k * kStepBytes) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) b[0][c] = load(row + c * VW);
    }
};
template <class W>
OST_INLINE vi broadcast(const uint32_t* x) {
    return splat_i(static_cast<int32_t>(*x));
}
template <class W>
OST_INLINE void accumulate(vi x, vf b, vf& total) {
    total = _mm512_dpbf16_ps(total, (__m512bh)x, (__m512bh)b);
}
#endif

// Bytes of one panel of a weight with K columns; -1 for a dtype that has no panels or a K it cannot hold.
OST_INLINE int64_t panel_bytes(int64_t dtype, int64_t columns) {
    const bool whole_blocks = columns % kQuantBlock == 0;
    switch (dtype) {
        case OST_F32: return columns * PanelF32::kStepBytes;
        case OST_F16: return columns * PanelF16::kStepBytes;
        case OST_BF16: return ceil_div(columns, 2) * PanelBf16::kStepBytes;
        case OST_Q8_0: return whole_blocks ? columns / kQuantBlock * PanelQ8::kBlockBytes : -1;
        case OST_Q4_0: return whole_blocks ? columns / kQuantBlock * PanelQ40::kBlockBytes : -1;
        case OST_Q4_1: return whole_blocks ? columns / kQuantBlock * PanelQ41::kBlockBytes : -1;
        default: return -1;
    }
}

}  // namespace ost::OST_UNIT
