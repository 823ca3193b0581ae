// Vectors of 4 floats by the compiler's vector extensions, for any machine. Included by simd.h only.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ost::OST_UNIT {

inline constexpr int VW = 4;
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));

OST_INLINE vf splat(float x) { return vf{x, x, x, x}; }
OST_INLINE vi splat_i(int32_t x) { return vi{x, x, x, x}; }
OST_INLINE vf zero() { return vf{}; }

OST_INLINE vf load(const float* p) {
    vf x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
// Four 16-bit or 8-bit numbers at the top of their lanes.
OST_INLINE vu load_halves_high(const void* p) {
#if defined(__SSE2__)
    return (vu)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(static_cast<const __m128i*>(p)));
#else
    uint16_t h[4];
    std::memcpy(h, p, sizeof h);
    return vu{h[0], h[1], h[2], h[3]} << 16;
#endif
}
OST_INLINE vu load_bytes_high(const void* p) {
#if defined(__SSE2__)
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    const __m128i none = _mm_setzero_si128();
    return (vu)_mm_unpacklo_epi16(none, _mm_unpacklo_epi8(none, _mm_cvtsi32_si128(word)));
#else
    uint8_t b[4];
    std::memcpy(b, p, sizeof b);
    return vu{b[0], b[1], b[2], b[3]} << 24;
#endif
}
OST_INLINE vf load(const bf16* p) { return bit_cast<vf>(load_halves_high(p)); }
OST_INLINE vf load(const f16* p) {  // widen() of simd.h on four lanes
    const vu bits = load_halves_high(p);
    const vu sign = bits & 0x80000000u;
    const vi magnitude = (vi)((bits & 0x7fff0000u) >> 3);
    const vi special = magnitude >= 0x0f800000;
    const vi quiet = magnitude > 0x0f800000;
    const vi wide = magnitude | 0x70000000 | (quiet & 0x400000);
    const vi scaled = bit_cast<vi>(bit_cast<vf>(magnitude) * splat(0x1p+112f));
    return bit_cast<vf>((vu)((special & wide) | (~special & scaled)) | sign);
}
template <class T>
OST_INLINE vf load_n(const T* p, int n) {
    vf x{};
    for (int i = 0; i < n; ++i) x[i] = widen(p[i]);
    return x;
}
OST_INLINE void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
OST_INLINE void store(bf16* p, vf x) {
    for (int i = 0; i < VW; ++i) narrow(x[i], p[i]);
}
OST_INLINE void store(f16* p, vf x) {
    for (int i = 0; i < VW; ++i) narrow(x[i], p[i]);
}
template <class T>
OST_INLINE void store_n(T* p, vf x, int n) {
    for (int i = 0; i < n; ++i) narrow(x[i], p[i]);
}
OST_INLINE vi load_i(const int32_t* p) {
    vi x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
OST_INLINE void store_i(int32_t* p, vi x) { std::memcpy(p, &x, sizeof x); }

// Fused where the target has it (ARM, RISC-V with vectors, POWER), else two roundings: a libm call a lane would be
// two orders slower. Either way it is the same everywhere in this unit.
OST_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
    vf x;
    for (int i = 0; i < VW; ++i) x[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return x;
#else
    return a * b + c;
#endif
}
OST_INLINE vf maximum(vf a, vf b) { return a > b ? a : b; }
OST_INLINE vf minimum(vf a, vf b) { return a < b ? a : b; }
OST_INLINE vf square_root(vf x) {
    for (int i = 0; i < VW; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
OST_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }
OST_INLINE vi to_int(vf x) { return __builtin_convertvector(x, vi); }
// Adding and subtracting 1.5 * 2^23 rounds to even; for |x| < 2^22, which is what kernels need.
OST_INLINE vf round_even(vf x) { return (x + splat(12582912.0f)) - splat(12582912.0f); }
OST_INLINE vf ldexp2(vf x, vf n) {
    const vi whole = to_int(n);
    const vi first = whole >> 1;
    const vi bias = splat_i(127);
    return x * bit_cast<vf>((first + bias) << 23) * bit_cast<vf>((whole - first + bias) << 23);
}

OST_INLINE float sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }
OST_INLINE float largest(vf x) {
    const float a = x[0] > x[2] ? x[0] : x[2];
    const float b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
}

// Quantised storage: VW signed bytes as floats; VW unsigned bytes as integers.
OST_INLINE vf load_i8(const void* p) { return to_float((vi)load_bytes_high(p) >> 24); }
OST_INLINE vi load_u8(const void* p) { return (vi)(load_bytes_high(p) >> 24); }

}  // namespace ost::OST_UNIT
