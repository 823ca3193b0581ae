// softmax(scale q k) v on the matrix units, of halves: packed tokens over a block cache, whole sequences, and packed
// sequences of an encoder. A block has 64 queries of one key-value head, a token's heads side by side and tokens in
// ascending order, 16 for each of its waves. It goes over tiles of 32 keys that begin at multiples of 32, in ascending
// order: keys and, turned, values of a tile go to shared memory, those of the next tile are on the way meanwhile.
//
// Weights are cut into a half and what it lacks, which is a half again, so that their products with values are as good
// as f32. Queries of one block may be of several sequences, which are taken one after the other; what a query does not
// see leaves its sums as they are, so that a result does not depend on who else is in the batch. A key that no query of
// the block sees is not read.
#include "scoring.h"
#include "tile.h"

constexpr int WAVES = 4;
constexpr int QUERIES = WAVES * TILE;
constexpr int KEYS = 32;
constexpr int PAIRS = KEYS / 2;
constexpr i32 NOBODY = -1;

// What a query sees: keys [start, end) of a sequence.
struct Seen {
    i32 sequence, start, end;
};

// Where key and value j of a sequence begin, in elements; false where the block table is wrong.
struct EvenPlaces {
    i64 key, key_step, value, value_step;
    DEVICE bool find(i32 j, i64& k, i64& v) const {
        k = key + j * key_step;
        v = value + j * value_step;
        return true;
    }
};
struct BlockPlaces {
    const i32* table;
    i64 blocks, kv_heads, kv, block_size, width;
    DEVICE bool find(i32 j, i64& k, i64& v) const {
        const u32 size = static_cast<u32>(block_size), block = static_cast<u32>(j) / size;
        const i32 found = table[block];
        if (found < 0 || found >= blocks) return false;
        k = v = ((found * kv_heads + kv) * block_size + (static_cast<u32>(j) - block * size)) * width;
        return true;
    }
};

// Which of the keys of a tile [start, end) has.
DEVICE u32 bits_seen(i32 start, i32 end, i32 tile) {
    const i32 from = larger(start - tile, 0), to = smaller(end - tile, KEYS);
    if (from >= to) return 0;
    return 0xffffffffu >> (KEYS - (to - from)) << from;
}

// The halves that a weight is cut into.
template <class T>
DEVICE void cut(f32 weight, T& high, T& low) {
    narrow(weight, high);
    narrow(weight - widen(high), low);
}

// Keys and values of a tile on their way: each thread has runs of 8 of two neighbours.
template <int WIDTH>
struct OnTheWay {
    static constexpr int RUNS = WIDTH / RUN, ITEMS = PAIRS * RUNS, THREADS = WAVES * WAVE;
    static constexpr int EACH = (ITEMS + THREADS - 1) / THREADS;
    Words keys[EACH][2], values[EACH][2];

    template <class T, class Places>
    DEVICE void load(const T* k, const T* v, Places places, i32 tile, u32 seen, bool whole, Status status) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int item = e * THREADS + thread_index(), run = item / PAIRS * RUN;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int j = item % PAIRS * 2 + n;
                i64 key, value;
                keys[e][n] = values[e][n] = {};
                if (item >= ITEMS || (seen >> j & 1u) == 0) continue;
                if (places.find(tile + j, key, value)) {
                    keys[e][n] = load_words(k + key + run, whole);
                    values[e][n] = load_words(v + value + run, whole);
                } else {
                    status.out_of_range();
                }
            }
        }
    }
    // Keys as rows of WIDTH values; of values a row for each of WIDTH, in words of two keys.
    DEVICE void store(Words* key_rows, u32* value_rows) const {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int item = e * THREADS + thread_index(), pair = item % PAIRS, run = item / PAIRS;
            if (item >= ITEMS) continue;
            for (int n = 0; n < 2; ++n) key_rows[(2 * pair + n) * (spread(WIDTH) / RUN) + run] = keys[e][n];
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                const u32 one = values[e][0].w[i / 2] >> i % 2 * 16, other = values[e][1].w[i / 2] >> i % 2 * 16;
                value_rows[(run * RUN + i) * (spread(KEYS) / 2) + pair] = (one & 0xffffu) | other << 16;
            }
        }
    }
};

// The queries of a wave with what was summed up for them.
template <int WIDTH, class T>
struct Queries {
    Rows<T> rows[WIDTH / TILE_DEPTH];
    Sums sums[WIDTH / TILE];
    f32 peaks[ROWS_HELD], totals[ROWS_HELD];  // totals of this lane's columns only

    // One tile of keys: scores, their weights through `weights`, which is this wave's own, then the values.
    DEVICE void take(const T* keys, const T* values, T* weights, i32 tile, const i32 (&start)[ROWS_HELD],
                     const i32 (&end)[ROWS_HELD], Scoring score) {
        Sums scores[KEYS / TILE];
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
                Columns<T> columns;
                columns.load(keys + c * TILE * spread(WIDTH) + k * TILE_DEPTH, spread(WIDTH), TILE - 1);
                multiply(scores[c], rows[k], columns);
            }
            keep_order();
        }
        f32 tops[ROWS_HELD], olds[ROWS_HELD];
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) tops[r] = peaks[r];
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int r = held_row_of(i), j = tile + c * TILE + Sums::column(i);
                f32& own = scores[c].values[i];
                own = j >= start[r] && j < end[r] ? score(own) : -infinity();
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
        T* const lows = weights + TILE * spread(KEYS);
#pragma unroll
        for (int c = 0; c < KEYS / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int r = held_row_of(i), at = Sums::row(i) * spread(KEYS) + c * TILE + Sums::column(i);
                const f32 own = scores[c].values[i];
                const f32 weight = own == -infinity() ? 0.0f : shifted(own, tops[r]);
                totals[r] += weight;
                cut(weight, weights[at], lows[at]);
            }
        }
#pragma unroll
        for (int d = 0; d < WIDTH / TILE; ++d) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[d].values[i] *= olds[held_row_of(i)];
        }
        wave_barrier();
        Rows<T> high, low;
        high.load(weights, spread(KEYS), TILE - 1);
        low.load(lows, spread(KEYS), TILE - 1);
#pragma unroll
        for (int d = 0; d < WIDTH / TILE; ++d) {
            Columns<T> columns;
            columns.load(values + d * TILE * spread(KEYS), spread(KEYS), TILE - 1);
            multiply(sums[d], high, columns);
            multiply(sums[d], low, columns);
            keep_order();
        }
    }
};

// Sequences of a block's queries one after the other. Problem says of a token what it sees, where its query lies, and
// where the keys of a sequence are.
template <int WIDTH, class T, class Y, class Problem>
DEVICE void attend(const T* q, const T* k, const T* v, Y* y, i64 tokens, i64 heads, i64 kv_heads, Scoring score,
                   Problem problem, Status status) {
    constexpr int KEY_WORDS = KEYS * spread(WIDTH) / RUN, VALUE_WORDS = WIDTH * spread(KEYS) / RUN;
    constexpr int WEIGHT_WORDS = 2 * TILE * spread(KEYS) / RUN, QUERY_WORDS = QUERIES * spread(WIDTH) / RUN;
    constexpr int TILE_WORDS = KEY_WORDS + VALUE_WORDS + WAVES * WEIGHT_WORDS;
    SHARED(Words, memory, TILE_WORDS > QUERY_WORDS ? TILE_WORDS : QUERY_WORDS);
    SHARED(Seen, seen, QUERIES);
    SHARED(i32, first_of, QUERIES);
    const int t = thread_index(), wave = t / WAVE;
    const i64 group = heads / kv_heads, kv = block_index_y(), units = (tokens * group + QUERIES - 1) / QUERIES;
    const bool whole = problem.whole(q, k, v);
    for (i64 unit = block_index(); unit < units; unit += block_count()) {
        const i64 first = (units - 1 - unit) * QUERIES;  // the last ones see most
        block_barrier();                                 // an earlier unit may still be read
        for (int item = t; item < QUERIES * (WIDTH / RUN); item += WAVES * WAVE) {
            const int query = item / (WIDTH / RUN), run = item % (WIDTH / RUN);
            const i64 token = (first + query) / group, head = kv * group + (first + query) % group;
            Words words = {};
            if (token < tokens) words = load_words(q + problem.query(token, head) + run * RUN, whole);
            memory[query * (spread(WIDTH) / RUN) + run] = words;
        }
        if (t < QUERIES) {
            const i64 token = (first + t) / group;
            seen[t] = token < tokens ? problem.seen(token, status) : Seen{NOBODY, 0, 0};
            if (seen[t].start >= seen[t].end) seen[t].sequence = NOBODY;
        }
        block_barrier();
        if (t < QUERIES) {
            i32 before = 0;
            for (int other = 0; other < t; ++other) before |= seen[other].sequence == seen[t].sequence;
            first_of[t] = before || seen[t].sequence == NOBODY ? 0 : 1;
        }
        Queries<WIDTH, T> own;
#pragma unroll
        for (int part = 0; part < WIDTH / TILE_DEPTH; ++part) {
            own.rows[part].load(reinterpret_cast<const T*>(memory) + wave * TILE * spread(WIDTH) + part * TILE_DEPTH,
                             spread(WIDTH), TILE - 1);
        }
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) own.peaks[r] = -infinity(), own.totals[r] = 0.0f;
        block_barrier();
        for (int leader = 0; leader < QUERIES; ++leader) {
            if (!first_of[leader]) continue;
            const i32 sequence = seen[leader].sequence;
            const auto places = problem.places(sequence, kv);
            // What queries see of it: those of this lane's rows, and some by each lane for the wave.
            i32 start[ROWS_HELD], end[ROWS_HELD], begin = 0x7fffffff, stop = 0;
            constexpr int SHARE = QUERIES / WAVE;
            i32 starts[SHARE], ends[SHARE];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const Seen found = seen[wave * TILE + Sums::row(i)];
                start[held_row_of(i)] = found.start;
                end[held_row_of(i)] = found.sequence == sequence ? found.end : 0;
            }
#pragma unroll
            for (int s = 0; s < SHARE; ++s) {
                const Seen found = seen[s * WAVE + lane()];
                starts[s] = found.start;
                ends[s] = found.sequence == sequence ? found.end : 0;
                begin = ends[s] > starts[s] ? smaller(begin, starts[s]) : begin;
                stop = larger(stop, ends[s]);
            }
            for (int n = 1; n < WAVE; n *= 2) {
                begin = smaller(begin, shuffle_xor(begin, n));
                stop = larger(stop, shuffle_xor(stop, n));
            }
            // The keys that somebody sees of the first tile from here on that has any.
            const auto next = [&](i32& tile) {
                for (; tile < stop; tile += KEYS) {
                    u32 bits = 0;
                    for (int s = 0; s < SHARE; ++s) bits |= bits_seen(starts[s], ends[s], tile);
                    for (int n = 1; n < WAVE; n *= 2) bits |= shuffle_xor(bits, n);
                    if (bits != 0) return bits;
                }
                return 0u;
            };
            OnTheWay<WIDTH> coming;
            i32 tile = begin / KEYS * KEYS;
            coming.load(k, v, places, tile, next(tile), whole, status);
            while (tile < stop) {
                block_barrier();  // the tile before may still be read
                Words* const values = memory + KEY_WORDS;
                coming.store(memory, reinterpret_cast<u32*>(values));
                block_barrier();
                i32 after = tile + KEYS;
                const u32 bits = next(after);
                if (after < stop) coming.load(k, v, places, after, bits, whole, status);
                own.take(reinterpret_cast<const T*>(memory), reinterpret_cast<const T*>(values),
                         reinterpret_cast<T*>(values + VALUE_WORDS + wave * WEIGHT_WORDS), tile, start, end, score);
                tile = after;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS_HELD; ++r) {
            for (int n = 1; n < ROW_LANES; n *= 2) own.totals[r] += shuffle_xor(own.totals[r], n);
        }
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const i64 at = first + wave * TILE + Sums::row(i), token = at / group, head = kv * group + at % group;
            const f32 total = own.totals[held_row_of(i)];
            if (token >= tokens) continue;
#pragma unroll
            for (int d = 0; d < WIDTH / TILE; ++d) {
                narrow(total == 0.0f ? 0.0f : own.sums[d].values[i] / total,
                       y[(token * heads + head) * WIDTH + d * TILE + Sums::column(i)]);
            }
        }
    }
}

struct PackedTokens {
    const i32 *row_of_token, *position, *table, *length;
    i64 heads, kv_heads, width, blocks, block_size, table_rows, table_width, window;
    DEVICE bool whole(const void* q, const void* k, const void* v) const { return aligned(q) && aligned(k) && aligned(v); }
    DEVICE i64 query(i64 token, i64 head) const { return (token * heads + head) * width; }
    DEVICE Seen seen(i64 token, Status status) const {
        const i32 row = row_of_token[token];
        const i64 at = position[token];
        if (row < 0) return {NOBODY, 0, 0};
        bool bad = row >= table_rows;
        const i64 start = window_start(at, window), end = bad ? 0 : smaller<i64>(at + 1, length[row]);
        bad = bad || (end > start && end > table_width * block_size);
        if (bad) status.out_of_range();
        return bad || end <= start ? Seen{NOBODY, 0, 0} : Seen{row, static_cast<i32>(start), static_cast<i32>(end)};
    }
    DEVICE BlockPlaces places(i32 sequence, i64 kv) const {
        return {table + sequence * table_width, blocks, kv_heads, kv, block_size, width};
    }
};

// q, y [tokens, heads, width]; caches [blocks, kv_heads, block_size, width] through the block table.
template <int WIDTH, class T, class Y>
DEVICE void attention_tile_packed(const T* q, const T* k_cache, const T* v_cache, const i32* row_of_token,
                                  const i32* position, const i32* block_table, const i32* length, const i32* count,
                                  Y* y, i64 tokens, i64 heads, i64 kv_heads, i64 width, i64 blocks, i64 block_size,
                                  i64 table_rows, i64 table_width, f64 scale, i64 window, f64 cap, Status status) {
    const PackedTokens problem = {row_of_token, position, block_table, length, heads, kv_heads, width, blocks,
                                  block_size, table_rows, table_width, window};
    attend<WIDTH>(q, k_cache, v_cache, y, valid_rows(count, tokens), heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, problem, status);
}

// Strides of q, k and v.
struct Steps {
    i64 q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head;
    // Whether all runs of 8 halves begin at multiples of 16 bytes.
    DEVICE bool whole(const void* q, const void* k, const void* v) const {
        const i64 all = q_batch | q_token | q_head | k_batch | k_token | k_head | v_batch | v_token | v_head;
        return aligned(q) && aligned(k) && aligned(v) && all % RUN == 0;
    }
};

struct CausalTokens {
    Steps steps;
    i64 time, window;
    DEVICE bool whole(const void* q, const void* k, const void* v) const { return steps.whole(q, k, v); }
    DEVICE i64 query(i64 token, i64 head) const {
        return token / time * steps.q_batch + token % time * steps.q_token + head * steps.q_head;
    }
    DEVICE Seen seen(i64 token, Status) const {
        const i64 at = token % time;
        return {static_cast<i32>(token / time), static_cast<i32>(window_start(at, window)), static_cast<i32>(at + 1)};
    }
    DEVICE EvenPlaces places(i32 sequence, i64 kv) const {
        return {sequence * steps.k_batch + kv * steps.k_head, steps.k_token,
                sequence * steps.v_batch + kv * steps.v_head, steps.v_token};
    }
};

// q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width].
template <int WIDTH, class T, class Y>
DEVICE void attention_tile_causal(const T* q, const T* k, const T* v, const i32* count, Y* y, i64 batches, i64 time,
                                  i64 heads, i64 kv_heads, i64, f64 scale, i64 window, f64 cap, i64 q_batch,
                                  i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch,
                                  i64 v_token, i64 v_head, Status status) {
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    attend<WIDTH>(q, k, v, y, valid_rows(count, batches) * time, heads, kv_heads,
                  Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, CausalTokens{steps, time, window}, status);
}

struct EncoderTokens {
    Steps steps;
    const i32 *row_of_token, *first_token, *length;
    i64 tokens, rows;
    DEVICE bool whole(const void* q, const void* k, const void* v) const { return steps.whole(q, k, v); }
    DEVICE i64 query(i64 token, i64 head) const { return token * steps.q_token + head * steps.q_head; }
    DEVICE Seen seen(i64 token, Status status) const {
        const i32 row = row_of_token[token];
        const bool known = row >= 0 && row < rows;
        const i64 first = known ? first_token[row] : 0, size = known ? larger<i64>(0, length[row]) : 0;
        const bool inside = size == 0 || (first >= 0 && first + size <= tokens);
        if (!inside || row >= rows) status.out_of_range();
        return inside && size > 0 ? Seen{row, 0, static_cast<i32>(size)} : Seen{NOBODY, 0, 0};
    }
    DEVICE EvenPlaces places(i32 sequence, i64 kv) const {
        const i64 first = first_token[sequence];
        return {first * steps.k_token + kv * steps.k_head, steps.k_token, first * steps.v_token + kv * steps.v_head,
                steps.v_token};
    }
};

// q, y [tokens, heads, width], k and v [tokens, kv_heads, width]: a token sees all of its row.
template <int WIDTH, class T, class Y>
DEVICE void attention_tile_bidirectional(const T* q, const T* k, const T* v, const i32* row_of_token, const i32* start,
                                         const i32* length, const i32* count, Y* y, i64 tokens, i64 heads,
                                         i64 kv_heads, i64, i64 rows, f64 scale, i64 q_token, i64 q_head, i64 k_token,
                                         i64 k_head, i64 v_token, i64 v_head, Status status) {
    const Steps steps = {0, q_token, q_head, 0, k_token, k_head, 0, v_token, v_head};
    const i64 valid = valid_rows(count, tokens);
    attend<WIDTH>(q, k, v, y, valid, heads, kv_heads, Scoring{static_cast<f32>(scale), 0.0f},
                  EncoderTokens{steps, row_of_token, start, length, valid, rows}, status);
}
