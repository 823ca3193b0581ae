// Argmax and cross entropy over rows of logits.
#include "rows.h"

DEVICE void argmax(const f32* x, const i32* count, i32* y, i64 entries, i64 inner, i64 width, Status) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index(); row < rows; row += block_count()) {
        const f32 peak = row_peak(x + row * width, width);
        const i64 place = usable(peak) ? first_place(x + row * width, width, peak) : -1;
        if (thread_index() == 0) y[row] = static_cast<i32>(place);
    }
}

// The same by 16 bytes at a time, in one pass.
DEVICE void argmax_words(const f32* x, const i32* count, i32* y, i64 entries, i64 inner, i64 width, Status) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index(); row < rows; row += block_count()) {
        const Best best = best_of(best_pair<8>(x + row * width, 0, width));
        if (thread_index() == 0) y[row] = static_cast<i32>(best.place);
    }
}

// The same by several blocks a row; rows are along the grid's second axis. The workspace has a number a row and block.
DEVICE void argmax_blocks(const f32* x, const i32* count, i32* y, u64* workspace, i64 entries, i64 inner, i64 width,
                          Status status) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index_y(); row < rows; row += block_count_y()) {
        Best best;
        u64* const pairs = workspace + row * block_count();
        const bool known = best_of_blocks<4>(x + row * width, width, pairs, row, status, best);
        if (known && thread_index() == 0) y[row] = static_cast<i32>(best.place);
    }
}

constexpr i32 IGNORED = -100;  // target of a row that does not count

// Mean over the rows that count of log(sum(e^x)) - x[target], by one block: each group of lanes takes every so manieth
// row and adds up in f64, then the groups in ascending order.
DEVICE void cross_entropy(const f32* logits, const i32* target, f32* y, i64 rows, i64 width, Status status) {
    f64 loss = 0.0;
    i64 counted = 0;
    bool bad = false;
    for (i64 first = 0; first < rows; first += group_count()) {
        const i64 row = smaller(first + group_index(), rows - 1);
        const i32 wanted = target[row];
        const bool counts = first + group_index() < rows && wanted != IGNORED;
        const bool inside = wanted >= 0 && wanted < width;
        const f32* const x = logits + row * width;
        const i64 seen = counts && inside ? width : 0;
        f32 peak = -infinity();
        for (i64 i = group_lane(); i < seen; i += GROUP) peak = Largest()(peak, x[i]);
        peak = group_reduce(peak, Largest());
        f32 total = 0.0f;
        for (i64 i = group_lane(); i < seen; i += GROUP) total += expf(x[i] - peak);
        total = group_sum(total);
        bad = bad || (counts && !inside);
        if (seen == 0 || group_lane() != 0) continue;
        loss += log(static_cast<f64>(total)) + (static_cast<f64>(peak) - static_cast<f64>(x[wanted]));
        ++counted;
    }
    loss = block_sum(loss);
    counted = block_sum(counted);
    bad = block_any(bad) || counted == 0;
    if (thread_index() != 0) return;
    if (bad) status.out_of_range();
    *y = bad ? not_a_number() : static_cast<f32>(loss / static_cast<f64>(counted));
}
