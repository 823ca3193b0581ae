// Projections by weights as the checkpoint has them, [out, in]: a group of lanes an output. An output's bits depend on
// its row and weights alone.
#include "normed.h"
#include "projection.h"

// body(row of x, its number, output, whether there is one): all groups of a block go through as many turns, and a block
// normalises its row once.
template <class X, class F>
DEVICE void for_outputs(const X* x, const f32* gain, f64 eps, const i32* count, i64 entries, i64 inner, i64 columns,
                        i64 outputs, F body) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index_y(); row < rows; row += block_count_y()) {
        const Normed<X> from = normed_row(x + row * columns, gain, columns, static_cast<f32>(eps));
        for (i64 first = static_cast<i64>(block_index()) * group_count(); first < outputs;
             first += static_cast<i64>(block_count()) * group_count()) {
            const i64 output = first + group_index();
            body(from, row, smaller(output, outputs - 1), output < outputs && group_lane() == 0);
        }
    }
}

template <class X, class W, class Y>
DEVICE void linear(const X* x, const W* weight, const f32* bias, const Y* residual, const f32* gain, const i32* count,
                   Y* y0, Y* y1, Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, f64 eps, Status) {
    const Results<Y> results = {y0, y1, y2, n0, n1, n2, bias, residual};
    for_outputs(x, gain, eps, count, entries, inner, columns, results.count(),
                [=](const Normed<X>& from, i64 row, i64 output, bool writes) {
                    const f32 sum = dot(from, weight_row(weight, output, columns), columns);
                    if (writes) results.put(row, output, sum);
                });
}

// Weight of gate rows, then up rows.
template <class X, class W, class Y>
DEVICE void linear_swiglu(const X* x, const W* weight, const f32* gain, const i32* count, Y* y, i64 entries, i64 inner,
                          i64 columns, i64 outputs, f64 eps, Status) {
    for_outputs(x, gain, eps, count, entries, inner, columns, outputs,
                [=](const Normed<X>& from, i64 row, i64 output, bool writes) {
                    const f32 gate = dot(from, weight_row(weight, output, columns), columns);
                    const f32 up = dot(from, weight_row(weight, outputs + output, columns), columns);
                    if (writes) narrow(gated(gate, up), y[row * outputs + output]);
                });
}
