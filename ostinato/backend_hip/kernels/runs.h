// Elements four at a time: 16 bytes of f32, 8 of halves, so that neighbouring threads take neighbouring bytes whatever
// the types. A body is given the place of the first and how many there are, as a type: RUN, or 1 where memory does not
// lie so. It reads all of its elements before it writes any, so results may take operands' bytes.
#pragma once
#include "words.h"

constexpr int RUN = 4;

template <int N>
struct Count {
    static constexpr int value = N;
};

struct alignas(8) HalfWords {
    u32 w[2];
};

// N neighbours as f32.
template <class X>
DEVICE void take(const X* at, f32 (&values)[1]) {
    values[0] = widen(at[0]);
}
DEVICE void take(const f32* at, f32 (&values)[RUN]) {
    const Words words = load_words(at);
#pragma unroll
    for (int i = 0; i < RUN; ++i) values[i] = value_in(words, i, at);
}
template <class X>
DEVICE void take(const X* at, f32 (&values)[RUN]) {
    const HalfWords half = *reinterpret_cast<const HalfWords*>(at);
    const Words words = {{half.w[0], half.w[1], 0, 0}};
#pragma unroll
    for (int i = 0; i < RUN; ++i) values[i] = value_in(words, i, at);
}

// N neighbours, rounded.
template <class Y>
DEVICE void give(Y* at, const f32 (&values)[1]) {
    narrow(values[0], at[0]);
}
DEVICE void give(f32* at, const f32 (&values)[RUN]) { store_values(at, values); }
template <class Y>
DEVICE void give(Y* at, const f32 (&values)[RUN]) {
    Words words = {};
#pragma unroll
    for (int i = 0; i < RUN; ++i) put(words, i, narrowed<Y>(values[i]));
    *reinterpret_cast<HalfWords*>(at) = {{words.w[0], words.w[1]}};
}

// Those that one of several takes: by number, in steps of how many there are.
template <class F>
DEVICE void share_runs(i64 number, i64 step, i64 size, bool whole, F body) {
    const i64 runs = whole ? size / RUN : 0;
    for (i64 run = number; run < runs; run += step) body(run * RUN, Count<RUN>());
    for (i64 i = runs * RUN + number; i < size; i += step) body(i, Count<1>());
}
// Shared by all threads of the grid.
template <class F>
DEVICE void for_runs(i64 size, bool whole, F body) {
    share_runs(first_element(), element_step(), size, whole, body);
}

// The same of rows: body(row, place in it, how many). All of them begin where runs do where `whole` is true.
template <class F>
DEVICE void for_row_runs(i64 rows, i64 width, bool whole, F body) {
    const i64 runs = whole ? width / RUN : 0, rest = width - runs * RUN;
    for (i64 unit = first_element(); unit < rows * runs; unit += element_step()) {
        const i64 row = rows == 1 ? 0 : unit / runs;
        body(row, (unit - row * runs) * RUN, Count<RUN>());
    }
    for (i64 unit = first_element(); unit < rows * rest; unit += element_step()) {
        const i64 row = rows == 1 ? 0 : unit / rest;
        body(row, runs * RUN + (unit - row * rest), Count<1>());
    }
}
