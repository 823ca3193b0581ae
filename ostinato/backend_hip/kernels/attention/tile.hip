// softmax(scale q k) v on the matrix units, keys and values of halves: packed tokens over a block cache, whole sequences,
// and packed sequences of an encoder. A block has 64 queries of one key-value head, a token's heads side by side and
// tokens in ascending order. It goes over tiles of 64 keys that begin at multiples of 64, in ascending order; a wave has
// 16 of the queries and one half of each tile, and the halves are joined at the end. Values of a tile are on their way
// to shared memory while its scores are made, and keys of the next tile while values are summed up.
//
// f32 queries and weights are cut into a half and what it lacks, which is a half again, so that their products are
// nearly as good as f32. What a query does not see leaves its sums as they are, so that a result does not depend on who
// else is in the batch. A key that no query of the block sees is not read.
#include "sequences.h"
#include "tile.h"

constexpr int SIDES = 4, PARTS = 2;  // waves: each has 16 of the queries and 32 keys of a tile
constexpr int WAVES = SIDES * PARTS, THREADS = WAVES * WAVE;
constexpr int QUERIES = SIDES * TILE;
constexpr int KEYS = TILE_DEPTH;
constexpr int SPAN = PARTS * KEYS;  // keys of a tile

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
    f32 factors[ROWS_HELD];

    // The weights of 32 keys from `tile` on of a sequence, and what is summed up so far brought to their largest score.
    DEVICE void weigh(Staged<WIDTH, T> keys, int first, i32 tile, const Seen* seen, i32 sequence, Scoring score,
                      Sums (&weights)[KEYS / TILE]) {
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
            for (int i = 0; i < SUMS; ++i) {
                f32& own = weights[c].values[i];
                own = score.scaled(SCALED ? own * factors[held_row_of(i)] : own);
            }
        }
        if (score.cap > 0.0f) {
#pragma unroll
            for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) weights[c].values[i] = score.capped(weights[c].values[i]);
            }
        }
        i32 start[ROWS_HELD], end[ROWS_HELD];
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const Seen found = seen[Sums::row(i)];
            start[held_row_of(i)] = found.start;
            end[held_row_of(i)] = found.sequence == sequence ? found.end : 0;
        }
        f32 tops[ROWS_HELD], olds[ROWS_HELD];
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) tops[r] = peaks[r];
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int r = held_row_of(i), j = tile + c * TILE + Sums::column(i);
                f32& own = weights[c].values[i];
                own = j >= start[r] && j < end[r] ? own : -infinity();
                tops[r] = Largest()(tops[r], own);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) {
            for (int n = 1; n < ROW_LANES; n *= 2) tops[r] = Largest()(tops[r], shuffle_xor(tops[r], n));
            olds[r] = shifted(peaks[r], tops[r]);
            peaks[r] = tops[r];
            totals[r] *= olds[r];
        }
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int r = held_row_of(i);
                f32& own = weights[c].values[i];
                own = own == -infinity() ? 0.0f : shifted(own, tops[r]);
                totals[r] += own;
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
// taken by neighbouring lanes.
template <int WIDTH, class Q, class T, class Problem>
DEVICE void send_queries(Staged<WIDTH, T> high, Staged<WIDTH, T> low, f32* factors, const Q* q, i32 first, i32 tokens,
                         i32 group, i32 kv, bool whole, Problem problem) {
    constexpr int RUNS = WIDTH / RUN;
#pragma unroll 1
    for (int e = 0; e < QUERIES * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), query = item / RUNS, run = item % RUNS;
        const i32 token = (first + query) / group, head = kv * group + (first + query) % group;
        const Q* const from = q + problem.query(token < tokens ? token : 0, head) + run * RUN;
        if constexpr (Queries<WIDTH, Q, T>::PIECES == 1) {
            *high.words(query, run) = token < tokens ? load_words(from, whole) : Words{};
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

// Sequences of a block's queries one after the other. Problem says of a token what it sees, where its query lies, and
// where the keys of a sequence are.
template <int WIDTH, class T, class Q, class Y, class Problem, class LogSum = NoLogSums>
DEVICE void attend(const Q* q, const T* k, const T* v, Y* y, i64 valid, i64 heads, i64 kv_heads, Scoring score,
                   Problem problem, Status status, LogSum log_sums = {}) {
    static_assert(QUERIES == SPAN, "queries cut in two take the room of keys and of values");
    constexpr int STAGED = SPAN * Staged<WIDTH, T>::STRIDE;
    SHARED(Words, memory, 2 * STAGED / RUN);
    SHARED(Words, scratches, WAVES * CUT_VALUES / RUN + 1);
    SHARED(Seen, seen, QUERIES);
    SHARED(i32, first_of, QUERIES);
    SHARED(f32, factors, QUERIES);
    SHARED(f32, other_peaks, QUERIES);
    SHARED(f32, other_totals, QUERIES);
    const int t = thread_index(), wave = t / WAVE, side = wave % SIDES, part = wave / SIDES * KEYS;
    const Staged<WIDTH, T> keys = {reinterpret_cast<T*>(memory)}, values = {keys.first + STAGED};
    T* const scratch = reinterpret_cast<T*>(scratches) + wave * CUT_VALUES;
    const i32 group = static_cast<i32>(heads / kv_heads), shared = static_cast<i32>(kv_heads);
    const i32 tokens = static_cast<i32>(valid), tiles = (tokens * group + QUERIES - 1) / QUERIES;
    const bool whole = problem.whole(q, k, v);
    for (i32 unit = block_index(); unit < tiles * shared; unit += block_count()) {
        const i32 kv = unit % shared, first = (tiles - 1 - unit / shared) * QUERIES;  // the last ones see most
        block_barrier();  // an earlier unit may still be read
        send_queries(keys, values, factors, q, first, tokens, group, kv, whole, problem);
        look<QUERIES>(seen, first_of, first, tokens, group, problem, status);
        Queries<WIDTH, Q, T> own;
#pragma unroll
        for (int piece = 0; piece < own.PIECES; ++piece) {
#pragma unroll
            for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
                own.rows[piece][k].load_shared([=](int row, int run) {
                    return (piece == 0 ? keys : values)(side * TILE + row, k * (TILE_DEPTH / RUN) + run);
                });
            }
        }
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            if constexpr (own.SCALED) own.factors[held_row_of(i)] = factors[side * TILE + Sums::row(i)];
        }
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) own.peaks[r] = -infinity(), own.totals[r] = 0.0f;
        block_barrier();
#pragma unroll 1
        for (int leader = 0; leader < QUERIES; ++leader) {
            if (!first_of[leader]) continue;
            const i32 sequence = seen[leader].sequence;
            const auto places = problem.places(sequence, kv);
            i32 begin, stop, wave_begin, wave_stop;
            range_seen(seen, 0, QUERIES, sequence, begin, stop);
            range_seen(seen, side * TILE, (side + 1) * TILE, sequence, wave_begin, wave_stop);
            i32 tile = begin / SPAN * SPAN;
            u64 bits = next_seen<QUERIES, SPAN>(seen, sequence, stop, tile);
            send<SPAN, THREADS>(keys, k, false, places, tile, bits, whole, status);
            copies_done();
            block_barrier();
            while (tile < stop) {
                const bool busy = tile + part < wave_stop && tile + part + KEYS > wave_begin;
                Sums weights[KEYS / TILE];
                send<SPAN, THREADS>(values, v, true, places, tile, bits, whole, status);
                if (busy) own.weigh(keys, part, tile + part, seen + side * TILE, sequence, score, weights);
                copies_done();
                block_barrier();
                tile += SPAN;
                bits = next_seen<QUERIES, SPAN>(seen, sequence, stop, tile);
                if (tile < stop) send<SPAN, THREADS>(keys, k, false, places, tile, bits, whole, status);
                if (busy) own.add(values, part, weights, scratch);
                copies_done();
                block_barrier();
            }
        }
        // What the waves of the other keys have is joined to the first ones'.
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) {
            for (int n = 1; n < ROW_LANES; n *= 2) own.totals[r] += shuffle_xor(own.totals[r], n);
        }
        f32* const others = reinterpret_cast<f32*>(memory) + side * WAVE + lane();
        if (part != 0) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int query = side * TILE + Sums::row(i);
                if (lane() % ROW_LANES == 0) {
                    other_peaks[query] = own.peaks[held_row_of(i)];
                    other_totals[query] = own.totals[held_row_of(i)];
                }
#pragma unroll
                for (int d = 0; d < WIDTH / TILE; ++d) {
                    others[(d * SUMS + i) * SIDES * WAVE] = own.sums[d].values[i];
                }
            }
        }
        block_barrier();
        if (part != 0) continue;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int r = held_row_of(i), query = side * TILE + Sums::row(i);
            const i32 token = (first + query) / group, head = kv * group + (first + query) % group;
            const f32 top = Largest()(own.peaks[r], other_peaks[query]);
            const f32 share = shifted(own.peaks[r], top), other_share = shifted(other_peaks[query], top);
            const f32 total = own.totals[r] * share + other_totals[query] * other_share;
            if (token >= tokens) continue;
            if (Sums::column(i) == 0) log_sums.put(token, head, top, total);
#pragma unroll
            for (int d = 0; d < WIDTH / TILE; ++d) {
                const f32 sum =
                    own.sums[d].values[i] * share + others[(d * SUMS + i) * SIDES * WAVE] * other_share;
                narrow(total == 0.0f ? 0.0f : sum / total,
                       y[(static_cast<i64>(token) * heads + head) * WIDTH + d * TILE + Sums::column(i)]);
            }
        }
    }
}

// q, y [tokens, heads, width]; caches [blocks, kv_heads, block_size, width] through the block table.
template <int WIDTH, class Q, class T, class Y>
DEVICE void attention_tile_packed(const Q* q, const T* k_cache, const T* v_cache, const i32* row_of_token,
                                  const i32* position, const i32* block_table, const i32* length, const i32* count,
                                  Y* y, i64 tokens, i64 heads, i64 kv_heads, i64 width, i64 blocks, i64 block_size,
                                  i64 table_rows, i64 table_width, f64 scale, i64 window, f64 cap, Status status) {
    const PackedTokens problem = {row_of_token, position, block_table, length, heads, kv_heads, width, blocks,
                                  block_size, table_rows, table_width, window};
    attend<WIDTH, T>(q, k_cache, v_cache, y, valid_rows(count, tokens), heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, problem, status);
}

// q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width].
template <int WIDTH, class T, class Y>
DEVICE void attention_tile_causal(const T* q, const T* k, const T* v, const i32* count, Y* y, i64 batches, i64 time,
                                  i64 heads, i64 kv_heads, i64, f64 scale, i64 window, f64 cap, i64 q_batch,
                                  i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch,
                                  i64 v_token, i64 v_head, Status status) {
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    attend<WIDTH, T>(q, k, v, y, valid_rows(count, batches) * time, heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, CausalTokens{steps, time, window}, status);
}

// The same with the logarithms of what weights were divided by.
template <int WIDTH, class T, class Y>
DEVICE void attention_tile_causal_saved(const T* q, const T* k, const T* v, const i32* count, Y* y, f32* log_sum,
                                        i64 batches, i64 time, i64 heads, i64 kv_heads, i64, f64 scale, i64 window,
                                        f64 cap, i64 q_batch, i64 q_token, i64 q_head, i64 k_batch, i64 k_token,
                                        i64 k_head, i64 v_batch, i64 v_token, i64 v_head, Status status) {
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    attend<WIDTH, T>(q, k, v, y, valid_rows(count, batches) * time, heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, CausalTokens{steps, time, window}, status,
                  LogSums{log_sum, time, heads});
}

// q, y [tokens, heads, width], k and v [tokens, kv_heads, width]: a token sees all of its row.
template <int WIDTH, class T, class Y>
DEVICE void attention_tile_bidirectional(const T* q, const T* k, const T* v, const i32* row_of_token, const i32* start,
                                         const i32* length, const i32* count, Y* y, i64 tokens, i64 heads,
                                         i64 kv_heads, i64, i64 rows, f64 scale, i64 q_token, i64 q_head, i64 k_token,
                                         i64 k_head, i64 v_token, i64 v_head, Status status) {
    const Steps steps = {0, q_token, q_head, 0, k_token, k_head, 0, v_token, v_head};
    const i64 valid = valid_rows(count, tokens);
    attend<WIDTH, T>(q, k, v, y, valid, heads, kv_heads, Scoring{static_cast<f32>(scale), 0.0f},
                  EncoderTokens{steps, row_of_token, start, length, valid, rows}, status);
}
