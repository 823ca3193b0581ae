// Several projections of one x by weights of their own: a group of lanes an output, of whichever it is. An output's bits
// are those of `linear`, which depend on its row and weights alone.
#include "group.h"
#include "normed.h"

template <class X, class W, class Y>
DEVICE void linear_group(const X* x, const W* w0, const W* w1, const W* w2, const f32* b0, const f32* b1, const f32* b2,
                         const i32* count, Y* y0, Y* y1, Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1,
                         i64 n2, Status) {
    const Group<W, Y> group = {{w0, b0, y0, n0}, {w1, b1, y1, n1}, {w2, b2, y2, n2}};
    const i64 rows = valid_rows(count, entries) * inner, outputs = group.units(1);
    for (i64 row = block_index_y(); row < rows; row += block_count_y()) {
        const Normed<X> from = {x + row * columns, nullptr, 1.0f};
        for (i64 first = static_cast<i64>(block_index()) * group_count(); first < outputs;
             first += static_cast<i64>(block_count()) * group_count()) {
            const bool there = first + group_index() < outputs;
            i64 output = smaller(first + group_index(), outputs - 1);
            const Member<W, Y> member = group.of(output, 1);
            const f32 sum = dot(from, weight_row(member.weight, output, columns), columns);
            if (there && group_lane() == 0) member.put(row, output, sum);
        }
    }
}
