// Conversion between element types: float kinds to nearest even in one rounding, int64 and int32 as they are and into
// each other.
#include "elementwise.h"

namespace ost::OST_UNIT {

namespace {

// double to float, not to nearest but to the neighbour with an odd last bit: a second rounding to a shorter type then
// gives what one rounding from double would have given.
OST_INLINE float to_odd(double x) {
    const auto nearest = static_cast<float>(x);
    if (static_cast<double>(nearest) == x || x != x) return nearest;
    auto bits = bit_cast<uint32_t>(nearest);
    const double magnitude = x < 0 ? -x : x;
    const double rounded = nearest < 0 ? -static_cast<double>(nearest) : static_cast<double>(nearest);
    if (rounded > magnitude) bits -= 1;  // back towards zero; infinity becomes the largest float
    return bit_cast<float>(bits | 1u);
}

OST_INLINE void narrow_double(double x, float& y) { y = static_cast<float>(x); }
OST_INLINE void narrow_double(double x, f16& y) { narrow(to_odd(x), y); }
OST_INLINE void narrow_double(double x, bf16& y) { narrow(to_odd(x), y); }

template <class X, class Y>
OST_INLINE void convert(const X* x, Y* y, int64_t begin, int64_t end) {
    convert_run(x + begin, y + begin, end - begin);
}
template <class Y>
OST_INLINE void convert(const double* x, Y* y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) narrow_double(x[i], y[i]);
}
template <class X>
OST_INLINE void convert(const X* x, double* y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = static_cast<double>(widen(x[i]));
}
OST_INLINE void convert(const double* x, double* y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = x[i];
}

template <class X, class Y>
void cast_floats(const Call& call, int64_t capacity, int64_t count) {
    if (!covers(call, 0, capacity, sizeof(X)) || !covers(call, 2, capacity, sizeof(Y))) return;
    const X* x = call.pointer<const X>(0);
    Y* y = call.pointer<Y>(2);
    for_elements(call, count, kStreamNanoseconds, [=](int64_t begin, int64_t end) { convert(x, y, begin, end); });
}

template <class X>
void cast_to(const Call& call, int64_t capacity, int64_t count, int64_t y_dtype) {
    switch (y_dtype) {
        case OST_F32: return cast_floats<X, float>(call, capacity, count);
        case OST_F16: return cast_floats<X, f16>(call, capacity, count);
        case OST_BF16: return cast_floats<X, bf16>(call, capacity, count);
        case OST_F64: return cast_floats<X, double>(call, capacity, count);
        default: return report(call, OST_INVALID_ARGUMENT);
    }
}

// Integers as they are, or wider.
template <class X, class Y>
void copy_integers(const Call& call, int64_t capacity, int64_t count) {
    if (!covers(call, 0, capacity, sizeof(X)) || !covers(call, 2, capacity, sizeof(Y))) return;
    const X* x = call.pointer<const X>(0);
    Y* y = call.pointer<Y>(2);
    for_elements(call, count, kStreamNanoseconds, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = x[i];
    });
}

// A value that int32 cannot hold is reported and becomes the nearest that it can.
void narrow_integers(const Call& call, int64_t capacity, int64_t count) {
    if (!covers(call, 0, capacity, 8) || !covers(call, 2, capacity, 4)) return;
    const auto* x = call.pointer<const int64_t>(0);
    auto* y = call.pointer<int32_t>(2);
    const Call* const outer = &call;
    for_elements(call, count, kStreamNanoseconds, [=](int64_t begin, int64_t end) {
        bool lossy = false;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t held = larger(INT32_MIN, smaller(INT32_MAX, x[i]));
            lossy = lossy || held != x[i];
            y[i] = static_cast<int32_t>(held);
        }
        if (lossy) report(*outer, OST_OUT_OF_RANGE);
    });
}

}  // namespace

void cast(const Call& call) {
    const int64_t width = call.integer(1), x_dtype = call.integer(2), y_dtype = call.integer(3);
    const int64_t rows = valid_rows(call, 1, call.integer(0));
    if (empty(call, rows, width)) return;
    const int64_t capacity = area(call.integer(0), width);
    if (capacity < 0) return report(call, OST_INVALID_ARGUMENT);
    const int64_t count = rows * width;
    if (x_dtype == OST_I64 && y_dtype == OST_I32) return narrow_integers(call, capacity, count);
    if (x_dtype == OST_I64 && y_dtype == OST_I64) return copy_integers<int64_t, int64_t>(call, capacity, count);
    if (x_dtype == OST_I32 && y_dtype == OST_I64) return copy_integers<int32_t, int64_t>(call, capacity, count);
    if (x_dtype == OST_I32 && y_dtype == OST_I32) return copy_integers<int32_t, int32_t>(call, capacity, count);
    switch (x_dtype) {
        case OST_F32: return cast_to<float>(call, capacity, count, y_dtype);
        case OST_F16: return cast_to<f16>(call, capacity, count, y_dtype);
        case OST_BF16: return cast_to<bf16>(call, capacity, count, y_dtype);
        case OST_F64: return cast_to<double>(call, capacity, count, y_dtype);
        default: return report(call, OST_INVALID_ARGUMENT);
    }
}

}  // namespace ost::OST_UNIT
