// Elements moved without being looked at; T is an unsigned integer of their size.
#include "device.h"

// y in natural order from x with any strides; a stride of 0 repeats. An entry that a count counts is `inner` elements.
template <class T>
DEVICE void copy(const T* x, const i32* count, T* y, i64 entries, i64 inner, i64 e0, i64 e1, i64 e2, i64 e3, i64 e4,
                 i64 e5, i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5, Status) {
    const i64 extents[6] = {e0, e1, e2, e3, e4, e5}, strides[6] = {s0, s1, s2, s3, s4, s5};
    const i64 end = valid_rows(count, entries) * inner;
    for (i64 i = first_element(); i < end; i += element_step()) {
        i64 rest = i, from = 0;
        for (int axis = 5; axis >= 0; --axis) {
            from += rest % extents[axis] * strides[axis];
            rest /= extents[axis];
        }
        y[i] = x[from];
    }
}

// Every run of k and of v `repeats` times in a row. An entry has so many runs of so many elements.
template <class T>
DEVICE void repeat_pair(const T* k, const T* v, const i32* count, T* k_repeated, T* v_repeated, i64 entries, i64 repeats,
                        i64 k_runs, i64 k_run, i64 v_runs, i64 v_run, Status) {
    const i64 valid = valid_rows(count, entries) * repeats, keys = valid * k_runs * k_run;
    const i64 end = keys + valid * v_runs * v_run;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const bool key = i < keys;
        const i64 at = key ? i : i - keys, run = key ? k_run : v_run;
        (key ? k_repeated : v_repeated)[at] = (key ? k : v)[at / run / repeats * run + at % run];
    }
}

// Runs of up to 8 parts one after another: y has entries * runs runs, each the parts' l0, l1, ... elements.
template <class T>
DEVICE void concat(const T* x0, const T* x1, const T* x2, const T* x3, const T* x4, const T* x5, const T* x6,
                   const T* x7, const i32* count, T* y, i64 entries, i64 runs, i64 l0, i64 l1, i64 l2, i64 l3, i64 l4,
                   i64 l5, i64 l6, i64 l7, Status) {
    const T* const parts[8] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const i64 lengths[8] = {l0, l1, l2, l3, l4, l5, l6, l7};
    const i64 whole = l0 + l1 + l2 + l3 + l4 + l5 + l6 + l7;
    const i64 end = valid_rows(count, entries) * runs * whole;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 run = i / whole;
        i64 at = i % whole;
        int part = 0;
        while (at >= lengths[part]) at -= lengths[part++];
        y[i] = parts[part][run * lengths[part] + at];
    }
}

// Rows of x [rows, width] at index; -1 gives zeros, and so does what is out of range.
template <class T>
DEVICE void gather_rows(const T* x, const i32* index, const i32* count, T* y, i64 entries, i64 rows, i64 width,
                        Status status) {
    const i64 end = valid_rows(count, entries) * width;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 row = index[i / width];
        const bool inside = row >= 0 && row < rows;
        if (!inside && row != -1) status.out_of_range();
        y[i] = inside ? x[row * width + i % width] : T(0);
    }
}
