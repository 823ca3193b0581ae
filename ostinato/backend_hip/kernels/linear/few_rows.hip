// Projections of a few rows by float weights: launches of the phase in phase.h.
#include "phase.h"

// y [rows, outputs], with a residual of its shape or none; outputs 2u and 2u + 1 are a pair.
template <class Y>
struct Summed {
    typedef f32 Before;
    const Y* residual;
    Y* y;
    i64 outputs;
    DEVICE i64 place(u32 pair, int o) const { return smaller<i64>(2 * static_cast<i64>(pair) + o, outputs - 1); }
    DEVICE f32 before(u32 pair, int o, i64 row) const {
        return residual == nullptr ? 0.0f : widen(residual[row * outputs + place(pair, o)]);
    }
    DEVICE void put(u32 pair, int o, i64 row, f32 sum, f32, f32 added) const {
        narrow(residual == nullptr ? sum : sum + added, y[row * outputs + place(pair, o)]);
    }
};

template <int ROWS, int STEPS, int SPLIT, int DEPTH, int ROOM, int THREADS, class X, class W, class Y>
DEVICE void few_rows(const X* x, const W* weight, const f32* bias, const Y* residual, const f32* gain, const i32* count,
                     Y* y, i64 entries, i64 inner, i64 columns, i64 outputs, f64 eps, Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, bias, gain, count, entries, inner, columns, static_cast<f32>(eps)};
    const Summed<Y> finish = {residual, y, outputs};
    project<Form<ROWS, STEPS, SPLIT, DEPTH, ROOM, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>((outputs + 1) / 2),
        [=](u32 pair, int o) { return finish.place(pair, o); }, finish);
}

// The same, outputs handed out to up to three results.
template <class Y>
struct Split {
    struct Before {};
    Results<Y> results;
    DEVICE i64 place(u32 pair, int o) const {
        return smaller<i64>(2 * static_cast<i64>(pair) + o, results.count() - 1);
    }
    DEVICE Before before(u32, int, i64) const { return {}; }
    DEVICE void put(u32 pair, int o, i64 row, f32 sum, f32, Before) const { results.put(row, place(pair, o), sum); }
};

template <int ROWS, int STEPS, int SPLIT, int DEPTH, int ROOM, int THREADS, class X, class W, class Y>
DEVICE void few_rows_split(const X* x, const W* weight, const f32* bias, const f32* gain, const i32* count, Y* y0,
                           Y* y1, Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, f64 eps,
                           Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, bias, gain, count, entries, inner, columns, static_cast<f32>(eps)};
    const Split<Y> finish = {{y0, y1, y2, n0, n1, n2, nullptr}};
    project<Form<ROWS, STEPS, SPLIT, DEPTH, ROOM, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>((finish.results.count() + 1) / 2),
        [=](u32 pair, int o) { return finish.place(pair, o); }, finish);
}

// Weight of gate rows, then up rows; a gate and its up row are a pair.
template <class Y>
struct Gated {
    struct Before {};
    Y* y;
    i64 outputs;
    DEVICE Before before(u32, int, i64) const { return {}; }
    DEVICE void put(u32 pair, int o, i64 row, f32 gate, f32 up, Before) const {
        if (o == 0) narrow(gated(gate, up), y[row * outputs + pair]);
    }
};

template <int ROWS, int STEPS, int SPLIT, int DEPTH, int ROOM, int THREADS, class X, class W, class Y>
DEVICE void few_rows_swiglu(const X* x, const W* weight, const f32* gain, const i32* count, Y* y, i64 entries,
                            i64 inner, i64 columns, i64 outputs, f64 eps, Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, nullptr, gain, count, entries, inner, columns, static_cast<f32>(eps)};
    project<Form<ROWS, STEPS, SPLIT, DEPTH, ROOM, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>(outputs),
        [=](u32 pair, int o) { return pair + o * outputs; }, Gated<Y>{y, outputs});
}

// Rows of q, k and v. A pair is what is turned together, two neighbours where nothing is. q goes to its result, k and v
// into the cache; tokens that point outside are skipped there and reported.
template <class Q, class C>
struct Turned {
    struct Before {
        f32 c, s;
        i64 place;  // of the token's first head in a cache, -1 where it is not stored
    };
    const f32 *cosine, *sine;
    const i32 *row_of_token, *position, *block_table;
    Q* q;
    C *k_cache, *v_cache;
    i64 heads, kv_heads, width, half, blocks, block_size, table_rows, table_width;
    u32 *bad, code;

    DEVICE i64 head(u32 pair) const { return pair / static_cast<u32>(width / 2); }
    // The element of a head that is output o of a pair.
    DEVICE i64 element(u32 pair, int o) const {
        const i64 item = pair % static_cast<u32>(width / 2);
        return item < half ? item + o * half : 2 * item + o;
    }
    DEVICE i64 place(u32 pair, int o) const { return head(pair) * width + element(pair, o); }

    DEVICE Before before(u32 pair, int o, i64 token) const {
        Before found = {1.0f, 0.0f, -1};
        const i64 item = pair % static_cast<u32>(width / 2), at = head(pair);
        if (item < half && at < heads + kv_heads) {
            found.c = cosine[token * half + item];
            found.s = sine[token * half + item];
        }
        if (at >= heads) found.place = slot(token);
        return found;
    }
    DEVICE i64 slot(i64 token) const {
        const i64 row = row_of_token[token], at = position[token];
        if (row < 0) return -1;
        const bool inside = row < table_rows && at >= 0 && at / block_size < table_width;
        const i64 block = inside ? block_table[row * table_width + at / block_size] : -1;
        if (block < 0 || block >= blocks) {
            Status{bad, code}.out_of_range();
            return -1;
        }
        return (block * kv_heads * block_size + at % block_size) * width;
    }
    DEVICE void put(u32 pair, int o, i64 token, f32 own, f32 other, const Before& known) const {
        const i64 at = head(pair), item = pair % static_cast<u32>(width / 2);
        f32 value = own;
        if (item < half && at < heads + kv_heads) {  // as in rotary/rotary.hip
            value = o == 0 ? fmaf(own, known.c, -(other * known.s)) : fmaf(own, known.c, other * known.s);
        }
        if (at < heads) {
            narrow(value, q[(token * heads + at) * width + element(pair, o)]);
        } else if (known.place >= 0) {
            const i64 kv = (at - heads) % kv_heads;
            C* const cache = at < heads + kv_heads ? k_cache : v_cache;
            narrow(value, cache[known.place + kv * block_size * width + element(pair, o)]);
        }
    }
};

template <int ROWS, int STEPS, int SPLIT, int DEPTH, int ROOM, int THREADS, class X, class W, class Q, class C>
DEVICE void few_rows_rope_store(const X* x, const W* weight, const f32* cosine, const f32* sine,
                                const i32* row_of_token, const i32* position, const i32* block_table, const f32* bias,
                                const f32* gain, const i32* count, Q* q, C* k_cache, C* v_cache, i64 tokens,
                                i64 columns, i64 heads, i64 kv_heads, i64 width, i64 half, i64 blocks, i64 block_size,
                                i64 table_rows, i64 table_width, f64 eps, Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, bias, gain, count, tokens, 1, columns, static_cast<f32>(eps)};
    const Turned<Q, C> finish = {cosine, sine, row_of_token, position, block_table, q, k_cache, v_cache,
                                 heads, kv_heads, width, half, blocks, block_size, table_rows, table_width,
                                 start.word, start.step};
    project<Form<ROWS, STEPS, SPLIT, DEPTH, ROOM, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>((heads + 2 * kv_heads) * width / 2),
        [=](u32 pair, int o) { return finish.place(pair, o); }, finish);
}
