// The joint projection of q, k and v with what stands between it and attention: a block a head of a token. Its sums lie
// in shared memory, where they are turned; q goes to its result, k and v into the block cache.
#include "blocks.h"
#include "normed.h"
#include "rope.h"

constexpr int MOST_WIDTH = 1024;

template <class Y>
DEVICE void store_head(const f32* sums, const f32* cosine, const f32* sine, Y* to, i64 half, i64 width) {
    for (i64 i = thread_index(); i < width - half; i += thread_count()) {
        f32 b = sums[half + i];
        if (i < half) {
            f32 a = sums[i];
            turn(a, b, cosine[i], sine[i]);
            narrow(a, to[i]);
        }
        narrow(b, to[half + i]);
    }
}

template <class X, class W, class Q, class C>
DEVICE void qkv_rope_store(const X* x, const W* weight, const f32* cosine, const f32* sine, const i32* row_of_token,
                           const i32* position, const i32* block_table, const f32* bias, const f32* gain,
                           const i32* count, Q* q, C* k_cache, C* v_cache, i64 tokens, i64 columns, i64 heads,
                           i64 shared, i64 width, i64 half, i64 blocks, i64 block_size, i64 table_rows,
                           i64 table_width, f64 eps, Status status) {
    SHARED(f32, sums, MOST_WIDTH);
    const Places places = {row_of_token, position, block_table, blocks, block_size, table_rows, table_width};
    const i64 valid = valid_rows(count, tokens);
    for (i64 token = block_index_y(); token < valid; token += block_count_y()) {
        const Normed<X> from = normed_row(x + token * columns, gain, columns, static_cast<f32>(eps));
        for (i64 head = block_index(); head < heads + 2 * shared; head += block_count()) {
            block_barrier();  // the head before is stored
            for (i64 first = 0; first < width; first += group_count()) {
                const i64 i = smaller<i64>(first + group_index(), width - 1), output = head * width + i;
                const f32 sum = dot(from, weight_row(weight, output, columns), columns);
                if (group_lane() == 0) sums[i] = bias == nullptr ? sum : sum + bias[output];
            }
            block_barrier();
            const f32* const c = cosine + token * half;
            const f32* const s = sine + token * half;
            if (head < heads) {
                store_head(sums, c, s, q + (token * heads + head) * width, half, width);
                continue;
            }
            const i64 place = places.of(token, shared, width, status);
            if (place < 0) continue;
            const bool key = head < heads + shared;
            const i64 at = place + (head - heads - (key ? 0 : shared)) * block_size * width;
            if (key) {
                store_head(sums, c, s, k_cache + at, half, width);
            } else {
                store_head(sums, c, s, v_cache + at, i64{0}, width);
            }
        }
    }
}
