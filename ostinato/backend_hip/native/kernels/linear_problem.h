// One matrix product y = x W^T with what may come before and after it, as the linear operators hand it to the two ways
// of computing it: few rows (weights streamed once, decoded in registers) and blocks (weights decoded once a block of
// rows). Here is how both get rows of x; where results go is in linear_results.h.
#pragma once

#include "linear_tile.h"
#include "norm.h"
#include "thread_pool.h"

namespace ost::OST_UNIT {

struct RopeStore;

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

    // With a gain the product is of the RMS norm of x, which is kept in float. Blocks normalise rows as they copy them;
    // few rows are normalised before, so that nothing is done again for each run of panels.
    const float* gain;
    float epsilon;

    // Linear: bias and residual, a y of the first result's type, added, columns split over up to three results. SwiGLU
    // (pair panels): one result. Rope: heads of q, k and v, turned and stored.
    bool swiglu;
    const RopeStore* rope;
    const float* bias;
    const void* residual;
    int64_t y_dtype;
    void* y[3];
    int64_t columns[3];
};

// Rows up to this many are computed by the first way. Results are the same bits either way.
inline constexpr int kFewRows = VW == 16 ? 8 : 4;

// Of a row's sums that wait for whole heads in the first way, and of x where heads are stored.
inline constexpr int64_t kMostColumns = 1024 + 2 * kLanes;
inline constexpr int64_t kMostRopeColumns = 65536;

void linear_few_rows(const LinearProblem& problem);
void linear_blocks(const LinearProblem& problem);
// Whether the second way has room for heads that are whole panels together, where the sums are of heads.
bool blocks_hold_heads(const LinearProblem& problem);

// Whether x and the weights are multiplied in pairs of bf16, which the norm of x is not.
OST_INLINE bool in_pairs(const LinearProblem& p) {
#if defined(__AVX512BF16__)
    return p.weight_dtype == OST_BF16 && p.x_dtype == OST_BF16 && p.gain == nullptr;
#else
    (void)p;
    return false;
#endif
}

// f(row r of x) as what it is made of.
template <class F>
OST_INLINE void with_x_row(const LinearProblem& p, int64_t row, const F& f) {
    switch (p.x_dtype) {
        case OST_F32: return f(static_cast<const float*>(p.x) + row * p.k);
        case OST_F16: return f(static_cast<const f16*>(p.x) + row * p.k);
        default: return f(static_cast<const bf16*>(p.x) + row * p.k);
    }
}

// What the norm multiplies rows [row, row + rows) by, beside the gain.
OST_INLINE void find_factors(const LinearProblem& p, int64_t row, int64_t rows, float* factors) {
    for (int64_t r = 0; r < rows; ++r) {
        with_x_row(p, row + r, [&](const auto* x) { factors[r] = inverse_mean_square(x, p.k, p.epsilon); });
    }
}

// x rows [row, row + rows), values [k, k + count), as floats with `stride` of them between rows; where there is a gain,
// normalised with the rows' factors.
OST_INLINE void stage_x(const LinearProblem& p, int64_t row, int64_t rows, int64_t k, int64_t count,
                        const float* factors, float* to, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r) {
        float* out = to + r * stride;
        with_x_row(p, row + r, [&](const auto* x) {
            if (p.gain != nullptr) {
                normalise(x + k, p.gain + k, out, count, factors[r]);
            } else {
                convert_run(x + k, out, count);
            }
        });
    }
}

// Pairs of bf16, an odd last one completed with zero.
OST_INLINE void stage_x(const LinearProblem& p, int64_t row, int64_t rows, int64_t k, int64_t count, const float*,
                        uint32_t* to, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const bf16* in = static_cast<const bf16*>(p.x) + (row + r) * p.k + k;
        uint32_t* out = to + r * stride;
        std::memcpy(out, in, static_cast<size_t>(count / 2) * sizeof(uint32_t));
        if (count % 2 != 0) out[count / 2] = in[count - 1].bits;
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

}  // namespace ost::OST_UNIT
