// Many rows of x: the time goes into multiply-adds. A unit of work is a block of rows and a group of panels. Chunk by
// chunk along K, the rows are copied to the worker's scratch as floats (or bf16 pairs) at a stride that no cache set
// dislikes; each panel's chunk is decoded beside them where its format needs it, and tiles of rows run over it from
// the nearest caches. Sums wait in scratch until K is done, so an output is written once, in its own type; where K is
// one chunk they do not wait, and a unit takes so many panels that its rows are copied once for most of them. Sums of
// heads that are turned always wait, for the whole head.
#include "linear_results.h"

namespace ost::OST_UNIT {

namespace {

constexpr int kTileRows = VW == 16 ? 12 : 6;
constexpr int kTileVectors = 2;
constexpr int64_t kBlockRows = 132;

// Panels of a unit, at most: where their sums wait beside a staged panel, where they wait alone, and where none waits.
constexpr int64_t kGroupStaged = 8;
constexpr int64_t kGroupWaiting = 14;
constexpr int64_t kGroup = 64;

constexpr int64_t kStageAhead = 1024;  // bytes: a panel's chunk mostly waits in a nearby cache already
template <int kRun, bool kMinimum>
constexpr int64_t kStagedBytes = kChunk / kRun * StagedRuns<kRun, kMinimum>::kBlockBytes;
constexpr int64_t kStageBytes = kStagedBytes<32, true>;
static_assert(kStagedBytes<16, false> <= kStageBytes, "shorter runs have no minima");
// X elements between two rows in scratch: 33 or 17 cache lines, an odd number. Past the chunk, a row keeps the sums of
// its blocks.
template <class T>
constexpr int kStride = kChunk / T::kPerX + kChunk / kQuantBlock;
constexpr int64_t scratch_bytes(int64_t stage, int64_t panels) {
    return stage + kBlockRows * (kStride<PanelF32> + panels * kLanes) * 4;
}
// The last bytes of the scratch are the rows' factors, where x is normalised.
constexpr int64_t kFactorsAt = int64_t{kWorkerScratchBytes} - kBlockRows * 4;
static_assert(scratch_bytes(kStageBytes, kGroupStaged) <= kFactorsAt && scratch_bytes(0, kGroupWaiting) <= kFactorsAt,
              "a unit of work fits the scratch");

// Decodes `count` values of k of one panel to what tiles of format T read.
template <class W, class T>
void stage_panel(const char* w, int64_t count, char* to) {
    constexpr int C = VW == 16 ? 2 : 4;
    for (int column = 0; column < kLanes; column += C * VW) {
        const char* block = w;
        auto* out = reinterpret_cast<float*>(to) + column;
        const auto put = [&](const vf(&b)[C]) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) store(out + c * VW, b[c]);
            out += kLanes;
        };
        const auto put_word = [&](const auto& word, int valid) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int j = 0; j < W::kPerWord; ++j) {
                if (j >= valid) break;
                vf b[C];
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) b[c] = W::value(word[c], j);
                put(b);
            }
        };
        const auto put_words = [&](const char* at, int values) __attribute__((always_inline)) {
            for (int i = 0; i * W::kPerWord < values; ++i) {
                typename W::Word word[C];
                W::words(at, i, column, word);
                put_word(word, values - i * W::kPerWord);
            }
        };
        int64_t k = 0;
        for (; k + W::kBlock <= count; k += W::kBlock, block += W::kBlockBytes) {
            for (int line = 0; line < W::kBlockBytes; line += 64) prefetch(block + kStageAhead + line);
            if constexpr (!W::kScaled) {
                put_words(block, W::kBlock);
            } else {
                vf block_d[C];
                vf block_m[C];
                W::factors(block, column, block_d, block_m);
                for (int run = 0; run < W::kRuns; ++run) {
                    const char* at = block + W::kHeader + run_bytes<W>(run);
                    vf d[C];
                    vf m[C];
                    if constexpr (W::kRuns > 1) W::scale(block, run, column, block_d, block_m, d, m);
                    put(W::kRuns > 1 ? d : block_d);
                    if constexpr (W::kMinimum) put(W::kRuns > 1 ? m : block_m);
                    put_words(at, W::kWords * W::kPerWord);
                    if constexpr (W::kRest != 0) {
                        vi word[C];
                        W::rest(at, column, word);
                        put_word(word, W::kRest);
                    }
                }
            }
        }
        if constexpr (W::kTail) put_words(block, static_cast<int>(count - k));
    }
}

// Notes the sums of each staged row's blocks past the chunk.
void note_sums(float* x, int64_t rows, int64_t count) {
    for (int64_t r = 0; r < rows; ++r, x += kStride<PanelF32>) sum_blocks(x, count, x + kChunk);
}

// One tile of `rows` rows over all 32 columns of a panel chunk.
template <class T, int R>
void tile_rows(int rows, TileWeights weights, const TileX<typename T::X>& x, int64_t count, float* totals,
               int64_t totals_stride, bool add) {
    if constexpr (R > 1) {
        if (rows < R) return tile_rows<T, R - 1>(rows, weights, x, count, totals, totals_stride, add);
    }
    constexpr int C = kTileVectors;
    for (weights.column = 0; weights.column < kLanes; weights.column += C * VW) {
        tile<T, R, C, 1, kStride<T>>(weights, x, count, totals, totals_stride, add);
        weights.next_lines = 0;
    }
}

template <class A, class B>
struct Same {
    static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
    static constexpr bool value = true;
};

struct Split {
    int64_t block_rows;
    int64_t blocks;
    int64_t group;
    int64_t groups;
};

// Who computes what: the fewest steps until the last thread is done, in units of a row times a panel. Small units
// share the work better; large ones copy x and decode weights less often. The choice cannot change a result.
Split choose_split(const LinearProblem& p, bool staged) {
    const int64_t threads = p.pool->threads();
    const int64_t fewest = ceil_div(p.rows, kBlockRows);
    const int64_t whole = p.rope == nullptr ? 1 : panels_of_whole_heads(p);  // which are finished together
    const int64_t waiting = (staged ? kGroupStaged : kGroupWaiting) / whole * whole;
    const int64_t most = p.rope == nullptr && p.k <= kChunk ? kGroup : waiting;
    const double decode_cost = staged ? 6.0 : 1.0;  // of a panel, in rows
    const double copy_cost = 0.12;                  // of a row of x, in panels
    Split best = {0, 0, 0, 0};
    double best_cost = 0;
    for (int64_t blocks = fewest; blocks <= fewest * 4; blocks += fewest) {
        const int64_t tiles = ceil_div(ceil_div(p.rows, blocks), kTileRows);
        const int64_t block_rows = smaller(tiles * kTileRows, kBlockRows);
        for (int64_t groups = ceil_div(p.panels, most); groups <= p.panels; groups *= 2) {
            const int64_t group = ceil_div(ceil_div(p.panels, groups), whole) * whole;
            const Split split = {block_rows, ceil_div(p.rows, block_rows), group, ceil_div(p.panels, group)};
            const double rows = static_cast<double>(smaller(block_rows, p.rows));
            const double panels = static_cast<double>(smaller(group, p.panels));
            const double unit = panels * (rows + decode_cost) + copy_cost * rows;
            const double cost = static_cast<double>(ceil_div(split.blocks * split.groups, threads)) * unit;
            if (best.blocks == 0 || cost < 0.98 * best_cost) {
                best = split;
                best_cost = cost;
            }
        }
    }
    return best;
}

// W is the format of the weights, T what tiles read: W itself or what stage_panel makes of it.
template <class W, class T>
void run_unit(const LinearProblem& p, const Split& split, int64_t unit, char* scratch) {
    using X = typename T::X;
    const int64_t row = unit / split.groups * split.block_rows;
    const int64_t rows = smaller(split.block_rows, p.rows - row);
    const int64_t panel = unit % split.groups * split.group;
    const int64_t panels = smaller(split.group, p.panels - panel);
    constexpr bool kStaged = !Same<W, T>::value;
    auto* x = reinterpret_cast<X*>(scratch + (kStaged ? kStageBytes : 0));
    auto* totals = reinterpret_cast<float*>(x + kBlockRows * kStride<T>);
    auto* factors = reinterpret_cast<float*>(scratch + kFactorsAt);
    if (p.gain != nullptr) find_factors(p, row, rows, factors);
    const bool waits = p.k > kChunk || p.rope != nullptr;
    const int64_t totals_stride = waits ? panels * kLanes : kLanes;
    const int tiles = static_cast<int>(ceil_div(rows, kTileRows));

    int64_t k = 0;
    do {
        const int64_t count = smaller(kChunk, p.k - k);
        const bool last_chunk = k + kChunk >= p.k;
        stage_x(p, row, rows, k, count, factors, x, kStride<T>);
        if constexpr (W::kMinimum) note_sums(x, rows, count);
        for (int64_t i = 0; i < panels; ++i) {
            const char* start = p.weights + (panel + i) * p.panel_bytes;
            TileWeights weights = {panel_at<W>(start, k), 0, nullptr, 0};
            if constexpr (kStaged) {
                stage_panel<W, T>(weights.panel, count, scratch);
                weights.panel = scratch;
            }
            const bool last_panel = i + 1 == panels;
            const int64_t blocks = larger(1, count / (T::kBlock * T::kPerX));
            if (!last_panel || !last_chunk) {
                weights.next = last_panel ? panel_at<W>(p.weights + panel * p.panel_bytes, k + kChunk)
                                          : panel_at<W>(start + p.panel_bytes, k);
                weights.next_lines = ceil_div(count / (W::kBlock * W::kPerX) * W::kBlockBytes / 64, tiles * blocks);
            }
            int64_t done = 0;
            for (int t = 0; t < tiles; ++t) {  // of equal height, give or take one
                const int64_t next = rows * (t + 1) / tiles;
                const X* first = x + done * kStride<T>;
                TileX<X> part = {first, kStride<T>, nullptr, kStride<T>};
                if constexpr (W::kMinimum) part.sums = first + kChunk;
                const bool finishes = last_chunk && p.rope == nullptr;
                if (finishes) fetch_results(p, panel + i, row + done, next - done);
                float* sums = waits ? totals + done * totals_stride + i * kLanes : totals;
                tile_rows<T, kTileRows>(static_cast<int>(next - done), weights, part, ceil_div(count, T::kPerX), sums,
                                        totals_stride, k > 0);
                if (finishes) finish_rows(p, panel + i, row + done, next - done, sums, totals_stride);
                done = next;
                weights.next += blocks * weights.next_lines * 64;
            }
        }
        k += kChunk;
    } while (k < p.k);
    if (p.rope != nullptr) {
        const int64_t width = p.rope->places.width, head = panel * kLanes / width;
        const int64_t heads = smaller(panels * kLanes / width, p.rope->all_heads() - head);
        finish_heads(p, head, heads, row, rows, totals, totals_stride);
    }
}

template <class W, class T>
void run(const LinearProblem& p) {
    const Split split = choose_split(p, !Same<W, T>::value);
    p.pool->parallel(split.blocks * split.groups,
                     [&](int64_t unit, void* scratch) { run_unit<W, T>(p, split, unit, static_cast<char*>(scratch)); });
}

}  // namespace

bool blocks_hold_heads(const LinearProblem& p) { return panels_of_whole_heads(p) <= kGroupStaged; }

void linear_blocks(const LinearProblem& p) {
#if defined(__AVX512BF16__)
    if (in_pairs(p)) return run<PanelBf16Dot, PanelBf16Dot>(p);
#endif
    switch (p.weight_dtype) {
        case OST_F32: return run<PanelF32, PanelF32>(p);
        case OST_F16: return run<PanelF16, PanelF32>(p);
        case OST_BF16: return run<PanelBf16, PanelF32>(p);
        default: break;
    }
    with_block(p.weight_dtype, [&](auto block) {
        using Block = decltype(block);
        run<PanelBlocks<Block>, StagedRuns<Block::kRun, Block::kMinimum>>(p);
    });
}

}  // namespace ost::OST_UNIT
