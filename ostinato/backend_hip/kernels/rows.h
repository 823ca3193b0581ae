// What the kernels over rows of logits share: the largest value of a row and its first place. A block a row.
#pragma once
#include "words.h"

struct Smallest {
    DEVICE i64 operator()(i64 a, i64 b) const { return a < b ? a : b; }
};

// body(place, value) for the places of a row that are this thread's, in ascending order. Several values are under way
// at once, so the body may write to no place but the one that it is given.
template <class F>
DEVICE void for_values(const f32* x, i64 width, F body) {
    constexpr int at_once = 8;
    const i64 step = thread_count();
    for (i64 first = thread_index(); first < width; first += at_once * step) {
        f32 values[at_once];
#pragma unroll
        for (int n = 0; n < at_once; ++n) values[n] = first + n * step < width ? x[first + n * step] : 0.0f;
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
            if (first + n * step < width) body(first + n * step, values[n]);
        }
    }
}

// Largest value of a row, the same in every thread. NaN where the row holds NaN (or +inf beside it).
DEVICE f32 row_peak(const f32* x, i64 width) {
    f32 peak = -infinity();
    for_values(x, width, [&](i64, f32 value) { peak = Largest()(peak, value); });
    return block_largest(peak);
}
// Whether something can be chosen from a row: no NaN, no +inf, not -inf alone.
DEVICE bool usable(f32 peak) { return peak > -infinity() && peak < infinity(); }

// The first place of a value that the row holds.
DEVICE i64 first_place(const f32* x, i64 width, f32 value) {
    i64 place = width;
    for_values(x, width, [&](i64 i, f32 found) { place = found == value && i < place ? i : place; });
    return block_reduce(place, Smallest());
}

// body(place, value) for places [first, end) of a row that are this thread's, `first` a multiple of 4: 16 bytes at a
// time where the row is aligned to them, AT_ONCE of them under way at once, as above. A row has less than 2^31 places.
template <int AT_ONCE, class F>
DEVICE void for_words(const f32* x, i64 first, i64 end, F body) {
    constexpr u32 size = Packed<f32>::size;
    const u32 step = thread_count() * size, last = static_cast<u32>(end);
    const u32 words = aligned(x) ? last / size * size : static_cast<u32>(first);
    for (u32 from = static_cast<u32>(first) + thread_index() * size; from < words; from += AT_ONCE * step) {
        Words taken[AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) {
            if (from + n * step < words) taken[n] = load_words(x + (from + n * step));
        }
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; ++n) {
            if (from + n * step >= words) break;
#pragma unroll
            for (u32 i = 0; i < size; ++i) {
                body(from + n * step + i, value_in(taken[n], static_cast<int>(i), x));
                keep_order();
            }
        }
    }
    for (u32 i = words + thread_index(); i < last; i += thread_count()) body(i, x[i]);
}

// Bits that order numbers as the numbers are; the two zeros are one.
DEVICE u32 ordered(f32 x) {
    const u32 bits = bits_of(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The largest value of a row and its first place, -1 where nothing can be chosen; the same in every thread. One pass: a
// thread keeps its first largest value, and the block takes the largest of pairs of a value and a descending place.
struct Best {
    f32 value;
    i64 place;
};
template <int AT_ONCE>
DEVICE Best row_best(const f32* x, i64 width) {
    f32 peak = -infinity();
    u32 place = 0;
    bool bad = false;
    for_words<AT_ONCE>(x, 0, width, [&](u32 at, f32 value) {
        bad = bad || !(value < infinity());
        place = value > peak ? at : place;
        peak = value > peak ? value : peak;
    });
    const u64 own = static_cast<u64>(ordered(peak)) << 32 | (0xffffffffu - place);
    const u64 best = block_reduce(own, Largest());
    const u32 bits = static_cast<u32>(best >> 32);
    peak = float_of(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
    bad = block_any(bad) || !usable(peak);
    return {peak, bad ? -1 : static_cast<i64>(0xffffffffu - static_cast<u32>(best))};
}
