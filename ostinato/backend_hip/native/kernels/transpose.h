// Square transposes of VW x VW floats in registers: what turns rows of keys into columns of a score tile.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

// row[i][j] becomes row[j][i].
#if defined(__AVX512F__)
OST_INLINE void transpose(vf (&row)[16]) {
    vf pairs[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
    }
    vf quads[16];  // quads[4 g + c]: column c of rows 4 g .. 4 g + 3, in every lane of 128 bits
    const auto low = [](vf a, vf b) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto high = [](vf a, vf b) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    for (int g = 0; g < 16; g += 4) {
        quads[g] = low(pairs[g], pairs[g + 2]);
        quads[g + 1] = high(pairs[g], pairs[g + 2]);
        quads[g + 2] = low(pairs[g + 1], pairs[g + 3]);
        quads[g + 3] = high(pairs[g + 1], pairs[g + 3]);
    }
    for (int c = 0; c < 4; ++c) {
        const vf even0 = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0x88);
        const vf odd0 = _mm512_shuffle_f32x4(quads[c], quads[c + 4], 0xdd);
        const vf even1 = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0x88);
        const vf odd1 = _mm512_shuffle_f32x4(quads[c + 8], quads[c + 12], 0xdd);
        row[c] = _mm512_shuffle_f32x4(even0, even1, 0x88);
        row[c + 4] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
        row[c + 8] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
        row[c + 12] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
    }
}
#elif defined(__AVX2__)
OST_INLINE void transpose(vf (&row)[8]) {
    vf pairs[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
    }
    vf quads[8];
    for (int g = 0; g < 8; g += 4) {
        quads[g] = _mm256_shuffle_ps(pairs[g], pairs[g + 2], 0x44);
        quads[g + 1] = _mm256_shuffle_ps(pairs[g], pairs[g + 2], 0xee);
        quads[g + 2] = _mm256_shuffle_ps(pairs[g + 1], pairs[g + 3], 0x44);
        quads[g + 3] = _mm256_shuffle_ps(pairs[g + 1], pairs[g + 3], 0xee);
    }
    for (int c = 0; c < 4; ++c) {
        row[c] = _mm256_permute2f128_ps(quads[c], quads[c + 4], 0x20);
        row[c + 4] = _mm256_permute2f128_ps(quads[c], quads[c + 4], 0x31);
    }
}
#else
OST_INLINE void transpose(vf (&row)[VW]) {
    for (int i = 0; i < VW; ++i) {
        for (int j = i + 1; j < VW; ++j) {
            const float upper = row[i][j];
            row[i][j] = row[j][i];
            row[j][i] = upper;
        }
    }
}
#endif

}  // namespace ost::OST_UNIT
