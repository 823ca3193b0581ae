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

// The largest value of a row and its first place, -1 where nothing can be chosen.
struct Best {
    f32 value;
    i64 place;
};
// The same as one number, of which the largest of several is that of all places together: a value above a descending
// place. NaN is above everything.
DEVICE Best best_of(u64 pair) {
    const u32 bits = static_cast<u32>(pair >> 32);
    const f32 value = float_of(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
    return {value, usable(value) ? static_cast<i64>(0xffffffffu - static_cast<u32>(pair)) : -1};
}

// That of places [first, end), `first` a multiple of 4, the same in every thread. One pass: a thread keeps its first
// largest value.
template <int AT_ONCE>
DEVICE u64 best_pair(const f32* x, i64 first, i64 end) {
    f32 peak = -infinity();
    u32 place = 0;
    bool bad = false;
    for_words<AT_ONCE>(x, first, end, [&](u32 at, f32 value) {
        bad = bad || value != value;
        place = value > peak ? at : place;
        peak = value > peak ? value : peak;
    });
    const u64 own = bad ? ~0ull : static_cast<u64>(ordered(peak)) << 32 | (0xffffffffu - place);
    return block_reduce(own, Largest());
}

// This block's share of a row that the blocks along the grid's first axis have together: places [first, end).
struct Share {
    i64 first, end;
    DEVICE bool has(i64 place) const { return place >= first && place < end; }
};
DEVICE Share share_of(i64 width) {
    const i64 each = ((width + block_count() - 1) / block_count() + 3) / 4 * 4;
    const i64 first = smaller(width, block_index() * each);
    return {first, smaller(width, first + each)};
}

// The best of a row by all of its blocks, each of which has a place in `pairs`; true in the block that knows.
template <int AT_ONCE>
DEVICE bool best_of_blocks(const f32* x, i64 width, u64* pairs, i64 ticket, Status status, Best& best) {
    const Share share = share_of(width);
    u64 pair = best_pair<AT_ONCE>(x, share.first, share.end);
    if (block_count() > 1) {
        if (thread_index() == 0) pairs[block_index()] = pair;
        if (!status.last_of(block_count(), ticket)) return false;
        pair = 0;
        for (u32 b = thread_index(); b < block_count(); b += thread_count()) pair = larger(pair, pairs[b]);
        pair = block_reduce(pair, Largest());
    }
    best = best_of(pair);
    return true;
}
