// Operators on elements. An element is read before the same place is written, so results may take an operand's bytes
// where both have elements of one size.
#include "words.h"

template <class F>
DEVICE void for_elements(const i32* count, i64 rows, i64 width, F body) {
    const i64 end = valid_rows(count, rows) * width;
    for (i64 i = first_element(); i < end; i += element_step()) body(i);
}

DEVICE f32 silu_of(f32 x) { return x / (1.0f + expf(-x)); }

// x F(x), F the cumulative function of the normal distribution, as max(x, 0) - |x| Q(|x|): the tail Q keeps its digits,
// as it would not in 1 + erf. Past 15 there is no tail in f32.
DEVICE f32 gelu_of(f32 x) {
    const f32 size = fabsf(x) < 15.0f ? fabsf(x) : 15.0f;
    const f32 positive = x > 0.0f || x != x ? x : 0.0f;
    return positive - 0.5f * size * erfcf(size * 0.70710678f);
}

// x / 2 (1 + tanh(s)) = x / (1 + e^(-2 s)) with s = sqrt(2 / pi) (x + 0.044715 x^3).
DEVICE f32 gelu_tanh_of(f32 x) {
    const f32 cubic = fmaf(x * x, 0.044715f, 1.0f);
    return x / (1.0f + expf(x * cubic * -1.59576912f));
}

template <class X>
DEVICE void silu(const X* x, const i32* count, X* y, i64 rows, i64 width, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(silu_of(widen(x[i])), y[i]); });
}

template <class X, class Y>
DEVICE void gelu(const X* x, const i32* count, Y* y, i64 rows, i64 width, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(gelu_of(widen(x[i])), y[i]); });
}

template <class X, class Y>
DEVICE void gelu_tanh(const X* x, const i32* count, Y* y, i64 rows, i64 width, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(gelu_tanh_of(widen(x[i])), y[i]); });
}

template <class X>
DEVICE void hyperbolic_tangent(const X* x, const i32* count, X* y, i64 rows, i64 width, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(tanhf(widen(x[i])), y[i]); });
}

// Rows of gate and up lie so many elements apart, `inner` rows an entry: they may be columns of one joint product. Runs
// of 8 by words, where all rows begin at multiples of 16 bytes; else one by one.
template <class X, class Y>
DEVICE void swiglu(const X* gate, const X* up, const i32* count, Y* y, i64 entries, i64 inner, i64 width,
                   i64 gate_stride, i64 up_stride, Status) {
    constexpr int RUN = 8;
    const i64 rows = valid_rows(count, entries) * inner;
    const bool one = gate_stride == width && up_stride == width;  // all rows are one
    const i64 length = one ? rows * width : width, end = one ? 1 : rows;
    const bool whole = aligned(gate) && aligned(up) && aligned(y) &&
                       (one || (width | gate_stride | up_stride) % RUN == 0);
    const i64 runs = whole ? length / RUN : 0, units = end * runs;
    const auto at = [=](i64 unit, i64& row, i64 each) {  // what is left of a unit in its row
        row = end == 1 ? 0 : unit / each;
        return unit - row * each;
    };
    for (i64 unit = first_element(); unit < units; unit += element_step()) {
        i64 row;
        const i64 i = at(unit, row, runs) * RUN;
        f32 gates[RUN], ups[RUN];
        load_values(gate + row * gate_stride + i, true, gates);
        load_values(up + row * up_stride + i, true, ups);
#pragma unroll
        for (int n = 0; n < RUN; ++n) gates[n] = silu_of(gates[n]) * ups[n];
        store_values(y + row * width + i, gates);
    }
    const i64 rest = length - runs * RUN;
    for (i64 unit = first_element(); unit < end * rest; unit += element_step()) {
        i64 row;
        const i64 i = runs * RUN + at(unit, row, rest);
        narrow(silu_of(widen(gate[row * gate_stride + i])) * widen(up[row * up_stride + i]), y[row * width + i]);
    }
}

template <class X>
DEVICE void add(const X* a, const X* b, const i32* count, X* y, i64 rows, i64 width, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(widen(a[i]) + widen(b[i]), y[i]); });
}

template <class X>
DEVICE void multiply(const X* a, const X* b, const i32* count, X* y, i64 rows, i64 width, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(widen(a[i]) * widen(b[i]), y[i]); });
}

template <class X>
DEVICE void scale(const X* x, const i32* count, X* y, i64 rows, i64 width, f64 factor, Status) {
    const f32 by = static_cast<f32>(factor);
    for_elements(count, rows, width, [=](i64 i) { narrow(widen(x[i]) * by, y[i]); });
}

template <class X>
DEVICE void fill(const X*, const i32* count, X* y, i64 rows, i64 width, f64 value, Status) {
    const X constant = narrowed<X>(static_cast<f32>(value));
    for_elements(count, rows, width, [=](i64 i) { y[i] = constant; });
}

// x [..., columns] plus a vector.
template <class X>
DEVICE void add_bias(const X* x, const f32* bias, const i32* count, X* y, i64 rows, i64 width, i64 columns, Status) {
    for_elements(count, rows, width, [=](i64 i) { narrow(widen(x[i]) + bias[i % columns], y[i]); });
}

// f64 to f32, not to nearest but to the neighbour with an odd last bit: a second rounding to a shorter type then gives
// what one rounding from f64 would have given.
DEVICE f32 to_odd(f64 x) {
    const f32 nearest = static_cast<f32>(x);
    if (static_cast<f64>(nearest) == x || x != x) return nearest;
    const u32 bits = bits_of(nearest) - (fabs(static_cast<f64>(nearest)) > fabs(x) ? 1u : 0u);
    return float_of(bits | 1u);
}

// Each conversion says whether the value could be held.
template <class X, class Y>
DEVICE bool convert(X x, Y& y) {
    narrow(widen(x), y);
    return true;
}
template <class X>
DEVICE bool convert(X x, f64& y) {
    y = widen(x);
    return true;
}
template <class Y>
DEVICE bool convert(f64 x, Y& y) {
    narrow(to_odd(x), y);
    return true;
}
DEVICE bool convert(f64 x, f32& y) {
    y = static_cast<f32>(x);
    return true;
}
DEVICE bool convert(f64 x, f64& y) {
    y = x;
    return true;
}
DEVICE bool convert(i32 x, i32& y) {
    y = x;
    return true;
}
DEVICE bool convert(i32 x, i64& y) {
    y = x;
    return true;
}
DEVICE bool convert(i64 x, i64& y) {
    y = x;
    return true;
}
// A value out of range becomes the nearest one that i32 holds.
DEVICE bool convert(i64 x, i32& y) {
    const i64 held = larger<i64>(-2147483648ll, smaller<i64>(2147483647ll, x));
    y = static_cast<i32>(held);
    return held == x;
}

template <class X, class Y>
DEVICE void cast(const X* x, const i32* count, Y* y, i64 rows, i64 width, Status status) {
    for_elements(count, rows, width, [=](i64 i) {
        if (!convert(x[i], y[i])) status.out_of_range();
    });
}
