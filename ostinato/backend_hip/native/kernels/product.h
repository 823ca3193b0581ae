// Products of matrices that lie in memory as they are, a batch at a time: y = start + bias + scale * (a b).
//
// Where the matrices lie is given as steps, so that heads of token-major tensors are read and written in place, and
// several matrices of a may share one of b. Here is what the kernels of matmul.cpp fill in; product.cpp computes it.
#pragma once

#include "simd.h"
#include "thread_pool.h"

namespace ost::OST_UNIT {

// Elements from one matrix to the next: of an entry of the first batch axis, of the matrices in each, and of a matrix
// from one row to the next, or from one column to the next where it is turned.
struct Steps {
    int64_t entry, matrix, line;
    int64_t to(int64_t e, int64_t i) const { return e * entry + i * matrix; }
    // Elements from the first to the last one of `lines` lines of `width` each; negative where that overflows.
    int64_t span(int64_t entries, int64_t matrices, int64_t lines, int64_t width) const {
        if (entries == 0 || matrices == 0 || lines == 0 || width == 0) return 0;
        if (entry < 0 || matrix < 0 || line < 0) return -1;
        const int64_t first = plus(area(entries - 1, entry), area(matrices - 1, matrix));
        return plus(plus(first, area(lines - 1, line)), width);
    }
};

// Matrices of one float dtype; element (i, j) of one lies at i * line + j, or at j * line + i where it is turned.
struct Stacked {
    const void* at;
    int64_t dtype;
    Steps steps;
    bool turned;
};

struct DenseProduct {
    ThreadPool* pool;
    int64_t entries;  // valid ones
    int64_t each;     // matrices in one
    int64_t shared;   // matrices of a that read one of b
    int64_t rows;     // M, the valid ones
    int64_t depth;    // K
    int64_t columns;  // N
    Stacked a;        // [M, K]
    Stacked b;        // [K, N]
    float scale;
    const float* bias;  // [N], or null
    const void* start;  // lies as y does, and may be y; or null
    void* y;
    int64_t y_dtype;
    Steps y_steps;
};

void multiply_dense(const DenseProduct& product);

}  // namespace ost::OST_UNIT
