// Block formats as files have them, told one block and one number at a time: how many values a block holds, where its
// parts lie and what its codes mean. Kernels that work on whole vectors read these blocks from panels (panel.h), where
// the same bits lie in another order.
//
//   q8_0    half d; int8 q[32]                                       value = d * q
//   q4_0    half d; uint8 q[16]                                      value = d * (q - 8)
//   q4_1    half d; half m; uint8 q[16]                              value = d * q + m
//   q5_0    half d; uint32 high; uint8 q[16]                         value = d * (q - 16)
//   q5_1    half d; half m; uint32 high; uint8 q[16]                 value = d * q + m
//   iq4_nl  half d; uint8 q[16]                                      value = d * kLookup[q]
//   q4_k    half d; half m; uint8 s[12]; uint8 q[128]                value = d * s * q - m * t
//   q5_k    half d; half m; uint8 s[12]; uint8 high[32]; uint8 q[128]            the same
//   q6_k    uint8 q[128]; uint8 high[64]; int8 s[16]; half d         value = d * s * (q - 32)
//
// Blocks of 32 keep value i in the low half of byte i of q, value i + 16 in the high half, and a fifth bit in bit i of
// `high`. Blocks of 256 keep eight groups of 32 values; s (six bits, with t packed into twelve bytes) belongs to 32 of
// them, or to 16 in q6_k. d * s and m * t are rounded before they meet a value, as in the reference.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

inline constexpr int kQuantBlock = 32;  // values that are read together: a block, or a group of a larger one

// What a code means: a number around 0 (in a file, codes of fewer than eight bits start at the least of them), a number
// from 0, or a place in kLookup.
enum class Code { kSigned, kUnsigned, kLookup };

inline constexpr int8_t kLookup[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

template <class T>
OST_INLINE T read_unaligned(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// The codes of a group as a file has them, one a byte, eight at a time: value i in byte i % 8 of eight[i / 8].
struct Codes {
    uint64_t eight[kQuantBlock / 8];
};

inline constexpr uint64_t kEachByte = 0x0101010101010101;

// Bits 0 to 7 in the lowest bits of eight bytes.
OST_INLINE uint64_t spread_bits(uint8_t bits) {
    constexpr uint64_t own = 0x8040201008040201;  // of each byte, the bit that becomes its lowest
    return ((bits * kEachByte & own) + 0x7f * kEachByte) >> 7 & kEachByte;
}

// The numbers of a block that are no codes.
struct BlockHeader {
    float halves[2];
    uint8_t scales[16];
};

// Each format has
//   kValues, kBytes        of a block
//   kRun                   values that share their factors
//   kBits, kCode           of a code
//   kMinimum               whether a value is d * code + m, or d * code
//   kHalves, kHalvesAt     how many half-precision numbers, and at which byte; kScales, kScalesAt: the same of bytes
//   codes()                the 32 codes of a group
//   factors()              d and m of a run
template <int kCodeBits, Code kMeaning, bool kHasMinimum>
struct SmallBlock {
    static constexpr int kValues = 32;
    static constexpr int kRun = 32;
    static constexpr int kBits = kCodeBits;
    static constexpr Code kCode = kMeaning;
    static constexpr bool kMinimum = kHasMinimum;
    static constexpr int kHalves = kMinimum ? 2 : 1;
    static constexpr int kHalvesAt = 0;
    static constexpr int kScales = 0;
    static constexpr int kScalesAt = 0;
    static constexpr int kCodesAt = kHalves * 2;
    static constexpr int kBytes = kCodesAt + kValues * kBits / 8;

    OST_INLINE Codes codes(const char* block, int) {
        Codes out = {};
        const char* q = block + kCodesAt;
        if constexpr (kBits == 8) {
            std::memcpy(&out, q, kValues);
        } else {
            const char* high = q;
            if (kBits == 5) q += kValues / 8;
            for (int i = 0; i < 2; ++i) {
                const auto both = read_unaligned<uint64_t>(q + i * 8);
                out.eight[i] = both & 15 * kEachByte;
                out.eight[i + 2] = both >> 4 & 15 * kEachByte;
            }
            for (int i = 0; kBits == 5 && i < 4; ++i) {
                out.eight[i] |= spread_bits(read_unaligned<uint8_t>(high + i)) << 4;
            }
        }
        return out;
    }
    OST_INLINE void factors(const BlockHeader& header, int, float& d, float& m) {
        d = header.halves[0];
        m = header.halves[1];
    }
};

// Scale and minimum of a run of q4_k and q5_k: six bits each of twelve bytes. byte(i) gives byte i as an N, an integer
// or a vector of them.
template <class N, class Byte>
OST_INLINE void six_bits(int run, const Byte& byte, N& scale, N& minimum) {
    if (run < 4) {
        scale = byte(run) & 63;
        minimum = byte(run + 4) & 63;
    } else {
        const N low = byte(run + 4);
        scale = (low & 15) | (byte(run - 4) >> 2 & 48);
        minimum = low >> 4 | (byte(run) >> 2 & 48);
    }
}

template <int kCodeBits>
struct LargeBlock {
    static constexpr int kValues = 256;
    static constexpr int kRun = 32;
    static constexpr int kBits = kCodeBits;
    static constexpr Code kCode = Code::kUnsigned;
    static constexpr bool kMinimum = true;
    static constexpr int kHalves = 2;
    static constexpr int kHalvesAt = 0;
    static constexpr int kScales = 12;
    static constexpr int kScalesAt = 4;
    static constexpr int kBytes = 16 + kValues * kBits / 8;

    OST_INLINE Codes codes(const char* block, int group) {
        const char* high = block + 16;
        const char* q = high + (kBits == 5 ? 32 : 0) + group / 2 * 32;
        Codes out = {};
        for (int i = 0; i < 4; ++i) {
            out.eight[i] = read_unaligned<uint64_t>(q + i * 8) >> (group % 2 * 4) & 15 * kEachByte;
            if (kBits == 5) out.eight[i] |= (read_unaligned<uint64_t>(high + i * 8) >> group & kEachByte) << 4;
        }
        return out;
    }
    OST_INLINE void factors(const BlockHeader& header, int run, float& d, float& m) {
        int scale = 0;
        int minimum = 0;
        six_bits(run, [&](int i) { return static_cast<int>(header.scales[i]); }, scale, minimum);
        d = header.halves[0] * static_cast<float>(scale);
        m = -(header.halves[1] * static_cast<float>(minimum));
    }
};

struct BlockQ6K {
    static constexpr int kValues = 256;
    static constexpr int kRun = 16;
    static constexpr int kBits = 6;
    static constexpr Code kCode = Code::kSigned;
    static constexpr bool kMinimum = false;
    static constexpr int kHalves = 1;
    static constexpr int kHalvesAt = 208;
    static constexpr int kScales = 16;
    static constexpr int kScalesAt = 192;
    static constexpr int kBytes = 210;

    OST_INLINE Codes codes(const char* block, int group) {
        const char* q = block + group / 4 * 64 + group % 2 * 32;
        const char* high = block + 128 + group / 4 * 32;
        Codes out = {};
        for (int i = 0; i < 4; ++i) {
            const uint64_t low = read_unaligned<uint64_t>(q + i * 8) >> (group % 4 / 2 * 4) & 15 * kEachByte;
            const uint64_t top = read_unaligned<uint64_t>(high + i * 8) >> (group % 4 * 2) & 3 * kEachByte;
            out.eight[i] = low | top << 4;
        }
        return out;
    }
    OST_INLINE void factors(const BlockHeader& header, int run, float& d, float&) {
        d = header.halves[0] * static_cast<float>(static_cast<int8_t>(header.scales[run]));
    }
};

using BlockQ80 = SmallBlock<8, Code::kSigned, false>;
using BlockQ40 = SmallBlock<4, Code::kSigned, false>;
using BlockQ41 = SmallBlock<4, Code::kUnsigned, true>;
using BlockQ50 = SmallBlock<5, Code::kSigned, false>;
using BlockQ51 = SmallBlock<5, Code::kUnsigned, true>;
using BlockIQ4NL = SmallBlock<4, Code::kLookup, false>;
using BlockQ4K = LargeBlock<4>;
using BlockQ5K = LargeBlock<5>;

// All formats of weights: their names in kernels, their dtypes and the types of their elements or blocks. A new block
// format is a line here.
#define OST_FLOAT_FORMATS(X) X(f32, OST_F32, float) X(f16, OST_F16, f16) X(bf16, OST_BF16, bf16)
#define OST_BLOCK_FORMATS(X)          \
    X(q8_0, OST_Q8_0, BlockQ80)       \
    X(q4_0, OST_Q4_0, BlockQ40)       \
    X(q4_1, OST_Q4_1, BlockQ41)       \
    X(q5_0, OST_Q5_0, BlockQ50)       \
    X(q5_1, OST_Q5_1, BlockQ51)       \
    X(iq4_nl, OST_IQ4_NL, BlockIQ4NL) \
    X(q4_k, OST_Q4_K, BlockQ4K)       \
    X(q5_k, OST_Q5_K, BlockQ5K)       \
    X(q6_k, OST_Q6_K, BlockQ6K)

// Calls f(Block{}) with the type of a block dtype; false, and f is not called, for another dtype.
template <class F>
OST_INLINE bool with_block(int64_t dtype, const F& f) {
    switch (dtype) {
#define OST_CASE(name, number, Block) \
    case number: f(Block{}); return true;
        OST_BLOCK_FORMATS(OST_CASE)
#undef OST_CASE
        default: return false;
    }
}

OST_INLINE bool is_block(int64_t dtype) {
    return with_block(dtype, [](auto) {});
}

// What multiplies d.
template <class Block>
OST_INLINE float number(uint8_t code) {
    if constexpr (Block::kCode == Code::kLookup) return kLookup[code];
    if constexpr (Block::kCode == Code::kUnsigned) return code;
    return static_cast<float>(Block::kBits == 8 ? static_cast<int8_t>(code) : code - (1 << (Block::kBits - 1)));
}

// The 32 values of a group from its header and codes.
template <class Block>
OST_INLINE void widen_group(const BlockHeader& header, int group, const Codes& codes, float* out) {
    constexpr int runs = kQuantBlock / Block::kRun;  // of a group
    uint8_t bytes[kQuantBlock];
    std::memcpy(bytes, &codes, sizeof bytes);
    for (int run = 0; run < runs; ++run) {
        float d = 0.0f;
        float m = 0.0f;
        Block::factors(header, group * runs + run, d, m);
        for (int i = run * Block::kRun; i < (run + 1) * Block::kRun; ++i) {
            const float value = d * number<Block>(bytes[i]);
            out[i] = Block::kMinimum ? value + m : value;
        }
    }
}

// The 32 values of a group of a block in a file.
template <class Block>
OST_INLINE void widen_group(const char* block, int group, float* out) {
    BlockHeader header = {};
    for (int h = 0; h < Block::kHalves; ++h) {
        header.halves[h] = widen(read_unaligned<f16>(block + Block::kHalvesAt + h * 2));
    }
    std::memcpy(header.scales, block + Block::kScalesAt, Block::kScales);
    widen_group<Block>(header, group, Block::codes(block, group), out);
}

}  // namespace ost::OST_UNIT
