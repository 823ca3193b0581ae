// Attention of a few packed tokens over a block cache: softmax(scale q k) v over the keys that a token sees. SHARERS
// blocks have the keys of a token and head between them, in runs of equal length; teams of LANES lanes take every so
// manieth key of a run, 16 bytes of it each. Joined are the teams of a group in a tree, then groups in ascending order,
// then blocks in ascending order. So a result depends on the token and its keys alone.
//
// Where keys lie is looked up before the wait, in two rounds of memory and no more. Blocks are joined through the
// shared memory of the first one where a device lets blocks see each other's, else by the last one through the
// workspace.
#include "keys.h"
#include "phase.h"

constexpr u32 SHARERS = 8;

// Neighbouring blocks that run together, as many as SHARERS.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#undef KERNEL
#define KERNEL(name, threads, parameters, call) \
    extern "C" __global__ __cluster_dims__(8, 1, 1) __launch_bounds__(threads) void name parameters { call; }
constexpr bool TOGETHER = true;
// Until all of them are there; with `written`, and what they wrote in shared memory is to be seen.
DEVICE void meet(bool written) {
    if (written) {
        asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
    } else {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
    }
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}
// Sets a number in the first block's shared memory that lies there as `at` does here.
DEVICE void set_at_first(f32* at, f32 value) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(shared_address(at)));
    asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(there), "f"(value) : "memory");
}
#else
constexpr bool TOGETHER = false;
DEVICE void meet(bool) {}
DEVICE void set_at_first(f32*, f32) {}
#endif

// Scores are logarithms to base 2 here.
constexpr f32 LOG2_E = 1.4426950408889634f;
DEVICE f32 weight_of(f32 score, f32 peak) { return exp2f(score - (peak == -infinity() ? 0.0f : peak)); }

// Some keys' largest score, the sum of their weights, and a weighted sum of values.
struct Part {
    f32 peak, sum, output;
};
constexpr int PART = 3;
DEVICE Part no_part() { return {-infinity(), 0.0f, 0.0f}; }

// COUNT of them in ascending order.
template <int COUNT>
DEVICE Part joined(const Part (&parts)[COUNT]) {
    Part whole = no_part();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) whole.peak = Largest()(whole.peak, parts[i].peak);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const f32 share = weight_of(parts[i].peak, whole.peak);
        whole.sum = fmaf(parts[i].sum, share, whole.sum);
        whole.output = fmaf(parts[i].output, share, whole.output);
    }
    return whole;
}

template <int LANES, class C>
struct Team {
    static constexpr int THREADS = 128, GROUPS = THREADS / GROUP, TEAMS = THREADS / LANES;
    static constexpr int SIZE = Packed<C>::size, WIDTH = LANES * SIZE;
    static constexpr int ELEMENTS = (WIDTH + THREADS - 1) / THREADS;  // of a head, by a thread
    static constexpr int AT_ONCE = LANES < 8 ? 2 : LANES / 2;         // keys of a team under way together
};

// Keys [first, end) of one query; element t, t + THREADS ... of the head by thread t. `wait` is called before anything
// but the block table is read.
template <int LANES, class Q, class C, class Wait>
DEVICE void attend(const Q* q, const C* keys, const C* values, i32 first, i32 end, Scoring score, const InBlocks& place,
                   Wait wait, Part (&made)[Team<LANES, C>::ELEMENTS]) {
    using T = Team<LANES, C>;
    constexpr int SIZE = T::SIZE, AT_ONCE = T::AT_ONCE;
    SHARED(f32, found, T::GROUPS * T::WIDTH);
    SHARED(f32, peaks, T::GROUPS);
    SHARED(f32, sums, T::GROUPS);
    const i32 team = thread_index() / LANES, own = thread_index() % LANES * SIZE;
    const bool whole = aligned(keys) && aligned(values) && place.whole(static_cast<int>(sizeof(C)));
    i32 turn = first;
    i64 at[AT_ONCE] = {};
    const auto seen = [&](int n) { return turn + n * T::TEAMS + team < end; };
    const auto look = [&] {
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (seen(n)) at[n] = place.key(turn + n * T::TEAMS + team) + own;
        }
    };
    look();
    wait();
    f32 query[SIZE], output[SIZE] = {}, peak = -infinity(), sum = 0.0f;
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
            for (int i = 0; i < SIZE; ++i) product = fmaf(query[i], value_in(key[n], i, keys), product);
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) product += shuffle_xor(product, lanes);
            scores[n] = seen(n) ? score(product) * LOG2_E : -infinity();
            top = Largest()(top, scores[n]);
        }
        const f32 old = weight_of(peak, top);
        peak = top;
        sum *= old;
#pragma unroll
        for (int i = 0; i < SIZE; ++i) output[i] *= old;
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const f32 weight = weight_of(scores[n], top);
            sum += weight;
#pragma unroll
            for (int i = 0; i < SIZE; ++i) output[i] = fmaf(weight, value_in(value[n], i, values), output[i]);
        }
        turn += AT_ONCE * T::TEAMS;
        if (turn < end) look();
    }
    f32 top = peak;  // of the teams of this group
#pragma unroll
    for (int n = LANES; n < GROUP; n *= 2) top = Largest()(top, shuffle_xor(top, n));
    const f32 factor = weight_of(peak, top);
    sum *= factor;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) output[i] *= factor;
#pragma unroll
    for (int n = LANES; n < GROUP; n *= 2) {
        sum += shuffle_xor(sum, n);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) output[i] += shuffle_xor(output[i], n);
    }
    if (group_lane() < LANES) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i) found[group_index() * T::WIDTH + own + i] = output[i];
    }
    if (group_lane() == 0) {
        peaks[group_index()] = top;
        sums[group_index()] = sum;
    }
    block_barrier();
#pragma unroll
    for (int e = 0; e < T::ELEMENTS; ++e) {
        const int element = e * T::THREADS + thread_index();
        if (element >= T::WIDTH) break;
        Part parts[T::GROUPS];
#pragma unroll
        for (int g = 0; g < T::GROUPS; ++g) parts[g] = {peaks[g], sums[g], found[g * T::WIDTH + element]};
        made[e] = joined(parts);
    }
}

template <int LANES, class Q, class C, class Y, class Wait>
DEVICE void attend_packed(Worker worker, Wait wait, const Q* q, const C* k_cache, const C* v_cache,
                          const i32* row_of_token, const i32* position, const i32* block_table, const i32* length,
                          const i32* count, Y* y, f32* workspace, i64 tokens, i64 heads, i64 kv_heads, i64 blocks,
                          i64 block_size, i64 table_rows, i64 table_width, Scoring score, i64 window) {
    using T = Team<LANES, C>;
    SHARED(f32, gathered, SHARERS * T::WIDTH * PART);
    SHARED(i32, table, T::THREADS);
    const bool short_table = table_width <= T::THREADS;
    const u32 most = static_cast<u32>(tokens * heads) * SHARERS;
    const u32 shared_by = static_cast<u32>(heads) / static_cast<u32>(kv_heads);
    bool waited = false;
    for (u32 task = worker.index; task < most; task += worker.count) {
        const u32 unit = task / SHARERS, own = task % SHARERS;
        const u32 token = unit / static_cast<u32>(heads), head = unit % static_cast<u32>(heads);
        const i64 valid = valid_rows(count, tokens), row = row_of_token[token], at = position[token];
        const bool known = row >= 0 && row < table_rows;
        const i32* const entries = block_table + (known ? row : 0) * table_width;
        const bool copies = known && short_table && static_cast<i64>(thread_index()) < table_width;
        const i32 entry = copies ? entries[thread_index()] : -1;
        const i64 keys_there = known ? length[row] : 0;
        if (token >= valid) break;  // and so are all that follow, in all blocks that share it
        const Sight sight = sight_of(row, at, keys_there, table_rows, table_width * block_size, window);
        if (short_table) {
            block_barrier();  // an earlier unit's may still be read
            table[thread_index()] = entry;
            block_barrier();
        }
        const i32* const blocks_of = short_table ? table : entries;
        const bool sees = sight.end > sight.start;
        const u32 start = sees ? static_cast<u32>(sight.start) : 0;
        const u32 keys = sees ? static_cast<u32>(sight.end - sight.start) : 0;
        const u32 run = larger<u32>(1, (keys + SHARERS * T::TEAMS - 1) / (SHARERS * T::TEAMS)) * T::TEAMS;
        const u32 sharers = larger<u32>(1, (keys + run - 1) / run);
        if (own >= sharers && !TOGETHER) continue;
        const u32 first = smaller(keys, own * run), end = smaller(keys, first + run);
        const bool bad = blocks_missing(blocks_of, start + first, start + end, blocks, block_size);
        const InBlocks place = {blocks_of, kv_heads, head / shared_by, static_cast<u32>(block_size), T::WIDTH};
        meet(waited);  // the first one is there, and no longer reads of an earlier unit
        const auto ready = [&] {
            const Status status = wait();
            if ((bad || sight.bad) && thread_index() == 0) status.out_of_range();
        };
        Part parts[T::ELEMENTS];
        attend<LANES>(q + static_cast<i64>(unit) * T::WIDTH, k_cache, v_cache, static_cast<i32>(start + first),
                      static_cast<i32>(bad ? 0 : start + end), score, place, ready, parts);
        waited = true;
        f32* const left = TOGETHER ? gathered : workspace + static_cast<i64>(unit) * SHARERS * T::WIDTH * PART;
        if (sharers > 1) {
#pragma unroll
            for (int e = 0; e < T::ELEMENTS; ++e) {
                const int element = e * T::THREADS + thread_index();
                if (element >= T::WIDTH) break;
                const f32 numbers[PART] = {parts[e].peak, parts[e].sum, parts[e].output};
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    f32* const to = left + (own * PART + i) * T::WIDTH + element;
                    if (TOGETHER) {
                        set_at_first(to, numbers[i]);
                    } else {
                        *to = numbers[i];
                    }
                }
            }
        }
        meet(true);
        if (TOGETHER ? own != 0 : sharers > 1 && !wait().last_of(sharers, unit)) continue;
#pragma unroll
        for (int e = 0; e < T::ELEMENTS; ++e) {
            const int element = e * T::THREADS + thread_index();
            if (element >= T::WIDTH) break;
            if (sharers > 1) {
                Part found[SHARERS];
#pragma unroll
                for (u32 i = 0; i < SHARERS; ++i) {
                    const f32* const from = left + i * PART * T::WIDTH + element;
                    found[i] = i < sharers ? Part{from[0], from[T::WIDTH], from[2 * T::WIDTH]} : no_part();
                }
                parts[e] = joined(found);
            }
            narrow(quotient(parts[e].output, parts[e].sum), y[static_cast<i64>(unit) * T::WIDTH + element]);
        }
        block_barrier();  // before another unit's parts are found
    }
    if (!waited) wait();
}

// q, y [tokens, heads, width]; caches [blocks, kv_heads, block_size, width] through the block table.
template <int LANES, class Q, class C, class Y>
DEVICE void attention_decode(const Q* q, const C* k_cache, const C* v_cache, const i32* row_of_token,
                             const i32* position, const i32* block_table, const i32* length, const i32* count, Y* y,
                             f32* workspace, i64 tokens, i64 heads, i64 kv_heads, i64, i64 blocks, i64 block_size,
                             i64 table_rows, i64 table_width, f64 scale, i64 window, f64 cap, Start start) {
    allow_later();
    attend_packed<LANES>(this_block(), [=] { return start.wait(); }, q, k_cache, v_cache, row_of_token, position,
                         block_table, length, count, y, workspace, tokens, heads, kv_heads, blocks, block_size,
                         table_rows, table_width, Scoring{static_cast<f32>(scale), static_cast<f32>(cap)}, window);
}
