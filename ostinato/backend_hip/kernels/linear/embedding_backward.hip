// Gradients of the rows of a table that tokens read: sums in ascending order of tokens, each row's by one block, so
// that nothing is added atomically. Id -1 reads no row; other ids out of range are reported.
#include "runs.h"

constexpr int MOST_THREADS = 256;
constexpr i32 NONE = -1;

// body(tokens, how many) for those of [first, end) that are wanted, in ascending order and several at a time.
template <class Wanted, class F>
DEVICE void for_tokens(i64 first, i64 end, Wanted wanted, F body) {
    SHARED(i32, tokens, MOST_THREADS);
    SHARED(i32, length, 1);
    for (i64 from = first; from < end; from += thread_count()) {
        const i64 token = from + thread_index();
        const bool own = token < end && wanted(token);
        const i32 place = block_running_sum(own ? 1 : 0);  // all are through with the tokens before
        if (own) tokens[place - 1] = static_cast<i32>(token);
        if (thread_index() == thread_count() - 1) *length = place;
        block_barrier();
        body(tokens, *length);
    }
}

// A block zeroes its rows of y [rows, width] and adds what was read of them. Neighbouring blocks have neighbouring rows,
// so that all write to one place of memory at a time, and rows that are read more often than others are shared out.
DEVICE void embedding_backward(const f32* gradient, const i32* ids, f32* y, i64 tokens, i64 rows, i64 width,
                               Status status) {
    if (block_index() == 0) {
        for (i64 token = thread_index(); token < tokens; token += thread_count()) {
            if (ids[token] < NONE || ids[token] >= rows) status.out_of_range();
        }
    }
    const bool whole = aligned(y) && width % RUN == 0;
    for (i64 row = block_index(); row < rows; row += block_count()) {
        f32* const own = y + row * width;
        share_runs(thread_index(), thread_count(), width, whole, [=](i64 i, auto n) {
            const f32 zeros[n.value] = {};
            give(own + i, zeros);
        });
    }
    block_barrier();  // a row is added to by other threads than have zeroed it
    const auto wanted = [=](i64 token) {
        return ids[token] >= 0 && ids[token] < rows && static_cast<u32>(ids[token]) % block_count() == block_index();
    };
    for_tokens(0, tokens, wanted, [=](const i32* found, i32 count) {
        for (i32 n = 0; n < count; ++n) {
            const f32* const from = gradient + found[n] * width;
            f32* const to = y + ids[found[n]] * width;
            for (i64 i = thread_index(); i < width; i += thread_count()) to[i] += from[i];
        }
    });
}

// A block a token: that of the first one with an id adds all that have it.
DEVICE void embedding_backward_add(f32* table, const f32* gradient, const i32* ids, i64 tokens, i64 rows, i64 width,
                                   Status status) {
    constexpr i32 BEFORE = 1, BEHIND = 2;
    for (i64 token = block_index(); token < tokens; token += block_count()) {
        const i64 id = ids[token];
        const bool known = id >= 0 && id < rows;
        if (!known && id != NONE) status.out_of_range();
        if (!known) continue;
        i32 others = 0;
        for (i64 other = thread_index(); other < tokens; other += thread_count()) {
            if (ids[other] == id && other != token) others |= other < token ? BEFORE : BEHIND;
        }
        others = block_reduce(others, Any());
        if (others & BEFORE) continue;
        f32* const row = table + id * width;
        const f32* const own = gradient + token * width;
        for (i64 i = thread_index(); i < width; i += thread_count()) row[i] += own[i];
        if (!(others & BEHIND)) continue;
        const auto wanted = [=](i64 other) { return ids[other] == id; };
        for_tokens(token + 1, tokens, wanted, [=](const i32* found, i32 count) {
            for (i64 i = thread_index(); count != 0 && i < width; i += thread_count()) {
                f32 total = row[i];
                for (i32 n = 0; n < count; ++n) total += gradient[found[n] * width + i];
                row[i] = total;
            }
        });
    }
}
