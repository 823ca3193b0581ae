// Normalisations along the last axis, a block a row.
#include "columns.h"

// Reciprocal root of the mean square.
template <class X>
DEVICE f32 root_mean_square(const X* x, i64 width, f32 eps) {
    f32 squares = 0.0f;
    for_columns(width, [&](i64 i) { squares = fmaf(widen(x[i]), widen(x[i]), squares); });
    return 1.0f / sqrtf(block_sum(squares) / static_cast<f32>(width) + eps);
}

template <class X, class Y>
DEVICE void rms_norm(const X* x, const f32* gain, const i32* count, Y* y, i64 entries, i64 inner, i64 width, f64 eps,
                     Status) {
    for_rows(count, entries, inner, [=](i64 row) {
        const X* const from = x + row * width;
        Y* const to = y + row * width;
        const f32 factor = root_mean_square(from, width, static_cast<f32>(eps));
        for_columns(width, [=](i64 i) { narrow(widen(from[i]) * factor * gain[i], to[i]); });
    });
}

// The same of a row that threads hold.
template <int HELD>
DEVICE f32 held_mean_square(const f32 (&values)[HELD], i64 width, f32 eps) {
    f32 squares = 0.0f;
    for_held<HELD>(width, [&](int n, i64) { squares = fmaf(values[n], values[n], squares); });
    return 1.0f / sqrtf(block_sum(squares) / static_cast<f32>(width) + eps);
}

template <int HELD, class X, class Y>
DEVICE void rms_norm_held(const X* x, const f32* gain, const i32* count, Y* y, i64 entries, i64 inner, i64 width,
                          f64 eps, Status) {
    for_rows(count, entries, inner, [=](i64 row) {
        f32 values[HELD], gains[HELD];
        for_held<HELD>(width, [&](int n, i64 i) {
            values[n] = widen(x[row * width + i]);
            gains[n] = gain[i];
        });
        const f32 factor = held_mean_square(values, width, static_cast<f32>(eps));
        for_held<HELD>(width, [&](int n, i64 i) { narrow(values[n] * factor * gains[n], y[row * width + i]); });
    });
}

template <int HELD, class X, class Y>
DEVICE void add_rms_norm_held(const X* a, const X* b, const f32* gain, const i32* count, X* sum, Y* y, i64 entries,
                              i64 inner, i64 width, f64 eps, Status) {
    for_rows(count, entries, inner, [=](i64 row) {
        f32 values[HELD], gains[HELD];
        for_held<HELD>(width, [&](int n, i64 i) {
            const X total = narrowed<X>(widen(a[row * width + i]) + widen(b[row * width + i]));
            sum[row * width + i] = total;
            values[n] = widen(total);
            gains[n] = gain[i];
        });
        const f32 factor = held_mean_square(values, width, static_cast<f32>(eps));
        for_held<HELD>(width, [&](int n, i64 i) { narrow(values[n] * factor * gains[n], y[row * width + i]); });
    });
}

// The norm is that of the sum as it is stored.
template <class X, class Y>
DEVICE void add_rms_norm(const X* a, const X* b, const f32* gain, const i32* count, X* sum, Y* y, i64 entries,
                         i64 inner, i64 width, f64 eps, Status) {
    for_rows(count, entries, inner, [=](i64 row) {
        const X* const first = a + row * width;
        const X* const second = b + row * width;
        X* const total = sum + row * width;
        Y* const to = y + row * width;
        for_columns(width, [=](i64 i) { narrow(widen(first[i]) + widen(second[i]), total[i]); });
        const f32 factor = root_mean_square(total, width, static_cast<f32>(eps));
        for_columns(width, [=](i64 i) { narrow(widen(total[i]) * factor * gain[i], to[i]); });
    });
}

// The mean is taken in f64: it may be far larger than the spread.
template <class X, class Y>
DEVICE void layer_norm(const X* x, const f32* gain, const f32* bias, const i32* count, Y* y, i64 entries, i64 inner,
                       i64 width, f64 eps, Status) {
    for_rows(count, entries, inner, [=](i64 row) {
        const X* const from = x + row * width;
        Y* const to = y + row * width;
        f64 total = 0.0;
        for_columns(width, [&](i64 i) { total += static_cast<f64>(widen(from[i])); });
        const f64 mean = block_sum(total) / static_cast<f64>(width);
        f32 squares = 0.0f;
        for_columns(width, [&](i64 i) {
            const f32 centred = static_cast<f32>(static_cast<f64>(widen(from[i])) - mean);
            squares = fmaf(centred, centred, squares);
        });
        const f32 factor = 1.0f / sqrtf(block_sum(squares) / static_cast<f32>(width) + static_cast<f32>(eps));
        for_columns(width, [=](i64 i) {
            const f32 centred = static_cast<f32>(static_cast<f64>(widen(from[i])) - mean);
            narrow(fmaf(centred * factor, gain[i], bias == nullptr ? 0.0f : bias[i]), to[i]);
        });
    });
}

template <class X>
DEVICE void l2_normalize(const X* x, const i32* count, X* y, i64 entries, i64 inner, i64 width, f64 eps, Status) {
    for_rows(count, entries, inner, [=](i64 row) {
        const X* const from = x + row * width;
        X* const to = y + row * width;
        f32 squares = 0.0f;
        for_columns(width, [&](i64 i) { squares = fmaf(widen(from[i]), widen(from[i]), squares); });
        const f32 length = larger(sqrtf(block_sum(squares)), static_cast<f32>(eps));
        for_columns(width, [=](i64 i) { narrow(widen(from[i]) / length, to[i]); });
    });
}
