// The one inner kernel of all linear operators: R rows of x times C vectors of outputs of a panel, held in registers
// over a chunk of K.
//
// The order in which a result is summed is the same for every R, C, P and every path that gets here: within a block
// with scales, and within a chunk of kChunk values of k, one fused multiply-add after another in the order of decode();
// blocks added to their chunk, and chunks to the total, in ascending order. So a row has the same bits alone, in a
// batch, at any place in it and on any number of threads.
//
// Few rows of x mean few sums in flight; formats with scales then work on P blocks side by side, which have sums of
// their own. (Several panels side by side would do as well, but one stream of weights is what a memory system follows
// best.)
#pragma once

#include "panel.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kChunk = 512;

struct TileWeights {
    const char* panel;  // at the k the call starts with
    int column;         // first row of the panel that is computed
    // Weights that later calls will read, fetched meanwhile: so many cache lines a block. Where the panel itself comes
    // from memory (kStride 0) it is asked for as it is read, and this is not used.
    const char* next;
    int64_t next_lines;
};

// Rows of x, and for formats with a minimum the sums of each block of 32 of its values; strides in elements.
template <class X>
struct TileX {
    const X* x;
    int64_t stride;
    const float* sums;
    int64_t sums_stride;
};

template <int kValue>
struct Count {
    static constexpr int value = kValue;
};

// totals[column + ..] of row r (r * totals_stride) receives the sums over `count` elements of x; a count that spans
// several chunks starts at a chunk boundary. With `add` the sums are added to what is there. kStride is the distance of
// two rows of x where it is known when compiling, else 0.
template <class W, int R, int C, int P, int kStride>
static void tile(const TileWeights& weights, const TileX<typename W::X>& rows, int64_t count, float* totals,
                 int64_t totals_stride, bool add) {
    constexpr bool kFromMemory = kStride == 0;
    static_assert(P == 1 || W::kScaled, "only blocks with sums of their own go side by side");
    constexpr int64_t kChunkX = kChunk / W::kPerX;
    const int64_t stride = kStride != 0 ? kStride : rows.stride;
    const int column = weights.column;
    const char* w = weights.panel;
    const char* next = weights.next;
    const typename W::X* x = rows.x;
    const float* sums = rows.sums;
    int64_t done = 0;
    do {
        const int64_t chunk = smaller(count - done, kChunkX);
        int64_t k = 0;
        vf acc[1][R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) acc[0][r][c] = zero();

        // Weights at position i of each of the blocks times the `valid` X elements they belong to.
        const auto step = [&](auto& sum, auto together, int i, int valid) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int p = 0; p < decltype(together)::value; ++p) {
                vf b[W::kStep][C];
                W::decode(w + p * W::kBlockBytes, i, column, b);
                if (kFromMemory && (i / W::kStep * W::kStepBytes % 64 == 0)) {
#pragma GCC unroll 2
                    for (int line = 0; line < W::kStepBytes; line += 64) {
                        prefetch(w + W::kAhead + p * W::kBlockBytes + i / W::kStep * W::kStepBytes + line);
                    }
                }
#pragma GCC unroll 2
                for (int j = 0; j < W::kStep; ++j) {
                    if (j >= valid) break;
                    const typename W::X* at = x + k + p * W::kBlock + (W::kSplit != 0 ? i / 2 + j * W::kSplit : i + j);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) {
                        const auto xv = broadcast(at + r * stride);
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) accumulate(xv, b[j][c], sum[p][r][c]);
                    }
                }
            }
        };
        const auto fetch_next = [&](int blocks) __attribute__((always_inline)) {
            for (int64_t line = 0; !kFromMemory && line < blocks * weights.next_lines; ++line, next += 64) {
                prefetch_far(next);
            }
        };

        if constexpr (!W::kScaled) {
            for (; k + W::kBlock <= chunk; k += W::kBlock, w += W::kBlockBytes) {
                fetch_next(1);
#pragma GCC unroll 8
                for (int i = 0; i < W::kBlock; i += W::kStep) step(acc, Count<1>{}, i, W::kStep);
            }
            const int rest = static_cast<int>(chunk - k);
            for (int i = 0; i < rest; i += W::kStep) step(acc, Count<1>{}, i, rest - i);
        } else {
            const auto blocks = [&](auto together) __attribute__((always_inline)) {
                constexpr int B = decltype(together)::value;
                fetch_next(B);
                vf sum[B][R][C];
#pragma GCC unroll 16
                for (int p = 0; p < B; ++p) {
                    for (int line = 0; kFromMemory && line < W::kHeader; line += 64) {
                        prefetch(w + W::kAhead + (p + 1) * W::kBlockBytes - 64 - line);
                    }
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) sum[p][r][c] = zero();
                }
#pragma GCC unroll 4
                for (int i = 0; i < W::kBlock; i += 2 * W::kStep) {  // two at a time share a cache line
                    step(sum, together, i, W::kStep);
                    step(sum, together, i + W::kStep, W::kStep);
                }
#pragma GCC unroll 16
                for (int p = 0; p < B; ++p) {
                    vf d[C];
                    vf m[C];
                    W::scale(w + p * W::kBlockBytes, column, d, m);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) {
                            vf& total = acc[0][r][c];
                            total = fma(d[c], sum[p][r][c], total);
                            if constexpr (W::kMinimum) {
                                total = fma(m[c], splat(sums[r * rows.sums_stride + k / W::kBlock + p]), total);
                            }
                        }
                }
                k += B * W::kBlock;
                w += B * W::kBlockBytes;
            };
            while (k + P * W::kBlock <= chunk) blocks(Count<P>{});
            if constexpr (P > 1) {
                while (k < chunk) blocks(Count<1>{});
            }
            sums += W::kMinimum ? kChunk / W::kBlock : 0;
        }

#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) {
                float* to = totals + r * totals_stride + column + c * VW;
                store(to, add ? load(to) + acc[0][r][c] : acc[0][r][c]);
            }
        add = true;
        done += chunk;
        x += chunk;
    } while (done < count);
}

}  // namespace ost::OST_UNIT
