// Small dense products in registers: c[rows][columns] = a[rows][depth] * b[depth][columns], and the same added to c.
//
// The depth is cut into blocks. Each element of c has one accumulator that runs over a block in ascending order, and
// blocks are added in ascending order, whatever tile the element falls into: tiles of any shape give the same bits.
// Blocks keep the error near that of a tree: one chain over a head of 64 doubles it.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 6;  // 24 accumulators, 4 of b, 1 of a
inline constexpr int kTileVectors = 4;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 6;  // 12 accumulators, 2 of b, 1 of a
inline constexpr int kTileVectors = 2;
#else
inline constexpr int kTileRows = 4;  // 8 accumulators, 2 of b, 1 of a
inline constexpr int kTileVectors = 2;
#endif

// Memory that will be read soon, asked for a few cache lines at a time between blocks of arithmetic: all at once would
// fill the queues of the core and stall it.
class Stream {
  public:
    Stream(const char* const* rows, int64_t count, int64_t bytes) : rows_(rows), count_(count), bytes_(bytes) {}

    void step(int64_t lines) {
        while (lines > 0 && (at_ < end_ || next_run())) {
            const char* const stop = end_ - at_ > lines * 64 ? at_ + lines * 64 : end_;
            for (; at_ < stop; at_ += 64, --lines) __builtin_prefetch(at_, 0, 3);
        }
    }

  private:
    // Rows that follow one another in memory are one run.
    bool next_run() {
        if (count_ == 0) return false;
        at_ = *rows_;
        do {
            end_ = *rows_++ + bytes_;
        } while (--count_ > 0 && *rows_ == end_);
        return true;
    }

    const char* const* rows_;
    int64_t count_;
    int64_t bytes_;
    const char* at_ = nullptr;
    const char* end_ = nullptr;
};

// Columns are whole vectors: b and c are padded. The first block replaces c (rescale null) or is added to
// c * rescale[row]; later ones are added to c.
struct Product {
    const float* a;
    int64_t a_stride;
    const float* b;
    int64_t b_stride;
    float* c;
    int64_t c_stride;
    int64_t depth;
    int64_t block;
    const float* rescale;
    Stream* stream;
};

inline constexpr int64_t kStreamLines = 32;  // between two blocks

template <int ROWS, int VECTORS>
static void multiply_tile(const Product& p) {
    const float* b = p.b;
    for (int64_t first = 0; first < p.depth; first += p.block) {
        const int64_t end = smaller(p.depth, first + p.block);
        p.stream->step(kStreamLines);
        vf sums[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = zero();
        }
        for (int64_t k = first; k < end; ++k, b += p.b_stride) {
            vf right[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) right[v] = load(b + v * VW);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const vf left = splat(p.a[r * p.a_stride + k]);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(left, right[v], sums[r][v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            float* c = p.c + r * p.c_stride;
            if (first == 0 && p.rescale == nullptr) {
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) store(c + v * VW, sums[r][v]);
            } else {
                const vf factor = splat(first == 0 ? p.rescale[r] : 1.0f);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) store(c + v * VW, fma(load(c + v * VW), factor, sums[r][v]));
            }
        }
    }
}

template <int ROWS>
OST_INLINE void multiply_vectors(int64_t vectors, const Product& p) {
    switch (vectors) {
        case 1: multiply_tile<ROWS, 1>(p); break;
        case 2: multiply_tile<ROWS, 2>(p); break;
#if defined(__AVX512F__)
        case 3: multiply_tile<ROWS, 3>(p); break;
        case 4: multiply_tile<ROWS, 4>(p); break;
#endif
    }
}

// Up to kTileRows rows, any number of vectors.
OST_INLINE void multiply_rows(int64_t rows, int64_t vectors, Product p) {
    for (int64_t v = 0; v < vectors; v += kTileVectors) {
        const int64_t now = smaller(kTileVectors, vectors - v);
        switch (rows) {
            case 1: multiply_vectors<1>(now, p); break;
            case 2: multiply_vectors<2>(now, p); break;
            case 3: multiply_vectors<3>(now, p); break;
            case 4: multiply_vectors<4>(now, p); break;
#if defined(__AVX2__)
            case 5: multiply_vectors<5>(now, p); break;
            case 6: multiply_vectors<6>(now, p); break;
#endif
        }
        p.b += now * VW;
        p.c += now * VW;
    }
}

// Splits rows into tiles of nearly equal height: f(first row, rows).
template <class F>
OST_INLINE void for_tiles(int64_t first, int64_t end, const F& f) {
    int64_t tiles = ceil_div(end - first, kTileRows);
    while (first < end) {
        const int64_t rows = ceil_div(end - first, tiles--);
        f(first, rows);
        first += rows;
    }
}

}  // namespace ost::OST_UNIT
