// Gradients of movements: rows of a table that were read are summed in ascending order of the tokens that read them,
// what was repeated is summed again, what was cut out lies among zeros, and a mean is shared out over its rows.
#include "work.h"

namespace ost::OST_UNIT {

KernelTable movement_backward_kernels();

namespace {

constexpr int32_t kSkipped = -1;  // id of a token that adds nothing
constexpr int64_t kTableBytes =
    128 * 1024;                           // of a run of rows of the table: it stays in a cache between zeros and sums
constexpr double kZeroNanoseconds = 0.1;  // to write one float of zeros

OST_INLINE void add_row(const float* x, float* y, int64_t width) {
    for (int64_t i = 0; i < width; i += VW) {
        const int n = static_cast<int>(smaller(VW, width - i));
        store_lanes(y + i, load_lanes(y + i, n) + load_lanes(x + i, n), n);
    }
}

OST_INLINE void check_ids(const Call& call, const int32_t* ids, int64_t tokens, int64_t rows) {
    for (int64_t t = 0; t < tokens; ++t) {
        if (ids[t] < kSkipped || ids[t] >= rows) return report(call, OST_OUT_OF_RANGE);
    }
}

// Operands gradient [tokens, width], ids, y [rows, width]. Params: tokens, width, rows. A unit is a run of rows of the
// table.
void embedding_backward(const Call& call) {
    const int64_t tokens = call.integer(0), width = call.integer(1), rows = call.integer(2);
    if (tokens < 0 || width < 0 || rows < 0) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, area(tokens, width), 4) || !covers(call, 1, tokens, 4) ||
        !covers(call, 2, area(rows, width), 4)) {
        return;
    }
    const float* gradient = call.pointer<const float>(0);
    const auto* ids = call.pointer<const int32_t>(1);
    float* y = call.pointer<float>(2);
    check_ids(call, ids, tokens, rows);
    if (rows == 0 || width == 0) return;
    const int64_t run = larger(1, kTableBytes / (width * 4));
    const double cost =
        kZeroNanoseconds * static_cast<double>(run * width) + kStreamNanoseconds * static_cast<double>(tokens);
    for_rows(call, ceil_div(rows, run), cost, [=](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const auto first = static_cast<int32_t>(unit * run),
                       last = static_cast<int32_t>(smaller(rows, first + run));
            std::memset(y + first * width, 0, static_cast<size_t>((last - first) * width) * sizeof(float));
            for (int64_t t = 0; t < tokens; ++t) {
                if (ids[t] >= first && ids[t] < last) add_row(gradient + t * width, y + ids[t] * width, width);
            }
        }
    });
}

// Operands gradient, ids, y, to which the rows are added; params as of embedding_backward. A unit is a block of
// columns.
void embedding_backward_add(const Call& call) {
    const int64_t tokens = call.integer(0), width = call.integer(1), rows = call.integer(2);
    if (tokens < 0 || width < 0 || rows < 0) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, area(tokens, width), 4) || !covers(call, 1, tokens, 4) ||
        !covers(call, 2, area(rows, width), 4)) {
        return;
    }
    const float* gradient = call.pointer<const float>(0);
    const auto* ids = call.pointer<const int32_t>(1);
    float* y = call.pointer<float>(2);
    check_ids(call, ids, tokens, rows);
    constexpr int64_t block = 64;
    const double cost = 4 * kStreamNanoseconds * static_cast<double>(block * larger(1, tokens));
    for_rows(call, ceil_div(width, block), cost, [=](int64_t begin, int64_t end) {
        const int64_t column = begin * block, columns = smaller(width, end * block) - column;
        for (int64_t t = 0; t < tokens; ++t) {
            if (ids[t] < 0 || ids[t] >= rows) continue;
            add_row(gradient + t * width + column, y + ids[t] * width + column, columns);
        }
    });
}

// Operands one or two gradients, then as many results. Params: how many, repeats, then for each how many results of
// `inner` floats there are, and `inner`: result r is the sum of the `repeats` runs from run r * repeats on, in
// ascending order.
void sum_repeats(const Call& call) {
    const int64_t repeats = call.integer(1);
    const auto pairs = static_cast<uint32_t>(call.integer(0));
    if (pairs < 1 || pairs > 2 || repeats < 1) return report(call, OST_INVALID_ARGUMENT);
    for (uint32_t part = 0; part < pairs; ++part) {
        const int64_t outer = call.integer(2 + 2 * part), inner = call.integer(3 + 2 * part);
        if (empty(call, outer, inner)) continue;
        if (!covers(call, part, area(outer, repeats, inner), 4) || !covers(call, 2 + part, area(outer, inner), 4))
            return;
        const float* x = call.pointer<const float>(part);
        float* y = call.pointer<float>(2 + part);
        const double cost = kStreamNanoseconds * static_cast<double>(repeats * inner);
        for_rows(call, outer, cost, [=](int64_t begin, int64_t end) {
            for (int64_t run = begin; run < end; ++run) {
                const float* from = x + run * repeats * inner;
                float* to = y + run * inner;
                for (int64_t i = 0; i < inner; i += VW) {
                    const int n = static_cast<int>(smaller(VW, inner - i));
                    vf total = load_lanes(from + i, n);
                    for (int64_t r = 1; r < repeats; ++r) total = total + load_lanes(from + r * inner + i, n);
                    store_lanes(to + i, total, n);
                }
            }
        });
    }
}

// Operands gradient [outer, count, inner], y [outer, extent, inner]. Params: outer, count, inner, extent, start, step.
void slice_backward(const Call& call) {
    const int64_t outer = call.integer(0), count = call.integer(1), inner = call.integer(2), extent = call.integer(3);
    const int64_t start = call.integer(4), step = call.integer(5);
    if (empty(call, outer, inner, extent)) return;
    if (count < 0 || start < 0 || step < 1 || (count > 0 && plus(start, area(count - 1, step)) >= extent)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    if (!covers(call, 0, area(outer, count, inner), 4) || !covers(call, 1, area(outer, extent, inner), 4)) return;
    const float* x = call.pointer<const float>(0);
    float* y = call.pointer<float>(1);
    const auto bytes = static_cast<size_t>(inner) * sizeof(float);
    for_rows(call, outer * extent, kStreamNanoseconds * static_cast<double>(inner), [=](int64_t begin, int64_t end) {
        for (int64_t run = begin; run < end; ++run) {
            const int64_t place = run % extent - start, index = place / step;
            if (place >= 0 && place % step == 0 && index < count) {
                std::memcpy(y + run * inner, x + (run / extent * count + index) * inner, bytes);
            } else {
                std::memset(y + run * inner, 0, bytes);
            }
        }
    });
}

// Operands gradient [rows, width], start, length, y [tokens, width]. Params: rows, width, tokens. Rows may share
// tokens; their parts are added in ascending order.
void masked_mean_backward(const Call& call) {
    const int64_t rows = call.integer(0), width = call.integer(1), tokens = call.integer(2);
    if (empty(call, tokens, width)) return;
    if (!covers(call, 0, area(rows, width), 4) || !covers(call, 1, rows, 4) || !covers(call, 2, rows, 4) ||
        !covers(call, 3, area(tokens, width), 4)) {
        return;
    }
    const float* gradient = call.pointer<const float>(0);
    const auto* start = call.pointer<const int32_t>(1);
    const auto* length = call.pointer<const int32_t>(2);
    float* y = call.pointer<float>(3);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t count = length[row];
        if (count < 0 || (count > 0 && (start[row] < 0 || start[row] + count > tokens))) {
            return report(call, OST_OUT_OF_RANGE);
        }
    }
    const double cost = kStreamNanoseconds * static_cast<double>(width + rows);
    for_rows(call, tokens, cost, [=](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
            float* to = y + token * width;
            std::memset(to, 0, static_cast<size_t>(width) * sizeof(float));
            for (int64_t row = 0; row < rows; ++row) {
                if (token < start[row] || token >= start[row] + static_cast<int64_t>(length[row])) continue;
                const vf divisor = splat(static_cast<float>(length[row]));
                for (int64_t i = 0; i < width; i += VW) {
                    const int n = static_cast<int>(smaller(VW, width - i));
                    const vf part = load_lanes(gradient + row * width + i, n) / divisor;
                    store_lanes(to + i, load_lanes(to + i, n) + part, n);
                }
            }
        }
    });
}

constexpr KernelEntry entries[] = {
    {"embedding_backward", embedding_backward, 3, 3, 0},
    {"embedding_backward_add", embedding_backward_add, 3, 3, 0},
    {"sum_repeats", sum_repeats, 4, 6, (1u << 1) | (1u << 3)},
    {"slice_backward", slice_backward, 2, 6, 0},
    {"masked_mean_backward", masked_mean_backward, 4, 3, 0},
};

}  // namespace

KernelTable movement_backward_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
