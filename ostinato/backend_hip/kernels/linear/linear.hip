// Projections by weights as the checkpoint has them, [out, in]. A group of lanes an output: every lane the products of
// the columns lane, lane + 32, ..., then the tree. So an output's bits depend on its row and weights alone.
#include "blocks.h"
#include "projection.h"

template <class X, class W>
DEVICE f32 dot(const X* x, const W* weight, i64 columns) {
    f32 sum = 0.0f;
    for (i64 k = group_lane(); k < columns; k += GROUP) sum = fmaf(widen(x[k]), weight_at(weight, k), sum);
    return group_sum(sum);
}

// body(row, output, whether there is one): all groups of a block go through as many turns.
template <class F>
DEVICE void for_outputs(const i32* count, i64 entries, i64 inner, i64 outputs, F body) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index_y(); row < rows; row += block_count_y()) {
        for (i64 first = static_cast<i64>(block_index()) * group_count(); first < outputs;
             first += static_cast<i64>(block_count()) * group_count()) {
            const i64 output = first + group_index();
            body(row, smaller(output, outputs - 1), output < outputs && group_lane() == 0);
        }
    }
}

template <class X, class W, class Y>
DEVICE void linear(const X* x, const W* weight, const f32* bias, const i32* count, Y* y0, Y* y1, Y* y2, i64 entries,
                   i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    const Results<Y> results = {y0, y1, y2, n0, n1, n2, bias};
    for_outputs(count, entries, inner, results.count(), [=](i64 row, i64 output, bool writes) {
        const f32 sum = dot(x + row * columns, weight_row(weight, output, columns), columns);
        if (writes) results.put(row, output, sum);
    });
}

// Weight of gate rows, then up rows.
template <class X, class W, class Y>
DEVICE void linear_swiglu(const X* x, const W* weight, const i32* count, Y* y, i64 entries, i64 inner, i64 columns,
                          i64 outputs, Status) {
    for_outputs(count, entries, inner, outputs, [=](i64 row, i64 output, bool writes) {
        const f32 gate = dot(x + row * columns, weight_row(weight, output, columns), columns);
        const f32 up = dot(x + row * columns, weight_row(weight, outputs + output, columns), columns);
        if (writes) narrow(gated(gate, up), y[row * outputs + output]);
    });
}
