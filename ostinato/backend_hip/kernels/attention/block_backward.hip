// Gradients of softmax(scale q k) v over whole sequences in f32, without matrix units, by what stands in backward.hip. A
// block has 32 keys of one query head, whose queries stream by in ascending order, or 32 queries, whose keys do. A thread
// has the scores of two rows of the block, then 4 neighbours out of every 16 values of one row. Heads that share keys are
// summed up as in tile_backward.hip.
#include "sequences.h"

constexpr int OWN = 32, THREADS = 128, SHARERS = THREADS / OWN;  // threads of a row

template <int WIDTH>
struct Cut {
    static constexpr int STEP = WIDTH > 64 ? 8 : 16;  // rows that stream by together
    static constexpr int COLUMNS = STEP / 8, STRIDE = STEP + 4, HELD = WIDTH / SHARERS;
};

// Where everything is; positions of tokens are within a sequence.
struct Problem {
    const f32 *gradient, *q, *k, *v, *y, *log_sum;
    Steps steps;
    i32 time, heads, group, window;
    Scoring score;
    bool whole, even;  // all words of q, k and v, and those of the gradient and y, begin at multiples of 16 bytes
    DEVICE bool sees(i32 query, i32 key) const {
        return query < time && key <= query && (window == 0 || query - key < window);
    }
};

// Shared memory: rows of the block and those that stream by, of queries or keys and of gradients or values; weights and
// the gradients of products of each pair; what queries are known by.
template <int WIDTH>
struct Memory {
    Staged<WIDTH, f32> own[2], others[2];
    f32 *weights, *slopes, *log_sums, *drifts;
};

// Queries and gradients [first, first + ROWS) of a head, and what they are known by; zeros past the sequence.
template <int WIDTH, int ROWS>
DEVICE void send_queries(const Problem& p, const Memory<WIDTH>& memory, const Staged<WIDTH, f32> (&to)[2], i64 batch,
                         i32 head, i32 first) {
    constexpr int RUNS = WIDTH / 4;
#pragma unroll
    for (int e = 0; e < ROWS * RUNS / THREADS; ++e) {
        const int item = e * THREADS + thread_index(), row = item / RUNS, run = item % RUNS;
        const i32 token = first + row;
        Words query = {}, gradient = {};
        f32 drift = 0.0f;
        if (token < p.time) {
            const i64 at = ((batch * p.time + token) * p.heads + head) * WIDTH + run * 4;
            query = load_words(p.q + (batch * p.steps.q_batch + token * p.steps.q_token + head * p.steps.q_head) + run * 4,
                               p.whole);
            gradient = load_words(p.gradient + at, p.even);
            const Words result = load_words(p.y + at, p.even);
#pragma unroll
            for (int i = 0; i < 4; ++i) drift = fmaf(float_of(gradient.w[i]), float_of(result.w[i]), drift);
        }
        *to[0].words(row, run) = query;
        *to[1].words(row, run) = gradient;
        for (int n = 1; n < RUNS; n *= 2) drift += shuffle_xor(drift, n);
        if (run == 0) {
            memory.drifts[row] = drift;
            memory.log_sums[row] = token < p.time ? p.log_sum[(batch * p.heads + head) * p.time + token] : 0.0f;
        }
        keep_order();
    }
}

// Keys and values [first, first + ROWS) of a key-value head; they are there after copies_done().
template <int WIDTH, int ROWS>
DEVICE void send_keys(const Problem& p, const Staged<WIDTH, f32> (&to)[2], i64 batch, i32 kv, i32 first) {
    const i64 key = batch * p.steps.k_batch + kv * p.steps.k_head, value = batch * p.steps.v_batch + kv * p.steps.v_head;
    const EvenPlaces places = {key, p.steps.k_token, value, p.steps.v_token};
    const u64 there = bits_seen<ROWS>(0, p.time, first);
    const Status status = {};
    send<ROWS, THREADS>(to[0], p.k, false, places, first, there, p.whole, status);
    send<ROWS, THREADS>(to[1], p.v, true, places, first, there, p.whole, status);
}

// Products of two rows of the block, 16 apart, with COLUMNS others, 8 apart.
template <int WIDTH>
DEVICE void multiply(Staged<WIDTH, f32> own, Staged<WIDTH, f32> others, f32 (&sums)[2][Cut<WIDTH>::COLUMNS]) {
    constexpr int COLUMNS = Cut<WIDTH>::COLUMNS;
    const int first = thread_index() / 8, other = thread_index() % 8;
#pragma unroll 4
    for (int run = 0; run < WIDTH / 4; ++run) {
        f32 left[2][4], right[COLUMNS][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) load_values(own(first + r * 16, run), true, left[r]);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) load_values(others(other + c * 8, run), true, right[c]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fmaf(left[r][i], right[c][i], sums[r][c]);
            }
        }
        keep_order();
    }
}

// Weights and gradients of products of all pairs; the block's rows from `own` on and those from `first` on are keys and
// queries, or queries and keys.
template <int WIDTH, bool OF_KEYS>
DEVICE void weigh(const Problem& p, const Memory<WIDTH>& memory, i32 own, i32 first) {
    constexpr int COLUMNS = Cut<WIDTH>::COLUMNS, STRIDE = Cut<WIDTH>::STRIDE;
    f32 scores[2][COLUMNS] = {}, slopes[2][COLUMNS] = {};
    multiply<WIDTH>(memory.own[0], memory.others[0], scores);
    multiply<WIDTH>(memory.own[1], memory.others[1], slopes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int row = thread_index() / 8 + r * 16, other = thread_index() % 8 + c * 8, query = OF_KEYS ? other : row;
            const i32 key = OF_KEYS ? own + row : first + other;
            const f32 value = p.score(scores[r][c]);
            const bool seen = p.sees((OF_KEYS ? first : own) + query, key);
            const f32 weight = seen ? expf(value - memory.log_sums[query]) : 0.0f;
            memory.weights[row * STRIDE + other] = weight;
            memory.slopes[row * STRIDE + other] =
                seen ? weight * (slopes[r][c] - memory.drifts[query]) * p.score.slope(value) : 0.0f;
        }
    }
}

// What a thread sums up of a row of the block.
template <int WIDTH>
struct Row {
    static constexpr int HELD = Cut<WIDTH>::HELD;
    f32 sums[HELD] = {};
    static DEVICE int row() { return static_cast<int>(thread_index()) / SHARERS; }
    // The first of the neighbours that value i of the thread is one of.
    static DEVICE int place(int i) { return i / 4 * 4 * SHARERS + static_cast<int>(thread_index()) % SHARERS * 4; }

    DEVICE void add(const f32* shares, Staged<WIDTH, f32> others) {
#pragma unroll 4
        for (int j = 0; j < Cut<WIDTH>::STEP; ++j) {
            const f32 share = shares[row() * Cut<WIDTH>::STRIDE + j];
#pragma unroll
            for (int i = 0; i < HELD; i += 4) {
                f32 values[4];
                load_values(others(j, 0) + place(i), true, values);
#pragma unroll
                for (int n = 0; n < 4; ++n) sums[i + n] = fmaf(share, values[n], sums[i + n]);
            }
            keep_order();
        }
    }
    template <class R>
    DEVICE void store(R* to, i64 stride, i32 rows) const {
        if (row() >= rows) return;
#pragma unroll
        for (int i = 0; i < HELD; ++i) narrow(sums[i], to[row() * stride + place(i) + i % 4]);
    }
    // For another block: the sums of neighbouring threads lie together.
    DEVICE void keep(f32* at) const {
#pragma unroll
        for (int i = 0; i < HELD; ++i) at[i * THREADS + thread_index()] = sums[i];
    }
    // Those of so many blocks, `step` apart, in their order.
    DEVICE void join(const f32* at, i64 step, i32 blocks) {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            sums[i] = at[i * THREADS + thread_index()];
            for (i32 block = 1; block < blocks; ++block) sums[i] += at[block * step + i * THREADS + thread_index()];
        }
    }
};

// gradient, q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width], log_sum [batches, heads, time].
// `sharers` heads of a group have a block each: all of them, or one that has them all. The workspace holds for each of
// them the gradients of 32 keys and of their values.
template <int WIDTH, class R>
DEVICE void attention_block_causal_backward(const f32* gradient, const f32* q, const f32* k, const f32* v, const f32* y,
                                            const f32* log_sum, const i32* count, R* q_gradient, R* k_gradient,
                                            R* v_gradient, f32* workspace, i64 batches, i64 time, i64 heads,
                                            i64 kv_heads, i64 sharers, f64 scale, i64 window, f64 cap, i64 q_batch,
                                            i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch,
                                            i64 v_token, i64 v_head, Status status) {
    constexpr int STRIDE = Staged<WIDTH, f32>::STRIDE, STEP = Cut<WIDTH>::STEP, PAIRS = OWN * Cut<WIDTH>::STRIDE;
    constexpr i64 KEPT = OWN * WIDTH;
    SHARED(Words, rows, 2 * (OWN + STEP) * STRIDE / 4);
    SHARED(f32, pairs, 2 * PAIRS);
    SHARED(f32, known, 2 * OWN);
    f32* const first_row = reinterpret_cast<f32*>(rows);
    const Memory<WIDTH> memory = {{{first_row}, {first_row + OWN * STRIDE}},
                                  {{first_row + 2 * OWN * STRIDE}, {first_row + (2 * OWN + STEP) * STRIDE}},
                                  pairs,
                                  pairs + PAIRS,
                                  known,
                                  known + OWN};
    const Steps steps = {q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head};
    const i32 length = static_cast<i32>(time), group = static_cast<i32>(heads / kv_heads);
    const i32 kept = window > 0 && window < time ? static_cast<i32>(window) : 0;
    const Problem p = {gradient, q, k, v, y, log_sum, steps, length, static_cast<i32>(heads), group, kept,
                       Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, steps.whole(q, k, v),
                       aligned(gradient) && aligned(y)};
    const i64 valid = valid_rows(count, batches), tiles = (time + OWN - 1) / OWN, owners = kv_heads * sharers;
    const i64 units = valid * (owners + heads);
    for (i64 unit = block_index(); unit < tiles * units; unit += block_count()) {
        // the first keys are seen by most, and the last queries see most
        const i64 turn = unit / units, place = unit % units;
        block_barrier();  // an earlier unit may still be read
        if (place < valid * owners) {
            const i64 batch = place / owners;
            const i32 own = static_cast<i32>(turn * OWN), sharer = static_cast<i32>(place % sharers);
            const i32 kv = static_cast<i32>(place % owners / sharers), each = static_cast<i32>(group / sharers);
            const i32 end = kept > 0 ? smaller(length, own + OWN - 1 + kept) : length;
            Row<WIDTH> keys, values;
            send_keys<WIDTH, OWN>(p, memory.own, batch, kv, own);
            for (i32 h = 0; h < each; ++h) {
                const i32 head = kv * group + sharer * each + h;
                for (i32 first = own; first < end; first += STEP) {
                    block_barrier();  // earlier ones may still be read
                    send_queries<WIDTH, STEP>(p, memory, memory.others, batch, head, first);
                    copies_done();  // of the keys
                    block_barrier();
                    weigh<WIDTH, true>(p, memory, own, first);
                    block_barrier();
                    keys.add(memory.slopes, memory.others[0]);
                    values.add(memory.weights, memory.others[1]);
                }
            }
            if (sharers > 1) {
                const i64 shared = (batch * kv_heads + kv) * tiles + turn;
                f32* const sums = workspace + shared * sharers * 2 * KEPT;
                keys.keep(sums + sharer * 2 * KEPT);
                values.keep(sums + sharer * 2 * KEPT + KEPT);
                if (!status.last_of(static_cast<u32>(sharers), shared)) continue;
                keys.join(sums, 2 * KEPT, static_cast<i32>(sharers));
                values.join(sums + KEPT, 2 * KEPT, static_cast<i32>(sharers));
            }
            const i64 to = ((batch * time + own) * kv_heads + kv) * WIDTH;
            keys.store(k_gradient + to, kv_heads * WIDTH, length - own);
            values.store(v_gradient + to, kv_heads * WIDTH, length - own);
        } else {
            const i64 from = place - valid * owners, batch = from / heads;
            const i32 head = static_cast<i32>(from % heads), own = static_cast<i32>((tiles - 1 - turn) * OWN);
            const i32 end = smaller(length, own + OWN), begin = kept > 0 ? larger(own + 1 - kept, 0) : 0;
            Row<WIDTH> queries;
            send_queries<WIDTH, OWN>(p, memory, memory.own, batch, head, own);
            for (i32 first = begin / STEP * STEP; first < end; first += STEP) {
                block_barrier();  // earlier ones may still be read
                send_keys<WIDTH, STEP>(p, memory.others, batch, head / group, first);
                copies_done();
                block_barrier();
                weigh<WIDTH, false>(p, memory, own, first);
                block_barrier();
                queries.add(memory.slopes, memory.others[0]);
            }
            queries.store(q_gradient + ((batch * time + own) * heads + head) * WIDTH, heads * WIDTH, length - own);
        }
    }
}
