// Gradients of softmax(scale q k) v with respect to q, k and v, for any head: whole sequences, and packed sequences of an
// encoder. With weights p = e^(s - log_sum), where s is a score and log_sum belongs to its query,
//
//     ds = p (gradient v - drift),  drift = sum of p (gradient v) over the query's keys = gradient y
//
// and q's gradient is the sum of ds k over keys, k's that of ds q and v's that of p gradient over the queries and heads
// that see the key. A block a query and head, and a block a key and key-value head, which goes over its heads and then
// over its queries in ascending order: nothing is added by two blocks, so the bits are always the same. In a tile of 64
// keys or queries a thread has one of them, then HELD elements of the head width.
#include "scoring.h"

constexpr int TILE = 64, WIDEST = 1024;

// Tokens of heads: element 0 of token t and head h.
template <class T>
struct Heads {
    T* values;
    i64 token, head;
    DEVICE T* at(i64 t, i64 h) const { return values + t * token + h * head; }
};

struct Softmax {
    f32 log_sum, drift;
};

template <class A, class B>
DEVICE f32 dot(const A* a, const B* b, int width) {
    f32 sum = 0.0f;
    for (int d = 0; d < width; ++d) sum = fmaf(widen(a[d]), widen(b[d]), sum);
    return sum;
}

// A head, or two, into shared memory, which an earlier user may still read.
template <class T>
DEVICE void take(f32* to, const T* from, int width) {
    block_barrier();
    for (int d = thread_index(); d < width; d += TILE) to[d] = widen(from[d]);
    block_barrier();
}
template <class A, class B>
DEVICE void take(f32* first, const A* from, f32* second, const B* other, int width) {
    block_barrier();
    for (int d = thread_index(); d < width; d += TILE) {
        first[d] = widen(from[d]);
        second[d] = widen(other[d]);
    }
    block_barrier();
}

// Of a query over keys [first, end) of head kv: log_sum and, where there are values and a gradient, drift. Infinitely
// small where there is no key.
template <class T>
DEVICE Softmax softmax_of(const f32* query, const f32* gradient, Heads<const T> k, Heads<const T> v, i64 kv, i64 first,
                          i64 end, int width, Scoring score) {
    f32 peak = -infinity(), sum = 0.0f, drift = 0.0f;
    for (i64 tile = first / TILE * TILE; tile < end; tile += TILE) {
        const i64 j = tile + thread_index();
        const bool seen = j >= first && j < end;
        const f32 value = seen ? score(dot(query, k.at(j, kv), width)) : -infinity();
        const f32 top = Largest()(peak, block_largest(value)), old = shifted(peak, top);
        const f32 own = seen ? shifted(value, top) : 0.0f;
        sum = fmaf(sum, old, block_sum(own));
        if (gradient != nullptr) {
            drift = fmaf(drift, old, block_sum(seen ? own * dot(gradient, v.at(j, kv), width) : 0.0f));
        }
        peak = top;
    }
    return {peak + logf(sum), drift / sum};
}

// to = the sum of ds k over keys [first, end).
template <int HELD, class T, class R>
DEVICE void query_gradient(const f32* query, const f32* gradient, Heads<const T> k, Heads<const T> v, i64 kv, i64 first,
                           i64 end, int width, Scoring score, Softmax known, R* to) {
    SHARED(f32, shares, TILE);
    const int t = thread_index();
    f32 sums[HELD] = {};
    for (i64 tile = first / TILE * TILE; tile < end; tile += TILE) {
        const i64 j = tile + t;
        f32 share = 0.0f;
        if (j >= first && j < end) {
            const f32 value = score(dot(query, k.at(j, kv), width));
            const f32 slope = dot(gradient, v.at(j, kv), width) - known.drift;
            share = expf(value - known.log_sum) * slope * score.slope(value);
        }
        block_barrier();  // those of the last tile may still be read
        shares[t] = share;
        block_barrier();
        const i64 begin = larger(first, tile), stop = smaller(end, tile + TILE);
        for (int i = 0; i < HELD; ++i) {
            const int d = i * TILE + t;
            for (i64 n = begin; d < width && n < stop; ++n) {
                sums[i] = fmaf(shares[n - tile], widen(k.at(n, kv)[d]), sums[i]);
            }
        }
    }
    for (int i = 0; i < HELD; ++i) {
        if (i * TILE + t < width) narrow(sums[i], to[i * TILE + t]);
    }
}

// to_key = the sum of ds q, to_value = that of p gradient, over heads [head, head + group) and, of queries [first, end),
// those that see the key. `known` gives a query's softmax.
template <int HELD, class T, class R, class Sees, class Known>
DEVICE void key_gradients(const f32* key, const f32* value, Heads<const T> q, Heads<const f32> gradient, i64 head,
                          i64 group, i64 first, i64 end, int width, Scoring score, Sees sees, Known known, R* to_key,
                          R* to_value) {
    SHARED(f32, shares, TILE);
    SHARED(f32, weights, TILE);
    SHARED(i32, seen, TILE);
    const int t = thread_index();
    f32 keys[HELD] = {}, values[HELD] = {};
    for (i64 h = head; h < head + group; ++h) {
        for (i64 tile = first; tile < end; tile += TILE) {
            const i64 n = tile + t;
            const bool visible = n < end && sees(n);
            if (!block_any(visible)) continue;
            f32 weight = 0.0f, share = 0.0f;
            if (visible) {
                const Softmax found = known(n, h);
                const f32 own = score(dot(key, q.at(n, h), width));
                weight = expf(own - found.log_sum);
                share = weight * (dot(value, gradient.at(n, h), width) - found.drift) * score.slope(own);
            }
            block_barrier();  // those of the last tile may still be read
            weights[t] = weight;
            shares[t] = share;
            seen[t] = visible;
            block_barrier();
            const i64 stop = smaller(end, tile + TILE);
            for (int i = 0; i < HELD; ++i) {
                const int d = i * TILE + t;
                for (i64 m = tile; d < width && m < stop; ++m) {
                    if (!seen[m - tile]) continue;
                    keys[i] = fmaf(shares[m - tile], widen(q.at(m, h)[d]), keys[i]);
                    values[i] = fmaf(weights[m - tile], gradient.at(m, h)[d], values[i]);
                }
            }
        }
    }
    for (int i = 0; i < HELD; ++i) {
        const int d = i * TILE + t;
        if (d >= width) continue;
        narrow(keys[i], to_key[d]);
        narrow(values[i], to_value[d]);
    }
}

// log_sum [batches, heads, time] of q [batches, time, heads, width] and k [batches, time, kv_heads, width].
template <class T>
DEVICE void attention_log_sum(const T* q, const T* k, const i32* count, f32* log_sum, i64 batches, i64 time, i64 heads,
                              i64 kv_heads, i64 width, f64 scale, i64 window, f64 cap, i64 q_batch, i64 q_token,
                              i64 q_head, i64 k_batch, i64 k_token, i64 k_head, Status) {
    SHARED(f32, query, WIDEST);
    const Scoring score = {static_cast<f32>(scale), static_cast<f32>(cap)};
    const int size = static_cast<int>(width);
    const i64 units = valid_rows(count, batches) * time * heads;
    for (i64 unit = block_index(); unit < units; unit += block_count()) {
        const i64 head = unit % heads, token = unit / heads % time, batch = unit / heads / time;
        take(query, q + (batch * q_batch + token * q_token + head * q_head), size);
        const Heads<const T> keys = {k + batch * k_batch, k_token, k_head};
        const Softmax found = softmax_of(query, nullptr, keys, keys, head / (heads / kv_heads),
                                         window_start(token, window), token + 1, size, score);
        if (thread_index() == 0) log_sum[(batch * heads + head) * time + token] = found.log_sum;
    }
}

// gradient, q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width], log_sum [batches, heads, time].
template <int HELD, class T, class Y, class R>
DEVICE void attention_causal_backward(const f32* gradient, const T* q, const T* k, const T* v, const Y* y,
                                      const f32* log_sum, const i32* count, R* q_gradient, R* k_gradient,
                                      R* v_gradient, i64 batches, i64 time, i64 heads, i64 kv_heads, i64 width,
                                      f64 scale, i64 window, f64 cap, i64 q_batch, i64 q_token, i64 q_head, i64 k_batch,
                                      i64 k_token, i64 k_head, i64 v_batch, i64 v_token, i64 v_head, Status) {
    SHARED(f32, first, WIDEST);
    SHARED(f32, second, WIDEST);
    const Scoring score = {static_cast<f32>(scale), static_cast<f32>(cap)};
    const int size = static_cast<int>(width);
    const i64 tokens = valid_rows(count, batches) * time, group = heads / kv_heads;
    for (i64 unit = block_index(); unit < tokens * (kv_heads + heads); unit += block_count()) {
        const bool of_key = unit < tokens * kv_heads;
        const i64 place = of_key ? unit : unit - tokens * kv_heads, each = of_key ? kv_heads : heads;
        const i64 head = place % each, token = place / each % time, batch = place / each / time, from = batch * time;
        const Heads<const T> queries = {q + batch * q_batch, q_token, q_head};
        const Heads<const T> keys = {k + batch * k_batch, k_token, k_head}, values = {v + batch * v_batch, v_token, v_head};
        const Heads<const f32> gradients = {gradient + from * heads * width, heads * width, width};
        const Heads<const Y> results = {y + from * heads * width, heads * width, width};
        const auto known = [&](i64 n, i64 h) {
            return Softmax{log_sum[(batch * heads + h) * time + n], dot(gradients.at(n, h), results.at(n, h), size)};
        };
        if (of_key) {
            take(first, keys.at(token, head), second, values.at(token, head), size);
            key_gradients<HELD>(first, second, queries, gradients, head * group, group, token,
                                window > 0 && window < time - token ? token + window : time, size, score,
                                [](i64) { return true; }, known, k_gradient + place * width, v_gradient + place * width);
        } else {
            take(first, queries.at(token, head), second, gradients.at(token, head), size);
            query_gradient<HELD>(first, second, keys, values, head / group, window_start(token, window), token + 1, size,
                                 score, known(token, head), q_gradient + place * width);
        }
    }
}

// What token n sees: all of the row that it is of, or nothing.
struct Rows {
    const i32 *row_of_token, *start, *length;
    i64 tokens, rows;
    DEVICE void seen(i64 n, i64& first, i64& end, bool& bad) const {
        const i64 row = row_of_token[n];
        const bool known = row >= 0 && row < rows;
        const i64 begin = known ? start[row] : 0, size = known ? larger<i64>(0, length[row]) : 0;
        const bool inside = size == 0 || (begin >= 0 && begin + size <= tokens);
        bad = !inside || row >= rows;
        first = bad ? 0 : begin;
        end = bad ? 0 : begin + size;
    }
};

// gradient, q [tokens, heads, width], k and v [tokens, kv_heads, width]. The softmax of a query is not known here: each
// of so many blocks of a key-value head makes those that its share of the keys needs, in its part of the workspace,
// which has a Softmax for each token and head of the group.
template <int HELD, class T, class R>
DEVICE void attention_bidirectional_backward(const f32* gradient, const T* q, const T* k, const T* v,
                                             const i32* row_of_token, const i32* start, const i32* length,
                                             const i32* count, R* q_gradient, R* k_gradient, R* v_gradient,
                                             Softmax* workspace, i64 tokens, i64 heads, i64 kv_heads, i64 width,
                                             i64 rows, f64 scale, i64 shares, i64 q_token, i64 q_head, i64 k_token,
                                             i64 k_head, i64 v_token, i64 v_head, Status status) {
    SHARED(f32, first, WIDEST);
    SHARED(f32, second, WIDEST);
    const Scoring score = {static_cast<f32>(scale), 0.0f};
    const int size = static_cast<int>(width);
    const i64 valid = valid_rows(count, tokens), group = heads / kv_heads, each = (valid + shares - 1) / shares;
    const Rows sight = {row_of_token, start, length, valid, rows};
    const Heads<const T> queries = {q, q_token, q_head}, keys = {k, k_token, k_head}, values = {v, v_token, v_head};
    const Heads<const f32> gradients = {gradient, heads * width, width};
    i64 begin, end;
    bool bad;
    for (i64 unit = block_index(); unit < kv_heads * shares + valid * heads; unit += block_count()) {
        if (unit < kv_heads * shares) {
            const i64 kv = unit % kv_heads, from = unit / kv_heads * each, to = smaller(valid, from + each);
            Softmax* const made = workspace + unit * tokens * group;
            block_barrier();  // what an earlier unit made may still be read
            for (i64 n = 0; n < valid; ++n) {
                sight.seen(n, begin, end, bad);
                if (larger(begin, from) >= smaller(end, to)) continue;
                for (i64 h = 0; h < group; ++h) {
                    take(first, queries.at(n, kv * group + h), second, gradients.at(n, kv * group + h), size);
                    const Softmax found = softmax_of(first, second, keys, values, kv, begin, end, size, score);
                    if (thread_index() == 0) made[n * group + h] = found;
                }
            }
            for (i64 key = from; key < to; ++key) {
                take(first, keys.at(key, kv), second, values.at(key, kv), size);
                key_gradients<HELD>(
                    first, second, queries, gradients, kv * group, group, 0, valid, size, score,
                    [&](i64 n) {
                        i64 low, high;
                        bool wrong;
                        sight.seen(n, low, high, wrong);
                        return key >= low && key < high;
                    },
                    [&](i64 n, i64 h) { return made[n * group + h - kv * group]; },
                    k_gradient + (key * kv_heads + kv) * width, v_gradient + (key * kv_heads + kv) * width);
            }
        } else {
            const i64 place = unit - kv_heads * shares, head = place % heads, token = place / heads;
            sight.seen(token, begin, end, bad);
            if (thread_index() == 0 && bad) status.out_of_range();
            take(first, queries.at(token, head), second, gradients.at(token, head), size);
            const Softmax found = begin < end ? softmax_of(first, second, keys, values, head / group, begin, end, size, score)
                                              : Softmax{};
            query_gradient<HELD>(first, second, keys, values, head / group, begin, end, size, score, found,
                                 q_gradient + place * width);
        }
    }
}
