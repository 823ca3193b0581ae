// Kernels of products of matrices that lie as they are: operands and parameters checked, then product.cpp.
#include "product.h"

namespace ost::OST_UNIT {

KernelTable matmul_kernels();

namespace {

// Whether operand `operand` has the matrices of a stack, `rows` by `columns` each; reported else.
bool covers_stack(const Call& call, uint32_t operand, const Stacked& s, int64_t entries, int64_t each, int64_t rows,
                  int64_t columns) {
    const int64_t lines = s.turned ? columns : rows, width = s.turned ? rows : columns;
    return covers(call, operand, s.steps.span(entries, each, lines, width), element_bytes(s.dtype));
}

bool are_floats(const Call& call, int64_t a, int64_t b, int64_t y) {
    if (is_float(a) && is_float(b) && is_float(y)) return true;
    report(call, OST_INVALID_ARGUMENT);
    return false;
}

// Operands [c,] a, b, count?, y. Params: entries of the first batch axis, matrices in each, M, K, N, whether a and b
// are stored the other way round, scale, dtype of a and b, dtype of y, 1 where the count is of the rows M and not of
// the entries, how many matrices of a share one of b, then the steps of a, b and y. c lies as y does, and may be y.
void multiply(const Call& call, uint32_t a, bool adds) {
    const uint32_t b = a + 1, count = a + 2, y = a + 3;
    const int64_t entries = call.integer(0), each = call.integer(1), m = call.integer(2), k = call.integer(3);
    const int64_t n = call.integer(4), dtype = call.integer(8), y_dtype = call.integer(9), shared = call.integer(11);
    const bool of_rows = call.integer(10) != 0;
    const int64_t valid = valid_rows(call, count, of_rows ? m : entries);
    if (empty(call, entries, each, m, n, valid)) return;
    if (k < 0 || shared < 1 || each % shared != 0) return report(call, OST_INVALID_ARGUMENT);
    if (!are_floats(call, dtype, dtype, y_dtype)) return;
    const auto steps = [&](uint32_t first) {
        return Steps{call.integer(first), call.integer(first + 1), call.integer(first + 2)};
    };
    const Stacked left = {call.pointer<const char>(a), dtype, steps(12), call.integer(5) != 0};
    const Stacked right = {call.pointer<const char>(b), dtype, steps(15), call.integer(6) != 0};
    const Stacked result = {nullptr, y_dtype, steps(18), false};
    if (!covers_stack(call, a, left, entries, each, m, k) ||
        !covers_stack(call, b, right, entries, each / shared, k, n) ||
        (adds && !covers_stack(call, 0, result, entries, each, m, n)) ||
        !covers_stack(call, y, result, entries, each, m, n) ||
        !covers(call, y, area(entries, each, m, n), element_bytes(y_dtype))) {  // so that a run ends
        return;
    }
    multiply_dense({call.pool, of_rows ? entries : valid, each, shared, of_rows ? valid : m, k, n, left, right,
                    static_cast<float>(call.real(7)), nullptr, adds ? call.pointer<const char>(0) : nullptr,
                    call.pointer<char>(y), y_dtype, result.steps});
}

void matmul(const Call& call) { multiply(call, 0, false); }
void matmul_add(const Call& call) { multiply(call, 1, true); }

// Operands x, weight, bias?, residual?, count?, y. Params: rows, K, N, dtype of x, of the weight and of y. The weight
// is [N, K] as a checkpoint has it; a residual is of y's dtype and may be y.
void linear_natural(const Call& call) {
    const int64_t planned = call.integer(0), k = call.integer(1), n = call.integer(2), x_dtype = call.integer(3);
    const int64_t weight_dtype = call.integer(4), y_dtype = call.integer(5);
    const int64_t rows = valid_rows(call, 4, planned);
    if (empty(call, planned, n, rows)) return;
    if (!are_floats(call, x_dtype, weight_dtype, y_dtype)) return;
    const auto* bias = call.pointer<const float>(2);
    const auto* residual = call.pointer<const char>(3);
    const int64_t size = element_bytes(y_dtype);
    if (!covers(call, 0, area(planned, k), element_bytes(x_dtype)) ||
        !covers(call, 1, area(n, k), element_bytes(weight_dtype)) || (bias != nullptr && !covers(call, 2, n, 4)) ||
        (residual != nullptr && !covers(call, 3, area(planned, n), size)) ||
        !covers(call, 5, area(planned, n), size)) {
        return;
    }
    const Stacked x = {call.pointer<const char>(0), x_dtype, {0, 0, k}, false};
    const Stacked weight = {call.pointer<const char>(1), weight_dtype, {0, 0, k}, true};
    multiply_dense({call.pool, 1, 1, 1, rows, k, n, x, weight, 1.0f, bias, residual, call.pointer<char>(5), y_dtype,
                    {0, 0, n}});
}

constexpr KernelEntry entries[] = {
    {"matmul", matmul, 4, 21, 1u << 2},
    {"matmul_add", matmul_add, 5, 21, 1u << 3},
    {"linear_natural", linear_natural, 6, 6, 1u << 2 | 1u << 3 | 1u << 4},
};

}  // namespace

KernelTable matmul_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
