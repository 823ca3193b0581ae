// Vectors of 8 floats: AVX2 with FMA and F16C. Included by simd.h only.
#pragma once

#include <immintrin.h>

namespace ost::OST_UNIT {

inline constexpr int VW = 8;
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));

OST_INLINE vf splat(float x) { return _mm256_set1_ps(x); }
OST_INLINE vi splat_i(int32_t x) { return (vi)_mm256_set1_epi32(x); }
OST_INLINE vf zero() { return _mm256_setzero_ps(); }
OST_INLINE __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OST_INLINE __m128i load_halves(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
OST_INLINE __m128i load_halves_n(const void* p, int n) {
    uint16_t lanes[8] = {};
    for (int i = 0; i < n; ++i) lanes[i] = static_cast<const uint16_t*>(p)[i];
    return load_halves(lanes);
}
OST_INLINE void store_halves_n(void* p, __m128i x, int n) {
    uint16_t lanes[8];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), x);
    for (int i = 0; i < n; ++i) static_cast<uint16_t*>(p)[i] = lanes[i];
}

OST_INLINE vf widen_bf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
OST_INLINE vf load(const float* p) { return _mm256_loadu_ps(p); }
OST_INLINE vf load(const bf16* p) { return widen_bf16(load_halves(p)); }
OST_INLINE vf load(const f16* p) { return _mm256_cvtph_ps(load_halves(p)); }
OST_INLINE vf load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
OST_INLINE vf load_n(const bf16* p, int n) { return widen_bf16(load_halves_n(p, n)); }
OST_INLINE vf load_n(const f16* p, int n) { return _mm256_cvtph_ps(load_halves_n(p, n)); }

OST_INLINE __m128i narrow_bf16(vf x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_packus_epi32(high, high);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
OST_INLINE __m128i narrow_f16(vf x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
OST_INLINE void store(float* p, vf x) { _mm256_storeu_ps(p, x); }
OST_INLINE void store(bf16* p, vf x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(x)); }
OST_INLINE void store(f16* p, vf x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_f16(x)); }
OST_INLINE void store_n(float* p, vf x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
OST_INLINE void store_n(bf16* p, vf x, int n) { store_halves_n(p, narrow_bf16(x), n); }
OST_INLINE void store_n(f16* p, vf x, int n) { store_halves_n(p, narrow_f16(x), n); }
OST_INLINE vi load_i(const int32_t* p) { return (vi)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
OST_INLINE void store_i(int32_t* p, vi x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)x); }

OST_INLINE vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
OST_INLINE vf maximum(vf a, vf b) { return _mm256_max_ps(a, b); }
OST_INLINE vf minimum(vf a, vf b) { return _mm256_min_ps(a, b); }
OST_INLINE vf square_root(vf x) { return _mm256_sqrt_ps(x); }
OST_INLINE vf to_float(vi x) { return _mm256_cvtepi32_ps((__m256i)x); }
OST_INLINE vi to_int(vf x) { return (vi)_mm256_cvttps_epi32(x); }
OST_INLINE vf round_even(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// In two factors, so that results near both ends of the range round once and overflow to infinity.
OST_INLINE vf ldexp2(vf x, vf n) {
    const vi whole = to_int(n);
    const vi first = whole >> 1;
    const vi bias = splat_i(127);
    return x * bit_cast<vf>((first + bias) << 23) * bit_cast<vf>((whole - first + bias) << 23);
}

OST_INLINE float sum(vf x) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
OST_INLINE float largest(vf x) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

// Quantised storage: VW signed bytes as floats; VW unsigned bytes as integers.
OST_INLINE vf load_i8(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
OST_INLINE vi load_u8(const void* p) {
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}

}  // namespace ost::OST_UNIT
