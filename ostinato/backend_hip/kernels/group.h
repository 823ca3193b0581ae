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
        const i64 a = first.units(size), b = a + second.units(size);
        const bool is_first = unit < a, is_second = unit < b;
        unit -= is_first ? 0 : is_second ? a : b;
        return {is_first ? first.weight : is_second ? second.weight : third.weight,
                is_first ? first.bias : is_second ? second.bias : third.bias,
                is_first ? first.y : is_second ? second.y : third.y,
                is_first ? first.outputs : is_second ? second.outputs : third.outputs};
    }
};
