// The loss of each token, its mean over those that have a target, and their gradients. Logits are read once where the
// sum of their exponentials is known, and where only it is wanted.
#include "runs.h"

constexpr i32 IGNORED = -100;  // target of a token that does not count

struct Target {
    i32 place;
    bool counts, known;
    DEVICE Target(i32 target, i64 width)
        : place(target), counts(target != IGNORED), known(target >= 0 && target < width) {}
};

// The sum of e^x, as what it is times e^-peak, where peak is the largest x. What adds nothing is -infinity.
struct Exponentials {
    f32 peak = -infinity(), total = 0.0f;
    DEVICE static f32 finite(f32 peak) { return peak == -infinity() ? 0.0f : peak; }
    template <int M, int N>
    DEVICE void add(const f32 (&values)[M][N]) {
        f32 highest = peak;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N; ++n) highest = Largest()(highest, values[m][n]);
        }
        total *= expf(peak - finite(highest));
        peak = highest;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N; ++n) total += expf(values[m][n] - finite(peak));
        }
    }
};

// That of a row by one block, the same in every thread, in one pass: every thread keeps a sum of its own.
DEVICE Exponentials exponentials(const f32* x, i64 width) {
    constexpr int AT_ONCE = 8;
    Exponentials own;
    const i64 runs = width / RUN, step = thread_count();
    const bool whole = aligned(x);  // decides how values are read, not who adds them up
    for (i64 first = thread_index(); first < runs; first += AT_ONCE * step) {
        f32 values[AT_ONCE][RUN];
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m) {
#pragma unroll
            for (int n = 0; n < RUN; ++n) values[m][n] = -infinity();
            if (first + m * step < runs) load_values(x + (first + m * step) * RUN, whole, values[m]);
        }
        own.add(values);
    }
    for (i64 i = runs * RUN + thread_index(); i < width; i += step) {
        const f32 value[1][1] = {{x[i]}};
        own.add(value);
    }
    Exponentials all;
    all.peak = block_reduce(own.peak, Largest());
    all.total = block_sum(own.total * expf(own.peak - Exponentials::finite(all.peak)));
    return all;
}

DEVICE void token_cross_entropy(const f32* logits, const i32* target, f32* y, f32* log_sum, i64 rows, i64 width,
                                Status status) {
    for (i64 row = block_index(); row < rows; row += block_count()) {
        const Target wanted(target[row], width);
        const f32* const x = logits + row * width;
        f32 loss = wanted.counts ? not_a_number() : 0.0f, sum = loss;
        if (wanted.counts && wanted.known) {
            const Exponentials found = exponentials(x, width);
            if (thread_index() == 0) {
                const f64 log_total = log(static_cast<f64>(found.total)), peak = static_cast<f64>(found.peak);
                sum = static_cast<f32>(log_total + peak);
                loss = static_cast<f32>(log_total + (peak - static_cast<f64>(x[wanted.place])));
            }
        }
        if (thread_index() != 0) continue;
        if (wanted.counts && !wanted.known) status.out_of_range();
        y[row] = loss;
        log_sum[row] = sum;
    }
}

// A row's gradient: factor (e^(x - level) part - 1 at the target). Zeros, and x is not read, where it does not count.
template <class Y>
struct RowGradient {
    const f32* x;
    Y* y;
    Target wanted;
    f32 factor, level, part;
    DEVICE bool whole() const { return aligned(x) && aligned(y); }
    template <int N>
    DEVICE void operator()(i64 i, Count<N>) const {
        f32 values[N] = {};
        if (wanted.counts && wanted.known) {
            take(x + i, values);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const f32 power = expf(values[k] - level) * part;
                values[k] = factor * (i + k == wanted.place ? power - 1.0f : power);
            }
        }
        give(y + i, values);
    }
};

// Blocks along the grid's first axis share a row.
template <class Y>
DEVICE void token_cross_entropy_backward(const f32* gradient, const f32* logits, const i32* target, const f32* log_sum,
                                         Y* y, i64 rows, i64 width, Status status) {
    for (i64 row = block_index_y(); row < rows; row += block_count_y()) {
        const Target wanted(target[row], width);
        if (wanted.counts && !wanted.known && first_element() == 0) status.out_of_range();
        const RowGradient<Y> found = {
            logits + row * width, y + row * width, wanted, gradient[row], log_sum[row], 1.0f};
        for_runs(width, found.whole(), found);
    }
}

// Tokens that count, by one block; the same in every thread.
DEVICE i64 counted(const i32* target, i64 rows) {
    i64 count = 0;
    for (i64 row = thread_index(); row < rows; row += thread_count()) count += target[row] != IGNORED;
    return block_sum(count);
}

// A block a row, which reads its logits twice.
template <class Y>
DEVICE void cross_entropy_backward(const f32* gradient, const f32* logits, const i32* target, Y* y, i64 rows, i64 width,
                                   Status status) {
    const i64 count = counted(target, rows);
    if (count == 0 && rows != 0) status.out_of_range();
    for (i64 row = block_index(); row < rows; row += block_count()) {
        const Target wanted(target[row], width);
        if (wanted.counts && !wanted.known) status.out_of_range();
        const f32* const x = logits + row * width;
        Exponentials sum;
        if (wanted.counts && wanted.known) sum = exponentials(x, width);
        const RowGradient<Y> found = {
            x, y + row * width, wanted, *gradient / static_cast<f32>(count), sum.peak, 1.0f / sum.total};
        share_runs(thread_index(), thread_count(), width, found.whole(), found);
    }
}

// By one block, in f64.
DEVICE void target_mean(const f32* x, const i32* target, f32* y, i64 rows, Status status) {
    f64 total = 0.0;
    for (i64 row = thread_index(); row < rows; row += thread_count()) {
        if (target[row] != IGNORED) total += static_cast<f64>(x[row]);
    }
    total = block_sum(total);
    const i64 count = counted(target, rows);
    if (thread_index() != 0) return;
    if (count == 0) status.out_of_range();
    *y = count == 0 ? not_a_number() : static_cast<f32>(total / static_cast<f64>(count));
}

DEVICE void target_mean_backward(const f32* gradient, const i32* target, f32* y, i64 rows, Status status) {
    const i64 count = counted(target, rows);
    if (count == 0 && rows != 0) status.out_of_range();
    const f32 each = *gradient / static_cast<f32>(count);
    for (i64 row = thread_index(); row < rows; row += thread_count()) y[row] = target[row] == IGNORED ? 0.0f : each;
}
