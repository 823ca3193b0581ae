// Several projections of one x, each by a weight of its own: what a launch is told of them, and whose an output is. The
// record is the launch's own arguments, so that all layers of a shape share one kernel.
#pragma once
#include "device.h"

// One of them; without outputs there is none.
template <class W, class Y>
struct Member {
    const W* weight;
    const f32* bias;
    Y* y;
    i64 outputs;
    DEVICE i64 units(i64 size) const { return (outputs + size - 1) / size; }
    DEVICE void put(i64 row, i64 output, f32 sum) const {
        if (bias != nullptr) sum += bias[output];
        narrow(sum, y[row * outputs + output]);
    }
};

template <class W, class Y>
struct Group {
    Member<W, Y> first, second, third;
    // Units of so many outputs, each of one member.
    DEVICE i64 units(i64 size) const { return first.units(size) + second.units(size) + third.units(size); }
    // The member that a unit is of, whose own number it has afterwards. Threads that go on together may have several.
    DEVICE Member<W, Y> of(i64& unit, i64 size) const {
        const Member<W, Y> a = first, b = second, c = third;  // compilers select values, not their addresses
        const i64 before_b = a.units(size), before_c = before_b + b.units(size);
        const bool is_a = unit < before_b, is_b = unit < before_c;
        unit -= is_a ? 0 : is_b ? before_b : before_c;
        return {is_a ? a.weight : is_b ? b.weight : c.weight, is_a ? a.bias : is_b ? b.bias : c.bias,
                is_a ? a.y : is_b ? b.y : c.y, is_a ? a.outputs : is_b ? b.outputs : c.outputs};
    }
};
