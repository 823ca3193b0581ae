// Codes of 4, 5 or 6 bits in 32-bit words: what a lane of a panel keeps of a run of values.
//
// A word holds as many codes as fit, the first one lowest; the bits that are left at its top (two, for 5 and 6 bits)
// make up, word after word, the last codes of the run. So every bit is used, and a code costs a shift, and a conversion
// or a look into a table held in registers.
#pragma once

#include "blocks.h"

namespace ost::OST_UNIT {

// Signed codes are two's complement here, whatever a file adds to them.
template <int kBits, int kCodes, Code kCode>
struct Fields {
    static constexpr int kPerWord = 32 / kBits;
    static constexpr int kWords = kCodes * kBits / 32;
    static constexpr int kRest = kCodes - kWords * kPerWord;  // codes made of the words' tops
    static constexpr int kTop = 32 - kPerWord * kBits;        // bits of a word's top
    static_assert(kWords * 32 == kCodes * kBits && kRest * kBits == kWords * kTop, "every bit is used");

    static constexpr int kEight = 8 * kBits;  // bits of eight codes
    static constexpr uint64_t kSign = kCode == Code::kSigned ? kEachByte << (kBits - 1) : 0;

    // Eight codes, one a byte, side by side.
    OST_INLINE uint64_t squeeze(uint64_t codes) {
        constexpr uint64_t low = 0x00ff00ff00ff00ff;
        constexpr uint64_t lower = 0x0000ffff0000ffff;
        codes ^= kSign;
        codes = (codes & low) | (codes & ~low) >> (8 - kBits);
        codes = (codes & lower) | (codes & ~lower) >> (16 - 2 * kBits);
        return (codes & 0xffffffff) | codes >> 32 << (kEight / 2);
    }

    // The words of the codes eight[0], eight[1] and so on.
    OST_INLINE void pack(const uint64_t* eight, uint32_t* words) {
        constexpr int chunks = kCodes / 8;
        uint64_t chunk[chunks];
        for (int i = 0; i < chunks; ++i) chunk[i] = squeeze(eight[i]);
        const auto bits_from = [&](int at) {  // 32 of them, of all codes side by side
            const int i = at / kEight;
            uint64_t bits = chunk[i] >> at % kEight;
            if (at % kEight + 32 > kEight && i + 1 < chunks) bits |= chunk[i + 1] << (kEight - at % kEight);
            return static_cast<uint32_t>(bits);
        };
        constexpr int used = kPerWord * kBits;
        uint32_t rest = kRest != 0 ? bits_from(kWords * used) : 0;
#pragma GCC unroll 8
        for (int w = 0; w < kWords; ++w) {
            words[w] = bits_from(w * used);
            if constexpr (kTop != 0) {
                words[w] = (words[w] & ((1u << used) - 1)) | rest << used;
                rest >>= kTop;
            }
        }
    }

    // The codes that were packed.
    OST_INLINE void unpack(const uint32_t* words, uint64_t* eight) {
        uint8_t codes[kCodes];
        const auto code = [](uint32_t word, int i) {
            return static_cast<uint8_t>(word >> i * kBits & ((1u << kBits) - 1));
        };
        uint32_t rest = 0;
        for (int w = 0; w < kWords; ++w) {
            for (int i = 0; i < kPerWord; ++i) codes[w * kPerWord + i] = code(words[w], i);
            if constexpr (kTop != 0) rest |= words[w] >> (32 - kTop) << w * kTop;
        }
        for (int i = 0; i < kRest; ++i) codes[kCodes - kRest + i] = code(rest, i);
        std::memcpy(eight, codes, sizeof codes);
        for (int i = 0; i < kCodes / 8; ++i) eight[i] ^= kSign;
    }
};

// CodeWord is a word of codes as field() takes it: as it is or, for codes that are places in a table and a machine
// without tables of floats, as bytes that were looked up: those of codes 0, 2, 4, 6 and of codes 1, 3, 5, 7.
#if defined(__AVX512F__)
template <Code>
using CodeWord = vi;

template <int kBits, Code kCode>
struct CodeTable {
    float values[1 << kBits];
    constexpr CodeTable() : values() {
        constexpr int sign = kCode == Code::kSigned ? 1 << (kBits - 1) : 0;
        for (int n = 0; n < 1 << kBits; ++n) {
            values[n] = static_cast<float>(kCode == Code::kLookup ? kLookup[n] : (n ^ sign) - sign);
        }
    }
};
template <int kBits, Code kCode>
alignas(64) static constexpr CodeTable<kBits, kCode> code_table;

template <Code>
OST_INLINE vi code_word(vi word) {
    return word;
}

// Code i of every lane's word as a float. A permutation looks at the lowest four or five bits of a lane. Six stay where
// they are and become the low bits of the mantissa of a power of two, which is then taken away; both are exact. Those
// above bit 22 are shifted down together.
template <int kBits, Code kCode>
OST_INLINE vf field(vi word, int i) {
    if constexpr (kBits < 6) {
        const float* table = code_table<kBits, kCode>.values;
        const auto places = (__m512i)(word >> i * kBits);
        if constexpr (kBits == 5) return _mm512_permutex2var_ps(load(table), places, load(table + 16));
        return _mm512_permutexvar_ps(places, load(table));
    } else {
        constexpr int sign = kCode == Code::kSigned ? 1 << (kBits - 1) : 0;
        constexpr int in_place = 23 / kBits;
        const int one = 1 << i % in_place * kBits;
        const auto power = static_cast<float>(0x800000 / one);
        const vi from = i < in_place ? word : word >> in_place * kBits;
        const vi mask = splat_i(((1 << kBits) - 1) * one);
        const vi over = splat_i(bit_cast<int32_t>(power) | sign * one);
        constexpr int masked_xor = (0xf0 & 0xcc) ^ 0xaa;
        const auto bits = _mm512_ternarylogic_epi32((__m512i)from, (__m512i)mask, (__m512i)over, masked_xor);
        return _mm512_castsi512_ps(bits) - splat(power + static_cast<float>(sign));
    }
}
#else
struct LookedUp {
    vi even;
    vi odd;
};
template <Code kCode>
struct CodeWordOf {
    using Type = vi;
};
template <>
struct CodeWordOf<Code::kLookup> {
    using Type = LookedUp;
};
template <Code kCode>
using CodeWord = typename CodeWordOf<kCode>::Type;

OST_INLINE vi look_up(vi places) {  // a place in every byte
#if defined(__AVX2__)
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kLookup));
    return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)places);
#else
    uint8_t bytes[sizeof places];
    std::memcpy(bytes, &places, sizeof bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(kLookup[byte]);
    std::memcpy(&places, bytes, sizeof bytes);
    return places;
#endif
}

template <Code kCode>
OST_INLINE CodeWord<kCode> code_word(vi word) {
    if constexpr (kCode == Code::kLookup) {
        return {look_up(word & 0x0f0f0f0f), look_up(word >> 4 & 0x0f0f0f0f)};
    } else {
        return word;
    }
}

// Code i of every lane's word as a float.
template <int kBits, Code kCode>
OST_INLINE vf field(CodeWord<kCode> word, int i) {
    if constexpr (kCode == Code::kLookup) {
        return to_float((i % 2 != 0 ? word.odd : word.even) << (24 - i / 2 * 8) >> 24);
    } else if constexpr (kCode == Code::kSigned) {
        return to_float(word << (32 - kBits - i * kBits) >> (32 - kBits));
    } else {
        return to_float(word >> i * kBits & ((1 << kBits) - 1));
    }
}
#endif

}  // namespace ost::OST_UNIT
