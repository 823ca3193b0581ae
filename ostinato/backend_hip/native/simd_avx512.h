// Vectors of 16 floats: AVX-512 F, BW, DQ, VL with FMA and F16C. Included by simd.h only.
#pragma once

#include <immintrin.h>

namespace ost::OST_UNIT {

inline constexpr int VW = 16;
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));

OST_INLINE vf splat(float x) { return _mm512_set1_ps(x); }
OST_INLINE vi splat_i(int32_t x) { return (vi)_mm512_set1_epi32(x); }
OST_INLINE vf zero() { return _mm512_setzero_ps(); }
OST_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

OST_INLINE vf load(const float* p) { return _mm512_loadu_ps(p); }
OST_INLINE vf widen_bf16(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
OST_INLINE vf load(const bf16* p) { return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
OST_INLINE vf load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
OST_INLINE vf load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
OST_INLINE vf load_n(const bf16* p, int n) { return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
OST_INLINE vf load_n(const f16* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }

// By integer arithmetic and not by vcvtneps2bf16, which flushes subnormal inputs to zero.
OST_INLINE __m256i narrow_bf16(vf x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
OST_INLINE __m256i narrow_f16(vf x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
OST_INLINE void store(float* p, vf x) { _mm512_storeu_ps(p, x); }
OST_INLINE void store(bf16* p, vf x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x)); }
OST_INLINE void store(f16* p, vf x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16(x)); }
OST_INLINE void store_n(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
OST_INLINE void store_n(bf16* p, vf x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_bf16(x)); }
OST_INLINE void store_n(f16* p, vf x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_f16(x)); }
OST_INLINE vi load_i(const int32_t* p) { return (vi)_mm512_loadu_si512(p); }
OST_INLINE void store_i(int32_t* p, vi x) { _mm512_storeu_si512(p, (__m512i)x); }

OST_INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
OST_INLINE vf maximum(vf a, vf b) { return _mm512_max_ps(a, b); }
OST_INLINE vf minimum(vf a, vf b) { return _mm512_min_ps(a, b); }
OST_INLINE vf square_root(vf x) { return _mm512_sqrt_ps(x); }
OST_INLINE vf to_float(vi x) { return _mm512_cvtepi32_ps((__m512i)x); }
OST_INLINE vi to_int(vf x) { return (vi)_mm512_cvttps_epi32(x); }
OST_INLINE vf round_even(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
OST_INLINE vf ldexp2(vf x, vf n) { return _mm512_scalef_ps(x, n); }

OST_INLINE float sum(vf x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
OST_INLINE float largest(vf x) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

// Quantised storage: VW signed bytes as floats; VW unsigned bytes as integers.
OST_INLINE vf load_i8(const void* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
OST_INLINE vi load_u8(const void* p) {
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

}  // namespace ost::OST_UNIT
