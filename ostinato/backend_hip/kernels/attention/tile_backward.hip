// Gradients of softmax(scale q k) v over whole sequences on the matrix units, q, k and v in bf16, by what stands in
// backward.hip. A block has 32 keys of one query head, whose queries stream by 32 at a time in ascending order, or 32
// queries, whose keys do. Two waves share 16 rows of its own: each makes their scores with one half of those that stream
// by, and sums up one half of the head width. Products are bf16 by bf16: the gradient, weights and their gradients are
// cut in three, which loses nothing of an f32, and products of parts are left out where they are less than its last bit.
// Matrix units of some GPUs cut their sums off instead of rounding them, so that long sums are made outside of them.
//
// Heads that share keys have a block each while there are tickets for it, else one block has all of them. Where there are
// few blocks, what streams by is cut in spans with a block each, since a kernel takes as long as its longest block. All
// blocks of the same rows leave their sums in the workspace, and the last one of them adds them up in the order of heads
// and spans, whichever it is.
#include "sequences.h"
#include "tile.h"

// Blocks that NVIDIA's compiler leaves registers for on a multiprocessor at once; it would else take all there are for
// heads of 64 values, which need far fewer. The name of a kernel says of which heads it is.
#if defined(__CUDA_ARCH__)
constexpr int at_once(const char* name) {
    for (; *name != 0; ++name) {
        if (name[0] == '_' && name[1] == '6' && name[2] == '4' && name[3] == '_') return 3;
    }
    return 1;
}
#undef KERNEL
#define KERNEL(name, threads, parameters, call) \
    extern "C" __global__ __launch_bounds__(threads, at_once(#name)) void name parameters { call; }
#endif

constexpr int OWN = 32, STEP = TILE_DEPTH;  // rows of a block, and those that stream by together
constexpr int HALVES = STEP / TILE, WAVES = OWN / TILE * HALVES, THREADS = WAVES * WAVE;
constexpr int EXCHANGED = TILE * STEP;  // shares of the rows of two waves
constexpr int PARTS = 3;                // of a value

// Where everything is; positions of tokens are within a sequence.
template <class Y>
struct Problem {
    const f32* gradient;
    const bf16 *q, *k, *v;
    const Y* y;
    const f32* log_sum;
    Steps steps;
    i32 time, heads, group, window;
    Scoring score;
    bool whole, even;  // all runs of q, k and v, and those of the gradient and y, begin at multiples of 16 bytes
    DEVICE bool sees(i32 query, i32 key) const {
        return query < time && key <= query && (window == 0 || query - key < window);
    }
};

// What the softmax of a query is made of, see backward.hip.
struct Softmaxes {
    f32 log_sums[OWN], drifts[OWN];
};

// An f32 as the sum of PARTS values of bf16, each the nearest one to what those before leave.
DEVICE void cut_up(f32 value, bf16 (&parts)[PARTS]) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const u32 nearest = bits_of(value) + (part < PARTS - 1 ? 0x8000u : 0u);  // the last one is what is left
        parts[part].bits = static_cast<u16>(nearest >> 16);
        value -= widen(parts[part]);
    }
}

// Rows of WIDTH values in shared memory without gaps, where runs change places so that those of neighbouring rows are in
// different banks.
template <int WIDTH>
struct Woven {
    bf16* first;
    DEVICE bf16* operator()(int row, int run) const { return first + row * WIDTH + (run ^ (row & 7)) * RUN; }
    DEVICE Words* words(int row, int run) const { return reinterpret_cast<Words*>((*this)(row, run)); }
};

// Shared memory: queries or keys, of which those of the block itself are soon taken from there; gradients of queries, cut
// up; values; what queries are known by; and shares on their way from wave to wave.
template <int WIDTH>
struct Memory {
    Woven<WIDTH> scored, gradients[PARTS], values;
    Softmaxes* known;
    bf16* shares;

    // Where run `run` of row `row` of those lies that the two waves of this one's rows exchange, so that the rows that
    // are read together are in different banks.
    DEVICE bf16* share(int part, int row, int run) const {
        const int rows = thread_index() / WAVE / HALVES;
        return shares + ((rows * PARTS + part) * TILE + row) * STEP + (run ^ (row >> 1 & 3)) * RUN;
    }
};

// Queries [first, first + 32) of a head with their gradients and what they are known by; zeros past the sequence.
// Neighbouring lanes take the runs of a query.
template <int WIDTH, class Y>
DEVICE void send_queries(const Problem<Y>& p, const Memory<WIDTH>& to, i64 batch, i32 head, i32 first) {
    constexpr int RUNS = WIDTH / RUN;
#pragma unroll
    for (int e = 0; e < OWN * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), row = item / RUNS, run = item % RUNS;
        const i32 token = first + row;
        Words words = {}, cut[PARTS] = {};
        f32 drift = 0.0f;
        if (token < p.time) {
            const i64 at = ((batch * p.time + token) * p.heads + head) * WIDTH + run * RUN;
            const i64 from = batch * p.steps.q_batch + token * p.steps.q_token + head * p.steps.q_head + run * RUN;
            f32 gradient[RUN], result[RUN];
            words = load_words(p.q + from, p.whole);
            load_values(p.gradient + at, p.even, gradient);
            load_values(p.y + at, p.even, result);
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                bf16 parts[PARTS];
                cut_up(gradient[i], parts);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) put(cut[part], i, parts[part]);
                drift = fmaf(gradient[i], result[i], drift);
            }
        }
        *to.scored.words(row, run) = words;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) *to.gradients[part].words(row, run) = cut[part];
        for (int n = 1; n < RUNS; n *= 2) drift += shuffle_xor(drift, n);
        if (run == 0) {
            to.known->drifts[row] = drift;
            to.known->log_sums[row] = token < p.time ? p.log_sum[(batch * p.heads + head) * p.time + token] : 0.0f;
        }
        keep_order();
    }
}

// Keys and values [first, first + 32) of a key-value head; they are there after copies_done().
template <int WIDTH, class Y>
DEVICE void send_keys(const Problem<Y>& p, const Memory<WIDTH>& to, i64 batch, i32 kv, i32 first) {
    constexpr int RUNS = WIDTH / RUN;
#pragma unroll
    for (int e = 0; e < OWN * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), row = item / RUNS, run = item % RUNS;
        const i32 token = first + row;
        const bf16 *key = nullptr, *value = nullptr;
        if (token < p.time) {
            key = p.k + (batch * p.steps.k_batch + token * p.steps.k_token + kv * p.steps.k_head) + run * RUN;
            value = p.v + (batch * p.steps.v_batch + token * p.steps.v_token + kv * p.steps.v_head) + run * RUN;
        }
        if (p.whole || key == nullptr) {
            copy_words(to.scored.words(row, run), key);
            copy_words(to.values.words(row, run), value);
        } else {
            *to.scored.words(row, run) = load_words(key, false);
            *to.values.words(row, run) = load_words(value, false);
        }
    }
}

template <int WIDTH>
DEVICE Rows<bf16> rows_of(Woven<WIDTH> from, int first, int k) {
    Rows<bf16> rows;
    rows.load_shared([=](int row, int run) { return from(first + row, k * (TILE_DEPTH / RUN) + run); });
    return rows;
}
template <int WIDTH>
DEVICE Columns<bf16> columns_of(Woven<WIDTH> from, int first, int k) {
    Columns<bf16> columns;
    columns.load_shared([=](int row, int run) { return from(first + row, k * (TILE_DEPTH / RUN) + run); });
    return columns;
}
// 16 of the values of 32 rows, from value d * 16 on, as they are seen from their other side.
template <int WIDTH>
DEVICE Columns<bf16> turned_of(Woven<WIDTH> from, int d) {
    Columns<bf16> columns;
    columns.load_turned([=](int row, int run) { return from(row, d * (TILE / RUN) + run); });
    return columns;
}

// The queries or keys of a wave's rows, once they are in shared memory. All threads take part.
template <int WIDTH>
struct Own {
    Rows<bf16> rows[WIDTH / TILE_DEPTH];
    DEVICE explicit Own(const Memory<WIDTH>& memory) {
        copies_done();
        block_barrier();
#pragma unroll
        for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
            rows[k] = rows_of(memory.scored, thread_index() / WAVE / HALVES * TILE, k);
        }
    }
};

// What a wave has of 16 rows of its block: scores and gradients of weights with 16 others. Products of queries and keys
// become weights, those of gradients and values the gradients of those products.
struct Shares {
    Sums weights, slopes;

    // Products of 32 more values of queries and keys, and of gradients, which are cut up, and values.
    template <class A, class B>
    DEVICE void add(const A& own, const B& other) {
        Sums product;
        multiply(product, own, other);
        add(weights, product);
    }
    template <class Part>
    DEVICE void add_slopes(Part part) {
        Sums most, rest;
        part(0, most);
#pragma unroll
        for (int i = 1; i < PARTS; ++i) {
            keep_order();
            part(i, rest);
        }
        add(slopes, most);
        add(slopes, rest);
    }
    static DEVICE void add(Sums& sums, const Sums& more) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums.values[i] += more.values[i];
    }

    template <class Y>
    DEVICE void finish(const Problem<Y>& p, int i, i32 query, i32 key, f32 log_sum, f32 drift) {
        const f32 value = p.score(weights.values[i]), slope = slopes.values[i] - drift;
        const f32 weight = p.sees(query, key) ? expf(value - log_sum) : 0.0f;
        weights.values[i] = weight;
        slopes.values[i] = weight == 0.0f ? 0.0f : weight * slope * p.score.slope(value);
    }
};

// Both halves of the shares of a wave's rows, cut up, from the two waves that have them. All threads take part.
template <int WIDTH>
DEVICE void exchange_shares(const Memory<WIDTH>& memory, const Sums& own, Rows<bf16> (&rows)[PARTS]) {
    const int half = thread_index() / WAVE % HALVES * TILE;
    block_barrier();  // those before may still be read
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int row = Sums::row(i), column = half + Sums::column(i);
        bf16 parts[PARTS];
        cut_up(own.values[i], parts);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) memory.share(part, row, column / RUN)[column % RUN] = parts[part];
        keep_order();
    }
    block_barrier();
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        rows[part].load_shared([=](int row, int run) { return memory.share(part, row, run); });
        keep_order();
    }
}

// Sums of 16 rows of the block by one half of the head width.
template <int WIDTH>
struct Half {
    static constexpr int ACROSS = WIDTH / TILE / HALVES;
    Sums sums[ACROSS];
    static DEVICE int first() { return static_cast<int>(thread_index() / WAVE % HALVES) * ACROSS; }

    // Rows that are cut up by others, which are too or are bf16.
    template <int COUNT>
    DEVICE void add(const Rows<bf16> (&rows)[PARTS], const Woven<WIDTH> (&others)[COUNT]) {
#pragma unroll
        for (int d = 0; d < ACROSS; ++d) {
            Sums most, rest;
#pragma unroll
            for (int other = 0; other < COUNT; ++other) {
                const Columns<bf16> columns = turned_of(others[other], first() + d);
#pragma unroll
                for (int part = 0; part < PARTS - other; ++part) {
                    multiply(other + part == 0 ? most : rest, rows[part], columns);
                    keep_order();
                }
            }
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sums[d].values[i] += most.values[i] + rest.values[i];
            keep_order();
        }
    }
    // To rows `stride` apart, of which the block's first is at `to`; `rows` of them are there.
    template <class R>
    DEVICE void store(R* to, i64 stride, i32 rows) const {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int row = thread_index() / WAVE / HALVES * TILE + Sums::row(i);
            if (row >= rows) continue;
#pragma unroll
            for (int d = 0; d < ACROSS; ++d) {
                narrow(sums[d].values[i], to[row * stride + (first() + d) * TILE + Sums::column(i)]);
            }
        }
    }
    // For another block: the sums of neighbouring threads lie together.
    DEVICE void keep(f32* at) const {
#pragma unroll
        for (int d = 0; d < ACROSS; ++d) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) at[(d * SUMS + i) * THREADS + thread_index()] = sums[d].values[i];
        }
    }
    // Those of so many blocks, `step` apart, in their order. All that a block has is under way together.
    DEVICE void join(const f32* at, i64 step, i32 blocks) {
        for (i32 block = 0; block < blocks; ++block) {
            const f32* const from = at + block * step + thread_index();
            f32 more[ACROSS * SUMS];
#pragma unroll
            for (int n = 0; n < ACROSS * SUMS; ++n) more[n] = from[n * THREADS];
#pragma unroll
            for (int n = 0; n < ACROSS * SUMS; ++n) {
                f32& own = sums[n / SUMS].values[n % SUMS];
                own = block == 0 ? more[n] : own + more[n];
            }
        }
    }
};

// What of a row of tiles streams by, and which part of it is a block's: all of it, or a span of so many tiles.
struct Stream {
    i32 begin, end, spans;
    DEVICE Stream(i32 first, i32 last, i32 tiles, i32 span) {
        const i32 length = tiles * STEP;
        spans = tiles == 0 ? 1 : larger((last - first + length - 1) / length, 1);
        begin = tiles == 0 ? first : first + span * length;
        end = tiles == 0 ? last : smaller(last, begin + length);
    }
};

// Adds to the gradients of the keys from `own` on, the block's own, what queries of a head have for them.
template <int WIDTH, class Y>
DEVICE void of_keys(const Problem<Y>& p, const Memory<WIDTH>& memory, const Own<WIDTH>& held, i64 batch, i32 head,
                    i32 own, Stream queries, Half<WIDTH>& keys, Half<WIDTH>& values) {
    const int wave = thread_index() / WAVE, side = wave / HALVES * TILE, half = wave % HALVES * TILE;
    for (i32 first = queries.begin; first < queries.end; first += STEP) {
        block_barrier();  // earlier ones may still be read
        send_queries(p, memory, batch, head, first);
        block_barrier();
        Shares shares;
#pragma unroll
        for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
            shares.add(held.rows[k], columns_of(memory.scored, half, k));
            keep_order();
        }
#pragma unroll 1
        for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
            const Rows<bf16> value = rows_of(memory.values, side, k);
            shares.add_slopes([&](int part, Sums& sums) {
                multiply(sums, value, columns_of(memory.gradients[part], half, k));
            });
        }
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int query = half + Sums::column(i);
            shares.finish(p, i, first + query, own + side + Sums::row(i), memory.known->log_sums[query],
                          memory.known->drifts[query]);
        }
        Rows<bf16> rows[PARTS];
        exchange_shares(memory, shares.weights, rows);
        values.add(rows, memory.gradients);
        exchange_shares(memory, shares.slopes, rows);
        keys.add(rows, {memory.scored});
    }
}

// Adds to the gradient of the queries from `own` on of a head what keys have for them.
template <int WIDTH, class Y>
DEVICE void of_queries(const Problem<Y>& p, const Memory<WIDTH>& memory, i64 batch, i32 head, i32 own, Stream keys,
                       Half<WIDTH>& queries) {
    const int wave = thread_index() / WAVE, side = wave / HALVES * TILE, half = wave % HALVES * TILE;
    send_queries(p, memory, batch, head, own);
    const Own<WIDTH> held(memory);
    for (i32 first = keys.begin; first < keys.end; first += STEP) {
        block_barrier();  // earlier ones may still be read
        send_keys(p, memory, batch, head / p.group, first);
        copies_done();
        block_barrier();
        Shares shares;
#pragma unroll
        for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
            shares.add(held.rows[k], columns_of(memory.scored, half, k));
            keep_order();
        }
#pragma unroll 1
        for (int k = 0; k < WIDTH / TILE_DEPTH; ++k) {
            const Columns<bf16> value = columns_of(memory.values, half, k);
            shares.add_slopes([&](int part, Sums& sums) {
                multiply(sums, rows_of(memory.gradients[part], side, k), value);
            });
        }
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int query = side + Sums::row(i);
            shares.finish(p, i, own + query, first + half + Sums::column(i), memory.known->log_sums[query],
                          memory.known->drifts[query]);
        }
        Rows<bf16> rows[PARTS];
        exchange_shares(memory, shares.slopes, rows);
        queries.add(rows, {memory.scored});
    }
}

// gradient, q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width], log_sum [batches, heads, time].
// `sharers` heads of a group have a block each: all of them, or one that has them all. A span has `tiles_of_span` tiles, 0
// where nothing is cut. The workspace holds for each tile of keys, sharer and span the gradients of 32 keys and of their
// values, where there are several, and behind them for each tile of queries and span their gradients.
template <int WIDTH, class Y, class R>
DEVICE void attention_tile_causal_backward(const f32* gradient, const bf16* q, const bf16* k, const bf16* v, const Y* y,
                                           const f32* log_sum, const i32* count, R* q_gradient, R* k_gradient,
                                           R* v_gradient, f32* workspace, i64 batches, i64 time, i64 heads,
                                           i64 kv_heads, i64 sharers, i64 tiles_of_span, f64 scale, i64 window,
                                           f64 cap, i64 q_batch, i64 q_token, i64 q_head, i64 k_batch, i64 k_token,
                                           i64 k_head, i64 v_batch, i64 v_token, i64 v_head, Status status) {
    constexpr int KEPT = OWN * WIDTH;
    SHARED(Words, words, (2 + PARTS) * KEPT / RUN);
    SHARED(Words, exchanged, WAVES / HALVES * PARTS * EXCHANGED / RUN);
    SHARED(Softmaxes, known, 1);
    bf16* const rows = reinterpret_cast<bf16*>(words);
    const Memory<WIDTH> memory = {{rows},
                                  {{rows + KEPT}, {rows + 2 * KEPT}, {rows + 3 * KEPT}},
                                  {rows + 4 * KEPT},
                                  known,
                                  reinterpret_cast<bf16*>(exchanged)};
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    const i32 length = static_cast<i32>(time), group = static_cast<i32>(heads / kv_heads);
    const i32 kept = window > 0 && window < time ? static_cast<i32>(window) : 0;
    const Problem<Y> p = {gradient, q, k, v, y, log_sum, steps, length, static_cast<i32>(heads), group, kept,
                          Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, steps.whole(q, k, v),
                          aligned(gradient) && aligned(y)};
    const i64 valid = valid_rows(count, batches), tiles = (time + OWN - 1) / OWN, owners = kv_heads * sharers;
    const i32 span_tiles = static_cast<i32>(tiles_of_span);
    const i64 spans = tiles_of_span == 0 ? 1 : (tiles + tiles_of_span - 1) / tiles_of_span;
    const i64 kept_of_keys = sharers * spans > 1 ? batches * kv_heads * tiles * sharers * spans * 2 * KEPT : 0;
    const i64 units = valid * (owners + heads) * spans;
    for (i64 unit = block_index(); unit < tiles * units; unit += block_count()) {
        // the first keys are seen by most, and the last queries see most
        const i64 turn = unit / units, place = unit % units / spans;
        const i32 span = static_cast<i32>(unit % spans);
        block_barrier();  // an earlier unit may still be read
        if (place < valid * owners) {
            const i64 batch = place / owners;
            const i32 own = static_cast<i32>(turn * OWN), sharer = static_cast<i32>(place % sharers);
            const i32 kv = static_cast<i32>(place % owners / sharers), each = static_cast<i32>(group / sharers);
            const i32 end = p.window > 0 ? smaller(length, own + OWN - 1 + p.window) : length;
            const Stream queries(own, end, span_tiles, span);
            if (span >= queries.spans) continue;
            Half<WIDTH> keys, values;
            send_keys(p, memory, batch, kv, own);
            const Own<WIDTH> held(memory);
            for (i32 h = 0; h < each; ++h) {
                of_keys(p, memory, held, batch, kv * group + sharer * each + h, own, queries, keys, values);
            }
            const i32 blocks = static_cast<i32>(sharers) * queries.spans;
            if (blocks > 1) {
                const i64 shared = (batch * kv_heads + kv) * tiles + turn;
                f32* const sums = workspace + shared * sharers * spans * 2 * KEPT;
                f32* const mine = sums + (sharer * queries.spans + span) * 2 * KEPT;
                keys.keep(mine);
                values.keep(mine + KEPT);
                if (!status.last_of(static_cast<u32>(blocks), shared)) continue;
                keys.join(sums, 2 * KEPT, blocks);
                values.join(sums + KEPT, 2 * KEPT, blocks);
            }
            const i64 to = ((batch * time + own) * kv_heads + kv) * WIDTH;
            keys.store(k_gradient + to, kv_heads * WIDTH, length - own);
            values.store(v_gradient + to, kv_heads * WIDTH, length - own);
        } else {
            const i64 from = place - valid * owners, batch = from / heads;
            const i32 head = static_cast<i32>(from % heads), own = static_cast<i32>((tiles - 1 - turn) * OWN);
            const i32 begin = p.window > 0 ? larger(own + 1 - p.window, 0) / STEP * STEP : 0;
            const Stream keys(begin, smaller(length, own + OWN), span_tiles, span);
            if (span >= keys.spans) continue;
            Half<WIDTH> queries;
            of_queries(p, memory, batch, head, own, keys, queries);
            if (keys.spans > 1) {
                const i64 shared = (batch * heads + head) * tiles + turn;
                f32* const sums = workspace + kept_of_keys + shared * spans * KEPT;
                queries.keep(sums + span * KEPT);
                if (!status.last_of(static_cast<u32>(keys.spans), batches * kv_heads * tiles + shared)) continue;
                queries.join(sums, KEPT, keys.spans);
            }
            queries.store(q_gradient + ((batch * time + own) * heads + head) * WIDTH, heads * WIDTH, length - own);
        }
    }
}
