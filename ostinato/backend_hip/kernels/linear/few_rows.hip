// Projections of a few rows by float weights: launches of the phase in phase.h.
#include "phase.h"

// y [rows, outputs], with a residual of its shape or none; outputs 2u and 2u + 1 are a pair.
template <class Y>
struct Summed {
    typedef f32 Before;
    struct Ahead {};
    const Y* residual;
    Y* y;
    i64 outputs;
    DEVICE i64 place(u32 pair, int o) const { return smaller<i64>(2 * static_cast<i64>(pair) + o, outputs - 1); }
    DEVICE Ahead ahead(u32, int, i64) const { return {}; }
    DEVICE f32 before(u32 pair, int o, i64 row) const {
        return residual == nullptr ? 0.0f : widen(residual[row * outputs + place(pair, o)]);
    }
    DEVICE void put(u32 pair, int o, i64 row, f32 sum, f32, Ahead, f32 added) const {
        narrow(residual == nullptr ? sum : sum + added, y[row * outputs + place(pair, o)]);
    }
};

template <int ROWS, int STEPS, int SPLIT, int ROOM, int NORMED, int THREADS, class X, class W, class Y>
DEVICE void few_rows(const X* x, const W* weight, const f32* bias, const Y* residual, const f32* gain, const i32* count,
                     Y* y, i64 entries, i64 inner, i64 columns, i64 outputs, f64 eps, Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, bias, gain, count, entries, inner, columns, static_cast<f32>(eps)};
    const Summed<Y> finish = {residual, y, outputs};
    project<Form<ROWS, STEPS, SPLIT, ROOM, NORMED, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>((outputs + 1) / 2), finish);
}

// The same, outputs handed out to up to three results.
template <class Y>
struct Split {
    struct Before {};
    struct Ahead {};
    Results<Y> results;
    DEVICE i64 place(u32 pair, int o) const {
        return smaller<i64>(2 * static_cast<i64>(pair) + o, results.count() - 1);
    }
    DEVICE Ahead ahead(u32, int, i64) const { return {}; }
    DEVICE Before before(u32, int, i64) const { return {}; }
    DEVICE void put(u32 pair, int o, i64 row, f32 sum, f32, Ahead, Before) const {
        results.put(row, place(pair, o), sum);
    }
};

template <int ROWS, int STEPS, int SPLIT, int ROOM, int NORMED, int THREADS, class X, class W, class Y>
DEVICE void few_rows_split(const X* x, const W* weight, const f32* bias, const f32* gain, const i32* count, Y* y0,
                           Y* y1, Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, f64 eps,
                           Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, bias, gain, count, entries, inner, columns, static_cast<f32>(eps)};
    const Split<Y> finish = {{y0, y1, y2, n0, n1, n2, nullptr}};
    project<Form<ROWS, STEPS, SPLIT, ROOM, NORMED, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>((finish.results.count() + 1) / 2), finish);
}

// Weight of gate rows, then up rows; a gate and its up row are a pair.
template <class Y>
struct Gated {
    struct Before {};
    struct Ahead {};
    Y* y;
    i64 outputs;
    DEVICE i64 place(u32 pair, int o) const { return pair + o * outputs; }
    DEVICE Ahead ahead(u32, int, i64) const { return {}; }
    DEVICE Before before(u32, int, i64) const { return {}; }
    DEVICE void put(u32 pair, int o, i64 row, f32 gate, f32 up, Ahead, Before) const {
        if (o == 0) narrow(gated(gate, up), y[row * outputs + pair]);
    }
};

template <int ROWS, int STEPS, int SPLIT, int ROOM, int NORMED, int THREADS, class X, class W, class Y>
DEVICE void few_rows_swiglu(const X* x, const W* weight, const f32* gain, const i32* count, Y* y, i64 entries,
                            i64 inner, i64 columns, i64 outputs, f64 eps, Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, nullptr, gain, count, entries, inner, columns, static_cast<f32>(eps)};
    project<Form<ROWS, STEPS, SPLIT, ROOM, NORMED, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>(outputs), Gated<Y>{y, outputs});
}

// Rows of q, k and v. A pair is what is turned together, two neighbours where nothing is. q goes to its result, k and v
// into the cache; tokens that point outside are skipped there and reported.
template <class Q, class C>
struct Turned {
    struct Before {
        f32 c, s;
    };
    // Of the token's first head in a cache; or that it is not stored, or that there is no such place.
    typedef i64 Ahead;
    static constexpr i64 NOT_STORED = -1, NO_PLACE = -2;
    const f32 *cosine, *sine;
    const i32 *row_of_token, *position, *block_table;
    Q* q;
    C *k_cache, *v_cache;
    u32 heads, kv_heads, width, half, blocks, block_size, table_rows, table_width;
    Start start;

    DEVICE u32 head(u32 pair) const { return pair / (width / 2); }
    // The element of a head that is output o of a pair.
    DEVICE u32 element(u32 pair, int o) const {
        const u32 item = pair % (width / 2);
        return item < half ? item + o * half : 2 * item + o;
    }
    DEVICE i64 place(u32 pair, int o) const { return static_cast<i64>(head(pair)) * width + element(pair, o); }
    DEVICE bool turns(u32 pair) const { return pair % (width / 2) < half && head(pair) < heads + kv_heads; }

    DEVICE i64 ahead(u32 pair, int, int token) const {
        if (head(pair) < heads) return NOT_STORED;
        const i32 row = row_of_token[token], at = position[token];
        if (row < 0) return NOT_STORED;
        const u32 number = static_cast<u32>(at) / block_size;
        const bool inside = static_cast<u32>(row) < table_rows && at >= 0 && number < table_width;
        const u32 block = inside ? static_cast<u32>(block_table[static_cast<i64>(row) * table_width + number]) : blocks;
        if (block >= blocks) return NO_PLACE;
        return (static_cast<i64>(block) * kv_heads * block_size + static_cast<u32>(at) % block_size) * width;
    }
    DEVICE Before before(u32 pair, int, int token) const {
        if (!turns(pair)) return {1.0f, 0.0f};
        const i64 angle = static_cast<i64>(token) * half + pair % (width / 2);
        return {cosine[angle], sine[angle]};
    }
    DEVICE void put(u32 pair, int o, int token, f32 own, f32 other, i64 slot, const Before& angle) const {
        f32 value = own;
        if (turns(pair)) {  // as in rotary/rotary.hip
            value = o == 0 ? fmaf(own, angle.c, -(other * angle.s)) : fmaf(own, angle.c, other * angle.s);
        }
        const u32 at = head(pair);
        if (at < heads) {
            narrow(value, q[(static_cast<i64>(token) * heads + at) * width + element(pair, o)]);
        } else if (slot >= 0) {
            const u32 kv = (at - heads) % kv_heads;
            C* const cache = at < heads + kv_heads ? k_cache : v_cache;
            narrow(value, cache[slot + static_cast<i64>(kv) * block_size * width + element(pair, o)]);
        } else if (slot == NO_PLACE) {
            start.wait().out_of_range();
        }
    }
};

template <int ROWS, int STEPS, int SPLIT, int ROOM, int NORMED, int THREADS, class X, class W, class Q, class C>
DEVICE void few_rows_rope_store(const X* x, const W* weight, const f32* cosine, const f32* sine,
                                const i32* row_of_token, const i32* position, const i32* block_table, const f32* bias,
                                const f32* gain, const i32* count, Q* q, C* k_cache, C* v_cache, i64 tokens,
                                i64 columns, i64 heads, i64 kv_heads, i64 width, i64 half, i64 blocks, i64 block_size,
                                i64 table_rows, i64 table_width, f64 eps, Start start) {
    allow_later();
    const Product<X, W> product = {x, weight, bias, gain, count, tokens, 1, columns, static_cast<f32>(eps)};
    const auto small = [](i64 size) { return static_cast<u32>(size); };
    const Turned<Q, C> finish = {cosine, sine, row_of_token, position, block_table, q, k_cache, v_cache,
                                 small(heads), small(kv_heads), small(width), small(half), small(blocks),
                                 small(block_size), small(table_rows), small(table_width), start};
    project<Form<ROWS, STEPS, SPLIT, ROOM, NORMED, THREADS>>(
        this_block(), [=] { start.wait(); }, product, static_cast<u32>((heads + 2 * kv_heads) * width / 2), finish);
}
