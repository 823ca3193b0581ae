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
    // For another block: the sums of neighbouring threads lie together, 16 bytes of each.
    DEVICE void keep(f32* at) const {
#pragma unroll
        for (int n = 0; n < ACROSS * SUMS; n += 4) {
            Words words = {};
#pragma unroll
            for (int i = 0; i < 4; ++i) put(words, i, sums[n / SUMS].values[n % SUMS + i]);
            reinterpret_cast<Words*>(at)[n / 4 * THREADS + thread_index()] = words;
        }
    }
    // Those of so many blocks, of which n lie at place(n), in their order. Those of some are under way together.
    template <class Place>
    DEVICE void join(i32 blocks, Place place) {
#pragma unroll
        for (int d = 0; d < ACROSS; ++d) sums[d] = {};
#pragma unroll 4
        for (i32 block = 0; block < blocks; ++block) {
            const Words* const from = reinterpret_cast<const Words*>(place(block)) + thread_index();
#pragma unroll
            for (int n = 0; n < ACROSS * SUMS; n += 4) {
                const Words words = from[n / 4 * THREADS];
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[n / SUMS].values[n % SUMS + i] += float_of(words.w[i]);
            }
        }
    }
};

// Tiles of what streams by in the order of their blocks. Turn i has the keys of tile i of a sequence, which the queries
// from there on see, or the queries of tile i from behind, which see the keys up to there: as many tiles, at most `seen`.
// They are cut in spans of `span` tiles. The first spans of all turns come first, then the second ones, of which the
// last turns have none, and so on.
struct Turns {
    i32 tiles, seen, span;
    DEVICE i32 streams(i32 turn) const { return smaller(tiles - turn, seen); }
    DEVICE i32 spans(i32 turn) const { return (streams(turn) + span - 1) / span; }
    // Turns of all spans before this one.
    DEVICE i32 before(i32 number) const { return number * tiles - number * (number - 1) / 2 * span; }
    DEVICE i32 all() const { return before(spans(0)); }
};

// A span of a turn of one of `units` that have as many turns each, and where it is among those of all.
struct Piece {
    Turns turns;
    i64 units, unit;
    i32 span, turn;
    DEVICE Piece(Turns all, i64 number, i64 count) : turns(all), units(count), span(0) {
        while (number >= turns.before(span + 1) * units) ++span;
        number -= turns.before(span) * units;
        turn = static_cast<i32>(number / units);
        unit = number % units;
    }
    DEVICE i64 number_of(i32 other_span, i64 other_unit) const {
        return (turns.before(other_span) + turn) * units + other_unit;
    }
    DEVICE i64 number() const { return number_of(span, unit); }
    DEVICE i32 spans() const { return turns.spans(turn); }
    // The rows [from, to) that stream by, of those of the turn from `first` on.
    DEVICE i32 from(i32 first) const { return first + span * turns.span * STEP; }
    DEVICE i32 to(i32 first) const { return first + smaller((span + 1) * turns.span, turns.streams(turn)) * STEP; }
};

// Adds to the gradients of the keys from `own` on, the block's own, what queries of a head have for them.
template <int WIDTH, class Y>
DEVICE void of_keys(const Problem<Y>& p, const Memory<WIDTH>& memory, const Own<WIDTH>& held, i64 batch, i32 head,
                    i32 own, const Piece& piece, Half<WIDTH>& keys, Half<WIDTH>& values) {
    const int wave = thread_index() / WAVE, side = wave / HALVES * TILE, half = wave % HALVES * TILE;
    for (i32 first = piece.from(own), end = piece.to(own); first < end; first += STEP) {
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
DEVICE void of_queries(const Problem<Y>& p, const Memory<WIDTH>& memory, i64 batch, i32 head, i32 own,
                       const Piece& piece, Half<WIDTH>& queries) {
    const int wave = thread_index() / WAVE, side = wave / HALVES * TILE, half = wave % HALVES * TILE;
    send_queries(p, memory, batch, head, own);
    const Own<WIDTH> held(memory);
    const i32 begin = own + OWN - piece.turns.streams(piece.turn) * STEP;
    for (i32 first = piece.from(begin), end = piece.to(begin); first < end; first += STEP) {
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
// `sharers` heads of a group have a block each: all of them, or one that has them all. A span has `tiles_of_span` tiles; it
// has all where nothing is cut. The workspace holds for each span of keys' turns the gradients of 32 keys and of their
// values, where heads or spans share them, and behind them for each span of queries' turns theirs, where there are several.
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
    const i64 valid = valid_rows(count, batches), owners = valid * kv_heads * sharers, askers = valid * heads;
    const i32 tiles = (length + OWN - 1) / OWN, seen = kept > 0 ? smaller(tiles, (kept + 2 * OWN - 2) / OWN) : tiles;
    const Turns turns = {tiles, seen, static_cast<i32>(tiles_of_span)};
    const i64 of_keys_all = turns.all() * owners, all = of_keys_all + turns.all() * askers;
    const i32 each = static_cast<i32>(group / sharers);
    // Keys come first: what they sum up is joined while queries are at work.
    for (i64 number = block_index(); number < all; number += block_count()) {
        block_barrier();  // an earlier one may still be read
        if (number < of_keys_all) {
            const Piece piece(turns, number, owners);
            const i64 sharer = piece.unit % sharers, shared = piece.unit / sharers, batch = shared / kv_heads;
            const i32 kv = static_cast<i32>(shared % kv_heads), own = piece.turn * OWN, spans = piece.spans();
            Half<WIDTH> keys, values;
            send_keys(p, memory, batch, kv, own);
            const Own<WIDTH> held(memory);
            for (i32 h = 0; h < each; ++h) {
                of_keys(p, memory, held, batch, kv * group + static_cast<i32>(sharer) * each + h, own, piece, keys,
                        values);
            }
            const i32 blocks = static_cast<i32>(sharers) * spans;
            if (blocks > 1) {
                f32* const left = workspace + piece.number() * 2 * KEPT;
                keys.keep(left);
                values.keep(left + KEPT);
                if (!status.last_of(static_cast<u32>(blocks), shared * tiles + piece.turn)) continue;
                const auto place = [=](i32 n) {
                    return workspace + piece.number_of(n % spans, shared * sharers + n / spans) * 2 * KEPT;
                };
                keys.join(blocks, place);
                values.join(blocks, [=](i32 n) { return place(n) + KEPT; });
            }
            const i64 to = ((batch * time + own) * kv_heads + kv) * WIDTH;
            keys.store(k_gradient + to, kv_heads * WIDTH, length - own);
            values.store(v_gradient + to, kv_heads * WIDTH, length - own);
        } else {
            const Piece piece(turns, number - of_keys_all, askers);
            const i64 batch = piece.unit / heads;
            const i32 head = static_cast<i32>(piece.unit % heads), own = (tiles - 1 - piece.turn) * OWN;
            const i32 spans = piece.spans();
            Half<WIDTH> queries;
            of_queries(p, memory, batch, head, own, piece, queries);
            if (spans > 1) {
                f32* const sums = workspace + of_keys_all * 2 * KEPT;
                queries.keep(sums + piece.number() * KEPT);
                // behind the tickets of keys; turns of one span need none
                const i64 ticket = batches * kv_heads * tiles + piece.unit * (tiles - turns.span) + piece.turn;
                if (!status.last_of(static_cast<u32>(spans), ticket)) continue;
                queries.join(spans, [=](i32 n) { return sums + piece.number_of(n, piece.unit) * KEPT; });
            }
            queries.store(q_gradient + ((batch * time + own) * heads + head) * WIDTH, heads * WIDTH, length - own);
        }
    }
}
