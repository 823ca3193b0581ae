// Losses in parts and backwards: cross entropy of each token, the mean over the tokens that have a target, and their
// gradients. A row of logits is walked once forwards, in blocks that stay in a first-level cache, and once backwards.
#include <math.h>

#include "work.h"

namespace ost::OST_UNIT {

KernelTable loss_kernels();

namespace {

constexpr int32_t kIgnored = -100;  // target of a row that does not count

struct RowSum {
    float top;
    double exponentials;  // sum of e^(x - top)
};

// float32 within blocks of 64 vectors, double over blocks; a block with a larger logit rescales what came before it.
OST_INLINE RowSum row_sum(const float* x, int64_t width) {
    constexpr int64_t block = 64 * VW;
    const vf lowest = splat(-kInfinity);
    RowSum found = {-kInfinity, 0.0};
    for (int64_t first = 0; first < width; first += block) {
        const int64_t end = smaller(width, first + block);
        vf high[2] = {lowest, lowest};
        int64_t i = first;
        for (; i + 2 * VW <= end; i += 2 * VW) {
            high[0] = maximum(load(x + i), high[0]);
            high[1] = maximum(load(x + i + VW), high[1]);
        }
        for (; i < end; i += VW) {
            const int64_t n = smaller(VW, end - i);
            high[0] = maximum(keep_first(load_lanes(x + i, static_cast<int>(n)), n, lowest), high[0]);
        }
        const float best = largest(maximum(high[0], high[1]));
        if (best > found.top) {
            if (found.exponentials != 0.0) found.exponentials *= ::exp(static_cast<double>(found.top) - best);
            found.top = best;
        }
        const vf shift = splat(found.top == -kInfinity ? 0.0f : found.top);
        vf sums[2] = {zero(), zero()};
        for (i = first; i + 2 * VW <= end; i += 2 * VW) {
            sums[0] = sums[0] + exp(load(x + i) - shift);
            sums[1] = sums[1] + exp(load(x + i + VW) - shift);
        }
        for (; i < end; i += VW) {
            const int64_t n = smaller(VW, end - i);
            sums[0] = sums[0] + keep_first(exp(load_lanes(x + i, static_cast<int>(n)) - shift), n, zero());
        }
        found.exponentials += static_cast<double>(sum(sums[0] + sums[1]));
    }
    return found;
}

// Whether a row has a target; one that is no column is reported, and then the row counts as if it had none.
OST_INLINE bool counts(const Call& call, int32_t target, int64_t width) {
    if (target == kIgnored) return false;
    const bool inside = target >= 0 && target < width;
    if (!inside) report(call, OST_OUT_OF_RANGE);
    return inside;
}

// Operands logits, target, y, log_sum. Params: rows, width.
void token_cross_entropy(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (empty(call, rows, width)) return;
    if (!covers(call, 0, area(rows, width), 4) || !covers(call, 1, rows, 4) || !covers(call, 2, rows, 4) ||
        !covers(call, 3, rows, 4)) {
        return;
    }
    const float* logits = call.pointer<const float>(0);
    const auto* target = call.pointer<const int32_t>(1);
    float* y = call.pointer<float>(2);
    float* log_sum = call.pointer<float>(3);
    const double cost = kExponentialNanoseconds * static_cast<double>(width);
    for_rows(call, rows, cost, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            y[row] = log_sum[row] = 0.0f;
            if (!counts(call, target[row], width)) continue;
            const RowSum found = row_sum(logits + row * width, width);
            const double power = ::log(found.exponentials), top = found.top;
            log_sum[row] = static_cast<float>(power + top);
            y[row] = static_cast<float>(power + (top - static_cast<double>(logits[row * width + target[row]])));
        }
    });
}

// factor * (e^(x - shift) / divisor - 1 at the target) over a row; x may be y.
template <class Y>
OST_INLINE void write_gradient(const float* x, Y* y, int64_t width, int64_t target, float shift, float divisor,
                               float factor) {
    const vf offset = splat(shift), times = splat(factor / divisor);
    const float at_target = factor * (exp(splat(x[target] - shift))[0] / divisor - 1.0f);
    int64_t i = 0;
    for (; i + 2 * VW <= width; i += 2 * VW) {
        const vf first = exp(load(x + i) - offset), second = exp(load(x + i + VW) - offset);
        store(y + i, first * times);
        store(y + i + VW, second * times);
    }
    for (; i < width; i += VW) {
        const int n = static_cast<int>(smaller(VW, width - i));
        store_lanes(y + i, exp(load_lanes(x + i, n) - offset) * times, n);
    }
    narrow(at_target, y[target]);
}

// Operands gradient, logits, target, log_sum, logits_gradient. Params: rows, width, dtype of the result.
void token_cross_entropy_backward(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using Y = decltype(type);
        const int64_t count = area(rows, width);
        if (!covers(call, 0, rows, 4) || !covers(call, 1, count, 4) || !covers(call, 2, rows, 4) ||
            !covers(call, 3, rows, 4) || !covers(call, 4, count, sizeof(Y))) {
            return;
        }
        const float* gradient = call.pointer<const float>(0);
        const float* logits = call.pointer<const float>(1);
        const auto* target = call.pointer<const int32_t>(2);
        const float* log_sum = call.pointer<const float>(3);
        Y* y = call.pointer<Y>(4);
        const double cost = kExponentialNanoseconds * static_cast<double>(width);
        for_rows(call, rows, cost, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                Y* to = y + row * width;
                if (counts(call, target[row], width)) {
                    write_gradient(logits + row * width, to, width, target[row], log_sum[row], 1.0f, gradient[row]);
                } else {
                    std::memset(to, 0, static_cast<size_t>(width) * sizeof(Y));
                }
            }
        });
    });
}

// How many targets count; 0, and reported, where none does.
OST_INLINE int64_t counted(const Call& call, const int32_t* target, int64_t rows) {
    int64_t found = 0;
    for (int64_t row = 0; row < rows; ++row) found += target[row] != kIgnored;
    if (found == 0) report(call, OST_OUT_OF_RANGE);
    return found;
}

// Operands gradient (a scalar), logits, target, logits_gradient. Params: rows, width, dtype of the result.
void cross_entropy_backward(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using Y = decltype(type);
        const int64_t count = area(rows, width);
        if (!covers(call, 0, 1, 4) || !covers(call, 1, count, 4) || !covers(call, 2, rows, 4) ||
            !covers(call, 3, count, sizeof(Y))) {
            return;
        }
        const float* logits = call.pointer<const float>(1);
        const auto* target = call.pointer<const int32_t>(2);
        Y* y = call.pointer<Y>(3);
        const int64_t valid = counted(call, target, rows);
        if (valid == 0) return;
        const auto factor =
            static_cast<float>(static_cast<double>(*call.pointer<const float>(0)) / static_cast<double>(valid));
        const double cost = 2 * kExponentialNanoseconds * static_cast<double>(width);
        for_rows(call, rows, cost, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const float* x = logits + row * width;
                Y* to = y + row * width;
                if (counts(call, target[row], width)) {
                    const RowSum found = row_sum(x, width);
                    write_gradient(x, to, width, target[row], found.top, static_cast<float>(found.exponentials),
                                   factor);
                } else {
                    std::memset(to, 0, static_cast<size_t>(width) * sizeof(Y));
                }
            }
        });
    });
}

// Operands x, target, y. Params: rows. One double in ascending order of rows: there are few of them beside the logits.
void target_mean(const Call& call) {
    const int64_t rows = call.integer(0);
    if (rows < 0) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, rows, 4) || !covers(call, 1, rows, 4) || !covers(call, 2, 1, 4)) return;
    const float* x = call.pointer<const float>(0);
    const auto* target = call.pointer<const int32_t>(1);
    float* y = call.pointer<float>(2);
    const int64_t valid = counted(call, target, rows);
    double total = 0;
    for (int64_t row = 0; row < rows; ++row) {
        if (target[row] != kIgnored) total += static_cast<double>(x[row]);
    }
    *y = valid == 0 ? kNotANumber : static_cast<float>(total / static_cast<double>(valid));
}

// Operands gradient (a scalar), target, x_gradient. Params: rows.
void target_mean_backward(const Call& call) {
    const int64_t rows = call.integer(0);
    if (empty(call, rows)) return;
    if (!covers(call, 0, 1, 4) || !covers(call, 1, rows, 4) || !covers(call, 2, rows, 4)) return;
    const auto* target = call.pointer<const int32_t>(1);
    float* y = call.pointer<float>(2);
    const int64_t valid = counted(call, target, rows);
    if (valid == 0) return;
    const auto share =
        static_cast<float>(static_cast<double>(*call.pointer<const float>(0)) / static_cast<double>(valid));
    for_elements(call, rows, 4 * kStreamNanoseconds, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) y[row] = target[row] == kIgnored ? 0.0f : share;
    });
}

constexpr KernelEntry entries[] = {
    {"token_cross_entropy", token_cross_entropy, 4, 2, 0},
    {"token_cross_entropy_backward", token_cross_entropy_backward, 5, 3, 0},
    {"cross_entropy_backward", cross_entropy_backward, 4, 3, 0},
    {"target_mean", target_mean, 3, 1, 0},
    {"target_mean_backward", target_mean_backward, 3, 1, 0},
};

}  // namespace

KernelTable loss_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
