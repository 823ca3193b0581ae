// Projections of a few rows by float weights: every weight is read once, 16 bytes at a time, for all rows. SPLIT groups of
// lanes share an output, so that short matrices still fill a device.
//
// An output's products are taken by lane in ascending steps of the whole output's width, then by the tree, then group by
// group: its bits depend on its row and weights, and on SPLIT, which follows from the number of columns.
#include "words.h"

constexpr int GROUPS = 8;  // 256 threads

// Rows of x and of a weight, [.., columns], and whether words can be taken from all of them.
template <class T>
struct Matrix {
    const T* values;
    i64 columns;
    DEVICE const T* row(i64 i) const { return values + i * columns; }
    DEVICE bool whole() const { return aligned(values) && columns * static_cast<i64>(sizeof(T)) % 16 == 0; }
};

// Products of ROWS rows of x with one row of the weight, by this group's part of the columns; in every lane.
template <int ROWS, int SPLIT, class X, class W>
DEVICE void dot_rows(const Matrix<X>& x, i64 rows, const Matrix<W>& weight, i64 output, f32 (&sums)[ROWS]) {
    constexpr int size = Packed<W>::size;
    const bool whole = x.whole();
    const W* const w = weight.row(output);
    for (int r = 0; r < ROWS; ++r) sums[r] = 0.0f;
    const i64 first = (group_index() % SPLIT * GROUP + group_lane()) * size;
#pragma unroll 4
    for (i64 k = first; k < weight.columns; k += SPLIT * GROUP * size) {
        const Words words = load_once(w + k);
        for (int r = 0; r < ROWS; ++r) {
            if (r >= rows) break;
            f32 values[size];
            load_values(x.row(r) + k, whole, values);
            for (int i = 0; i < size; ++i) sums[r] = fmaf(values[i], value_in(words, i, w), sums[r]);
        }
    }
    for (int r = 0; r < ROWS; ++r) sums[r] = group_sum(sums[r]);
}

// The parts of an output added up in ascending order; true in the thread that has them.
template <int ROWS, int SPLIT>
DEVICE bool join_parts(f32 (&sums)[ROWS]) {
    if (SPLIT == 1) return group_lane() == 0;
    SHARED(f32, parts, GROUPS * ROWS);
    block_barrier();  // an earlier turn may still read
    if (group_lane() == 0) {
        for (int r = 0; r < ROWS; ++r) parts[group_index() * ROWS + r] = sums[r];
    }
    block_barrier();
    if (group_lane() != 0 || group_index() % SPLIT != 0) return false;
    for (int part = 1; part < SPLIT; ++part) {
        for (int r = 0; r < ROWS; ++r) sums[r] += parts[(group_index() + part) * ROWS + r];
    }
    return true;
}

// body(output): all groups of a block go through as many turns, past the last output with the last one.
template <int SPLIT, class F>
DEVICE void for_outputs(i64 outputs, F body) {
    constexpr int each = GROUPS / SPLIT;
    for (i64 first = static_cast<i64>(block_index()) * each; first < outputs; first += block_count() * each) {
        body(first + group_index() / SPLIT);
    }
}

// The outputs of a row go to up to three results of n0, n1 and n2 columns.
template <int ROWS, int SPLIT, class X, class W, class Y>
DEVICE void gemv(const X* x, const W* weight, const f32* bias, const i32* count, Y* y0, Y* y1, Y* y2, i64 entries,
                 i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    const Matrix<X> from = {x, columns};
    const Matrix<W> by = {weight, columns};
    const i64 rows = valid_rows(count, entries) * inner, outputs = n0 + n1 + n2;
    for_outputs<SPLIT>(rows > 0 ? outputs : 0, [=](i64 output) {
        f32 sums[ROWS];
        dot_rows<ROWS, SPLIT>(from, rows, by, smaller(output, outputs - 1), sums);
        if (!join_parts<ROWS, SPLIT>(sums) || output >= outputs) return;
        const f32 shift = bias == nullptr ? 0.0f : bias[output];
        const bool first = output < n0, second = output < n0 + n1;
        Y* const to = first ? y0 + output : second ? y1 + (output - n0) : y2 + (output - n0 - n1);
        const i64 width = first ? n0 : second ? n1 : n2;
        for (int r = 0; r < ROWS; ++r) {
            if (r < rows) narrow(bias == nullptr ? sums[r] : sums[r] + shift, to[r * width]);
        }
    });
}

// Weight of gate rows, then up rows.
template <int ROWS, int SPLIT, class X, class W, class Y>
DEVICE void gemv_swiglu(const X* x, const W* weight, const i32* count, Y* y, i64 entries, i64 inner, i64 columns,
                        i64 outputs, Status) {
    const Matrix<X> from = {x, columns};
    const Matrix<W> by = {weight, columns};
    const i64 rows = valid_rows(count, entries) * inner;
    for_outputs<SPLIT>(rows > 0 ? outputs : 0, [=](i64 output) {
        const i64 last = smaller(output, outputs - 1);
        f32 gate[ROWS], up[ROWS], both[2 * ROWS];
        dot_rows<ROWS, SPLIT>(from, rows, by, last, gate);
        dot_rows<ROWS, SPLIT>(from, rows, by, outputs + last, up);
        for (int r = 0; r < ROWS; ++r) {
            both[r] = gate[r];
            both[ROWS + r] = up[r];
        }
        if (!join_parts<2 * ROWS, SPLIT>(both) || output >= outputs) return;
        for (int r = 0; r < ROWS; ++r) {
            const f32 open = both[r] / (1.0f + expf(-both[r]));
            if (r < rows) narrow(open * both[ROWS + r], y[r * outputs + output]);
        }
    });
}
