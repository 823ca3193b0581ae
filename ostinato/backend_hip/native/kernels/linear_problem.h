// One matrix product y = x W^T with its epilogue, as the linear operators hand it to the two ways of computing it:
// few rows (weights streamed once, decoded in registers) and blocks (weights decoded once a block of rows).
#pragma once

#include "linear_tile.h"
#include "thread_pool.h"

namespace ost::OST_UNIT {

struct LinearProblem {
    ThreadPool* pool;
    int64_t weight_dtype;
    const char* weights;
    int64_t panels;
    int64_t panel_bytes;
    const void* x;
    int64_t x_dtype;
    int64_t rows;  // valid ones
    int64_t k;

    // Epilogue. Linear: bias added, columns split over up to three outputs. SwiGLU (pair panels): one output.
    bool swiglu;
    const float* bias;
    int64_t y_dtype;
    void* y[3];
    int64_t columns[3];
};

// Rows up to this many are computed by the first way. Results are the same bits either way.
inline constexpr int kFewRows = VW == 16 ? 8 : 4;

void linear_few_rows(const LinearProblem& problem);
void linear_blocks(const LinearProblem& problem);

OST_INLINE void store_run(int64_t dtype, void* to, int64_t at, const float* from, int64_t count) {
    if (dtype == OST_F32) {
        convert_run(from, static_cast<float*>(to) + at, count);
    } else if (dtype == OST_BF16) {
        convert_run(from, static_cast<bf16*>(to) + at, count);
    } else {
        convert_run(from, static_cast<f16*>(to) + at, count);
    }
}

// Writes row `row` of panel `panel`; totals holds its 32 sums and is used up.
OST_INLINE void finish_row(const LinearProblem& p, int64_t panel, int64_t row, float* totals) {
    if (p.swiglu) {
        constexpr int kPairs = kLanes / 2;
        for (int i = 0; i < kPairs; i += VW) store(totals + i, silu(load(totals + i)) * load(totals + kPairs + i));
        const int64_t first = panel * kPairs;
        store_run(p.y_dtype, p.y[0], row * p.columns[0] + first, totals, smaller(kPairs, p.columns[0] - first));
        return;
    }
    const int64_t first = panel * kLanes;
    const int64_t valid = smaller(kLanes, p.columns[0] + p.columns[1] + p.columns[2] - first);
    if (p.bias != nullptr) {
        for (int i = 0; i < kLanes; i += VW) {
            const int lanes = static_cast<int>(larger(0, smaller(VW, valid - i)));
            store(totals + i, load(totals + i) + load_n(p.bias + first + i, lanes));
        }
    }
    int64_t begin = 0;  // first column of the output
    for (int o = 0; o < 3; ++o) {
        const int64_t end = begin + p.columns[o];
        const int64_t from = larger(first, begin);
        const int64_t to = smaller(first + valid, end);
        if (from < to) {
            store_run(p.y_dtype, p.y[o], row * p.columns[o] + from - begin, totals + (from - first), to - from);
        }
        begin = end;
    }
}

// Where a panel lies: the output that has all its columns (-1: they are split over outputs, or the last one is short),
// and its first column there.
struct PanelPlace {
    int output;
    int64_t column;
};
OST_INLINE PanelPlace place_of(const LinearProblem& p, int64_t panel) {
    const int64_t lanes = p.swiglu ? kLanes / 2 : kLanes;
    int64_t first = panel * lanes;
    for (int o = 0; o < 3; first -= p.columns[o++]) {
        if (first >= 0 && first + lanes <= p.columns[o]) return {o, first};
    }
    return {-1, 0};
}

// Asks for the memory of results that a tile will write: a store waits for its line, and stores wait for one another.
OST_INLINE void fetch_results(const LinearProblem& p, int64_t panel, int64_t row, int64_t rows) {
    const PanelPlace place = place_of(p, panel);
    if (place.output < 0) return;
    const int64_t size = element_bytes(p.y_dtype), width = p.columns[place.output];
    const int64_t bytes = (p.swiglu ? kLanes / 2 : kLanes) * size;
    const char* y = static_cast<const char*>(p.y[place.output]) + (row * width + place.column) * size;
    for (int64_t r = 0; r < rows; ++r, y += width * size) {
        for (int64_t line = 0; line < bytes; line += 64) prefetch_to_write(y + line);
    }
}

template <class T>
OST_INLINE void finish_whole(const float* bias, int64_t rows, const float* totals, int64_t stride, T* y,
                             int64_t width) {
    constexpr int kVectors = kLanes / VW;
    vf b[kVectors];
#pragma GCC unroll 8
    for (int i = 0; bias != nullptr && i < kVectors; ++i) b[i] = load(bias + i * VW);
    for (int64_t r = 0; r < rows; ++r, totals += stride, y += width) {
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
            const vf total = load(totals + i * VW);
            store(y + i * VW, bias != nullptr ? total + b[i] : total);
        }
    }
}

// Writes rows [row, row + rows) of panel `panel`, whose sums are `stride` floats apart and are used up. A whole panel
// without SwiGLU goes row by row without a decision in between: of a short product it is a tenth of the time else.
OST_INLINE void finish_rows(const LinearProblem& p, int64_t panel, int64_t row, int64_t rows, float* totals,
                            int64_t stride) {
    const PanelPlace place = place_of(p, panel);
    if (place.output < 0 || p.swiglu || p.y_dtype == OST_F16) {
        for (int64_t r = 0; r < rows; ++r) finish_row(p, panel, row + r, totals + r * stride);
        return;
    }
    const float* bias = p.bias == nullptr ? nullptr : p.bias + panel * kLanes;
    const int64_t width = p.columns[place.output], at = row * width + place.column;
    void* y = p.y[place.output];
    if (p.y_dtype == OST_F32) return finish_whole(bias, rows, totals, stride, static_cast<float*>(y) + at, width);
    finish_whole(bias, rows, totals, stride, static_cast<bf16*>(y) + at, width);
}

// x rows [row, row + rows), values [k, k + count), as floats with `stride` of them between rows.
OST_INLINE void stage_x(const LinearProblem& p, int64_t row, int64_t rows, int64_t k, int64_t count, float* to,
                        int64_t stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (row + r) * p.k + k;
        float* out = to + r * stride;
        if (p.x_dtype == OST_F32) {
            convert_run(static_cast<const float*>(p.x) + at, out, count);
            continue;
        }
        int64_t i = 0;
        if (p.x_dtype == OST_BF16) {
            const bf16* in = static_cast<const bf16*>(p.x) + at;
            for (; i + VW <= count; i += VW) store(out + i, load(in + i));
            for (; i < count; ++i) out[i] = widen(in[i]);
        } else {
            const f16* in = static_cast<const f16*>(p.x) + at;
            for (; i + VW <= count; i += VW) store(out + i, load(in + i));
            for (; i < count; ++i) out[i] = widen(in[i]);
        }
    }
}

// The sum of a block's 32 values of x, in one fixed order.
OST_INLINE float sum_block(const float* x) {
    vf total = load(x);
    for (int i = VW; i < kQuantBlock; i += VW) total = total + load(x + i);
    return sum(total);
}

// Sums of each block of 32 values.
OST_INLINE void sum_blocks(const float* x, int64_t count, float* sums) {
    for (int64_t i = 0; i < count / kQuantBlock; ++i) sums[i] = sum_block(x + i * kQuantBlock);
}

// Pairs of bf16, an odd last one completed with zero.
OST_INLINE void stage_x(const LinearProblem& p, int64_t row, int64_t rows, int64_t k, int64_t count, uint32_t* to,
                        int64_t stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const bf16* in = static_cast<const bf16*>(p.x) + (row + r) * p.k + k;
        uint32_t* out = to + r * stride;
        std::memcpy(out, in, static_cast<size_t>(count / 2) * sizeof(uint32_t));
        if (count % 2 != 0) out[count / 2] = in[count - 1].bits;
    }
}

}  // namespace ost::OST_UNIT
