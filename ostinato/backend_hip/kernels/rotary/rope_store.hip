// The rotation of q and k and the store of k and v in the block cache, in one launch. q, k and v may be columns of one
// joint product: tokens and heads of each lie so many elements apart. Tokens that point outside are not stored and
// reported; of two tokens at one place, which is the caller's mistake, either may be kept.
#include "rope.h"

template <class T>
struct Heads {
    const T* values;
    i64 count, token_stride, head_stride;
    DEVICE const T* at(u32 token, u32 head) const { return values + token * token_stride + head * head_stride; }
};

template <class T>
DEVICE void store_run(T* at, const f32 (&values)[1]) {
    narrow(values[0], *at);
}
template <int RUN, class T>
DEVICE void store_run(T* at, const f32 (&values)[RUN]) {
    store_values(at, values);
}

// RUN elements from `item` on of the second halves of a head with those of the first, or of what passes.
template <int RUN, class X, class Y>
DEVICE void turn_run(const X* from, const f32* cosine, const f32* sine, Y* to, u32 half, u32 item) {
    f32 b[RUN];
    load_values(from + half + item, true, b);
    if (item < half) {
        f32 a[RUN], c[RUN], s[RUN];
        load_values(from + item, true, a);
        load_values(cosine + item, true, c);
        load_values(sine + item, true, s);
#pragma unroll
        for (int n = 0; n < RUN; ++n) turn(a[n], b[n], c[n], s[n]);
        store_run(to + item, a);
    }
    store_run(to + half + item, b);
}

// A thread RUN pairs or elements that pass of a head of q or of k, or RUN elements of a head of v.
template <int RUN, class X, class C>
DEVICE void store_runs(const Heads<X>& q, const Heads<X>& k, const Heads<X>& v, const f32* cosine, const f32* sine,
                       const Places& places, X* q_rotated, C* k_cache, C* v_cache, i64 tokens, u32 width, u32 half,
                       Status status) {
    const u32 items = (width - half) / RUN, parts = width / RUN, heads = static_cast<u32>(q.count);
    const u32 shared = static_cast<u32>(k.count), turned = (heads + shared) * items, each = turned + shared * parts;
    const i64 end = tokens * each;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const u32 token = static_cast<u32>(i / each), unit = static_cast<u32>(i - static_cast<i64>(token) * each);
        const f32* const c = cosine + static_cast<i64>(token) * half;
        const f32* const s = sine + static_cast<i64>(token) * half;
        const u32 head = unit < turned ? unit / items : (unit - turned) / parts;
        if (head < heads && unit < turned) {
            X* const to = q_rotated + (static_cast<i64>(token) * heads + head) * width;
            turn_run<RUN>(q.at(token, head), c, s, to, half, unit % items * RUN);
            continue;
        }
        const i64 place = places.of(token, shared, width, status);
        if (place < 0) continue;
        if (unit < turned) {
            C* const to = k_cache + place + (head - heads) * places.block_size * width;
            turn_run<RUN>(k.at(token, head - heads), c, s, to, half, unit % items * RUN);
        } else {
            const u32 item = (unit - turned) % parts * RUN;
            f32 values[RUN];
            load_values(v.at(token, head) + item, true, values);
            store_run(v_cache + place + head * places.block_size * width + item, values);
        }
    }
}

template <class X, class C>
DEVICE void rope_store(const X* q, const X* k, const X* v, const f32* cosine, const f32* sine, const i32* row_of_token,
                       const i32* position, const i32* block_table, const i32* count, X* q_rotated, C* k_cache,
                       C* v_cache, i64 tokens, i64 heads, i64 shared, i64 width, i64 half, i64 blocks, i64 block_size,
                       i64 table_rows, i64 table_width, i64 q_token, i64 q_head, i64 k_token, i64 k_head, i64 v_token,
                       i64 v_head, Status status) {
    constexpr int RUN = 8;
    const Places places = {row_of_token, position, block_table, blocks, block_size, table_rows, table_width};
    const Heads<X> from_q = {q, heads, q_token, q_head}, from_k = {k, shared, k_token, k_head};
    const Heads<X> from_v = {v, shared, v_token, v_head};
    const i64 strides = q_token | q_head | k_token | k_head | v_token | v_head;
    const bool whole = (width | half | strides) % RUN == 0 && aligned(q) && aligned(k) && aligned(v) &&
                       aligned(cosine) && aligned(sine) && aligned(q_rotated) && aligned(k_cache) && aligned(v_cache);
    const i64 valid = valid_rows(count, tokens);
    const u32 w = static_cast<u32>(width), h = static_cast<u32>(half);
    if (whole) {
        store_runs<RUN>(from_q, from_k, from_v, cosine, sine, places, q_rotated, k_cache, v_cache, valid, w, h, status);
    } else {
        store_runs<1>(from_q, from_k, from_v, cosine, sine, places, q_rotated, k_cache, v_cache, valid, w, h, status);
    }
}
