// Gradients along the last axis, a block a row: of norms and of softmax. A norm's row is read again for its statistics,
// which are handed on for the sums of its columns.
#include "columns.h"

// Of an RMS norm with r = 1 / sqrt(mean(x^2) + eps) and h = gradient * gain: r (h - x r^2 mean(h x)) plus addend. From
// the sums of x^2 and h x: r, and what x is multiplied by before it is taken from h.
struct RootMeanSquare {
    f32 inverse, back;
    DEVICE RootMeanSquare(Pair sums, i64 width, f32 eps) {
        const Pair total = block_sum(sums);
        inverse = 1.0f / sqrtf(total.first / static_cast<f32>(width) + eps);
        back = total.second / static_cast<f32>(width) * inverse * inverse;
    }
    DEVICE f32 operator()(f32 x, f32 h) const { return inverse * (h - x * back); }
};

// `rounded`, where it is there, gets what y gets.
template <class X, class Y, class Z>
DEVICE void rms_norm_backward(const f32* gradient, const X* x, const f32* gain, const f32* addend, Y* y,
                              f32* inverse_rms, Z* rounded, i64 rows, i64 width, f64 eps, Status) {
    for_rows(nullptr, rows, 1, [=](i64 row) {
        const f32* const from = gradient + row * width;
        const X* const values = x + row * width;
        Pair sums = {0.0f, 0.0f};
        for_columns(width, [&](i64 i) {
            const f32 value = widen(values[i]);
            sums = {fmaf(value, value, sums.first), fmaf(from[i] * gain[i], value, sums.second)};
        });
        const RootMeanSquare norm(sums, width, static_cast<f32>(eps));
        for_columns(width, [=](i64 i) {
            const f32 passed = norm(widen(values[i]), from[i] * gain[i]);
            const f32 found = addend == nullptr ? passed : passed + addend[row * width + i];
            narrow(found, y[row * width + i]);
            if (rounded != nullptr) narrow(found, rounded[row * width + i]);
        });
        if (thread_index() == 0) inverse_rms[row] = norm.inverse;
    });
}

// The same of a row that threads hold.
template <int HELD, class X, class Y, class Z>
DEVICE void rms_norm_backward_held(const f32* gradient, const X* x, const f32* gain, const f32* addend, Y* y,
                                   f32* inverse_rms, Z* rounded, i64 rows, i64 width, f64 eps, Status) {
    for_rows(nullptr, rows, 1, [=](i64 row) {
        const i64 at = row * width;
        f32 values[HELD], weighted[HELD], added[HELD];
        for_held<HELD>(width, [&](int n, i64 i) {
            values[n] = widen(x[at + i]);
            weighted[n] = gradient[at + i] * gain[i];
            added[n] = addend == nullptr ? 0.0f : addend[at + i];
        });
        Pair sums = {0.0f, 0.0f};
        for_held<HELD>(width, [&](int n, i64) {
            sums = {fmaf(values[n], values[n], sums.first), fmaf(weighted[n], values[n], sums.second)};
        });
        const RootMeanSquare norm(sums, width, static_cast<f32>(eps));
        for_held<HELD>(width, [&](int n, i64 i) {
            const f32 found = norm(values[n], weighted[n]) + added[n];
            narrow(found, y[at + i]);
            if (rounded != nullptr) narrow(found, rounded[at + i]);
        });
        if (thread_index() == 0) inverse_rms[row] = norm.inverse;
    });
}

// With r = 1 / sqrt(variance + eps), c = x - mean and h = gradient * gain: r (h - mean(h) - c r^2 mean(h c)) plus
// addend. The mean is taken in f64: it may be far larger than the spread.
template <class X, class Y>
DEVICE void layer_norm_backward(const f32* gradient, const X* x, const f32* gain, const f32* addend, Y* y, f32* means,
                                f32* inverse_deviation, i64 rows, i64 width, f64 eps, Status) {
    for_rows(nullptr, rows, 1, [=](i64 row) {
        const f32* const from = gradient + row * width;
        const X* const values = x + row * width;
        f64 total = 0.0;
        for_columns(width, [&](i64 i) { total += static_cast<f64>(widen(values[i])); });
        const f64 mean = block_sum(total) / static_cast<f64>(width);
        const auto centred = [=](i64 i) { return static_cast<f32>(static_cast<f64>(widen(values[i])) - mean); };
        Pair sums = {0.0f, 0.0f};
        f32 weighted = 0.0f;
        for_columns(width, [&](i64 i) {
            const f32 value = centred(i), h = from[i] * gain[i];
            sums = {fmaf(value, value, sums.first), fmaf(h, value, sums.second)};
            weighted += h;
        });
        const f32 level = block_sum(weighted) / static_cast<f32>(width);
        const RootMeanSquare norm(sums, width, static_cast<f32>(eps));
        for_columns(width, [=](i64 i) {
            const f32 found = norm(centred(i), from[i] * gain[i] - level);
            narrow(addend == nullptr ? found : found + addend[row * width + i], y[row * width + i]);
        });
        if (thread_index() != 0) return;
        means[row] = static_cast<f32>(mean);
        inverse_deviation[row] = norm.inverse;
    });
}

// What of the gradient is orthogonal to x, divided by the length of x; by eps, which is a constant, where x is shorter.
template <class X>
DEVICE void l2_normalize_backward(const f32* gradient, const X* x, f32* y, i64 rows, i64 width, f64 eps, Status) {
    for_rows(nullptr, rows, 1, [=](i64 row) {
        const f32* const from = gradient + row * width;
        const X* const values = x + row * width;
        f32* const to = y + row * width;
        f32 squares = 0.0f;
        for_columns(width, [&](i64 i) { squares = fmaf(widen(values[i]), widen(values[i]), squares); });
        const f32 length = sqrtf(block_sum(squares)), divisor = larger(length, static_cast<f32>(eps));
        f32 along = 0.0f;
        for_columns(width, [&](i64 i) { along = fmaf(from[i], widen(values[i]) / divisor, along); });
        along = block_sum(along);
        if (length < static_cast<f32>(eps)) along = 0.0f;
        for_columns(width, [=](i64 i) { to[i] = (from[i] - widen(values[i]) / divisor * along) / divisor; });
    });
}

// y (gradient - sum(gradient y)) over the first `visible` entries of a row, zeros behind them, which are not read.
template <class Y>
DEVICE void softmax_row_backward(const f32* gradient, const Y* y, f32* x_gradient, i64 visible, i64 width) {
    f32 along = 0.0f;
    for_columns(visible, [&](i64 i) { along = fmaf(gradient[i], widen(y[i]), along); });
    along = block_sum(along);
    for_columns(width, [=](i64 i) { x_gradient[i] = i < visible ? widen(y[i]) * (gradient[i] - along) : 0.0f; });
}

template <class Y>
DEVICE void softmax_backward(const f32* gradient, const Y* y, f32* x_gradient, i64 rows, i64 width, Status) {
    for_rows(nullptr, rows, 1, [=](i64 row) {
        softmax_row_backward(gradient + row * width, y + row * width, x_gradient + row * width, width, width);
    });
}

// Rows of squares: row i of each sees its first i + 1 entries.
template <class Y>
DEVICE void causal_softmax_backward(const f32* gradient, const Y* y, f32* x_gradient, i64 rows, i64 width, Status) {
    for_rows(nullptr, rows, 1, [=](i64 row) {
        const i64 visible = row % width + 1;
        softmax_row_backward(gradient + row * width, y + row * width, x_gradient + row * width, visible, width);
    });
}
