// Projections of a few rows by float weights: every weight is read once, 16 bytes at a time, for all rows. SPLIT groups
// of lanes share an output, so that short matrices still fill a device; a group takes OUTPUTS of them together, so that
// long ones have more bytes under way and read x less often.
//
// An output's products are taken by lane in ascending steps of the whole output's width, then by the tree, then group
// by group: its bits depend on its row and weights, and on SPLIT, which follows from the number of columns.
#include "projection.h"

constexpr int GROUPS = 8;   // 256 threads
constexpr int AT_ONCE = 4;  // steps whose bytes are under way together

// Products of ROWS rows of x with OUTPUTS rows of a weight, by this group's part of the columns; in every lane.
template <int ROWS, int OUTPUTS, int SPLIT, class X, class W>
DEVICE void dot_rows(const X* x, i64 rows, const W* const (&weights)[OUTPUTS], i64 columns,
                     f32 (&sums)[ROWS * OUTPUTS]) {
    constexpr int size = Packed<W>::size, step = SPLIT * GROUP * size;
    const bool whole = aligned(x) && columns * static_cast<i64>(sizeof(X)) % 16 == 0;
    for (int i = 0; i < ROWS * OUTPUTS; ++i) sums[i] = 0.0f;
    for (i64 k = (group_index() % SPLIT * GROUP + group_lane()) * size; k < columns; k += AT_ONCE * step) {
        Words words[AT_ONCE][OUTPUTS];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (k + n * step >= columns) break;
            for (int o = 0; o < OUTPUTS; ++o) words[n][o] = load_once(weights[o] + k + n * step);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (k + n * step >= columns) break;
            for (int r = 0; r < ROWS; ++r) {
                if (r >= rows) break;
                f32 values[size];
                load_values(x + r * columns + k + n * step, whole, values);
                for (int o = 0; o < OUTPUTS; ++o) {
                    f32& sum = sums[r * OUTPUTS + o];
                    for (int i = 0; i < size; ++i) sum = fmaf(values[i], value_in(words[n][o], i, weights[o]), sum);
                }
            }
        }
    }
    for (int i = 0; i < ROWS * OUTPUTS; ++i) sums[i] = group_sum(sums[i]);
}

// The parts of sums added up in ascending order; true in the thread that has them.
template <int COUNT, int SPLIT>
DEVICE bool join_parts(f32 (&sums)[COUNT]) {
    if (SPLIT == 1) return group_lane() == 0;
    SHARED(f32, parts, GROUPS * COUNT);
    block_barrier();  // an earlier turn may still read
    if (group_lane() == 0) {
        for (int i = 0; i < COUNT; ++i) parts[group_index() * COUNT + i] = sums[i];
    }
    block_barrier();
    if (group_lane() != 0 || group_index() % SPLIT != 0) return false;
    for (int part = 1; part < SPLIT; ++part) {
        for (int i = 0; i < COUNT; ++i) sums[i] += parts[(group_index() + part) * COUNT + i];
    }
    return true;
}

// body(first of OUTPUTS outputs): all groups of a block go through as many turns, some of them past the last output.
template <int OUTPUTS, int SPLIT, class F>
DEVICE void for_outputs(i64 outputs, F body) {
    constexpr int each = GROUPS / SPLIT * OUTPUTS;
    for (i64 first = static_cast<i64>(block_index()) * each; first < outputs; first += block_count() * each) {
        body(first + group_index() / SPLIT * OUTPUTS);
    }
}

template <int ROWS, int OUTPUTS, int SPLIT, class X, class W, class Y>
DEVICE void gemv(const X* x, const W* weight, const f32* bias, const i32* count, Y* y0, Y* y1, Y* y2, i64 entries,
                 i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    const Results<Y> results = {y0, y1, y2, n0, n1, n2, bias};
    const i64 rows = valid_rows(count, entries) * inner, outputs = results.count();
    if (!aligned(weight)) {
        for_each_output(rows, outputs, [=](i64 row, i64 output) {
            results.put(row, output, plain_dot(x + row * columns, weight + output * columns, columns));
        });
        return;
    }
    for_outputs<OUTPUTS, SPLIT>(rows > 0 ? outputs : 0, [=](i64 first) {
        const W* weights[OUTPUTS];
        for (int o = 0; o < OUTPUTS; ++o) weights[o] = weight + smaller(first + o, outputs - 1) * columns;
        f32 sums[ROWS * OUTPUTS];
        dot_rows<ROWS, OUTPUTS, SPLIT>(x, rows, weights, columns, sums);
        if (!join_parts<ROWS * OUTPUTS, SPLIT>(sums)) return;
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int r = 0; r < ROWS; ++r) {
                if (first + o < outputs && r < rows) results.put(r, first + o, sums[r * OUTPUTS + o]);
            }
        }
    });
}

// Weight of gate rows, then up rows.
template <int ROWS, int SPLIT, class X, class W, class Y>
DEVICE void gemv_swiglu(const X* x, const W* weight, const i32* count, Y* y, i64 entries, i64 inner, i64 columns,
                        i64 outputs, Status) {
    const i64 rows = valid_rows(count, entries) * inner;
    if (!aligned(weight)) {
        for_each_output(rows, outputs, [=](i64 row, i64 output) {
            const f32 gate = plain_dot(x + row * columns, weight + output * columns, columns);
            const f32 up = plain_dot(x + row * columns, weight + (outputs + output) * columns, columns);
            narrow(gated(gate, up), y[row * outputs + output]);
        });
        return;
    }
    for_outputs<1, SPLIT>(rows > 0 ? outputs : 0, [=](i64 output) {
        const i64 last = smaller(output, outputs - 1);
        const W* const weights[2] = {weight + last * columns, weight + (outputs + last) * columns};
        f32 sums[ROWS * 2];
        dot_rows<ROWS, 2, SPLIT>(x, rows, weights, columns, sums);
        if (!join_parts<ROWS * 2, SPLIT>(sums) || output >= outputs) return;
        for (int r = 0; r < ROWS; ++r) {
            if (r < rows) narrow(gated(sums[r * 2], sums[r * 2 + 1]), y[r * outputs + output]);
        }
    });
}
