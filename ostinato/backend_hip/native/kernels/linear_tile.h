// The one inner kernel of all linear operators: R rows of x times C vectors of outputs in each of P panels, held in
// registers over a chunk of K.
//
// The order in which a result is summed is the same for every R, C, P and every path that gets here: within a chunk of
// kChunk values of k one fused multiply-add after another, ascending; chunks added to the total in ascending order. So a
// row has the same bits alone, in a batch, at any place in it and on any number of threads. More than one panel at a
// time (P) is how few rows still keep enough independent sums in flight.
#pragma once

#include "panel.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kChunk = 512;
inline constexpr int64_t kAhead = 2048;  // bytes between what is read and what is asked for; memory latency x bandwidth

template <bool kValue>
struct Flag {
    static constexpr bool value = kValue;
};

struct TileWeights {
    const char* panel;      // first panel, at the k the call starts with
    const char* end;        // end of that panel
    int64_t panel_bytes;    // distance to the next panel
    int column;             // first row of the panel that is computed
};

// totals[p * kLanes + column + ..] of row r (r * totals_stride) receives the sums over `count` elements of x; a count
// that spans several chunks starts at a chunk boundary. With `add` the sums are added to what is there. kStride is the
// distance of two rows of x where it is known when compiling, else 0.
template <class W, int R, int C, int P, int kStride>
static void tile(const TileWeights& weights, const typename W::X* x, int64_t stride, int64_t count, float* totals,
                 int64_t totals_stride, bool add) {
    const int64_t x_stride = kStride != 0 ? kStride : stride;
    constexpr int64_t kChunkX = kChunk / W::kPerX;
    const char* w = weights.panel;
    const int64_t panel_bytes = weights.panel_bytes;
    const int column = weights.column;
    int64_t done = 0;
    do {
        const int64_t chunk = smaller(count - done, kChunkX);
        vf acc[P][R][C];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                for (int c = 0; c < C; ++c) acc[p][r][c] = zero();

        const auto step = [&](auto second_half, const char* block, const char* ask, int k, int valid,
                              const typename W::X* xs, const typename W::template Scale<C>(&scale)[P]) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                vf b[W::kStep][C];
                W::template decode<decltype(second_half)::value>(block + p * panel_bytes, k, column, scale[p], b);
                if (W::kStepBytes >= 64 || k * W::kStepBytes % 64 == 0) {
#pragma GCC unroll 2
                    for (int line = 0; line < W::kStepBytes; line += 64) {
                        prefetch(ask + p * panel_bytes + k / W::kStep * W::kStepBytes + line);
                    }
                }
#pragma GCC unroll 2
                for (int i = 0; i < W::kStep; ++i) {
                    if (i >= valid) break;
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) {
                        const auto xv = broadcast<W>(xs + r * x_stride + k + i);
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) accumulate<W>(xv, b[i][c], acc[p][r][c]);
                    }
                }
            }
        };

        int64_t k = 0;
        typename W::template Scale<C> scale[P];
        for (; k + W::kBlock <= chunk; k += W::kBlock, w += W::kBlockBytes) {
            // Past the end of its panel a stream continues where the next call's begins, P panels on.
            const char* ask = w + kAhead;
            if (P > 1 && ask >= weights.end) ask += (P - 1) * panel_bytes;
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                W::scale(w + p * panel_bytes, column, scale[p]);
                for (int line = W::kBlock / W::kStep * W::kStepBytes; line < W::kBlockBytes; line += 64) {
                    prefetch(ask + p * panel_bytes + line);
                }
            }
            constexpr int kHalf = W::kBlock / 2;
#pragma GCC unroll 4
            for (int i = 0; i < kHalf; i += W::kStep) step(Flag<false>{}, w, ask, i, W::kStep, x + k, scale);
#pragma GCC unroll 4
            for (int i = kHalf; i < W::kBlock; i += W::kStep) step(Flag<true>{}, w, ask, i, W::kStep, x + k, scale);
        }
        if constexpr (W::kTail) {
            const int rest = static_cast<int>(chunk - k);
            for (int i = 0; i < rest; i += W::kStep) step(Flag<false>{}, w, w + kAhead, i, rest - i, x + k, scale);
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
    } while (done < count);
}

}  // namespace ost::OST_UNIT
