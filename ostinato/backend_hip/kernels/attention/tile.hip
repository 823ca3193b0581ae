// softmax(scale q k) v on the matrix units, keys and values of halves: packed tokens over a block cache, whole sequences,
// and packed sequences of an encoder. A block has 64 queries of one key-value head, a token's heads side by side and
// tokens in ascending order. It goes over tiles of 64 keys that begin at multiples of 64, in ascending order; a wave has
// 16 of the queries and one half of each tile, and the halves are joined at the end. Values of a tile are on their way
// to shared memory while its scores are made, and keys of the next tile while values are summed up; where there is room
// for two tiles, all of the next one is under way meanwhile.
//
// f32 queries and weights are cut into a half and what it lacks, which is a half again, so that their products are
// nearly as good as f32. What a query does not see leaves its sums as they are, so that a result does not depend on who
// else is in the batch. A key that no query of the block sees is not read.
#include "queries.h"

// Keys of a sequence that some queries see: [begin, stop) holds all of them. Every one that sees any sees them from
// `latest` on, and all of the queries see those below `earliest`; 0 where one of them sees none.
struct Range {
    i32 begin, stop, latest, earliest;
};

// Of COUNT queries. The same in all lanes.
template <int COUNT>
DEVICE Range range_of(const Seen* seen, i32 sequence) {
    Range range = {0x7fffffff, 0, 0, 0x7fffffff};
#pragma unroll
    for (int query = lane(); query < COUNT; query += WAVE) {
        const Seen found = seen[query];
        const bool own = found.sequence == sequence;
        if (own) {
            range.begin = smaller(range.begin, found.start);
            range.stop = larger(range.stop, found.end);
            range.latest = larger(range.latest, found.start);
        }
        range.earliest = smaller(range.earliest, own ? found.end : 0);
    }
    for (int n = 1; n < WAVE; n *= 2) {
        range.begin = smaller(range.begin, shuffle_xor(range.begin, n));
        range.stop = larger(range.stop, shuffle_xor(range.stop, n));
        range.latest = larger(range.latest, shuffle_xor(range.latest, n));
        range.earliest = smaller(range.earliest, shuffle_xor(range.earliest, n));
    }
    return range;
}

// The first query from `from` on that is the first one of its sequence in the block; QUERIES where there is none.
DEVICE int next_first(const i32* first_of, int from) {
    int found = QUERIES;
    for (int query = lane(); query < QUERIES; query += WAVE) {
        if (query >= from && first_of[query]) found = smaller(found, query);
    }
    for (int n = 1; n < WAVE; n *= 2) found = smaller(found, shuffle_xor(found, n));
    return found;
}

// What a wave has of its queries in the end: half of the width, of both halves of the keys.
template <int WIDTH>
struct Joined {
    static constexpr int ACROSS = WIDTH / TILE / PARTS;
    Sums sums[ACROSS];
    f32 tops[ROWS_HELD], totals[ROWS_HELD];

    static DEVICE int query(int held) {
        return static_cast<int>(thread_index()) / WAVE % SIDES * TILE + Sums::row(first_of_row(held));
    }
};

// Joins what the waves of both halves of the keys have; each gets half of the width. All threads take part, and what
// lies in `memory` is no longer needed.
template <int WIDTH, class Q, class T>
DEVICE void join_parts(Queries<WIDTH, Q, T>& own, f32* memory, Joined<WIDTH>& joined) {
    constexpr int ACROSS = Joined<WIDTH>::ACROSS;
    static_assert(PARTS == 2, "each part has one other");
    const int part = static_cast<int>(thread_index()) / WAVE / SIDES;
    f32* const peaks = memory + QUERIES * WIDTH;
    f32* const totals = peaks + PARTS * QUERIES;
    // The other part has the same queries and columns in lanes of the same number.
    f32* const given = memory + (1 - part) * ACROSS * SUMS * SIDES * WAVE + thread_index() % (SIDES * WAVE);
    const f32* const got = memory + part * ACROSS * SUMS * SIDES * WAVE + thread_index() % (SIDES * WAVE);
#pragma unroll
    for (int r = 0; r < ROWS_HELD; ++r) {
        for (int n = 1; n < ROW_LANES; n *= 2) own.totals[r] += shuffle_xor(own.totals[r], n);
        if (lane() % ROW_LANES == 0) {
            peaks[part * QUERIES + Joined<WIDTH>::query(r)] = own.peaks[r];
            totals[part * QUERIES + Joined<WIDTH>::query(r)] = own.totals[r];
        }
    }
#pragma unroll
    for (int d = 0; d < ACROSS; ++d) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const f32 first = own.sums[d].values[i], second = own.sums[ACROSS + d].values[i];
            given[(d * SUMS + i) * SIDES * WAVE] = part == 0 ? second : first;
            joined.sums[d].values[i] = part == 0 ? first : second;
        }
    }
    block_barrier();
    f32 shares[ROWS_HELD], other_shares[ROWS_HELD];
#pragma unroll
    for (int r = 0; r < ROWS_HELD; ++r) {
        const int query = Joined<WIDTH>::query(r);
        const f32 first = peaks[query], second = peaks[QUERIES + query], top = upper(first, second);
        const f32 first_share = share_of(first, top), second_share = share_of(second, top);
        joined.tops[r] = top;
        joined.totals[r] = totals[query] * first_share + totals[QUERIES + query] * second_share;
        shares[r] = part == 0 ? first_share : second_share;
        other_shares[r] = part == 0 ? second_share : first_share;
    }
#pragma unroll
    for (int d = 0; d < ACROSS; ++d) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int r = held_row_of(i);
            f32& sum = joined.sums[d].values[i];
            // + 0 has the sign of a zero that is joined with others
            sum = sum * shares[r] + got[(d * SUMS + i) * SIDES * WAVE] * other_shares[r] + 0.0f;
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
    constexpr bool TWO = STAGES<WIDTH> == 2;
    SHARED(Words, memory, STAGES<WIDTH> * 2 * STAGED / RUN);
    SHARED(Words, scratches, WAVES * CUT_VALUES / RUN + 1);
    SHARED(Seen, seen, QUERIES);
    SHARED(i32, first_of, QUERIES);
    SHARED(f32, factors, QUERIES);
    const int t = thread_index(), wave = t / WAVE, side = wave % SIDES, part = wave / SIDES * KEYS;
    const auto keys = [&](int stage) {
        return Staged<WIDTH, T>{reinterpret_cast<T*>(memory) + stage * 2 * STAGED};
    };
    const auto values = [&](int stage) { return Staged<WIDTH, T>{keys(stage).first + STAGED}; };
    T* const scratch = reinterpret_cast<T*>(scratches) + wave * CUT_VALUES;
    const i32 group = static_cast<i32>(heads / kv_heads), shared = static_cast<i32>(kv_heads);
    const i32 tokens = static_cast<i32>(valid), tiles = (tokens * group + QUERIES - 1) / QUERIES;
    const bool whole = problem.whole(q, k, v);
    const f32 factor = score.cap > 0.0f ? score.scale : score.scale * LOG2_E;
    for (i32 unit = block_index(); unit < tiles * shared; unit += block_count()) {
        const i32 kv = unit % shared, first = (tiles - 1 - unit / shared) * QUERIES;  // the last ones see most
        block_barrier();  // an earlier unit may still be read
        look<QUERIES>(seen, first_of, first, tokens, group, problem, status);
        send_queries(keys(0), values(0), factors, q, first, tokens, group, kv, whole, problem);
        Queries<WIDTH, Q, T> own;
        copies_done();
        block_barrier();
#pragma unroll
        for (int piece = 0; piece < own.PIECES; ++piece) {
#pragma unroll
            for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
                own.rows[piece][k].load_shared([=](int row, int run) {
                    return (piece == 0 ? keys(0) : values(0))(side * TILE + row, k * (TILE_DEPTH / RUN) + run);
                });
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) {
            own.peaks[r] = -infinity(), own.totals[r] = 0.0f, own.factors[r] = factor;
            if constexpr (own.SCALED) own.factors[r] *= factors[Joined<WIDTH>::query(r)];
        }
        block_barrier();
        for (int leader = next_first(first_of, 0); leader < QUERIES; leader = next_first(first_of, leader + 1)) {
            const i32 sequence = seen[leader].sequence;
            const auto places = problem.places(sequence, kv);
            const Range of_wave = range_of<TILE>(seen + side * TILE, sequence);
            const Range all = range_of<QUERIES>(seen, sequence);
            const bool even = all.begin == all.latest;  // no gap between what queries see
            const auto next = [&](i32& tile) {
                if (!even) return next_seen<QUERIES, SPAN>(seen, sequence, all.stop, tile);
                return bits_seen<SPAN>(all.begin, all.stop, tile);
            };
            i32 tile = all.begin / SPAN * SPAN;
            u64 bits = next(tile);
            int stage = 0;
            if (tile < all.stop) {
                send<SPAN, THREADS>(keys(0), k, false, places, tile, bits, whole, status);
                if (TWO) send<SPAN, THREADS>(values(0), v, true, places, tile, bits, whole, status);
                copies_done();
                block_barrier();
            }
            while (tile < all.stop) {
                const i32 here = tile + part;
                const bool busy = here < of_wave.stop && here + KEYS > of_wave.begin;
                const bool clear = here >= of_wave.latest && here + KEYS <= of_wave.earliest;
                Sums weights[KEYS / TILE];
                tile += SPAN;
                if (TWO) {
                    bits = next(tile);
                    if (tile < all.stop) {
                        send<SPAN, THREADS>(keys(1 - stage), k, false, places, tile, bits, whole, status);
                        send<SPAN, THREADS>(values(1 - stage), v, true, places, tile, bits, whole, status);
                    }
                } else {
                    send<SPAN, THREADS>(values(0), v, true, places, tile - SPAN, bits, whole, status);
                }
                if (busy) {
                    own.weigh(keys(stage), part, here, clear, seen + side * TILE, sequence, score, weights);
                }
                if (!TWO) {
                    copies_done();
                    block_barrier();
                    bits = next(tile);
                    if (tile < all.stop) send<SPAN, THREADS>(keys(0), k, false, places, tile, bits, whole, status);
                }
                if (busy) own.add(values(stage), part, weights, scratch);
                copies_done();
                block_barrier();
                if (TWO) stage = 1 - stage;
            }
        }
        Joined<WIDTH> joined;
        join_parts(own, reinterpret_cast<f32*>(memory), joined);
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) {
            const int query = Joined<WIDTH>::query(r);
            const i32 token = (first + query) / group, head = kv * group + (first + query) % group;
            if (token >= tokens) continue;
            const f32 total = joined.totals[r], inverse = 1.0f / total;
            if (part == 0 && lane() % ROW_LANES == 0) log_sums.put(token, head, joined.tops[r] * LN_2, total);
            Y* const to = y + (static_cast<i64>(token) * heads + head) * WIDTH + part / KEYS * (WIDTH / PARTS);
#pragma unroll
            for (int d = 0; d < Joined<WIDTH>::ACROSS; ++d) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    if (held_row_of(i) != r) continue;
                    narrow(total == 0.0f ? 0.0f : joined.sums[d].values[i] * inverse, to[d * TILE + Sums::column(i)]);
                }
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
