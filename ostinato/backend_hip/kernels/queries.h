// Queries of a block of attention on the matrix units, and what a wave of it has of 16 of them: products with 32 keys
// at a time become weights, and weighted values are summed up.
#pragma once
#include "sequences.h"
#include "tile.h"

constexpr int SIDES = 4, PARTS = 2;  // waves: each has 16 of the queries and 32 keys of a tile
constexpr int WAVES = SIDES * PARTS, THREADS = WAVES * WAVE;
constexpr int QUERIES = SIDES * TILE;
constexpr int KEYS = TILE_DEPTH;
constexpr int SPAN = PARTS * KEYS;  // keys of a tile

// Tiles that lie in shared memory at once: where copies go on by themselves and 48 KiB hold two, one is on its way.
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
template <int WIDTH>
constexpr int STAGES = 1;
#else
template <int WIDTH>
constexpr int STAGES = WIDTH <= 64 ? 2 : 1;
#endif

// Scores are logarithms to base 2 here.
constexpr f32 LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
// What a score is taken from, of scores of which this is the largest: nothing where all of them are -inf.
DEVICE f32 base_of(f32 peak) { return peak == -infinity() ? 0.0f : peak; }
DEVICE f32 share_of(f32 peak, f32 top) { return exp2f(peak - base_of(top)); }
// The larger one; not NaN if one is not. A score of NaN is found again in the total.
DEVICE f32 upper(f32 a, f32 b) { return fmaxf(a, b); }

// The first sum that a lane has of row `held` of those that it has sums of.
DEVICE constexpr int first_of_row(int held) {
    int i = 0;
    while (held_row_of(i) != held) ++i;
    return i;
}

// Queries of halves are taken as they are, and f32 ones cut in two. Those for f16 are first brought near 1 by a power
// of two, a query at a time, so that all of both halves is in range.
template <class Q, class T>
struct Cutting {
    static constexpr bool SCALED = false;
};
template <>
struct Cutting<f32, f16> {
    static constexpr bool SCALED = true;
};
DEVICE f32 power_below(f32 x) {  // of two, between 2^-100 and 2^100
    const u32 exponent = smaller(larger(bits_of(x) >> 23 & 0xffu, 27u), 227u);
    return float_of(exponent << 23);
}

// The queries of a wave with what was summed up for them.
template <int WIDTH, class Q, class T>
struct Queries {
    static constexpr int PIECES = sizeof(Q) == sizeof(T) ? 1 : 2;
    static constexpr bool SCALED = Cutting<Q, T>::SCALED;
    Rows<T> rows[PIECES][WIDTH / TILE_DEPTH];
    Sums sums[WIDTH / TILE];
    f32 peaks[ROWS_HELD], totals[ROWS_HELD];  // totals of this lane's columns only
    f32 factors[ROWS_HELD];  // from products to scores

    // The weights of 32 keys from `tile` on of a sequence, and what is summed up so far brought to their largest score.
    // All queries of the wave see all of them where it is `clear`.
    DEVICE void weigh(Staged<WIDTH, T> keys, int first, i32 tile, bool clear, const Seen* seen, i32 sequence,
                      Scoring score, Sums (&weights)[KEYS / TILE]) {
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
                Columns<T> columns;
                columns.load_shared([=](int row, int run) {
                    return keys(first + c * TILE + row, k * (TILE_DEPTH / RUN) + run);
                });
#pragma unroll
                for (int piece = 0; piece < PIECES; ++piece) multiply(weights[c], rows[piece][k], columns);
            }
            keep_order();
        }
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) weights[c].values[i] *= factors[held_row_of(i)];
        }
        if (score.cap > 0.0f) {
#pragma unroll
            for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) weights[c].values[i] = score.capped(weights[c].values[i]) * LOG2_E;
            }
        }
        if (!clear) {
            i32 start[ROWS_HELD], end[ROWS_HELD];
#pragma unroll
            for (int r = 0; r < ROWS_HELD; ++r) {
                const Seen found = seen[Sums::row(first_of_row(r))];
                start[r] = found.start - tile;
                end[r] = (found.sequence == sequence ? found.end : 0) - tile;
            }
#pragma unroll
            for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    const int r = held_row_of(i), j = c * TILE + Sums::column(i);
                    f32& own = weights[c].values[i];
                    own = j >= start[r] && j < end[r] ? own : -infinity();
                }
            }
        }
        f32 tops[ROWS_HELD], bases[ROWS_HELD], olds[ROWS_HELD];
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) tops[r] = peaks[r];
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) tops[held_row_of(i)] = upper(tops[held_row_of(i)], weights[c].values[i]);
        }
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) {
            for (int n = 1; n < ROW_LANES; n *= 2) tops[r] = upper(tops[r], shuffle_xor(tops[r], n));
            bases[r] = base_of(tops[r]);
            olds[r] = exp2f(peaks[r] - bases[r]);
            peaks[r] = tops[r];
            totals[r] *= olds[r];
        }
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                f32& own = weights[c].values[i];
                own = exp2f(own - bases[held_row_of(i)]);
                totals[held_row_of(i)] += own;
            }
        }
#pragma unroll
        for (int d = 0; d < WIDTH / TILE; ++d) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[d].values[i] *= olds[held_row_of(i)];
        }
    }

    // Adds the values of 32 keys with their weights.
    DEVICE void add(Staged<WIDTH, T> values, int first, const Sums (&weights)[KEYS / TILE], T* scratch) {
        Rows<T> high, low;
        cut_rows(weights, high, low, scratch);
#pragma unroll
        for (int d = 0; d < WIDTH / TILE; ++d) {
            Columns<T> columns;
            columns.load_turned([=](int row, int run) { return values(first + row, d * (TILE / RUN) + run); });
            multiply(sums[d], high, columns);
            multiply(sums[d], low, columns);
            keep_order();
        }
    }
};

// Queries [first, first + QUERIES) of one key-value head into shared memory, cut where they are f32. A query's runs are
// taken by neighbouring lanes; they are there after copies_done().
template <int WIDTH, class Q, class T, class Problem>
DEVICE void send_queries(Staged<WIDTH, T> high, Staged<WIDTH, T> low, f32* factors, const Q* q, i32 first, i32 tokens,
                         i32 group, i32 kv, bool whole, Problem problem) {
    constexpr int RUNS = WIDTH / RUN;
#pragma unroll 2
    for (int e = 0; e < QUERIES * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), query = item / RUNS, run = item % RUNS;
        const i32 token = (first + query) / group, head = kv * group + (first + query) % group;
        const Q* const from = q + problem.query(token < tokens ? token : 0, head) + run * RUN;
        if constexpr (Queries<WIDTH, Q, T>::PIECES == 1) {
            if (whole || token >= tokens) {
                copy_words(high.words(query, run), token < tokens ? from : nullptr);
            } else {
                *high.words(query, run) = load_words(from, false);
            }
        } else {
            f32 values[RUN] = {};
            if (token < tokens) load_values(from, whole, values);
            if constexpr (Cutting<Q, T>::SCALED) {
                f32 largest = 0.0f;
#pragma unroll
                for (int i = 0; i < RUN; ++i) largest = Largest()(largest, fabsf(values[i]));
                for (int n = 1; n < RUNS; n *= 2) largest = Largest()(largest, shuffle_xor(largest, n));
                const f32 factor = power_below(largest);
#pragma unroll
                for (int i = 0; i < RUN; ++i) values[i] *= 1.0f / factor;
                if (run == 0) factors[query] = factor;
            }
            Words halves[2] = {};
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                T top, rest;
                cut(values[i], top, rest);
                put(halves[0], i, top);
                put(halves[1], i, rest);
            }
            *high.words(query, run) = halves[0];
            *low.words(query, run) = halves[1];
        }
    }
}
