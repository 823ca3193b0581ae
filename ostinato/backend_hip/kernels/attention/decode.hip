// Attention of a few packed tokens over a block cache: softmax(scale q k) v over the keys that a token sees. Chunks of
// keys, which begin at multiples of that, are shared by as many blocks as a token and head has; teams of LANES lanes
// take every so manieth key of a chunk, 16 bytes of it each. Joined are the teams of a group in a tree, groups in
// ascending order, and chunks in ascending order by the block that comes last. So a result depends on the token and its
// keys alone.
//
// Where keys lie is looked up before the wait, and they are asked for: most of them are older than this step.
#include "keys.h"
#include "phase.h"

// Some keys' largest score, the sum of their weights, and a weighted sum of values.
struct Part {
    f32 peak, sum, output;
};
// COUNT more of them, in ascending order; those that are not there have a peak of -inf and zeros.
template <int COUNT>
DEVICE void join(Part& whole, const Part (&parts)[COUNT]) {
    f32 top = whole.peak;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) top = Largest()(top, parts[i].peak);
    const f32 old = shifted(whole.peak, top);
    whole = {top, whole.sum * old, whole.output * old};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const f32 share = shifted(parts[i].peak, top);
        whole.sum = fmaf(parts[i].sum, share, whole.sum);
        whole.output = fmaf(parts[i].output, share, whole.output);
    }
}

constexpr int LINE = 128;  // bytes that are fetched together

template <int LANES>
struct Team {
    static constexpr int THREADS = 256;
    static constexpr int GROUPS = THREADS / GROUP;
    static constexpr int TEAMS = THREADS / LANES;
    static constexpr int AT_ONCE = LANES < 4 ? 2 : LANES > 16 ? 8 : LANES / 2;  // keys of a team under way together
};

// Keys [first, end) of one query; thread d of [0, width) returns the part of element d. `wait` is called before anything
// but the block table is read.
template <int LANES, class Q, class C, class Wait>
DEVICE Part attend(const Q* q, const C* keys, const C* values, i64 first, i64 end, int width, Scoring score,
                   const InBlocks& place, Wait wait) {
    using T = Team<LANES>;
    constexpr int size = Packed<C>::size, AT_ONCE = T::AT_ONCE;
    SHARED(Part, found, T::GROUPS * LANES * size);
    const int team = thread_index() / LANES, own = thread_index() % LANES * size;
    const bool whole = aligned(keys) && aligned(values) && place.whole(static_cast<int>(sizeof(C)));
    i64 turn = first / T::TEAMS * T::TEAMS, at[AT_ONCE] = {};
    const auto seen = [&](int n) {
        const i64 j = turn + n * T::TEAMS + team;
        return j >= first && j < end;
    };
    const auto look = [&] {
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (seen(n)) at[n] = place.key(turn + n * T::TEAMS + team) + own;
        }
    };
    look();
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
        if (seen(n) && own * sizeof(C) % LINE == 0) {
            prefetch(keys + at[n]);
            prefetch(values + at[n]);
        }
    }
    wait();
    f32 query[size], output[size] = {}, peak = -infinity(), sum = 0.0f;
    load_values(q + own, aligned(q), query);
    while (turn < end) {
        Words key[AT_ONCE] = {}, value[AT_ONCE] = {};
        f32 scores[AT_ONCE], top = peak;
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (!seen(n)) continue;
            key[n] = load_words(keys + at[n], whole);
            value[n] = load_words(values + at[n], whole);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            f32 product = 0.0f;
#pragma unroll
            for (int i = 0; i < size; ++i) product = fmaf(query[i], value_in(key[n], i, keys), product);
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) product += shuffle_xor(product, lanes);
            scores[n] = seen(n) ? score(product) : -infinity();
            top = Largest()(top, scores[n]);
        }
        const f32 old = shifted(peak, top);
        peak = top;
        sum *= old;
#pragma unroll
        for (int i = 0; i < size; ++i) output[i] *= old;
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const f32 weight = shifted(scores[n], top);
            sum += weight;
#pragma unroll
            for (int i = 0; i < size; ++i) output[i] = fmaf(weight, value_in(value[n], i, values), output[i]);
        }
        turn += AT_ONCE * T::TEAMS;
        look();
    }
    f32 top = peak;  // of the teams of this group
#pragma unroll
    for (int n = LANES; n < GROUP; n *= 2) top = Largest()(top, shuffle_xor(top, n));
    const f32 factor = shifted(peak, top);
    sum *= factor;
#pragma unroll
    for (int i = 0; i < size; ++i) output[i] *= factor;
#pragma unroll
    for (int n = LANES; n < GROUP; n *= 2) {
        sum += shuffle_xor(sum, n);
#pragma unroll
        for (int i = 0; i < size; ++i) output[i] += shuffle_xor(output[i], n);
    }
    block_barrier();  // an earlier call may still read
    if (group_lane() < LANES) {
#pragma unroll
        for (int i = 0; i < size; ++i) found[group_index() * width + own + i] = {top, sum, output[i]};
    }
    block_barrier();
    Part made = {-infinity(), 0.0f, 0.0f};
    if (static_cast<int>(thread_index()) < width) {
        Part parts[T::GROUPS];
#pragma unroll
        for (int g = 0; g < T::GROUPS; ++g) parts[g] = found[g * width + thread_index()];
        join(made, parts);
    }
    return made;
}

// Of a chunk, in the workspace: the parts of all elements of the head.
constexpr int JOINED = 8;  // chunks that are read together

template <int LANES, class Q, class C, class Y, class Wait>
DEVICE void attend_packed(Worker worker, Wait wait, const Q* q, const C* k_cache, const C* v_cache,
                          const i32* row_of_token, const i32* position, const i32* block_table, const i32* length,
                          const i32* count, Y* y, Part* workspace, i64 tokens, i64 heads, i64 kv_heads, i64 width,
                          i64 blocks, i64 block_size, i64 table_rows, i64 table_width, Scoring score, i64 window,
                          i64 chunk, i64 share) {
    const i64 tasks = valid_rows(count, tokens) * heads * share;
    const i64 most = (table_width * block_size + chunk - 1) / chunk, element = thread_index();
    const bool has_element = element < width;
    bool waited = false;
    for (i64 task = worker.index; task < tasks; task += worker.count) {
        const i64 unit = task / share, token = unit / heads, kv = unit % heads / (heads / kv_heads);
        const Sight seen = sight_of(row_of_token, position, block_table, length, token, table_rows, table_width,
                                    block_size, window);
        const i64 skipped = seen.start / chunk;
        const i64 chunks = seen.end > seen.start ? (seen.end - 1) / chunk - skipped + 1 : 0;
        const i64 parties = larger<i64>(1, smaller<i64>(chunks, share)), party = task % share;
        if (party >= parties) continue;
        const InBlocks place = {seen.table, kv_heads, kv, static_cast<u32>(block_size), width};
        Part* const parts = workspace + unit * most * width;
        Part whole = {-infinity(), 0.0f, 0.0f};
        for (i64 c = party; c < larger<i64>(1, chunks); c += parties) {
            const i64 first = larger(seen.start, (skipped + c) * chunk);
            const i64 end = smaller(seen.end, (skipped + c + 1) * chunk);
            const bool bad = blocks_missing(seen.table, first, end, blocks, block_size);
            const auto ready = [&] {
                const Status status = wait();
                if ((bad || seen.bad) && thread_index() == 0) status.out_of_range();
            };
            whole = attend<LANES>(q + unit * width, k_cache, v_cache, first, bad ? 0 : end, static_cast<int>(width),
                                  score, place, ready);
            waited = true;
            if (chunks > 1 && has_element) parts[c * width + element] = whole;
        }
        if (chunks > 1) {
            if (parties == 1) {
                block_barrier();
            } else if (!wait().last_of(static_cast<u32>(parties), unit)) {
                continue;
            }
            whole = {-infinity(), 0.0f, 0.0f};
            for (i64 c = 0; c < chunks; c += JOINED) {
                Part next[JOINED];
#pragma unroll
                for (int i = 0; i < JOINED; ++i) {
                    const bool there = c + i < chunks && has_element;
                    next[i] = there ? parts[(c + i) * width + element] : Part{-infinity(), 0.0f, 0.0f};
                }
                join(whole, next);
            }
        }
        if (has_element) narrow(quotient(whole.output, whole.sum), y[unit * width + element]);
    }
    if (!waited) wait();
}

// q, y [tokens, heads, width]; caches [blocks, kv_heads, block_size, width] through the block table.
template <int LANES, class Q, class C, class Y>
DEVICE void attention_decode(const Q* q, const C* k_cache, const C* v_cache, const i32* row_of_token,
                             const i32* position, const i32* block_table, const i32* length, const i32* count, Y* y,
                             Part* workspace, i64 tokens, i64 heads, i64 kv_heads, i64 width, i64 blocks,
                             i64 block_size, i64 table_rows, i64 table_width, f64 scale, i64 window, f64 cap, i64 chunk,
                             i64 share, Start start) {
    allow_later();
    attend_packed<LANES>(this_block(), [=] { return start.wait(); }, q, k_cache, v_cache, row_of_token, position,
                         block_table, length, count, y, workspace, tokens, heads, kv_heads, width, blocks, block_size,
                         table_rows, table_width, Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, window,
                         chunk, share);
}
