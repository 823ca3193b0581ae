// The one inner kernel of all linear operators: R rows of x times C vectors of outputs of a panel, held in registers
// over a chunk of K.
//
// The order in which a result is summed is the same for every R, C, P and every path that gets here: within a run of
// values with one scale, or within a chunk of kChunk values of k, one fused multiply-add after another; runs added to
// their chunk, and chunks to the total, in ascending order. So a row has the same bits alone, in a batch, at any place
// in it and on any number of threads.
//
// Few rows of x mean few sums in flight; formats with scales may then work on P runs side by side, which have sums of
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

// Bytes from a run to the p-th after it, for formats that have runs.
template <class W>
constexpr int run_bytes(int p) {
    if constexpr (W::kScaled) return p * W::kNextRun;
    return 0;
}

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

        // The first `valid` values of a word of each of the runs side by side times the X elements they belong to. From
        // memory, what lies where these words do behind `ahead` is asked for meanwhile, line by line.
        const auto multiply = [&](auto& sum, const auto& words, int64_t first, int valid, const char* ahead)
            __attribute__((always_inline)) {
            constexpr int B = static_cast<int>(sizeof words / sizeof words[0]);
            constexpr int kLines = W::kWordBytes < 64 ? 1 : W::kWordBytes / 64;
#pragma GCC unroll 8
            for (int j = 0; j < W::kPerWord; ++j) {
                if (j >= valid) break;
#pragma GCC unroll 16
                for (int p = 0; p < B; ++p) {
#pragma GCC unroll 2
                    for (int line = 0; line < kLines; ++line) {
                        const bool now = (p * kLines + line) * W::kPerWord / (B * kLines) == j;
                        if (now && ahead != nullptr) prefetch(ahead + run_bytes<W>(p) + line * 64);
                    }
                    const typename W::X* at = x + first + j;
                    if constexpr (W::kScaled) at += p * W::kRun;
                    vf b[C];
#pragma GCC unroll 16
                    for (int c = 0; c < C; ++c) b[c] = W::value(words[p][c], j);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) {
                        const auto xv = broadcast(at + r * stride);
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) accumulate(xv, b[c], sum[p][r][c]);
                    }
                }
            }
        };
        // Word i behind `at`.
        const auto step = [&](auto& sum, auto together, const char* at, const char* ahead, int64_t first, int i,
                              int valid) __attribute__((always_inline)) {
            constexpr int B = decltype(together)::value;
            typename W::Word words[B][C];
#pragma GCC unroll 16
            for (int p = 0; p < B; ++p) W::words(at + run_bytes<W>(p), i, column, words[p]);
            const bool ask = kFromMemory && i * W::kWordBytes % 64 == 0;
            multiply(sum, words, first + i * W::kPerWord, valid, ask ? ahead + i * W::kWordBytes : nullptr);
        };
        const auto fetch_next = [&](int runs) __attribute__((always_inline)) {
            for (int64_t line = 0; !kFromMemory && line < runs * weights.next_lines; ++line, next += 64) {
                prefetch_far(next);
            }
        };

        if constexpr (!W::kScaled) {
            for (; k + W::kBlock <= chunk; k += W::kBlock, w += W::kBlockBytes) {
                fetch_next(1);
#pragma GCC unroll 8
                for (int i = 0; i < W::kBlock / W::kPerWord; ++i) {
                    step(acc, Count<1>{}, w, w + W::kAhead, k, i, W::kPerWord);
                }
            }
            const int rest = static_cast<int>(chunk - k);
            for (int i = 0; i * W::kPerWord < rest; ++i) {
                step(acc, Count<1>{}, w, w + W::kAhead, k, i, rest - i * W::kPerWord);
            }
        } else {
            // Runs that follow `run` of the block at w side by side, or blocks of one run. d and m are the block's.
            const auto runs = [&](auto together, int run, const vf(&block_d)[C], const vf(&block_m)[C])
                __attribute__((always_inline)) {
                constexpr int B = decltype(together)::value;
                constexpr int kTogether = W::kWordBytes < 64 ? 64 / W::kWordBytes : 1;  // words that share a cache line
                constexpr int kShare = W::kHeader / W::kRuns;                           // of the header, a run's
                const char* at = w + W::kHeader + run_bytes<W>(run);
                const char* ahead = w + W::kAhead + run_bytes<W>(run);
                fetch_next(B);
                vf d[B][C];
                vf m[B][C];
                vf sum[B][R][C];
#pragma GCC unroll 16
                for (int p = 0; p < B; ++p) {
                    // Words are asked for as if there were no header; that leaves out the end of the block.
                    for (int line = 0; kFromMemory && line < kShare; line += 64) {
                        const int skipped = W::kRuns == 1 ? p * W::kBlockBytes : (run + p) * kShare;
                        prefetch(w + W::kAhead + W::kBlockBytes - W::kHeader + skipped + line);
                    }
                    // Early where there are two: scale() branches, and the compiler would move all but the last run's
                    // sums behind the branch, one after the other.
                    if constexpr (W::kRuns > 1 && B > 1) W::scale(w, run + p, column, block_d, block_m, d[p], m[p]);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) sum[p][r][c] = zero();
                }
#pragma GCC unroll 4
                for (int i = 0; i < W::kWords; i += kTogether) {
#pragma GCC unroll 2
                    for (int j = 0; j < kTogether; ++j) step(sum, together, at, ahead, k, i + j, W::kPerWord);
                }
                if constexpr (W::kRest != 0) {
                    vi words[B][C];
#pragma GCC unroll 16
                    for (int p = 0; p < B; ++p) W::rest(at + run_bytes<W>(p), column, words[p]);
                    multiply(sum, words, k + W::kWords * W::kPerWord, W::kRest, nullptr);
                }
#pragma GCC unroll 16
                for (int p = 0; p < B; ++p) {
                    if constexpr (W::kRuns == 1) W::factors(w + p * W::kBlockBytes, column, d[p], m[p]);
                    if constexpr (W::kRuns > 1 && B == 1) W::scale(w, run, column, block_d, block_m, d[p], m[p]);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
                        for (int c = 0; c < C; ++c) {
                            vf& total = acc[0][r][c];
                            total = fma(d[p][c], sum[p][r][c], total);
                            if constexpr (W::kMinimum) {
                                total = fma(m[p][c], splat(sums[r * rows.sums_stride + k / W::kRun + p]), total);
                            }
                        }
                }
                k += B * W::kRun;
            };
            vf d[C];
            vf m[C];
            if constexpr (W::kRuns == 1) {
                for (; k + P * W::kRun <= chunk; w += P * W::kBlockBytes) runs(Count<P>{}, 0, d, m);
                if constexpr (P > 1) {
                    for (; k < chunk; w += W::kBlockBytes) runs(Count<1>{}, 0, d, m);
                }
            } else {
                static_assert(W::kRuns % P == 0, "runs side by side are of one block");
                for (; k < chunk; w += W::kBlockBytes) {
                    W::factors(w, column, d, m);
                    for (int run = 0; run < W::kRuns; run += P) runs(Count<P>{}, run, d, m);
                }
            }
            sums += W::kMinimum ? kChunk / W::kRun : 0;
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
