// Projections of any number of rows by any weight, without matrix units: a group of lanes has a few outputs of a few rows
// of x, so that what is read of weights and of x is used several times, and weights in blocks are decoded once for all.
//
// An output's products are taken by lane, a run of neighbours at a time, in ascending steps of all lanes' runs, then by
// the tree. So its bits depend on its row and weights alone, and not on the rows beside it.
#include "blocks.h"
#include "projection.h"

constexpr int ROWS = 8;

// Values of a weight that a lane takes at a time: 16 bytes of floats, one of a block.
template <class W>
struct Run {
    static constexpr int size = 1;
    static DEVICE void take(const W* row, i64 k, bool, f32 (&values)[size]) { values[0] = weight_at(row, k); }
};
template <class W>
struct FloatRun {
    static constexpr int size = Packed<W>::size;
    static DEVICE void take(const W* row, i64 k, bool whole, f32 (&values)[size]) {
        const Words words = load_words(row + k, whole);
#pragma unroll
        for (int i = 0; i < size; ++i) values[i] = value_in(words, i, row);
    }
};
template <>
struct Run<f32> : FloatRun<f32> {};
template <>
struct Run<f16> : FloatRun<f16> {};
template <>
struct Run<bf16> : FloatRun<bf16> {};

// Products of up to ROWS rows of x with OUTPUTS rows of a weight, in every lane. Columns are a multiple of a run.
template <int OUTPUTS, class X, class W>
DEVICE void multiply_rows(const X* x, int rows, const W* const (&weights)[OUTPUTS], i64 columns,
                          f32 (&sums)[ROWS * OUTPUTS]) {
    constexpr int size = Run<W>::size;
    const bool whole_x = aligned(x) && columns * static_cast<i64>(sizeof(X)) % 16 == 0;
    const bool whole = aligned(weights[0]) && columns * static_cast<i64>(sizeof(W)) % 16 == 0;
    for (int i = 0; i < ROWS * OUTPUTS; ++i) sums[i] = 0.0f;
    for (i64 k = static_cast<i64>(group_lane()) * size; k < columns; k += GROUP * size) {
        f32 values[OUTPUTS][size];
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) Run<W>::take(weights[o], k, whole, values[o]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            f32 own[size];
            load_values(x + r * columns + k, whole_x, own);
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) {
                f32& sum = sums[r * OUTPUTS + o];
#pragma unroll
                for (int i = 0; i < size; ++i) sum = fmaf(own[i], values[o][i], sum);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS * OUTPUTS; ++i) sums[i] = group_sum(sums[i]);
}

// body(first row, rows, first of OUTPUTS outputs): groups along outputs, rows along the grid's second axis. All groups of
// a block go through as many turns, some of them past the last output.
template <int OUTPUTS, class F>
DEVICE void for_runs(i64 rows, i64 outputs, F body) {
    const i64 each = static_cast<i64>(group_count()) * OUTPUTS;
    for (i64 row = static_cast<i64>(block_index_y()) * ROWS; row < rows; row += static_cast<i64>(block_count_y()) * ROWS) {
        const int now = static_cast<int>(smaller<i64>(ROWS, rows - row));
        for (i64 first = block_index() * each; first < outputs; first += block_count() * each) {
            body(row, now, first + group_index() * OUTPUTS);
        }
    }
}

template <class X, class W, class Y>
DEVICE void many_rows(const X* x, const W* weight, const f32* bias, const Y* residual, const i32* count, Y* y0, Y* y1,
                      Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    constexpr int outputs_of_a_group = 4;
    const Results<Y> results = {y0, y1, y2, n0, n1, n2, bias, residual};
    const i64 outputs = results.count();
    for_runs<outputs_of_a_group>(valid_rows(count, entries) * inner, outputs, [=](i64 row, int rows, i64 first) {
        const W* weights[outputs_of_a_group];
        for (int o = 0; o < outputs_of_a_group; ++o) {
            weights[o] = weight_row(weight, smaller(first + o, outputs - 1), columns);
        }
        f32 sums[ROWS * outputs_of_a_group];
        multiply_rows<outputs_of_a_group>(x + row * columns, rows, weights, columns, sums);
        if (group_lane() != 0) return;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
#pragma unroll
            for (int o = 0; o < outputs_of_a_group; ++o) {
                if (first + o < outputs) results.put(row + r, first + o, sums[r * outputs_of_a_group + o]);
            }
        }
    });
}

// Weight of gate rows, then up rows.
template <class X, class W, class Y>
DEVICE void many_rows_swiglu(const X* x, const W* weight, const i32* count, Y* y, i64 entries, i64 inner, i64 columns,
                             i64 outputs, Status) {
    constexpr int pairs = 2;
    for_runs<pairs>(valid_rows(count, entries) * inner, outputs, [=](i64 row, int rows, i64 first) {
        const W* weights[2 * pairs];
        for (int o = 0; o < pairs; ++o) {
            const i64 output = smaller(first + o, outputs - 1);
            weights[o] = weight_row(weight, output, columns);
            weights[pairs + o] = weight_row(weight, outputs + output, columns);
        }
        f32 sums[ROWS * 2 * pairs];
        multiply_rows<2 * pairs>(x + row * columns, rows, weights, columns, sums);
        if (group_lane() != 0) return;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
#pragma unroll
            for (int o = 0; o < pairs; ++o) {
                const f32 gate = sums[r * 2 * pairs + o], up = sums[r * 2 * pairs + pairs + o];
                if (first + o < outputs) narrow(gated(gate, up), y[(row + r) * outputs + first + o]);
            }
        }
    });
}
