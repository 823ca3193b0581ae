// linear_<W> and linear_swiglu_<W>: operands and parameters checked, then one of the two ways of linear_problem.h.
#include "linear_problem.h"

namespace ost::OST_UNIT {

KernelTable linear_kernels();

namespace {

// Whether the few-rows way can hold its copy of x and the sums of its blocks; it works on x itself where that is float.
bool few_rows(const LinearProblem& p) {
    if (p.rows > kFewRows) return false;
    const int64_t copied = p.x_dtype == OST_F32 ? 0 : p.k + 1;
    return p.rows * (copied + p.k / kQuantBlock) * 4 <= int64_t{kWorkerScratchBytes};
}

void compute(const LinearProblem& p) {
    if (few_rows(p)) {
        linear_few_rows(p);
    } else {
        linear_blocks(p);
    }
}

// linear: x, w, bias?, count?, y0, y1?, y2? | M, K, x_dt, y_dt, N0, N1, N2
template <int64_t kDtype>
void linear(const Call& call) {
    const int64_t m = call.integer(0);
    const int64_t k = call.integer(1);
    LinearProblem p = {};
    p.pool = call.pool;
    p.weight_dtype = kDtype;
    p.weights = call.pointer<const char>(1);
    p.panel_bytes = panel_bytes(kDtype, k);
    p.x = call.pointer<const void>(0);
    p.x_dtype = call.integer(2);
    p.rows = valid_rows(call, 3, m);
    p.k = k;
    p.bias = call.pointer<const float>(2);
    p.y_dtype = call.integer(3);
    int64_t n = 0;
    bool valid = m >= 0 && k >= 0 && p.panel_bytes >= 0 && is_float(p.x_dtype) && is_float(p.y_dtype);
    for (uint32_t o = 0; o < 3; ++o) {
        p.columns[o] = call.integer(4 + o);
        p.y[o] = call.pointer<void>(4 + o);
        valid = valid && p.columns[o] >= 0 && (p.y[o] != nullptr || p.columns[o] == 0);
        n = plus(n, p.columns[o]);
    }
    if (!valid || n < 0) return report(call, OST_INVALID_ARGUMENT);
    p.panels = ceil_div(n, kLanes);
    if (!covers(call, 0, area(m, k), element_bytes(p.x_dtype)) || !covers(call, 1, p.panels, p.panel_bytes)) return;
    if (p.bias != nullptr && !covers(call, 2, n, 4)) return;
    for (uint32_t o = 0; o < 3; ++o) {
        if (p.columns[o] != 0 && !covers(call, 4 + o, area(m, p.columns[o]), element_bytes(p.y_dtype))) return;
    }
    if (p.rows > 0 && n > 0) compute(p);
}

// linear_swiglu: x, w, count?, y | M, K, I, x_dt, y_dt
template <int64_t kDtype>
void linear_swiglu(const Call& call) {
    const int64_t m = call.integer(0);
    const int64_t k = call.integer(1);
    const int64_t n = call.integer(2);
    LinearProblem p = {};
    p.pool = call.pool;
    p.weight_dtype = kDtype;
    p.weights = call.pointer<const char>(1);
    p.panel_bytes = panel_bytes(kDtype, k);
    p.x = call.pointer<const void>(0);
    p.x_dtype = call.integer(3);
    p.rows = valid_rows(call, 2, m);
    p.k = k;
    p.swiglu = true;
    p.y_dtype = call.integer(4);
    p.y[0] = call.pointer<void>(3);
    p.columns[0] = n;
    if (m < 0 || k < 0 || n < 0 || p.panel_bytes < 0 || !is_float(p.x_dtype) || !is_float(p.y_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    p.panels = ceil_div(n, kLanes / 2);
    if (!covers(call, 0, area(m, k), element_bytes(p.x_dtype)) || !covers(call, 1, p.panels, p.panel_bytes) ||
        !covers(call, 3, area(m, n), element_bytes(p.y_dtype))) {
        return;
    }
    if (p.rows > 0 && n > 0) compute(p);
}

constexpr uint32_t kLinearOptional = 1u << 2 | 1u << 3 | 1u << 5 | 1u << 6;
constexpr uint32_t kSwigluOptional = 1u << 2;

#define OST_LINEAR(name, dtype, type) {"linear_" #name, linear<dtype>, 7, 7, kLinearOptional},
#define OST_SWIGLU(name, dtype, type) {"linear_swiglu_" #name, linear_swiglu<dtype>, 4, 5, kSwigluOptional},
constexpr KernelEntry entries[] = {OST_FLOAT_FORMATS(OST_LINEAR) OST_BLOCK_FORMATS(OST_LINEAR)
                                       OST_FLOAT_FORMATS(OST_SWIGLU) OST_BLOCK_FORMATS(OST_SWIGLU)};

}  // namespace

KernelTable linear_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
