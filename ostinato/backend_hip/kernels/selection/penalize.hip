// Changes to the logits of single tokens: penalties of the tokens that a row has seen, and numbers added to tokens of a
// list. Both keep the f32 operations of their references, in their order; y may be the logits. Blocks along the grid's
// first axis share a row: each has some of its logits, copies them, and changes those of its tokens.
#include "rows.h"

DEVICE void copy_share(const f32* from, f32* to, Share share) {
    if (from == to) return;
    constexpr i64 size = Packed<f32>::size;
    const bool whole = aligned(from) && aligned(to);
    const i64 words = whole ? share.end / size * size : share.first;
    for (i64 i = share.first + thread_index() * size; i < words; i += thread_count() * size) {
        *reinterpret_cast<Words*>(to + i) = load_words(from + i);
    }
    for (i64 i = larger(share.first, words) + thread_index(); i < share.end; i += thread_count()) to[i] = from[i];
}

// Repetition, frequency, presence. `workspace` has an i32 a logit: how often each token of the row was generated, then,
// taken out by the one thread that penalises it, a mark. Only entries of tokens that stand in the row are touched. A
// row whose penalties are neutral is a plain copy, and so is one whose lengths or tokens are out of range.
DEVICE void penalize(const f32* logits, const i32* tokens, const i32* prompt_length, const i32* length,
                     const f32* repetition, const f32* presence, const f32* frequency, const i32* count, f32* y,
                     i32* workspace, i64 rows, i64 vocabulary, i64 capacity, Status status) {
    constexpr i32 done = -1;
    const i64 valid = valid_rows(count, rows);
    const Share share = share_of(vocabulary);
    for (i64 row = block_index_y(); row < valid; row += block_count_y()) {
        f32* const to = y + row * vocabulary;
        i32* const times = workspace + row * vocabulary;
        const i32* const seen = tokens + row * capacity;
        copy_share(logits + row * vocabulary, to, share);
        if (repetition[row] == 1.0f && presence[row] == 0.0f && frequency[row] == 0.0f) continue;
        const i64 prompt = prompt_length[row], size = length[row];
        const bool lengths = 0 <= prompt && prompt <= size && size <= capacity;
        bool bad = false;
        for (i64 i = thread_index(); lengths && i < size; i += thread_count()) {
            bad = bad || seen[i] < 0 || seen[i] >= vocabulary;
            if (share.has(seen[i])) times[seen[i]] = 0;
        }
        if (block_any(bad) || !lengths) {
            if (thread_index() == 0) status.out_of_range();
            continue;
        }
        for (i64 i = prompt + thread_index(); i < size; i += thread_count()) {
            if (share.has(seen[i])) atomic_add(&times[seen[i]], 1);
        }
        block_barrier();
        for (i64 i = thread_index(); i < size; i += thread_count()) {
            if (!share.has(seen[i])) continue;
            const i32 generated = atomic_exchange(&times[seen[i]], done);
            if (generated == done) continue;
            const f32 logit = to[seen[i]];
            f32 changed = logit > 0.0f ? logit / repetition[row] : logit * repetition[row];
            if (generated > 0) {
                changed = changed - frequency[row] * static_cast<f32>(generated);
                changed = changed - presence[row];
            }
            to[seen[i]] = changed;
        }
    }
}

// The first pairs[r] of the tokens and numbers of each row. A token that is listed several times is left to the thread
// of its first place, which adds its numbers in the order of the list.
DEVICE void add_at_tokens(const f32* logits, const i32* tokens, const f32* bias, const i32* pairs, const i32* count,
                          f32* y, i64 rows, i64 vocabulary, i64 capacity, Status status) {
    const i64 valid = valid_rows(count, rows);
    const Share share = share_of(vocabulary);
    for (i64 row = block_index_y(); row < valid; row += block_count_y()) {
        f32* const to = y + row * vocabulary;
        const i32* const listed = tokens + row * capacity;
        copy_share(logits + row * vocabulary, to, share);
        block_barrier();
        const i64 size = pairs[row] >= 0 && pairs[row] <= capacity ? pairs[row] : 0;
        if (size != pairs[row] && thread_index() == 0) status.out_of_range();
        for (i64 i = thread_index(); i < size; i += thread_count()) {
            const i32 token = listed[i];
            if (token < 0 || token >= vocabulary) {
                status.out_of_range();
                continue;
            }
            if (!share.has(token)) continue;
            i64 first = 0;
            while (listed[first] != token) ++first;
            if (first < i) continue;
            f32 logit = to[token];
            for (i64 j = i; j < size; ++j) {
                if (listed[j] == token) logit = logit + bias[row * capacity + j];
            }
            to[token] = logit;
        }
    }
}
