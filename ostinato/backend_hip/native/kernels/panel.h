// Packed weights: panels of 32 output rows, interleaved so that one step along K reads 32 neighbours.
//
//   f32    [K][32] float                        f16  [K][32] half
//   bf16   [ceil(K/2)][32][2] bf16, the pair of k innermost (the operand order of a pairwise dot product)
//   q8_0   [K/32] { half d[32]; int8 q[32 k][32] }                 value = d * q
//   q4_0   [K/32] { half d[32]; uint8 q[16][32] }                  value = d * (q - 8)
//   q4_1   [K/32] { half d[32]; half m[32]; uint8 q[16][32] }      value = d * q + m
// Four-bit rows hold k = i in the low and k = i + 16 in the high half of each byte.
//
// A format here says how large its pieces are and how to read them as vectors of floats. Blocks with scales are summed
// over their quants first, sum(x q), and scaled once: total += d * sum(x q) + m * sum(x). That is the same number as
// the sum of x times the dequantised weights, with fewer roundings and half the multiplications.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

inline constexpr int kLanes = 32;  // rows of a panel
inline constexpr int kQuantBlock = 32;

// A panel is a sequence of blocks of kBlock X elements, kBlockBytes each; an X element is kPerX values of k. decode()
// gives kStep vectors of weights (times C) for position k of a block, from row `column` on: of X elements k, k + 1, or,
// where kSplit is not zero, k / 2 and k / 2 + kSplit. scale() gives a block's factors. Only formats with kTail end
// inside a block. kAhead is the distance in bytes between what is read and what is asked for, measured: too near waits,
// too far is evicted.
struct Plain {
    static constexpr int kPerX = 1;
    static constexpr int kStep = 1;
    static constexpr int kSplit = 0;
    static constexpr int kHeader = 0;
    static constexpr bool kTail = true;
    static constexpr bool kScaled = false;
    static constexpr bool kMinimum = false;
    using X = float;
};

struct Scaled : Plain {
    static constexpr int kBlock = kQuantBlock;
    static constexpr bool kTail = false;
    static constexpr bool kScaled = true;
    static constexpr int kAhead = 8192;
};

// C vectors of a panel's row of plain values, from `column` on.
template <class T, int C>
OST_INLINE void load_vectors(const char* row, int column, vf (&b)[C]) {
    const auto* from = reinterpret_cast<const T*>(row) + column;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) b[c] = load(from + c * VW);
}

template <class T, int kPrefetch>
struct PanelFloats : Plain {
    static constexpr int kAhead = kPrefetch;
    static constexpr int kBlock = 8;
    static constexpr int kStepBytes = kLanes * static_cast<int>(sizeof(T));
    static constexpr int kBlockBytes = kBlock * kStepBytes;
    template <int C>
    OST_INLINE void decode(const char* block, int k, int column, vf (&b)[kStep][C]) {
        load_vectors<T>(block + k * kStepBytes, column, b[0]);
    }
};
using PanelF32 = PanelFloats<float, 2048>;
using PanelF16 = PanelFloats<f16, 4096>;

struct PanelBf16 : Plain {
    static constexpr int kAhead = 4096;
    static constexpr int kBlock = 8;
    static constexpr int kStep = 2;
    static constexpr int kStepBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock / kStep * kStepBytes;
    template <int C>
    OST_INLINE void decode(const char* block, int k, int column, vf (&b)[kStep][C]) {
        const auto* row = reinterpret_cast<const int32_t*>(block + k / kStep * kStepBytes) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            const vi pair = load_i(row + c * VW);
            b[0][c] = bit_cast<vf>(pair << 16);
            b[1][c] = bit_cast<vf>(pair & splat_i(static_cast<int32_t>(0xffff0000u)));
        }
    }
};

struct PanelQ8 : Scaled {
    static constexpr int kHeader = kLanes * 2;
    static constexpr int kStepBytes = kLanes;
    static constexpr int kBlockBytes = kHeader + kBlock * kStepBytes;
    template <int C>
    OST_INLINE void scale(const char* block, int column, vf (&d)[C], vf (&)[C]) {
        load_vectors<f16>(block, column, d);
    }
    template <int C>
    OST_INLINE void decode(const char* block, int k, int column, vf (&b)[kStep][C]) {
        const char* row = block + kHeader + k * kStepBytes + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) b[0][c] = load_i8(row + c * VW);
    }
};

// q4_0 is read as d * q + m with m = -8 d, which is exact.
template <bool kStoredMinimum>
struct PanelQ4 : Scaled {
    static constexpr int kStep = 2;
    static constexpr int kSplit = kQuantBlock / 2;
    static constexpr bool kMinimum = true;
    static constexpr int kHeader = kLanes * (kStoredMinimum ? 4 : 2);
    static constexpr int kStepBytes = kLanes;
    static constexpr int kBlockBytes = kHeader + kBlock / kStep * kStepBytes;
    template <int C>
    OST_INLINE void scale(const char* block, int column, vf (&d)[C], vf (&m)[C]) {
        const auto* halves = reinterpret_cast<const f16*>(block) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            d[c] = load(halves + c * VW);
            m[c] = kStoredMinimum ? load(halves + kLanes + c * VW) : splat(-8.0f) * d[c];
        }
    }
    template <int C>
    OST_INLINE void decode(const char* block, int k, int column, vf (&b)[kStep][C]) {
        const char* row = block + kHeader + k / kStep * kStepBytes + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) load_nibbles(row + c * VW, b[0][c], b[1][c]);
    }
};
using PanelQ40 = PanelQ4<false>;
using PanelQ41 = PanelQ4<true>;

// What linear_blocks.cpp makes of a block with scales: { float d[32]; float m[32]; float q[32][32] }, the rows of q in
// the order in which decode() of the packed format gives them.
template <bool kWithMinimum>
struct StagedBlocks : Scaled {
    static constexpr bool kMinimum = kWithMinimum;
    static constexpr int kHeader = kLanes * 8;
    static constexpr int kStepBytes = kLanes * 4;
    static constexpr int kBlockBytes = kHeader + kBlock * kStepBytes;
    template <int C>
    OST_INLINE void scale(const char* block, int column, vf (&d)[C], vf (&m)[C]) {
        const auto* factors = reinterpret_cast<const float*>(block) + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            d[c] = load(factors + c * VW);
            if (kMinimum) m[c] = load(factors + kLanes + c * VW);
        }
    }
    template <int C>
    OST_INLINE void decode(const char* block, int k, int column, vf (&b)[kStep][C]) {
        load_vectors<float>(block + kHeader + k * kStepBytes, column, b[0]);
    }
};

// How one X element and one decoded vector are multiplied and added.
OST_INLINE vf broadcast(const float* x) { return splat(*x); }
OST_INLINE void accumulate(vf x, vf b, vf& total) { total = fma(x, b, total); }

#if defined(__AVX512BF16__)
// bf16 weights with bf16 activations: exact products of pairs, added to a float one after the other, each addition
// rounded (vdpbf16ps). One X element is a pair.
struct PanelBf16Dot : Plain {
    static constexpr int kAhead = 4096;
    using X = uint32_t;
    static constexpr int kPerX = 2;
    static constexpr int kBlock = 4;
    static constexpr int kStepBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock * kStepBytes;
    template <int C>
    OST_INLINE void decode(const char* block, int k, int column, vf (&b)[kStep][C]) {
        load_vectors<float>(block + k * kStepBytes, column, b[0]);
    }
};
OST_INLINE vi broadcast(const uint32_t* x) { return splat_i(static_cast<int32_t>(*x)); }
OST_INLINE void accumulate(vi x, vf b, vf& total) { total = _mm512_dpbf16_ps(total, (__m512bh)x, (__m512bh)b); }
#endif

// Bytes of one panel of a weight with K columns; -1 for a dtype that has no panels or a K it cannot hold.
OST_INLINE int64_t panel_bytes(int64_t dtype, int64_t columns) {
    const int64_t blocks = columns % kQuantBlock == 0 ? columns / kQuantBlock : -1;
    switch (dtype) {
        case OST_F32: return area(columns, PanelF32::kStepBytes);
        case OST_F16: return area(columns, PanelF16::kStepBytes);
        case OST_BF16: return columns < 0 ? -1 : area(ceil_div(columns, 2), PanelBf16::kStepBytes);
        case OST_Q8_0: return area(blocks, PanelQ8::kBlockBytes);
        case OST_Q4_0: return area(blocks, PanelQ40::kBlockBytes);
        case OST_Q4_1: return area(blocks, PanelQ41::kBlockBytes);
        default: return -1;
    }
}

// Where the chunk of a panel starts that begins with value k, a multiple of 32.
template <class W>
OST_INLINE const char* panel_at(const char* panel, int64_t k) {
    return panel + k / (W::kBlock * W::kPerX) * W::kBlockBytes;
}

}  // namespace ost::OST_UNIT
