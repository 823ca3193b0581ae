// Gradients of movements: what was repeated is summed again, in ascending order; what was cut out lies among zeros.
#include "device.h"

// Element i of the sums of `repeats` runs that lie one after another.
DEVICE f32 sum_of_runs(const f32* x, i64 i, i64 run, i64 repeats) {
    const f32* const at = x + i / run * repeats * run + i % run;
    f32 total = at[0];
    for (i64 n = 1; n < repeats; ++n) total += at[n * run];
    return total;
}

DEVICE void repeat_interleave_backward(const f32* gradient, f32* y, i64 size, i64 run, i64 repeats, Status) {
    for (i64 i = first_element(); i < size; i += element_step()) y[i] = sum_of_runs(gradient, i, run, repeats);
}

// Of k and of v, which have runs of their own lengths.
DEVICE void repeat_pair_backward(const f32* k_gradient, const f32* v_gradient, f32* k, f32* v, i64 size, i64 k_run,
                                 i64 v_run, i64 repeats, Status) {
    for (i64 i = first_element(); i < 2 * size; i += element_step()) {
        if (i < size) {
            k[i] = sum_of_runs(k_gradient, i, k_run, repeats);
        } else {
            v[i - size] = sum_of_runs(v_gradient, i - size, v_run, repeats);
        }
    }
}

// y [outer, extent, inner]: `count` of the extent are the gradient's, from start on and so far apart.
DEVICE void slice_backward(const f32* gradient, f32* y, i64 size, i64 extent, i64 inner, i64 count, i64 start, i64 step,
                           Status) {
    for (i64 i = first_element(); i < size; i += element_step()) {
        const i64 row = i / inner, outer = row / extent, past = row % extent - start;
        const i64 place = past / step;
        const bool cut = past >= 0 && past % step == 0 && place < count;
        y[i] = cut ? gradient[(outer * count + place) * inner + i % inner] : 0.0f;
    }
}
