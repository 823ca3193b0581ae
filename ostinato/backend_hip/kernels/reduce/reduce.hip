// Softmax over rows, whole and causal, the sum of a whole tensor, and the mean of each sequence of packed tokens.
#include "device.h"

// One row by one block: exp(x - largest) / sum over the first `visible` entries, zeros behind them. A row of -inf has
// nothing to choose from and gives zeros; NaN and +inf give NaN.
template <class X>
DEVICE void softmax_row(const X* x, X* y, i64 visible, i64 width) {
    f32 highest = -infinity();
    for (i64 i = thread_index(); i < visible; i += thread_count()) highest = Largest()(highest, widen(x[i]));
    highest = block_largest(highest);
    const bool hidden = highest == -infinity();
    f32 total = 0.0f;
    for (i64 i = thread_index(); i < visible; i += thread_count()) total += hidden ? 0.0f : expf(widen(x[i]) - highest);
    total = block_sum(total);
    for (i64 i = thread_index(); i < width; i += thread_count()) {
        narrow(hidden || i >= visible ? 0.0f : expf(widen(x[i]) - highest) / total, y[i]);
    }
}

template <class X>
DEVICE void softmax(const X* x, const i32* count, X* y, i64 entries, i64 inner, i64 width, Status) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index(); row < rows; row += block_count()) {
        softmax_row(x + row * width, y + row * width, width, width);
    }
}

// Rows of squares: row i of each sees its first i + 1 entries.
template <class X>
DEVICE void causal_softmax(const X* x, const i32* count, X* y, i64 entries, i64 inner, i64 width, Status) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index(); row < rows; row += block_count()) {
        softmax_row(x + row * width, y + row * width, row % width + 1, width);
    }
}

// By one block, in f64.
DEVICE void reduce_sum(const f32* x, const i32* count, f32* y, i64 entries, i64 inner, Status) {
    const i64 size = valid_rows(count, entries) * inner;
    f64 total = 0.0;
    for (i64 i = thread_index(); i < size; i += thread_count()) total += static_cast<f64>(x[i]);
    total = block_sum(total);
    if (thread_index() == 0) *y = static_cast<f32>(total);
}

// x [tokens, width]: the mean of tokens start[r] .. start[r] + length[r] - 1 for each row r, zeros for none. A thread a
// column; sums of 32 tokens are added up in ascending order.
template <class X>
DEVICE void masked_mean(const X* x, const i32* start, const i32* length, const i32* count, X* y, i64 rows, i64 tokens,
                        i64 width, Status status) {
    constexpr i64 run = 32;
    const i64 valid = valid_rows(count, rows);
    for (i64 row = block_index_y(); row < valid; row += block_count_y()) {
        const i64 first = start[row], size = length[row];
        const bool inside = size > 0 && first >= 0 && first + size <= tokens;
        if (size != 0 && !inside) status.out_of_range();
        const i64 end = inside ? first + size : first;
        for (i64 column = first_element(); column < width; column += element_step()) {
            f32 total = 0.0f;
            for (i64 token = first; token < end; token += run) {
                f32 part = 0.0f;
                for (i64 t = token; t < smaller(end, token + run); ++t) part += widen(x[t * width + column]);
                total += part;
            }
            narrow(inside ? total / static_cast<f32>(size) : 0.0f, y[row * width + column]);
        }
    }
}
