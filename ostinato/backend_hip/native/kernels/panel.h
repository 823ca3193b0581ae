// Packed weights: panels of 32 output rows, interleaved so that one step along K reads 32 neighbours.
//
//   f32     [K][32] float                        f16  [K][32] half
//   bf16    [ceil(K/2)][32][2] bf16, the pair of k innermost (the operand order of a pairwise dot product)
//   blocks  [K/values] of blocks of 32 rows: { half [halves][32]; uint8 scales[scales][32]; codes }, with the numbers
//           of blocks.h. Codes are int8 [values][32] for q8_0 and, for fewer bits, uint32 [values * bits / 32][32],
//           run by run as fields.h lays a run out.
// A panel has as many bytes as its rows have in a file: the same bits in another order.
//
// A format here says how large its pieces are and how to read them as vectors of floats. Blocks with scales are summed
// over their codes first, sum(x q), and scaled once a run: total += d * sum(x q) + m * sum(x). That is the same number
// as the sum of x times the dequantised weights, with fewer roundings and half the multiplications.
#pragma once

#include "fields.h"

namespace ost::OST_UNIT {

inline constexpr int kLanes = 32;  // rows of a panel

// A panel is a sequence of blocks of kBlock X elements, kBlockBytes each; an X element is kPerX values of k. Values are
// read a word at a time: words() loads word i of C vectors, from row `column` on, and value() gives its X element j as
// floats; a word has kPerWord of them and takes kWordBytes of a panel. Only formats with kTail end inside a block.
// kAhead is the distance in bytes between what is read and what is asked for, measured: too near waits, too far is
// evicted.
//
// Formats with scales (kScaled) have runs of kRun values, kRuns a block, behind a header of kHeader bytes. Two runs
// that follow one another are kNextRun bytes apart, where a block has one run even in different blocks. A run is kWords
// words and, where kRest is not zero, one more that rest() puts together. factors() gives d and m of a block; scale()
// makes them those of one of its runs, where there are several.
struct Plain {
    using X = float;
    using Word = vf;
    static constexpr int kPerX = 1;
    static constexpr int kPerWord = 1;
    static constexpr bool kTail = true;
    static constexpr bool kScaled = false;
    static constexpr bool kMinimum = false;
    OST_INLINE vf value(vf word, int) { return word; }
};

struct Scaled : Plain {
    static constexpr bool kTail = false;
    static constexpr bool kScaled = true;
};

// C vectors of a panel's row of plain values, from `column` on.
template <class T, int C>
OST_INLINE void load_vectors(const char* row, int column, vf (&b)[C]) {
    const auto* from = reinterpret_cast<const T*>(row) + column;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) b[c] = load(from + c * VW);
}
template <int C>
OST_INLINE void load_words(const char* row, int column, vi (&b)[C]) {
    const auto* from = reinterpret_cast<const int32_t*>(row) + column;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) b[c] = load_i(from + c * VW);
}

template <class T, int kPrefetch>
struct PanelFloats : Plain {
    static constexpr int kAhead = kPrefetch;
    static constexpr int kBlock = 8;
    static constexpr int kWordBytes = kLanes * static_cast<int>(sizeof(T));
    static constexpr int kBlockBytes = kBlock * kWordBytes;
    template <int C>
    OST_INLINE void words(const char* block, int i, int column, vf (&b)[C]) {
        load_vectors<T>(block + i * kWordBytes, column, b);
    }
};
using PanelF32 = PanelFloats<float, 2048>;
using PanelF16 = PanelFloats<f16, 4096>;

struct PanelBf16 : Plain {
    using Word = vi;
    static constexpr int kAhead = 4096;
    static constexpr int kBlock = 8;
    static constexpr int kPerWord = 2;
    static constexpr int kWordBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock / kPerWord * kWordBytes;
    template <int C>
    OST_INLINE void words(const char* block, int i, int column, vi (&b)[C]) {
        load_words(block + i * kWordBytes, column, b);
    }
    OST_INLINE vf value(vi pair, int j) {
        return bit_cast<vf>(j == 0 ? pair << 16 : pair & splat_i(static_cast<int32_t>(0xffff0000u)));
    }
};

// The header of a block of a panel.
template <class Block>
struct PanelHeader : Scaled {
    static constexpr bool kMinimum = Block::kMinimum;
    static constexpr int kBlock = Block::kValues;
    static constexpr int kBlockBytes = Block::kBytes * kLanes;
    static constexpr int kRun = Block::kRun;
    static constexpr int kRuns = kBlock / kRun;
    static constexpr int kScalesAt = kLanes * Block::kHalves * 2;
    static constexpr int kHeader = kScalesAt + kLanes * Block::kScales;
    static constexpr int kRunBytes = (kBlockBytes - kHeader) / kRuns;
    static constexpr int kNextRun = kRuns == 1 ? kBlockBytes : kRunBytes;
    template <int C>
    OST_INLINE void factors(const char* block, int column, vf (&d)[C], vf (&m)[C]) {
        load_vectors<f16>(block, column, d);
        if constexpr (kMinimum) load_vectors<f16>(block + kLanes * 2, column, m);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            if constexpr (kMinimum && kRuns > 1) m[c] = -m[c];
        }
    }
    template <int C>
    OST_INLINE void scale(const char* block, int run, int column, const vf (&block_d)[C], const vf (&block_m)[C],
                          vf (&d)[C], vf (&m)[C]) {
        const char* scales = block + kScalesAt + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            if constexpr (kMinimum) {
                vi scale = splat_i(0);
                vi minimum = splat_i(0);
                six_bits(run, [&](int i) { return load_u8(scales + i * kLanes + c * VW); }, scale, minimum);
                d[c] = block_d[c] * to_float(scale);
                m[c] = block_m[c] * to_float(minimum);
            } else {
                d[c] = block_d[c] * load_i8(scales + run * kLanes + c * VW);
            }
        }
    }
    // The header of one row.
    OST_INLINE void read_lane(const char* block, int64_t lane, BlockHeader& header) {
        const auto* halves = reinterpret_cast<const f16*>(block) + lane;
        for (int h = 0; h < Block::kHalves; ++h) header.halves[h] = widen(halves[h * kLanes]);
        for (int s = 0; s < Block::kScales; ++s) {
            header.scales[s] = static_cast<uint8_t>(block[kScalesAt + s * kLanes + lane]);
        }
    }
    // The same from a block in a file.
    OST_INLINE void write_lane(char* block, int64_t lane, const char* from) {
        for (int h = 0; h < Block::kHalves; ++h) {
            std::memcpy(block + (h * kLanes + lane) * 2, from + Block::kHalvesAt + h * 2, 2);
        }
        for (int s = 0; s < Block::kScales; ++s) {
            block[kScalesAt + s * kLanes + lane] = from[Block::kScalesAt + s];
        }
    }
};

// Codes of fewer than eight bits.
template <class Block>
struct PanelBlocks : PanelHeader<Block> {
    static constexpr int kAhead = 12288;
    using Header = PanelHeader<Block>;
    using Word = CodeWord<Block::kCode>;
    using Run = Fields<Block::kBits, Block::kRun, Block::kCode>;
    static constexpr int kPerWord = Run::kPerWord;
    static constexpr int kWords = Run::kWords;
    static constexpr int kRest = Run::kRest;
    static constexpr int kWordBytes = kLanes * 4;
    static_assert(Header::kRunBytes == kWords * kWordBytes, "header and codes are all there is");
    template <int C>
    OST_INLINE void words(const char* run, int i, int column, Word (&w)[C]) {
        vi raw[C];
        load_words(run + i * kWordBytes, column, raw);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) w[c] = code_word<Block::kCode>(raw[c]);
    }
    template <int C>
    OST_INLINE void rest(const char* run, int column, vi (&w)[C]) {
        constexpr int top = Run::kTop;
        vi raw[C];
        load_words(run, column, raw);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) w[c] = (vi)((vu)raw[c] >> (32 - top));
#pragma GCC unroll 8
        for (int i = 1; i < kWords; ++i) {
            load_words(run + i * kWordBytes, column, raw);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                w[c] = w[c] | ((vi)((vu)raw[c] >> (32 - top - top * i)) & (((1 << top) - 1) << top * i));
            }
        }
    }
    OST_INLINE vf value(Word word, int j) { return field<Block::kBits, Block::kCode>(word, j); }

    // The codes of a group of one row.
    static constexpr int kGroupRuns = kQuantBlock / Block::kRun;
    static constexpr int kGroupWords = kGroupRuns * kWords;
    OST_INLINE Codes read_codes(const char* block, int group, int64_t lane) {
        const auto* from =
            reinterpret_cast<const uint32_t*>(block + Header::kHeader) + group * kGroupWords * kLanes + lane;
        uint32_t raw[kGroupWords];
        for (int i = 0; i < kGroupWords; ++i) raw[i] = from[i * kLanes];
        Codes codes = {};
        for (int r = 0; r < kGroupRuns; ++r) Run::unpack(raw + r * kWords, codes.eight + r * Block::kRun / 8);
        return codes;
    }
    OST_INLINE void write_codes(char* block, int group, int64_t lane, const Codes& codes) {
        auto* to = reinterpret_cast<uint32_t*>(block + Header::kHeader) + group * kGroupWords * kLanes + lane;
        uint32_t raw[kGroupWords];
        for (int r = 0; r < kGroupRuns; ++r) Run::pack(codes.eight + r * Block::kRun / 8, raw + r * kWords);
        for (int i = 0; i < kGroupWords; ++i) to[i * kLanes] = raw[i];
    }
};

template <>
struct PanelBlocks<BlockQ80> : PanelHeader<BlockQ80> {
    static constexpr int kAhead = 8192;
    static constexpr int kWords = kRun;
    static constexpr int kRest = 0;
    static constexpr int kWordBytes = kLanes;
    template <int C>
    OST_INLINE void words(const char* run, int i, int column, vf (&b)[C]) {
        const char* row = run + i * kWordBytes + column;
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) b[c] = load_i8(row + c * VW);
    }
    OST_INLINE Codes read_codes(const char* block, int, int64_t lane) {
        char bytes[kRun];
        for (int i = 0; i < kRun; ++i) bytes[i] = block[kHeader + i * kLanes + lane];
        return read_unaligned<Codes>(bytes);
    }
    OST_INLINE void write_codes(char* block, int, int64_t lane, const Codes& codes) {
        char bytes[kRun];
        std::memcpy(bytes, &codes, sizeof bytes);
        for (int i = 0; i < kRun; ++i) block[kHeader + i * kLanes + lane] = bytes[i];
    }
};

// What linear_blocks.cpp makes of a run: { float d[32]; float m[32] where there are minima; float q[kRun][32] }.
template <int kRunValues, bool kWithMinimum>
struct StagedRuns : Scaled {
    static constexpr int kAhead = 0;  // in a cache already
    static constexpr bool kMinimum = kWithMinimum;
    static constexpr int kBlock = kRunValues;
    static constexpr int kRun = kRunValues;
    static constexpr int kRuns = 1;
    static constexpr int kWords = kRun;
    static constexpr int kRest = 0;
    static constexpr int kWordBytes = kLanes * 4;
    static constexpr int kHeader = kMinimum ? kLanes * 8 : kLanes * 4;
    static constexpr int kBlockBytes = kHeader + kWords * kWordBytes;
    static constexpr int kNextRun = kBlockBytes;
    template <int C>
    OST_INLINE void factors(const char* block, int column, vf (&d)[C], vf (&m)[C]) {
        load_vectors<float>(block, column, d);
        if constexpr (kMinimum) load_vectors<float>(block + kLanes * 4, column, m);
    }
    template <int C>
    OST_INLINE void words(const char* run, int i, int column, vf (&b)[C]) {
        load_vectors<float>(run + i * kWordBytes, column, b);
    }
};

// How one X element and one vector of weights are multiplied and added.
OST_INLINE vf broadcast(const float* x) { return splat(*x); }
OST_INLINE void accumulate(vf x, vf b, vf& total) { total = fma(x, b, total); }

#if defined(__AVX512BF16__)
// bf16 weights with bf16 activations: exact products of pairs, added to a float one after the other, each addition
// rounded (vdpbf16ps). One X element is a pair.
struct PanelBf16Dot : Plain {
    using X = uint32_t;
    static constexpr int kAhead = 4096;
    static constexpr int kPerX = 2;
    static constexpr int kBlock = 4;
    static constexpr int kWordBytes = kLanes * 4;
    static constexpr int kBlockBytes = kBlock * kWordBytes;
    template <int C>
    OST_INLINE void words(const char* block, int i, int column, vf (&b)[C]) {
        load_vectors<float>(block + i * kWordBytes, column, b);
    }
};
OST_INLINE vi broadcast(const uint32_t* x) { return splat_i(static_cast<int32_t>(*x)); }
OST_INLINE void accumulate(vi x, vf b, vf& total) { total = _mm512_dpbf16_ps(total, (__m512bh)x, (__m512bh)b); }
#endif

// Bytes of one panel of a weight with K columns; -1 for a dtype that has no panels or a K it cannot hold.
OST_INLINE int64_t panel_bytes(int64_t dtype, int64_t columns) {
    switch (dtype) {
        case OST_F32: return area(columns, PanelF32::kWordBytes);
        case OST_F16: return area(columns, PanelF16::kWordBytes);
        case OST_BF16: return columns < 0 ? -1 : area(ceil_div(columns, 2), PanelBf16::kWordBytes);
        default: break;
    }
    int64_t bytes = -1;
    with_block(dtype, [&](auto block) {
        using Panel = PanelBlocks<decltype(block)>;
        if (columns % Panel::kBlock == 0) bytes = area(columns / Panel::kBlock, Panel::kBlockBytes);
    });
    return bytes;
}

// Where the chunk of a panel starts that begins with value k, a multiple of a block.
template <class W>
OST_INLINE const char* panel_at(const char* panel, int64_t k) {
    return panel + k / (W::kBlock * W::kPerX) * W::kBlockBytes;
}

}  // namespace ost::OST_UNIT
