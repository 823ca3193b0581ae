// Where top-k and top-p end: the shortest prefix of a row, in order of descending value and ascending index, whose
// weight reaches a goal (a count, a probability). Nothing is sorted or moved: keys go into bins, and the bin in which
// the prefix ends is divided until one key is left.
//
// Histograms count, and add up distances from a bin's first key; both are integers, so they depend on no order.
#pragma once
#include "rows.h"

constexpr int THREADS = 512;
constexpr int BIN_BITS = 11;
constexpr int BINS = 1 << BIN_BITS;
constexpr int OWN_BINS = BINS / THREADS;  // of a thread
constexpr int FIRST_BITS = 18;            // of a value's own key that the first histogram leaves open
constexpr i64 SLICE = 8192;               // so that distances in a bin add up to 32 bits
constexpr f32 TINY = 0x1p-32f;            // magnitudes below it share the first bin

// An order of a row's elements, by the value's own key, then by index. Values are exponentials, in [0, 1] and the
// largest is 1, or they are at most 0.
struct Order {
    bool weighted;
    int index_bits;
    DEVICE u32 own(f32 value) const {
        return weighted ? 0x3f800000u - bits_of(value) : bits_of(value) & 0x7fffffffu;
    }
    DEVICE u64 key(u32 i, f32 value) const { return static_cast<u64>(own(value)) << index_bits | i; }
};

// Keys [low, end) in bins of 2^shift from `base` on; the first and the last bin take what lies beyond.
struct Range {
    u64 low, end, base;
    int shift;
    // A bin as a range of its own, in as many bins.
    DEVICE Range inside(int bin) const {
        const u64 from = base + (static_cast<u64>(bin) << shift), to = from + (1ull << shift);
        const u64 first = bin == 0 ? low : from, last = bin == BINS - 1 ? end : smaller(end, to);
        int bits = 0;
        while (last - first > 1ull << (bits + BIN_BITS)) ++bits;
        return {first, last, first, bits};
    }
};
DEVICE Range first_range(Order order) {
    const u64 base = order.weighted ? 0 : static_cast<u64>(bits_of(TINY)) << order.index_bits;
    return {0, 1ull << (31 + order.index_bits), base, FIRST_BITS + order.index_bits};
}

// What lies in this thread's bins.
struct Bins {
    u64 counts[OWN_BINS], distances[OWN_BINS];
};

struct Histogram {
    u32 *counts, *distances;
};
DEVICE Histogram histogram() {
    SHARED(u32, counts, BINS);
    SHARED(u32, distances, BINS);
    return {counts, distances};
}

// Adds elements [first, end), at most a slice, to the bins of the range that `place` gives as (bin, distance from its
// first key in keys of values); none for a bin of -1.
template <class F>
DEVICE void add_slice(Order order, const f32* values, i64 first, i64 end, Bins& bins, F place) {
    const Histogram shared = histogram();
    const int t = thread_index();
    block_barrier();  // an earlier slice may still be read
    for (int b = t; b < BINS; b += THREADS) shared.counts[b] = shared.distances[b] = 0;
    block_barrier();
    for_words<2>(values, first, end, [&](u32 i, f32 value) {
        u32 distance = 0;
        const int bin = place(i, value, distance);
        if (bin < 0) return;
        atomic_add(&shared.counts[bin], 1u);
        if (order.weighted) atomic_add(&shared.distances[bin], distance);
    });
    block_barrier();
    for (int i = 0; i < OWN_BINS; ++i) {
        bins.counts[i] += shared.counts[t * OWN_BINS + i];
        bins.distances[i] += shared.distances[t * OWN_BINS + i];
    }
}

// Of all keys. The last bin of weights stays empty: they are below 2^-63, and `rest` takes them.
DEVICE void add_all(Order order, const f32* values, i64 first, i64 end, Bins& bins, f64& rest) {
    const i32 base = order.weighted ? 0 : static_cast<i32>(bits_of(TINY));
    add_slice(order, values, first, end, bins, [&](u32, f32 value, u32& distance) {
        const i32 from = static_cast<i32>(order.own(value)) - base;
        const int bin = larger(0, smaller(from >> FIRST_BITS, BINS - 1));
        distance = static_cast<u32>(from) % (1u << FIRST_BITS);
        if (!order.weighted || bin < BINS - 1) return bin;
        rest += static_cast<f64>(value);
        return -1;
    });
}

// What a bin's elements weigh. Weights of keys [o 2^23, (o + 1) 2^23] are (2^24 - key % 2^23) 2^(-o - 24), so the sum
// follows from count and distances, and is exact.
DEVICE f64 mass(Order order, Range range, int bin, u64 count, u64 distances) {
    if (!order.weighted) return static_cast<f64>(count);
    const u64 own = (range.base + (static_cast<u64>(bin) << range.shift)) >> order.index_bits;
    const u64 sum = count * (0x1000000u - (own & 0x7fffffu)) - distances;
    return static_cast<f64>(sum) * double_of(static_cast<u64>(1023 - 24 - (own >> 23)) << 52);
}

// Where a prefix ends, as far as it is known: in this range, which has `members` elements, after `before` elements that
// weigh `passed`.
struct End {
    Range range;
    u64 before, members;
    f64 passed;
};

// The bin in which the prefix ends whose weight reaches `goal`: the last one that has anything where rounding keeps the
// goal out of reach.
DEVICE End narrowed(Order order, End end, const Bins& bins, f64 goal) {
    SHARED(End, found, 1);
    const int first = thread_index() * OWN_BINS;
    f64 masses[OWN_BINS], own = 0.0;
    u64 count = 0;
    for (int i = 0; i < OWN_BINS; ++i) {
        masses[i] = mass(order, end.range, first + i, bins.counts[i], bins.distances[i]);
        own += masses[i];
        count += bins.counts[i];
    }
    f64 passed = block_running_sum(own) - own + end.passed;
    u64 before = block_running_sum(count) - count + end.before;
    i64 reached = BINS, last = -1;
    f64 total = passed;
    for (int i = 0; i < OWN_BINS; ++i) {
        total += masses[i];
        if (bins.counts[i] == 0) continue;
        last = first + i;
        if (total >= goal && reached == BINS) reached = first + i;
    }
    const i64 nearest = block_reduce(reached, Smallest());
    const int chosen = static_cast<int>(nearest < BINS ? nearest : block_reduce(last, Largest()));
    for (int i = 0; i < OWN_BINS; ++i) {
        if (first + i == chosen) *found = {end.range.inside(chosen), before, bins.counts[i], passed};
        passed += masses[i];
        before += bins.counts[i];
    }
    block_barrier();
    const End made = *found;
    block_barrier();
    return made;
}

// Divides the bin until the last key of the prefix is known.
DEVICE u64 last_key(Order order, End end, const f32* values, i64 width, f64 goal) {
    while (true) {
        const Range range = end.range;
        const bool counted = !order.weighted && end.passed + static_cast<f64>(end.members) <= goal;
        if (end.members <= 1 || range.end - range.low <= 1 || counted) return range.end - 1;
        Bins bins = {};
        for (i64 at = 0; at < width; at += SLICE) {
            add_slice(order, values, at, smaller(width, at + SLICE), bins, [&](u32 i, f32 value, u32& distance) {
                const u64 key = order.key(i, value);
                if (key < range.low || key >= range.end) return -1;
                const u64 bin = (key - range.low) >> range.shift, from = range.low + (bin << range.shift);
                distance = static_cast<u32>((key >> order.index_bits) - (from >> order.index_bits));
                return static_cast<int>(bin);
            });
        }
        end = narrowed(order, end, bins, goal);
    }
}
