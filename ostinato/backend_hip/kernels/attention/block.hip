// softmax(scale q k) v in f32, without matrix units: packed tokens over a block cache, whole sequences, and packed
// sequences of an encoder. A block has 32 queries of one key-value head, a token's heads side by side and tokens in
// ascending order, and goes over tiles of 32 keys that begin at multiples of 32, in ascending order. 16 threads share
// four queries: in a tile each has two keys, then a 16th of the width. What a query does not see leaves its sums as they
// are, and a key that no query of the block sees is not read.
#include "sequences.h"

constexpr int QUERIES = 32, SPAN = 32, THREADS = 128;
constexpr int SHARERS = 16, ROWS = QUERIES * SHARERS / THREADS, KEYS = SPAN / SHARERS;

// COUNT neighbours of shared memory by words, or by pairs.
template <int COUNT>
DEVICE void load_row(const f32* at, f32 (&values)[COUNT]) {
    if constexpr (COUNT % 4 == 0) {
        load_values(at, true, values);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = at[i];
    }
}

template <int WIDTH, class Y, class Problem, class LogSum = NoLogSums>
DEVICE void attend(const f32* q, const f32* k, const f32* v, Y* y, i64 valid, i64 heads, i64 kv_heads, Scoring score,
                   Problem problem, Status status, LogSum log_sums = {}) {
    constexpr int OWN = WIDTH / SHARERS, STRIDE = Staged<WIDTH, f32>::STRIDE, WEIGHTS = SPAN + 4;
    SHARED(Words, query_rows, QUERIES * WIDTH / 4);
    SHARED(Words, key_rows, SPAN * STRIDE / 4);
    SHARED(Words, value_rows, SPAN * STRIDE / 4);
    SHARED(f32, weights, QUERIES * WEIGHTS);
    SHARED(Seen, seen, QUERIES);
    SHARED(i32, first_of, QUERIES);
    const int t = thread_index(), first_row = t / SHARERS * ROWS, own = t % SHARERS;
    const Staged<WIDTH, f32> keys = {reinterpret_cast<f32*>(key_rows)}, values = {reinterpret_cast<f32*>(value_rows)};
    const f32* const queries = reinterpret_cast<const f32*>(query_rows);
    const i32 group = static_cast<i32>(heads / kv_heads), shared = static_cast<i32>(kv_heads);
    const i32 tokens = static_cast<i32>(valid), tiles = (tokens * group + QUERIES - 1) / QUERIES;
    const bool whole = problem.whole(q, k, v);
    for (i32 unit = block_index(); unit < tiles * shared; unit += block_count()) {
        const i32 kv = unit % shared, first = (tiles - 1 - unit / shared) * QUERIES;  // the last ones see most
        block_barrier();  // an earlier unit may still be read
        for (int item = t; item < QUERIES * WIDTH / 4; item += THREADS) {
            const int query = item / (WIDTH / 4), at = item % (WIDTH / 4) * 4;
            const i32 token = (first + query) / group, head = kv * group + (first + query) % group;
            Words words = {};
            if (token < tokens) words = load_words(q + problem.query(token, head) + at, whole);
            query_rows[item] = words;
        }
        look<QUERIES>(seen, first_of, first, tokens, group, problem, status);
        f32 sums[ROWS][OWN] = {}, peaks[ROWS], totals[ROWS] = {};  // totals of this thread's keys only
#pragma unroll
        for (int r = 0; r < ROWS; ++r) peaks[r] = -infinity();
        block_barrier();
        for (int leader = 0; leader < QUERIES; ++leader) {
            if (!first_of[leader]) continue;
            const i32 sequence = seen[leader].sequence;
            const auto places = problem.places(sequence, kv);
            i32 begin, stop;
            range_seen(seen, 0, QUERIES, sequence, begin, stop);
            i32 tile = begin / SPAN * SPAN;
            u64 bits = next_seen<QUERIES, SPAN>(seen, sequence, stop, tile);
            send<SPAN, THREADS>(keys, k, false, places, tile, bits, whole, status);
            copies_done();
            block_barrier();
            while (tile < stop) {
                send<SPAN, THREADS>(values, v, true, places, tile, bits, whole, status);
                f32 scores[ROWS][KEYS] = {};
#pragma unroll 2
                for (int d = 0; d < WIDTH; d += 4) {
                    f32 left[ROWS][4], right[KEYS][4];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) load_row(queries + (first_row + r) * WIDTH + d, left[r]);
#pragma unroll
                    for (int c = 0; c < KEYS; ++c) load_row(keys(c * SHARERS + own, d / 4), right[c]);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
#pragma unroll
                        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                            for (int c = 0; c < KEYS; ++c) scores[r][c] = fmaf(left[r][i], right[c][i], scores[r][c]);
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const Seen found = seen[first_row + r];
                    f32 top = peaks[r];
#pragma unroll
                    for (int c = 0; c < KEYS; ++c) {
                        const int j = tile + c * SHARERS + own;
                        const bool visible = found.sequence == sequence && j >= found.start && j < found.end;
                        scores[r][c] = visible ? score(scores[r][c]) : -infinity();
                        top = Largest()(top, scores[r][c]);
                    }
                    for (int n = 1; n < SHARERS; n *= 2) top = Largest()(top, shuffle_xor(top, n));
                    const f32 old = shifted(peaks[r], top);
                    peaks[r] = top;
                    totals[r] *= old;
#pragma unroll
                    for (int c = 0; c < KEYS; ++c) {
                        const f32 weight = scores[r][c] == -infinity() ? 0.0f : shifted(scores[r][c], top);
                        totals[r] += weight;
                        weights[(first_row + r) * WEIGHTS + c * SHARERS + own] = weight;
                    }
#pragma unroll
                    for (int i = 0; i < OWN; ++i) sums[r][i] *= old;
                }
                copies_done();
                block_barrier();
                tile += SPAN;
                bits = next_seen<QUERIES, SPAN>(seen, sequence, stop, tile);
                if (tile < stop) send<SPAN, THREADS>(keys, k, false, places, tile, bits, whole, status);
#pragma unroll 2
                for (int j = 0; j < SPAN; j += 4) {
                    f32 left[ROWS][4], right[4][OWN];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) load_row(weights + (first_row + r) * WEIGHTS + j, left[r]);
#pragma unroll
                    for (int i = 0; i < 4; ++i) load_row(values(j + i, 0) + own * OWN, right[i]);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
#pragma unroll
                        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                            for (int d = 0; d < OWN; ++d) sums[r][d] = fmaf(left[r][i], right[i][d], sums[r][d]);
                        }
                    }
                }
                copies_done();
                block_barrier();
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int query = first_row + r;
            const i32 token = (first + query) / group, head = kv * group + (first + query) % group;
            f32 total = totals[r];
            for (int n = 1; n < SHARERS; n *= 2) total += shuffle_xor(total, n);
            if (token >= tokens) continue;
            if (own == 0) log_sums.put(token, head, peaks[r], total);
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                narrow(total == 0.0f ? 0.0f : sums[r][i] / total,
                       y[(static_cast<i64>(token) * heads + head) * WIDTH + own * OWN + i]);
            }
        }
    }
}

// q, y [tokens, heads, width]; caches [blocks, kv_heads, block_size, width] through the block table.
template <int WIDTH, class Y>
DEVICE void attention_block_packed(const f32* q, const f32* k_cache, const f32* v_cache, const i32* row_of_token,
                                   const i32* position, const i32* block_table, const i32* length, const i32* count,
                                   Y* y, i64 tokens, i64 heads, i64 kv_heads, i64 width, i64 blocks, i64 block_size,
                                   i64 table_rows, i64 table_width, f64 scale, i64 window, f64 cap, Status status) {
    const PackedTokens problem = {row_of_token, position, block_table, length, heads, kv_heads, width, blocks,
                                  block_size, table_rows, table_width, window};
    attend<WIDTH>(q, k_cache, v_cache, y, valid_rows(count, tokens), heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, problem, status);
}

// q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width].
template <int WIDTH, class Y>
DEVICE void attention_block_causal(const f32* q, const f32* k, const f32* v, const i32* count, Y* y, i64 batches,
                                   i64 time, i64 heads, i64 kv_heads, i64, f64 scale, i64 window, f64 cap, i64 q_batch,
                                   i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch,
                                   i64 v_token, i64 v_head, Status status) {
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    attend<WIDTH>(q, k, v, y, valid_rows(count, batches) * time, heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, CausalTokens{steps, time, window}, status);
}

// The same with the logarithms of what weights were divided by.
template <int WIDTH, class Y>
DEVICE void attention_block_causal_saved(const f32* q, const f32* k, const f32* v, const i32* count, Y* y, f32* log_sum,
                                        i64 batches, i64 time, i64 heads, i64 kv_heads, i64, f64 scale, i64 window,
                                        f64 cap, i64 q_batch, i64 q_token, i64 q_head, i64 k_batch, i64 k_token,
                                        i64 k_head, i64 v_batch, i64 v_token, i64 v_head, Status status) {
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    attend<WIDTH>(q, k, v, y, valid_rows(count, batches) * time, heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, CausalTokens{steps, time, window}, status,
                  LogSums{log_sum, time, heads});
}

// q, y [tokens, heads, width], k and v [tokens, kv_heads, width]: a token sees all of its row.
template <int WIDTH, class Y>
DEVICE void attention_block_bidirectional(const f32* q, const f32* k, const f32* v, const i32* row_of_token,
                                          const i32* start, const i32* length, const i32* count, Y* y, i64 tokens,
                                          i64 heads, i64 kv_heads, i64, i64 rows, f64 scale, i64 q_token, i64 q_head,
                                          i64 k_token, i64 k_head, i64 v_token, i64 v_head, Status status) {
    const Steps steps = {0, q_token, q_head, 0, k_token, k_head, 0, v_token, v_head};
    const i64 valid = valid_rows(count, tokens);
    attend<WIDTH>(q, k, v, y, valid, heads, kv_heads, Scoring{static_cast<f32>(scale), 0.0f},
                  EncoderTokens{steps, row_of_token, start, length, valid, rows}, status);
}
