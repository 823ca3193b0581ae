// linear_<W>, linear_swiglu_<W> and qkv_rope_store_<W>: operands and parameters checked, then one of the two ways of
// linear_problem.h.
#include "linear_results.h"

namespace ost::OST_UNIT {

KernelTable linear_kernels();

namespace {

// Whether the few-rows way can hold its copy of x, the sums of its blocks and those of heads; it works on x itself where
// that is float, as its norm always is.
bool few_rows(const LinearProblem& p) {
    if (p.rows > kFewRows) return false;
    const int64_t copied = p.x_dtype == OST_F32 || p.gain != nullptr ? 0 : p.k + 1;
    const int64_t waiting = p.rope == nullptr ? 0 : kMostColumns;
    return p.rows * (copied + p.k / kQuantBlock + waiting) * 4 <= int64_t{kWorkerScratchBytes};
}

// Few rows; where there is a gain their norms are put into the workspace first.
void compute_few(const Call& call, LinearProblem p, uint32_t workspace) {
    if (p.gain != nullptr) {
        if (!covers(call, workspace, area(p.rows, p.k), 4)) return;
        float* to = call.pointer<float>(workspace);
        for_rows(call, p.rows, 2 * kStreamNanoseconds * static_cast<double>(p.k), [&](int64_t begin, int64_t end) {
            float factors[kFewRows];
            find_factors(p, begin, end - begin, factors);
            stage_x(p, begin, end - begin, 0, p.k, factors, to + begin * p.k, p.k);
        });
        p.x = to;
        p.x_dtype = OST_F32;
        p.gain = nullptr;
    }
    linear_few_rows(p);
}

// What is left of a problem with heads behind its first rows.
LinearProblem rows_of(const LinearProblem& p, int64_t first, int64_t rows, RopeStore& rope) {
    LinearProblem part = p;
    part.x = static_cast<const char*>(p.x) + first * p.k * element_bytes(p.x_dtype);
    part.rows = rows;
    rope = *p.rope;
    rope.cosine += first * rope.half;
    rope.sine += first * rope.half;
    rope.places.row_of_token += first;
    rope.places.position += first;
    rope.q = static_cast<char*>(rope.q) + first * rope.heads * rope.places.width * element_bytes(rope.q_dtype);
    part.rope = &rope;
    return part;
}

void compute(const Call& call, const LinearProblem& p, uint32_t workspace) {
    if (few_rows(p)) return compute_few(call, p, workspace);
    if (p.rope == nullptr || blocks_hold_heads(p)) return linear_blocks(p);
    // Heads of an odd width: few rows at a time, which have the same bits.
    RopeStore rope = {};
    for (int64_t row = 0, rows = 0; row < p.rows; row += rows) {
        rows = smaller(kFewRows, p.rows - row);
        while (rows > 1 && !few_rows(rows_of(p, row, rows, rope))) rows /= 2;
        compute_few(call, rows_of(p, row, rows, rope), workspace);
    }
}

// What all three begin with: x is operand 0, the weight operand 1; M, K and the dtype of x.
template <int64_t kDtype>
LinearProblem problem_of(const Call& call, int64_t x_dtype, uint32_t count) {
    LinearProblem p = {};
    p.pool = call.pool;
    p.weight_dtype = kDtype;
    p.weights = call.pointer<const char>(1);
    p.k = call.integer(1);
    p.panel_bytes = panel_bytes(kDtype, p.k);
    p.x = call.pointer<const void>(0);
    p.x_dtype = x_dtype;
    p.rows = valid_rows(call, count, call.integer(0));
    return p;
}

// True when x, the weight, and the gain where there is one, are as large as they must be.
bool covers_inputs(const Call& call, const LinearProblem& p, uint32_t gain) {
    if (!covers(call, 0, area(call.integer(0), p.k), element_bytes(p.x_dtype))) return false;
    return covers(call, 1, p.panels, p.panel_bytes) && (p.gain == nullptr || covers(call, gain, p.k, 4));
}

// linear: x, w, bias?, residual?, gain?, count?, y0, y1?, y2?, workspace? | M, K, x_dt, y_dt, N0, N1, N2, eps
template <int64_t kDtype>
void linear(const Call& call) {
    const int64_t m = call.integer(0);
    LinearProblem p = problem_of<kDtype>(call, call.integer(2), 5);
    p.bias = call.pointer<const float>(2);
    p.residual = call.pointer<const void>(3);
    p.gain = call.pointer<const float>(4);
    p.epsilon = static_cast<float>(call.real(7));
    p.y_dtype = call.integer(3);
    int64_t n = 0;
    bool valid = m >= 0 && p.k >= 0 && p.panel_bytes >= 0 && is_float(p.x_dtype) && is_float(p.y_dtype);
    for (uint32_t o = 0; o < 3; ++o) {
        p.columns[o] = call.integer(4 + o);
        p.y[o] = call.pointer<void>(6 + o);
        valid = valid && p.columns[o] >= 0 && (p.y[o] != nullptr || p.columns[o] == 0);
        n = plus(n, p.columns[o]);
    }
    if (p.residual != nullptr) valid = valid && n == p.columns[0];
    if (!valid || n < 0) return report(call, OST_INVALID_ARGUMENT);
    p.panels = ceil_div(n, kLanes);
    if (!covers_inputs(call, p, 4) || (p.bias != nullptr && !covers(call, 2, n, 4))) return;
    if (p.residual != nullptr && !covers(call, 3, area(m, n), element_bytes(p.y_dtype))) return;
    for (uint32_t o = 0; o < 3; ++o) {
        if (p.columns[o] != 0 && !covers(call, 6 + o, area(m, p.columns[o]), element_bytes(p.y_dtype))) return;
    }
    if (p.rows > 0 && n > 0) compute(call, p, 9);
}

// linear_swiglu: x, w, gain?, count?, y, workspace? | M, K, I, x_dt, y_dt, eps
template <int64_t kDtype>
void linear_swiglu(const Call& call) {
    const int64_t m = call.integer(0), n = call.integer(2);
    LinearProblem p = problem_of<kDtype>(call, call.integer(3), 3);
    p.gain = call.pointer<const float>(2);
    p.epsilon = static_cast<float>(call.real(5));
    p.swiglu = true;
    p.y_dtype = call.integer(4);
    p.y[0] = call.pointer<void>(4);
    p.columns[0] = n;
    if (m < 0 || p.k < 0 || n < 0 || p.panel_bytes < 0 || !is_float(p.x_dtype) || !is_float(p.y_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    p.panels = ceil_div(n, kLanes / 2);
    if (!covers_inputs(call, p, 2) || !covers(call, 4, area(m, n), element_bytes(p.y_dtype))) return;
    if (p.rows > 0 && n > 0) compute(call, p, 5);
}

// qkv_rope_store: x, w, bias?, gain?, then the operands of prepare_rope_store, whose sixth is the count, workspace? | M,
// K, x_dt, eps, then its parameters
template <int64_t kDtype>
void qkv_rope_store(const Call& call) {
    const int64_t m = call.integer(0);
    LinearProblem p = problem_of<kDtype>(call, call.integer(2), 9);
    p.bias = call.pointer<const float>(2);
    p.gain = call.pointer<const float>(3);
    p.epsilon = static_cast<float>(call.real(3));
    if (m < 0 || p.k < 0 || p.k > kMostRopeColumns || p.panel_bytes < 0 || !is_float(p.x_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    RopeStore rope = {};
    if (!prepare_rope_store(call, 4, 4, m, rope)) return;
    const int64_t heads = plus(rope.heads, area(2, rope.places.heads)), n = area(heads, rope.places.width);
    if (n < 0 || rope.places.width > kMostColumns - 2 * kLanes) return report(call, OST_INVALID_ARGUMENT);
    p.rope = &rope;
    p.panels = ceil_div(n, kLanes);
    if (!covers_inputs(call, p, 3) || (p.bias != nullptr && !covers(call, 2, n, 4))) return;
    if (p.rows > 0 && n > 0) compute(call, p, 13);
}

constexpr uint32_t kLinearOptional = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 7 | 1u << 8 | 1u << 9;
constexpr uint32_t kSwigluOptional = 1u << 2 | 1u << 3 | 1u << 5;
constexpr uint32_t kRopeOptional = 1u << 2 | 1u << 3 | 1u << 9 | 1u << 13;

#define OST_LINEAR(name, dtype, type) {"linear_" #name, linear<dtype>, 10, 8, kLinearOptional},
#define OST_SWIGLU(name, dtype, type) {"linear_swiglu_" #name, linear_swiglu<dtype>, 6, 6, kSwigluOptional},
#define OST_ROPE(name, dtype, type) {"qkv_rope_store_" #name, qkv_rope_store<dtype>, 14, 14, kRopeOptional},
constexpr KernelEntry entries[] = {OST_FLOAT_FORMATS(OST_LINEAR) OST_BLOCK_FORMATS(OST_LINEAR)   //
                                   OST_FLOAT_FORMATS(OST_SWIGLU) OST_BLOCK_FORMATS(OST_SWIGLU)  //
                                   OST_FLOAT_FORMATS(OST_ROPE) OST_BLOCK_FORMATS(OST_ROPE)};

}  // namespace

KernelTable linear_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
