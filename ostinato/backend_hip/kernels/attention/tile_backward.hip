// Gradients of softmax(scale q k) v over whole sequences on the matrix units, q, k and v in bf16, by what stands in
// backward.hip. A block has a tile of keys of one query head, whose queries stream by 32 at a time in ascending order, or
// a tile of queries, whose keys do; a wave has 16 of them. Products are bf16 by bf16: the gradient, weights and their
// gradients are cut in two, so that results are nearly as good as f32.
//
// Heads that share keys have a block each while there are tickets for it. Each then leaves its sums in the workspace, and
// the last one of them adds them up in the order of heads, whichever it is. Else one block has all of these heads.
#include "sequences.h"
#include "tile.h"

constexpr int STEP = TILE_DEPTH;  // queries or keys that stream by together

// Of a block.
template <int WIDTH>
struct Shape {
    static constexpr int SIDES = WIDTH > 64 ? 2 : 4, OWN = SIDES * TILE, THREADS = SIDES * WAVE;
    static constexpr int ROWS = 3 * OWN + 2 * STEP, PIECES = WIDTH / TILE_DEPTH, ACROSS = WIDTH / TILE;
    static constexpr int WORDS = ROWS * Staged<WIDTH, bf16>::STRIDE / RUN;
    static_assert(OWN >= STEP, "queries of a block take more room than its keys");
};

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
template <int ROWS>
struct Softmaxes {
    f32 log_sums[ROWS], drifts[ROWS];
};

// Shared memory for all rows that a block holds, and what queries are known by.
template <int WIDTH>
struct Memory {
    using Rows = Staged<WIDTH, bf16>;
    Rows all;
    Softmaxes<Shape<WIDTH>::OWN>* known;
    bf16* scratch;  // of this wave
    DEVICE Rows part(int row) const { return {all.first + row * Rows::STRIDE}; }
};

// Queries [first, first + ROWS) of a head into shared memory with their gradients, cut, and what they are known by;
// zeros past the sequence. Neighbouring lanes take the runs of a query.
template <int WIDTH, int ROWS, class Y>
DEVICE void send_queries(const Problem<Y>& p, Staged<WIDTH, bf16> queries, Staged<WIDTH, bf16> high,
                         Staged<WIDTH, bf16> low, Softmaxes<Shape<WIDTH>::OWN>& known, i64 batch, i32 head, i32 first) {
    constexpr int RUNS = WIDTH / RUN, THREADS = Shape<WIDTH>::THREADS;
    static_assert(ROWS * RUNS % THREADS == 0, "every thread has as many runs");
#pragma unroll
    for (int e = 0; e < ROWS * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), row = item / RUNS, run = item % RUNS;
        const i32 token = first + row;
        Words words = {}, halves[2] = {};
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
                bf16 top, rest;
                cut(gradient[i], top, rest);
                put(halves[0], i, top);
                put(halves[1], i, rest);
                drift = fmaf(gradient[i], result[i], drift);
            }
        }
        *queries.words(row, run) = words;
        *high.words(row, run) = halves[0];
        *low.words(row, run) = halves[1];
        for (int n = 1; n < RUNS; n *= 2) drift += shuffle_xor(drift, n);
        if (run == 0) {
            known.drifts[row] = drift;
            known.log_sums[row] = token < p.time ? p.log_sum[(batch * p.heads + head) * p.time + token] : 0.0f;
        }
    }
}

// Keys and values [first, first + ROWS) of a key-value head; they are there after copies_done().
template <int WIDTH, int ROWS, class Y>
DEVICE void send_keys(const Problem<Y>& p, Staged<WIDTH, bf16> keys, Staged<WIDTH, bf16> values, i64 batch, i32 kv,
                      i32 first) {
    constexpr int RUNS = WIDTH / RUN, THREADS = Shape<WIDTH>::THREADS;
#pragma unroll
    for (int e = 0; e < ROWS * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), row = item / RUNS, run = item % RUNS;
        const i32 token = first + row;
        const bf16 *key = nullptr, *value = nullptr;
        if (token < p.time) {
            key = p.k + (batch * p.steps.k_batch + token * p.steps.k_token + kv * p.steps.k_head) + run * RUN;
            value = p.v + (batch * p.steps.v_batch + token * p.steps.v_token + kv * p.steps.v_head) + run * RUN;
        }
        if (p.whole || key == nullptr) {
            copy_words(keys.words(row, run), key);
            copy_words(values.words(row, run), value);
        } else {
            *keys.words(row, run) = load_words(key, false);
            *values.words(row, run) = load_words(value, false);
        }
    }
}

// sums += 16 rows from `row` on by 32 rows of others, all of WIDTH.
template <int WIDTH>
DEVICE void add_products(Sums (&sums)[STEP / TILE], Staged<WIDTH, bf16> own, int row, Staged<WIDTH, bf16> others) {
#pragma unroll
    for (int k = 0; k < Shape<WIDTH>::PIECES; ++k) {
        Rows<bf16> rows;
        rows.load_shared([=](int at, int run) { return own(row + at, k * (TILE_DEPTH / RUN) + run); });
#pragma unroll
        for (int c = 0; c < STEP / TILE; ++c) {
            Columns<bf16> columns;
            columns.load_shared([=](int at, int run) { return others(c * TILE + at, k * (TILE_DEPTH / RUN) + run); });
            multiply(sums[c], rows, columns);
        }
        keep_order();
    }
}

// sums += 16 rows, cut, by the 32 rows of others that these are the shares of.
template <int WIDTH>
DEVICE void add_shares(Sums (&sums)[WIDTH / TILE], const Rows<bf16>& high, const Rows<bf16>& low,
                       Staged<WIDTH, bf16> others) {
#pragma unroll
    for (int d = 0; d < WIDTH / TILE; ++d) {
        Columns<bf16> columns;
        columns.load_turned([=](int at, int run) { return others(at, d * (TILE / RUN) + run); });
        multiply(sums[d], high, columns);
        multiply(sums[d], low, columns);
        keep_order();
    }
}
template <int WIDTH>
DEVICE void add_shares(Sums (&sums)[WIDTH / TILE], const Rows<bf16>& high, Staged<WIDTH, bf16> others) {
#pragma unroll
    for (int d = 0; d < WIDTH / TILE; ++d) {
        Columns<bf16> columns;
        columns.load_turned([=](int at, int run) { return others(at, d * (TILE / RUN) + run); });
        multiply(sums[d], high, columns);
        keep_order();
    }
}

// Products of queries and keys become weights, those of gradients and values the gradients of products.
template <class Y>
DEVICE void weigh(const Problem<Y>& p, f32& weight, f32& share, i32 query, i32 key, f32 log_sum, f32 drift) {
    const f32 value = p.score(weight);
    const bool seen = p.sees(query, key);
    weight = seen ? expf(value - log_sum) : 0.0f;
    share = seen ? weight * (share - drift) * p.score.slope(value) : 0.0f;
}

// Sums of 16 rows of a wave, from `row` on, to rows `stride` apart of which the first is `first`; those past `end` are
// none.
template <int WIDTH, class R>
DEVICE void put_rows(const Sums (&sums)[WIDTH / TILE], R* first, i64 stride, i32 row, i32 end) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        if (row + Sums::row(i) >= end) continue;
        R* const to = first + (row + Sums::row(i)) * stride;
#pragma unroll
        for (int d = 0; d < WIDTH / TILE; ++d) narrow(sums[d].values[i], to[d * TILE + Sums::column(i)]);
    }
}

// What a block sums up for its keys.
template <int WIDTH>
struct OfKeys {
    Sums keys[WIDTH / TILE], values[WIDTH / TILE];

    // All queries of a head that see some of the keys from `own` on, which are in shared memory.
    template <class Y>
    DEVICE void add(const Problem<Y>& p, const Memory<WIDTH>& memory, i64 batch, i32 head, i32 own) {
        constexpr int OWN = Shape<WIDTH>::OWN;
        const auto own_keys = memory.part(0), own_values = memory.part(OWN);
        const auto queries = memory.part(2 * OWN), high = memory.part(2 * OWN + STEP);
        const auto low = memory.part(2 * OWN + 2 * STEP);
        const int side = thread_index() / WAVE * TILE;
        const i32 last = own + OWN - 1, end = p.window > 0 ? smaller(p.time, last + p.window) : p.time;
        for (i32 first = own / STEP * STEP; first < end; first += STEP) {
            block_barrier();  // earlier ones may still be read
            send_queries<WIDTH, STEP>(p, queries, high, low, *memory.known, batch, head, first);
            block_barrier();
            if (first + STEP - 1 < own + side) continue;  // the wave's keys come after all of these queries
            Sums weights[STEP / TILE], shares[STEP / TILE];
            add_products<WIDTH>(weights, own_keys, side, queries);
            add_products<WIDTH>(shares, own_values, side, high);
            add_products<WIDTH>(shares, own_values, side, low);
#pragma unroll
            for (int c = 0; c < STEP / TILE; ++c) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    const int query = c * TILE + Sums::column(i);
                    weigh(p, weights[c].values[i], shares[c].values[i], first + query, own + side + Sums::row(i),
                          memory.known->log_sums[query], memory.known->drifts[query]);
                }
            }
            Rows<bf16> top, rest;
            cut_rows(weights, top, rest, memory.scratch);
            add_shares<WIDTH>(values, top, rest, high);
            add_shares<WIDTH>(values, top, low);
            cut_rows(shares, top, rest, memory.scratch);
            add_shares<WIDTH>(keys, top, rest, queries);
        }
    }
};

// What one block leaves for the last one: its threads' sums, so that neighbours lie together.
template <int WIDTH>
DEVICE void keep_sums(f32* at, const Sums (&sums)[WIDTH / TILE]) {
#pragma unroll
    for (int d = 0; d < WIDTH / TILE; ++d) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) at[(d * SUMS + i) * Shape<WIDTH>::THREADS] = sums[d].values[i];
    }
}
template <int WIDTH>
DEVICE void join_sums(Sums (&sums)[WIDTH / TILE], const f32* at, i64 step, i32 blocks) {
#pragma unroll
    for (int d = 0; d < WIDTH / TILE; ++d) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const f32* const from = at + (d * SUMS + i) * Shape<WIDTH>::THREADS;
            f32 total = from[0];
            for (i32 block = 1; block < blocks; ++block) total += from[block * step];
            sums[d].values[i] = total;
        }
    }
}

// The gradient of the queries from `own` on of a head.
template <int WIDTH, class Y>
DEVICE void of_queries(const Problem<Y>& p, const Memory<WIDTH>& memory, i64 batch, i32 head, i32 own,
                       Sums (&sums)[WIDTH / TILE]) {
    constexpr int OWN = Shape<WIDTH>::OWN;
    const auto queries = memory.part(0), high = memory.part(OWN), low = memory.part(2 * OWN);
    const auto keys = memory.part(3 * OWN), values = memory.part(3 * OWN + STEP);
    const int side = thread_index() / WAVE * TILE;
    const i32 end = smaller(p.time, own + OWN), begin = p.window > 0 ? larger(own + 1 - p.window, 0) : 0;
    send_queries<WIDTH, OWN>(p, queries, high, low, *memory.known, batch, head, own);
    for (i32 first = begin / STEP * STEP; first < end; first += STEP) {
        block_barrier();  // earlier ones may still be read
        send_keys<WIDTH, STEP>(p, keys, values, batch, head / p.group, first);
        copies_done();
        block_barrier();
        if (first > own + side + TILE - 1) continue;  // these keys come after all of the wave's queries
        Sums weights[STEP / TILE], shares[STEP / TILE];
        add_products<WIDTH>(weights, queries, side, keys);
        add_products<WIDTH>(shares, high, side, values);
        add_products<WIDTH>(shares, low, side, values);
#pragma unroll
        for (int c = 0; c < STEP / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int query = side + Sums::row(i);
                weigh(p, weights[c].values[i], shares[c].values[i], own + query, first + c * TILE + Sums::column(i),
                      memory.known->log_sums[query], memory.known->drifts[query]);
            }
        }
        Rows<bf16> top, rest;
        cut_rows(shares, top, rest, memory.scratch);
        add_shares<WIDTH>(sums, top, rest, keys);
    }
}

// gradient, q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width], log_sum [batches, heads, time].
// `sharers` heads of a group have a block each: all of them, or one that has them all. The workspace holds for each of
// them two tiles of sums.
template <int WIDTH, class Y, class R>
DEVICE void attention_tile_causal_backward(const f32* gradient, const bf16* q, const bf16* k, const bf16* v, const Y* y,
                                           const f32* log_sum, const i32* count, R* q_gradient, R* k_gradient,
                                           R* v_gradient, f32* workspace, i64 batches, i64 time, i64 heads,
                                           i64 kv_heads, i64 sharers, f64 scale, i64 window, f64 cap, i64 q_batch,
                                           i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch,
                                           i64 v_token, i64 v_head, Status status) {
    using Block = Shape<WIDTH>;
    constexpr int OWN = Block::OWN;
    SHARED(Words, words, Block::WORDS);
    SHARED(Words, scratches, Block::SIDES * CUT_VALUES / RUN + 1);
    SHARED(Softmaxes<OWN>, known, 1);
    const Memory<WIDTH> memory = {{reinterpret_cast<bf16*>(words)}, known,
                                  reinterpret_cast<bf16*>(scratches) + thread_index() / WAVE * CUT_VALUES};
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    const i32 length = static_cast<i32>(time), group = static_cast<i32>(heads / kv_heads);
    const i32 kept = window > 0 && window < time ? static_cast<i32>(window) : 0, every = static_cast<i32>(heads);
    const Problem<Y> p = {gradient, q, k, v, y, log_sum, steps, length, every, group, kept,
                          Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, steps.whole(q, k, v),
                          aligned(gradient) && aligned(y)};
    const i64 valid = valid_rows(count, batches), tiles = (time + OWN - 1) / OWN;
    const i64 key_units = valid * kv_heads * sharers, units = key_units + valid * heads;
    const i64 kept_size = 2 * OWN * WIDTH;
    const int side = thread_index() / WAVE * TILE;
    for (i64 unit = block_index(); unit < tiles * units; unit += block_count()) {
        // the first keys are seen by most, and the last queries see most
        const i64 turn = unit / units, place = unit % units;
        block_barrier();  // an earlier unit may still be read
        if (place < key_units) {
            const i32 own = static_cast<i32>(turn * OWN), first = static_cast<i32>(place % (kv_heads * sharers));
            const i64 batch = place / (kv_heads * sharers);
            const i32 kv = static_cast<i32>(first / sharers), each = static_cast<i32>(group / sharers);
            const i32 head = kv * group + static_cast<i32>(first % sharers) * each;
            OfKeys<WIDTH> made;
            send_keys<WIDTH, OWN>(p, memory.part(0), memory.part(OWN), batch, kv, own);
            copies_done();
            for (i32 h = head; h < head + each; ++h) made.add(p, memory, batch, h, own);
            if (sharers > 1) {
                const i64 shared = (batch * kv_heads + kv) * tiles + turn;
                f32* const sums = workspace + shared * sharers * kept_size + thread_index();
                f32* const own_sums = sums + first % sharers * kept_size;
                keep_sums<WIDTH>(own_sums, made.keys);
                keep_sums<WIDTH>(own_sums + OWN * WIDTH, made.values);
                if (!status.last_of(static_cast<u32>(sharers), shared)) continue;
                join_sums<WIDTH>(made.keys, sums, kept_size, static_cast<i32>(sharers));
                join_sums<WIDTH>(made.values, sums + OWN * WIDTH, kept_size, static_cast<i32>(sharers));
            }
            const i64 to = ((batch * time + own) * kv_heads + kv) * WIDTH;
            put_rows<WIDTH>(made.keys, k_gradient + to, kv_heads * WIDTH, side, length - own);
            put_rows<WIDTH>(made.values, v_gradient + to, kv_heads * WIDTH, side, length - own);
        } else {
            const i64 from = place - key_units, batch = from / heads;
            const i32 head = static_cast<i32>(from % heads), own = static_cast<i32>((tiles - 1 - turn) * OWN);
            Sums sums[WIDTH / TILE];
            of_queries<WIDTH>(p, memory, batch, head, own, sums);
            const i64 to = ((batch * time + own) * heads + head) * WIDTH;
            put_rows<WIDTH>(sums, q_gradient + to, heads * WIDTH, side, length - own);
        }
    }
}
