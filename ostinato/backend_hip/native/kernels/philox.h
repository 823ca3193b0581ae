// Philox4x32-10 (ostinato/ir/random.py) for a vector of counters: four random words each, bit for bit the reference's.
#pragma once

#include "transpose.h"

namespace ost::OST_UNIT {

struct WideProduct {
    vu high, low;
};

// Both halves of the products of 32-bit lanes with one factor.
OST_INLINE WideProduct multiply_wide(vu a, uint32_t factor) {
#if defined(__AVX512F__)
    const __m512i right = _mm512_set1_epi32(static_cast<int32_t>(factor)), left = (__m512i)a;
    const __m512i even = _mm512_mul_epu32(left, right), odd = _mm512_mul_epu32(_mm512_srli_epi64(left, 32), right);
    return {(vu)_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd),
            (vu)_mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32))};
#elif defined(__AVX2__)
    const __m256i right = _mm256_set1_epi32(static_cast<int32_t>(factor)), left = (__m256i)a;
    const __m256i even = _mm256_mul_epu32(left, right), odd = _mm256_mul_epu32(_mm256_srli_epi64(left, 32), right);
    return {(vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa),
            (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)};
#else
    WideProduct product;
    for (int i = 0; i < VW; ++i) {
        const uint64_t both = static_cast<uint64_t>(a[i]) * factor;
        product.high[i] = static_cast<uint32_t>(both >> 32);
        product.low[i] = static_cast<uint32_t>(both);
    }
    return product;
#endif
}

// Squares of 4 x 4 words, one in every 128 bits: row[i][j] becomes row[j][i] in each.
OST_INLINE void transpose_quads(vu (&row)[4]) {
#if defined(__AVX512F__)
    const __m512i a = (__m512i)row[0], b = (__m512i)row[1], c = (__m512i)row[2], d = (__m512i)row[3];
    const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    row[0] = (vu)_mm512_unpacklo_epi64(ab_low, cd_low);
    row[1] = (vu)_mm512_unpackhi_epi64(ab_low, cd_low);
    row[2] = (vu)_mm512_unpacklo_epi64(ab_high, cd_high);
    row[3] = (vu)_mm512_unpackhi_epi64(ab_high, cd_high);
#elif defined(__AVX2__)
    const __m256i a = (__m256i)row[0], b = (__m256i)row[1], c = (__m256i)row[2], d = (__m256i)row[3];
    const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    row[0] = (vu)_mm256_unpacklo_epi64(ab_low, cd_low);
    row[1] = (vu)_mm256_unpackhi_epi64(ab_low, cd_low);
    row[2] = (vu)_mm256_unpacklo_epi64(ab_high, cd_high);
    row[3] = (vu)_mm256_unpackhi_epi64(ab_high, cd_high);
#else
    for (int i = 0; i < 4; ++i) {
        for (int j = i + 1; j < 4; ++j) {
            const uint32_t upper = row[i][j];
            row[i][j] = row[j][i];
            row[j][i] = upper;
        }
    }
#endif
}

// The words of counters (n low, n high, second, third) for n = first, first + 1, .. first + VW - 1, in that order: word
// 4 (n - first) + k of the 4 VW words is word k of counter n.
OST_INLINE void philox(uint64_t first, uint32_t second, uint32_t third, uint64_t key, vu (&words)[4]) {
    // Counters are placed so that squares of four words and four counters, turned, are runs of words.
    constexpr int kQuads = VW / 4;
    vu c0, c1;
    const auto base = static_cast<uint32_t>(first), upper = static_cast<uint32_t>(first >> 32);
    alignas(64) uint32_t places[VW];
    for (int i = 0; i < VW; ++i) places[i] = static_cast<uint32_t>(i % 4 * kQuads + i / 4);
    std::memcpy(&c0, places, sizeof c0);
    c0 = c0 + base;
    c1 = upper + ((vu)(c0 < base) & 1u);  // the carry of a sum that wrapped
    vu c2 = vu{} + second, c3 = vu{} + third;
    auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        const WideProduct left = multiply_wide(c0, 0xD2511F53u), right = multiply_wide(c2, 0xCD9E8D57u);
        c0 = right.high ^ c1 ^ k0;
        c1 = right.low;
        c2 = left.high ^ c3 ^ k1;
        c3 = left.low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
    transpose_quads(words);
}

}  // namespace ost::OST_UNIT
