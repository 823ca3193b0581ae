// A block a row, each thread the elements thread, thread + threads, ... in all passes, so that a result may take the
// bytes of its operand. A row's bits depend on nothing but the row.
#pragma once
#include "device.h"

template <class F>
DEVICE void for_rows(const i32* count, i64 entries, i64 inner, F body) {
    const i64 rows = valid_rows(count, entries) * inner;
    for (i64 row = block_index(); row < rows; row += block_count()) body(row);
}

template <class F>
DEVICE void for_columns(i64 width, F body) {
    for (i64 i = thread_index(); i < width; i += thread_count()) body(i);
}

// The same with a row's elements held by its threads, HELD each, so that memory is read once and before anything waits.
template <int HELD, class F>
DEVICE void for_held(i64 width, F body) {
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const i64 i = static_cast<i64>(n) * thread_count() + thread_index();
        if (i < width) body(n, i);
    }
}

// Two sums that go through a reduction together.
struct Pair {
    f32 first, second;
    DEVICE Pair operator+(Pair other) const { return {first + other.first, second + other.second}; }
};
DEVICE Pair exchange(Pair value, int from) { return {exchange(value.first, from), exchange(value.second, from)}; }
