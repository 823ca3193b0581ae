// Sums that training takes: of the columns of a matrix, of the squares of a tensor, and back through a mean. Every one
// has a fixed order, which follows from shapes alone.
#include "runs.h"

constexpr int MOST_THREADS = 256;

// y[column] = sum over rows of value(row, column). A group of 32 columns by blocks that have `each` rows of it; within a
// block every group of lanes takes every so manieth row. Parts have a sum for each block along the grid's second axis,
// of which the last one to come adds them up in ascending order.
template <class F>
DEVICE void column_sums(f32* y, f32* parts, i64 rows, i64 width, i64 each, Status status, F value) {
    SHARED(f32, sums, MOST_THREADS);
    const i64 first = block_index_y() * each, end = smaller(rows, first + each), count = block_count_y();
    for (i64 group = block_index(); group * GROUP < width; group += block_count()) {
        const i64 column = group * GROUP + group_lane();
        const bool has_sum = group_index() == 0 && column < width;
        f32 total = 0.0f;
        if (column < width) {
#pragma unroll 8
            for (i64 row = first + group_index(); row < end; row += group_count()) total += value(row, column);
        }
        block_barrier();  // sums of the group before may still be read
        sums[thread_index()] = total;
        block_barrier();
        if (has_sum) {
            for (int g = 1; g < group_count(); ++g) total += sums[g * GROUP + group_lane()];
            (count == 1 ? y : parts + block_index_y() * width)[column] = total;
        }
        if (count == 1 || !status.last_of(static_cast<u32>(count), group) || !has_sum) continue;
        total = parts[column];
        for (i64 part = 1; part < count; ++part) total += parts[part * width + column];
        y[column] = total;
    }
}

DEVICE void bias_gradient(const f32* gradient, f32* parts, f32* y, i64 rows, i64 width, i64 each, Status status) {
    column_sums(y, parts, rows, width, each, status,
                [=](i64 row, i64 column) { return gradient[row * width + column]; });
}

template <class X>
DEVICE void rms_norm_gain_gradient(const f32* gradient, const X* x, const f32* inverse_rms, f32* parts, f32* y,
                                   i64 rows, i64 width, i64 each, Status status) {
    column_sums(y, parts, rows, width, each, status, [=](i64 row, i64 column) {
        const i64 at = row * width + column;
        return gradient[at] * (widen(x[at]) * inverse_rms[row]);
    });
}

template <class X>
DEVICE void layer_norm_gain_gradient(const f32* gradient, const X* x, const f32* mean, const f32* inverse_deviation,
                                     f32* parts, f32* y, i64 rows, i64 width, i64 each, Status status) {
    column_sums(y, parts, rows, width, each, status, [=](i64 row, i64 column) {
        const i64 at = row * width + column;
        return gradient[at] * ((widen(x[at]) - mean[row]) * inverse_deviation[row]);
    });
}

// The sum of the squares of all elements: in f32 over 16 of them, from there on in f64. The last block to come adds up
// the sums of all blocks; true in the one thread that knows.
DEVICE bool squares(const f32* x, f64* parts, i64 size, Status status, f64& sum) {
    constexpr int AT_ONCE = 4;
    const i64 runs = size / RUN, step = element_step();
    const bool whole = aligned(x);  // decides how values are read, not who adds them up
    sum = 0.0;
    for (i64 first = first_element(); first < runs; first += AT_ONCE * step) {
        f32 values[AT_ONCE][RUN];
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m) {
#pragma unroll
            for (int n = 0; n < RUN; ++n) values[m][n] = 0.0f;
            if (first + m * step < runs) load_values(x + (first + m * step) * RUN, whole, values[m]);
        }
        f32 part = 0.0f;
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m) {
#pragma unroll
            for (int n = 0; n < RUN; ++n) part = fmaf(values[m][n], values[m][n], part);
        }
        sum += static_cast<f64>(part);
    }
    for (i64 i = runs * RUN + first_element(); i < size; i += step) {
        sum += static_cast<f64>(x[i]) * static_cast<f64>(x[i]);
    }
    sum = block_sum(sum);
    if (block_count() > 1) {
        if (thread_index() == 0) parts[block_index()] = sum;
        if (!status.last_of(block_count(), 0)) return false;
        sum = 0.0;
        for (u32 b = thread_index(); b < block_count(); b += thread_count()) sum += parts[b];
        sum = block_sum(sum);
    }
    return thread_index() == 0;
}

DEVICE void square_sum(const f32* x, f64* parts, f32* y, i64 size, Status status) {
    f64 sum;
    if (squares(x, parts, size, status, sum)) *y = static_cast<f32>(sum);
}

DEVICE void square_sum_add(f32* total, const f32* x, f64* parts, i64 size, Status status) {
    f64 sum;
    if (squares(x, parts, size, status, sum)) *total = static_cast<f32>(static_cast<f64>(*total) + sum);
}

// gradient [rows, width] of means over tokens start[r] .. start[r] + length[r] - 1: each token has its part of those of
// the rows that it is in, in ascending order. A thread an element of y [tokens, width].
DEVICE void masked_mean_backward(const f32* gradient, const i32* start, const i32* length, f32* y, i64 rows, i64 tokens,
                                 i64 width, Status status) {
    if (block_index() == 0) {
        for (i64 row = thread_index(); row < rows; row += thread_count()) {
            const i64 first = start[row], size = length[row];
            if (size != 0 && (size < 0 || first < 0 || first + size > tokens)) status.out_of_range();
        }
    }
    for (i64 i = first_element(); i < tokens * width; i += element_step()) {
        const i64 token = i / width;
        f32 total = 0.0f;
        for (i64 row = 0; row < rows; ++row) {
            const i64 first = start[row], size = length[row];
            if (token < first || token >= first + size) continue;
            total += gradient[row * width + i % width] / static_cast<f32>(size);
        }
        y[i] = total;
    }
}
