// The small vector vocabulary all host kernels are written in.
//
// A kernel source is compiled once per ISA unit (portable, avx2, avx512, avx512_bf16) with -DOST_UNIT=<unit>, and lives
// in namespace ost::OST_UNIT. Everything here does too, and is static and always inlined: no function compiled for one
// instruction set can be merged by the linker into another unit. For the same reason kernel files use no std::
// function templates or containers (plain loops, <cstdint>, <cstring>, builtins); see kernels/registry.cpp.
//
// A vector holds VW floats: 16 (AVX-512), 8 (AVX2) or 4 (portable: GCC/Clang vector extensions, any machine). vf and vi
// are native vector types: + - * / on vf, + - & | ^ << >> on vi, and comparisons (lanes 0 or -1) are the language's own
// operators; `mask ? a : b` is select(mask, a, b).
//
// Rules that keep results the same bits for any number of threads: no -ffast-math, no contraction (-ffp-contract=off;
// write fma() where a fused multiply-add is meant), sum() and largest() reduce in one fixed tree.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernel.h"

#ifndef OST_UNIT
#error "compile kernel sources with -DOST_UNIT=<unit>; see CMakeLists.txt"
#endif

#define OST_INLINE static inline __attribute__((always_inline))

namespace ost::OST_UNIT {

// Storage of 16-bit floats. Distinct types, so that load, store and templates pick the conversion.
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class To, class From>
OST_INLINE To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between equal sizes");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// ---- scalar conversions ---------------------------------------------------------------------------------------

OST_INLINE float widen(float x) { return x; }
OST_INLINE float widen(bf16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
OST_INLINE float widen(f16 x) {
    uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    if (magnitude >= 0x0f800000u) {  // infinity or NaN, which is made quiet
        magnitude |= magnitude > 0x0f800000u ? 0x7fc00000u : 0x7f800000u;
        return bit_cast<float>(magnitude | sign);
    }
    const float scaled = bit_cast<float>(magnitude) * 0x1p+112f;  // also makes half subnormals normal
    return bit_cast<float>(bit_cast<uint32_t>(scaled) | sign);
}

// Round to nearest even; NaN stays NaN. narrow(x, out) picks the type by `out`.
OST_INLINE void narrow(float x, float& out) { out = x; }
OST_INLINE void narrow(float x, bf16& out) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    out.bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}
OST_INLINE void narrow(float x, f16& out) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude >= 0x47800000u) {  // 65536 and more, infinity, NaN
        half = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
        half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    out.bits = static_cast<uint16_t>(half | sign);
}
template <class T>
OST_INLINE T narrowed(float x) {
    T out;
    narrow(x, out);
    return out;
}

}  // namespace ost::OST_UNIT

// Per width: VW, vf, vi; splat(float), splat_i(int32_t), zero(); load, store, load_n, store_n (n lanes, 0 <= n <= VW,
// the others read as 0 and are not written) for float, bf16, f16; load_i, store_i (int32); fma; square_root; sum,
// largest (fixed tree); to_float(vi), to_int(vf) (truncates), round_even(vf); ldexp2(x, n): x * 2^n for integral n;
// maximum, minimum: where a lane compares unordered (NaN), the second argument is returned.
#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_generic.h"
#endif

namespace ost::OST_UNIT {

OST_INLINE vf select(vi mask, vf a, vf b) { return mask ? a : b; }
OST_INLINE vf absolute(vf x) { return bit_cast<vf>(bit_cast<vi>(x) & splat_i(0x7fffffff)); }

// e^x, relative error below 1.5e-7 where the result is normal; exact limits: -inf -> 0, +inf -> inf, NaN -> NaN.
OST_INLINE vf exp(vf x) {
    x = maximum(splat(-104.0f), x);  // both keep NaN: an unordered comparison returns x
    x = minimum(splat(89.0f), x);
    const vf n = round_even(x * splat(1.44269504f));
    vf r = fma(n, splat(-0.693145752f), x);  // ln 2 in two parts; n times the first is exact
    r = fma(n, splat(-1.42860682e-6f), r);
    vf p = splat(1.38145402e-3f);
    p = fma(p, r, splat(8.36874511e-3f));
    p = fma(p, r, splat(4.16683908e-2f));
    p = fma(p, r, splat(1.66665204e-1f));
    p = fma(p, r, splat(0.499999934f));
    p = fma(p * r, r, r) + splat(1.0f);
    return ldexp2(p, n);
}
OST_INLINE vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }
OST_INLINE vf silu(vf x) { return x / (splat(1.0f) + exp(-x)); }
// cap * tanh(x / cap) for a positive cap and its reciprocal, within one unit in the last place of cap: a polynomial near
// zero, where cap - 2 cap / (e^(2x / cap) + 1) would cancel. -0 -> -0, +-inf -> +-cap, NaN -> NaN.
OST_INLINE vf soft_cap(vf x, vf cap, vf reciprocal) {
    const vf size = absolute(x), part = size * reciprocal, square = part * part;
    vf p = splat(-5.70498547e-3f);
    p = fma(p, square, splat(2.06390861e-2f));
    p = fma(p, square, splat(-5.37397154e-2f));
    p = fma(p, square, splat(1.33314416e-1f));
    p = fma(p, square, splat(-3.33332807e-1f));
    const vf near = fma(p * square, size, size);
    const vf far = cap - (cap + cap) / (exp(part + part) + splat(1.0f));
    const vi sign = bit_cast<vi>(x) & splat_i(INT32_MIN);
    return bit_cast<vf>(bit_cast<vi>(select(part < splat(0.625f), near, far)) | sign);
}
// Within 1.5 units in the last place.
OST_INLINE vf tanh(vf x) { return soft_cap(x, splat(1.0f), splat(1.0f)); }

// `count` elements of one float type as another, or as they are.
template <class X, class Y>
OST_INLINE void convert_run(const X* from, Y* to, int64_t count) {
    int64_t i = 0;
    for (; i + VW <= count; i += VW) store(to + i, load(from + i));
    if (i < count) store_n(to + i, load_n(from + i, static_cast<int>(count - i)), static_cast<int>(count - i));
}

// To the nearest cache, to be read or to be written, and to the next one.
OST_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }
OST_INLINE void prefetch_to_write(const void* address) { __builtin_prefetch(address, 1, 3); }
OST_INLINE void prefetch_far(const void* address) { __builtin_prefetch(address, 0, 2); }

// ---- helpers of kernels ---------------------------------------------------------------------------------------

// The first failure a kernel meets is kept; the table reports it with the step's number.
OST_INLINE void report(const Call& call, int32_t status) {
    int32_t none = OST_OK;
    __atomic_compare_exchange_n(call.status, &none, status, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

OST_INLINE bool is_float(int64_t dtype) { return dtype == OST_F32 || dtype == OST_F16 || dtype == OST_BF16; }

// Bytes of one element, 0 for block types, whose elements have none of their own, and for numbers that are no dtype.
OST_INLINE int64_t element_bytes(int64_t dtype) {
    switch (dtype) {
        case OST_F64:
        case OST_I64: return 8;
        case OST_F32:
        case OST_I32: return 4;
        case OST_F16:
        case OST_BF16: return 2;
        case OST_I8:
        case OST_U8:
        case OST_BOOL: return 1;
        default: return 0;
    }
}

// Calls f(T{}) with T in float, f16, bf16 for an ost_dtype; another dtype is reported and f is not called.
template <class F>
OST_INLINE void with_float_dtype(const Call& call, int64_t dtype, const F& f) {
    switch (dtype) {
        case OST_F32: f(float{}); break;
        case OST_F16: f(f16{}); break;
        case OST_BF16: f(bf16{}); break;
        default: report(call, OST_INVALID_ARGUMENT);
    }
}

// f(T{}) for a dtype that was found to be a float.
template <class F>
OST_INLINE void with_known_float(int64_t dtype, const F& f) {
    switch (dtype) {
        case OST_F32: return f(float{});
        case OST_F16: return f(f16{});
        default: return f(bf16{});
    }
}

// True when the operand's accessible bytes cover `count` elements of `size` bytes; else reported.
OST_INLINE bool covers(const Call& call, uint32_t operand, int64_t count, int64_t size) {
    const ost_operand& o = call.operands[operand];
    int64_t bytes = 0;
    const bool fits =
        count >= 0 && !__builtin_mul_overflow(count, size, &bytes) && static_cast<uint64_t>(bytes) <= o.bytes;
    if (!fits) report(call, OST_INVALID_ARGUMENT);
    return fits;
}

// Products and sums of sizes; -1 where a part is negative or the result does not fit, which covers() refuses.
OST_INLINE int64_t area(int64_t a, int64_t b) {
    int64_t product = 0;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product) ? -1 : product;
}
template <class... Sizes>
OST_INLINE int64_t area(int64_t a, int64_t b, Sizes... more) {
    return area(area(a, b), more...);
}
OST_INLINE int64_t plus(int64_t a, int64_t b) {
    int64_t total = 0;
    return a < 0 || b < 0 || __builtin_add_overflow(a, b, &total) ? -1 : total;
}

// Rows to process: `capacity` is the planned extent; a present count operand (int32) holds how many of them are valid
// in this run. Rows past it are neither read nor written. 0, and reported, for an extent or an operand that cannot be.
OST_INLINE int64_t valid_rows(const Call& call, uint32_t count_operand, int64_t capacity) {
    if (capacity < 0) {
        report(call, OST_INVALID_ARGUMENT);
        return 0;
    }
    const auto* count = call.pointer<const int32_t>(count_operand);
    if (count == nullptr) return capacity;
    if (!covers(call, count_operand, 1, sizeof *count)) return 0;
    const int64_t n = *count;
    return n < 0 ? 0 : (n < capacity ? n : capacity);
}

// True when an extent is zero, so that there is nothing to do, or negative, which is reported.
template <class... Extents>
OST_INLINE bool empty(const Call& call, Extents... extents) {
    const bool negative = ((extents < 0) || ...);
    if (negative) report(call, OST_INVALID_ARGUMENT);
    return negative || ((extents == 0) || ...);
}

// For a >= 0, without passing through a larger number.
OST_INLINE int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
OST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
OST_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace ost::OST_UNIT
