// The one inner kernel of all linear operators: R rows of x times C vectors of outputs in each of P panels, held in
// registers over a chunk of K.
//
// The order in which a result is summed is the same for every R, C, P and every path that gets here: within a block with
// scales, and within a chunk of kChunk values of k, one fused multiply-add after another in the order of decode();
// blocks added to their chunk, and chunks to the total, in ascending order. So a row has the same bits alone, in a batch,
// at any place in it and on any number of threads. More than one panel at a time (P) is how few rows still keep enough
// independent sums in flight.
#pragma once

#include "panel.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kChunk = 512;

struct TileWeights {
    const char* panel;    // first panel, at the k the call starts with
    const char* end;      // end of that panel
    int64_t panel_bytes;  // distance to the next panel
    int column;           // first row of the panels that is computed
};

// Rows of x, and for formats with a minimum the sums of each block of 32 of its values; strides in elements.
template <class X>
struct TileX {
    const X* x;
    int64_t stride;
    const float* sums;
    int64_t sums_stride;
};

// totals[p * kLanes + column + ..] of row r (r * totals_stride) receives the sums over `count` elements of x; a count
// that spans several chunks starts at a chunk boundary. With `add` the sums are added to what is there. kStride is the
// distance of two rows of x where it is known when compiling, else 0.
template <class W, int R, int C, int P, int kStride>
static void tile(const TileWeights& weights, const TileX<typename W::X>& rows, int64_t count, float* totals,
                 int64_t totals_stride, bool add) {
    constexpr int64_t kChunkX = kChunk / W::kPerX;
    const int64_t stride = kStride != 0 ? kStride : rows.stride;
    const int64_t panel_bytes = weights.panel_bytes;
    const int column = weights.column;
    const char* w = weights.panel;
    const typename W::X* x = rows.x;
    const float* sums = rows.sums;
    int64_t done = 0;
    do {
        const int64_t chunk = smaller(count - done, kChunkX);
        vf acc[P][R][C];    // of the chunk
        vf inner[P][R][C];  // of the block, where it has scales
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                for (int c = 0; c < C; ++c) acc[p][r][c] = zero();

        // Weights at position k of a block times the `valid` X elements they belong to.
        const auto step = [&](vf(&sum)[P][R][C], const char* ask, int k, int valid, const typename W::X* xs)
                              __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                vf b[W::kStep][C];
                W::decode(w + p * panel_bytes, k, column, b);
                if (W::kStepBytes >= 64 || k / W::kStep % (64 / W::kStepBytes) == 0) {
#pragma GCC unroll 2
                    for (int line = 0; line < W::kStepBytes; line += 64) {
                        prefetch(ask + p * panel_bytes + k / W::kStep * W::kStepBytes + line);
                    }
                }
#pragma GCC unroll 2
                for (int i = 0; i < W::kStep; ++i) {
                    if (i >= valid) break;
                    const typename W::X* at = xs + (W::kSplit != 0 ? k / 2 + i * W::kSplit : k + i);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) {
                        const auto xv = broadcast(at + r * stride);
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) accumulate(xv, b[i][c], sum[p][r][c]);
                    }
                }
            }
        };

        int64_t k = 0;
        for (; k + W::kBlock <= chunk; k += W::kBlock, w += W::kBlockBytes) {
            // Past the end of its panel a stream continues where the next call's begins, P panels on.
            const char* ask = w + W::kAhead;
            if (P > 1 && ask >= weights.end) ask += (P - 1) * panel_bytes;
            if constexpr (!W::kScaled) {
#pragma GCC unroll 8
                for (int i = 0; i < W::kBlock; i += W::kStep) step(acc, ask, i, W::kStep, x + k);
            } else {
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) {
                    for (int line = 0; line < W::kHeader; line += 64) {
                        prefetch(ask + p * panel_bytes + W::kBlockBytes - 64 - line);
                    }
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) inner[p][r][c] = zero();
                }
#pragma GCC unroll 4
                for (int i = 0; i < W::kBlock; i += 2 * W::kStep) {
                    step(inner, ask, i, W::kStep, x + k);
                    step(inner, ask, i + W::kStep, W::kStep, x + k);
                }
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) {
                    vf d[C];
                    vf m[C];
                    W::scale(w + p * panel_bytes, column, d, m);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) {
                            acc[p][r][c] = fma(d[c], inner[p][r][c], acc[p][r][c]);
                            if constexpr (W::kMinimum) {
                                const vf sum = splat(sums[r * rows.sums_stride + k / kQuantBlock]);
                                acc[p][r][c] = fma(m[c], sum, acc[p][r][c]);
                            }
                        }
                }
            }
        }
        if constexpr (W::kTail) {
            const int rest = static_cast<int>(chunk - k);
            for (int i = 0; i < rest; i += W::kStep) step(acc, w + W::kAhead, i, rest - i, x + k);
        }

#pragma GCC unroll 16
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                for (int c = 0; c < C; ++c) {
                    float* to = totals + r * totals_stride + p * kLanes + column + c * VW;
                    store(to, add ? load(to) + acc[p][r][c] : acc[p][r][c]);
                }
        add = true;
        done += chunk;
        x += chunk;
        sums += W::kMinimum ? kChunk / kQuantBlock : 0;
    } while (done < count);
}

}  // namespace ost::OST_UNIT
