// Argmax and cross entropy over rows of logits; sampling is in sample.cpp, penalties in penalize.cpp.
#include "selection.h"

#include <math.h>

#include "exponential.h"

namespace ost::OST_UNIT {

namespace {

constexpr int32_t kIgnored = -100;  // target of a row that does not count

OST_INLINE bool any(vi mask) {
    int32_t lanes[VW];
    store_i(lanes, mask);
    int32_t all = 0;
    for (int i = 0; i < VW; ++i) all |= lanes[i];
    return all != 0;
}

}  // namespace

RowPeak row_peak(const float* x, int64_t width) {
    const vf infinity = splat(kInfinity), lowest = splat(-kInfinity);
    vf high[2] = {lowest, lowest};
    vi usable[2] = {splat_i(-1), splat_i(-1)};
    int64_t i = 0;
    for (; i + 2 * VW <= width; i += 2 * VW) {
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
            const vf value = load(x + i + u * VW);
            usable[u] = usable[u] & (value < infinity);  // false for NaN too
            high[u] = maximum(value, high[u]);
        }
    }
    for (; i < width; i += VW) {
        const int64_t n = smaller(VW, width - i);
        const vf value = keep_first(load_n(x + i, static_cast<int>(n)), n, lowest);
        usable[0] = usable[0] & (value < infinity);
        high[0] = maximum(value, high[0]);
    }
    const float value = largest(maximum(high[0], high[1]));
    return {value, !any(~(usable[0] & usable[1])) && value > -kInfinity};
}

int32_t first_place(const float* x, int64_t width, float value) {
    const vf wanted = splat(value);
    int64_t i = 0;
    while (i + VW <= width && !any(load(x + i) == wanted)) i += VW;
    while (i < width && !(x[i] == value)) ++i;
    return static_cast<int32_t>(i);
}

void argmax(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 1, capacity);
    if (empty(call, rows)) return;
    if (width < 0 || width > INT32_MAX) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, area(capacity, width), 4) || !covers(call, 2, capacity, 4)) return;
    const float* x = call.pointer<const float>(0);
    auto* y = call.pointer<int32_t>(2);
    const double cost = 1.5 * kStreamNanoseconds * static_cast<double>(width);
    for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const RowPeak peak = row_peak(x + row * width, width);
            y[row] = peak.usable ? first_place(x + row * width, width, peak.value) : -1;
        }
    });
}

// Mean over rows of log(sum(e^x)) - x[target]. Workspace, two floats a row: the largest logit and the sum of
// exponentials above it; zeros for an ignored row.
void cross_entropy(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1);
    float* y = call.pointer<float>(3);
    if (rows < 0 || width < 0) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, area(rows, width), 4) || !covers(call, 1, rows, 4) || !covers(call, 2, area(rows, 2), 4) ||
        !covers(call, 3, 1, 4)) {
        return;
    }
    const float* logits = call.pointer<const float>(0);
    const auto* target = call.pointer<const int32_t>(1);
    float* workspace = call.pointer<float>(2);
    const double cost = 2 * kExponentialNanoseconds * static_cast<double>(width);
    for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const bool counts = target[row] >= 0 && target[row] < width;
            const float* x = logits + row * width;
            const float top = counts ? row_peak(x, width).value : 0.0f;
            workspace[2 * row] = top;
            workspace[2 * row + 1] = counts ? static_cast<float>(exponential_sum(x, width, top)) : 0.0f;
        }
    });
    double total = 0;
    int64_t valid = 0;
    bool bad = false;
    for (int64_t row = 0; row < rows; ++row) {
        if (target[row] == kIgnored) continue;
        if (target[row] < 0 || target[row] >= width) {
            bad = true;
            continue;
        }
        const double top = workspace[2 * row], exponentials = workspace[2 * row + 1];
        total += ::log(exponentials) + (top - static_cast<double>(logits[row * width + target[row]]));
        ++valid;
    }
    if (bad || valid == 0) {
        report(call, OST_OUT_OF_RANGE);
        *y = kNotANumber;
        return;
    }
    *y = static_cast<float>(total / static_cast<double>(valid));
}

namespace {
constexpr KernelEntry entries[] = {
    {"argmax", argmax, 3, 2, 1u << 1},
    {"sample", sample, 10, 2, 1u << 7},
    {"penalize", penalize, 10, 3, 1u << 7},
    {"add_at_tokens", add_at_tokens, 6, 3, 1u << 4},
    {"advance", advance, 9, 3, 1u << 7 | 1u << 8},
    {"cross_entropy", cross_entropy, 4, 2, 0},
};
}  // namespace

KernelTable selection_kernels();
KernelTable selection_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
