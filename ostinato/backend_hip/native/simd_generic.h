// Vectors of 4 floats by the compiler's vector extensions, for any machine. Included by simd.h only.
#pragma once

namespace ost::OST_UNIT {

inline constexpr int VW = 4;
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

OST_INLINE vf splat(float x) { return vf{x, x, x, x}; }
OST_INLINE vi splat_i(int32_t x) { return vi{x, x, x, x}; }
OST_INLINE vf zero() { return vf{}; }

OST_INLINE vf load(const float* p) {
    vf x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
OST_INLINE vf load(const bf16* p) {
    vi bits{};
    for (int i = 0; i < VW; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i].bits) << 16);
    return bit_cast<vf>(bits);
}
typedef uint32_t vu __attribute__((vector_size(16)));
OST_INLINE vf load(const f16* p) {  // widen() of simd.h on four lanes
    const vu bits = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
    const vu magnitude = (bits & 0x7fffu) << 13;
    const vu sign = (bits & 0x8000u) << 16;
    const vi special = magnitude >= 0x0f800000u;
    const vi quiet = magnitude > 0x0f800000u;
    const vu wide = magnitude | 0x70000000u | ((vu)quiet & 0x400000u);
    const vu scaled = bit_cast<vu>(bit_cast<vf>(magnitude) * splat(0x1p+112f));
    return bit_cast<vf>((special ? wide : scaled) | sign);
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
#if defined(__FP_FAST_FMAF)
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

// Quantised storage: VW signed bytes as floats; the low and high four bits of VW bytes as floats 0..15.
// Bytes go to the top of their lane first, which two interleaving instructions do on any machine.
typedef uint8_t bytes16 __attribute__((vector_size(16)));
OST_INLINE vu load_bytes_high(const void* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    const bytes16 bytes = bit_cast<bytes16>(vu{word, 0, 0, 0});
    const bytes16 none = {};
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return bit_cast<vu>(__builtin_shufflevector(none, bytes, 16, 0, 0, 0, 17, 0, 0, 0, 18, 0, 0, 0, 19, 0, 0, 0));
#else
    return bit_cast<vu>(__builtin_shufflevector(none, bytes, 0, 0, 0, 16, 0, 0, 0, 17, 0, 0, 0, 18, 0, 0, 0, 19));
#endif
}
OST_INLINE vf load_i8(const void* p) { return to_float((vi)load_bytes_high(p) >> 24); }
OST_INLINE void load_nibbles(const void* p, vf& low, vf& high) {
    const vu bytes = load_bytes_high(p);
    low = to_float((vi)((bytes << 4) >> 28));
    high = to_float((vi)(bytes >> 28));
}

}  // namespace ost::OST_UNIT
