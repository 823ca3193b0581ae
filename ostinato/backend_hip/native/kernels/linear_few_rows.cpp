// Few rows of x: the time goes into reading the weights, once, at memory speed. Work is handed out in runs of panels,
// which are decoded in registers.
#include "linear_results.h"

namespace ost::OST_UNIT {

namespace {

constexpr int64_t kUnitBytes = 128 * 1024;  // of weights in one unit of work, at least
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kMaximumUnitPanels = 32;

// Vectors of a panel that are computed in one pass, so that the sums of R rows and the decoded weights fit the
// registers: 32 of them with AVX-512, 16 elsewhere.
constexpr int vectors_of(int rows) { return VW == 16 || rows > 2 ? 2 : 4; }
// Runs of a format with scales that are worked on side by side (linear_tile.h): two, for enough sums in flight, where
// the registers hold them beside what the format itself needs. One alone is what memory follows best, so words of one
// value, which cost the least to decode, stay with it until there are sums to wait for. Measured.
template <class W>
constexpr int runs_of(int rows) {
    if constexpr (W::kScaled && VW == 16) {
        const int more = (W::kRest != 0 ? 2 : 0) + (W::kRuns > 1 && W::kMinimum ? 1 : 0);
        return rows + more <= 4 && (W::kPerWord > 1 || rows > 2) ? 2 : 1;
    }
    return 1;
}

// Sums of R rows of x and a panel, those of a row `stride` floats behind the one before.
template <class W, int R>
void sum_panel(const LinearProblem& p, int64_t panel, const TileX<typename W::X>& x, float* totals, int64_t stride) {
    constexpr int C = vectors_of(R);
    constexpr int P = runs_of<W>(R);
    const char* start = p.weights + panel * p.panel_bytes;
    TileWeights weights = {start, 0, nullptr, 0};
    if constexpr (C * VW == kLanes) {
        tile<W, R, C, P, 0>(weights, x, ceil_div(p.k, W::kPerX), totals, stride, false);
    } else {
        TileX<typename W::X> part = x;
        int64_t k = 0;
        do {  // a chunk is passed over several times while it is in the cache
            const int64_t count = ceil_div(smaller(kChunk, p.k - k), W::kPerX);
            weights.panel = panel_at<W>(start, k);
            for (weights.column = 0; weights.column < kLanes; weights.column += C * VW) {
                tile<W, R, C, P, 0>(weights, part, count, totals, stride, k > 0);
            }
            k += kChunk;
            part.x += kChunk / W::kPerX;
            part.sums += W::kMinimum ? kChunk / kQuantBlock : 0;
        } while (k < p.k);
    }
}

// Rows of x as tiles read them: where they lie, or in scratch; `free` is moved past what they take of it.
template <class W, int R>
TileX<typename W::X> rows_of_x(const LinearProblem& p, typename W::X*& free) {
    TileX<typename W::X> x = {static_cast<const typename W::X*>(p.x), ceil_div(p.k, W::kPerX), nullptr, 0};
    if (p.x_dtype != OST_F32 || W::kPerX != 1) {
        stage_x(p, 0, R, 0, p.k, nullptr, free, x.stride);
        x.x = free;
        free += R * x.stride;
    }
    if constexpr (W::kMinimum) {
        x.sums = free;
        x.sums_stride = p.k / kQuantBlock;
        for (int r = 0; r < R; ++r) sum_blocks(x.x + r * x.stride, p.k, free + r * x.sums_stride);
        free += R * x.sums_stride;
    }
    return x;
}

// Heads of a unit of about so many panels: whole panels where few enough heads are some, else panels at its ends are
// computed by its neighbours too.
int64_t heads_of_unit(const LinearProblem& p, int64_t panels) {
    const int64_t width = p.rope->places.width, whole = heads_of_whole_panels(p);
    if (whole * width > kMaximumUnitPanels * kLanes) return 1;
    return larger(1, panels * kLanes / width / whole) * whole;
}

template <class W, int R>
void run_rows(const LinearProblem& p) {
    using X = typename W::X;
    const int64_t enough = ceil_div(kUnitBytes, larger(1, p.panel_bytes));
    const int64_t share = p.panels / (kUnitsPerThread * p.pool->threads());
    const int64_t unit = larger(1, smaller(kMaximumUnitPanels, smaller(enough, share)));
    if (p.rope == nullptr) {
        return p.pool->parallel(ceil_div(p.panels, unit), [&](int64_t chunk, void* scratch) {
            auto* free = static_cast<X*>(scratch);
            const TileX<X> x = rows_of_x<W, R>(p, free);
            const int64_t last = smaller(p.panels, (chunk + 1) * unit);
            for (int64_t panel = chunk * unit; panel < last; ++panel) {
                float totals[R * kLanes];
                sum_panel<W, R>(p, panel, x, totals, kLanes);
                for (int r = 0; r < R; ++r) finish_row(p, panel, r, totals + r * kLanes);
            }
        });
    }
    const int64_t heads = heads_of_unit(p, unit), width = p.rope->places.width, all = p.rope->all_heads();
    p.pool->parallel(ceil_div(all, heads), [&](int64_t chunk, void* scratch) {
        auto* free = static_cast<X*>(scratch);
        const TileX<X> x = rows_of_x<W, R>(p, free);
        auto* totals = reinterpret_cast<float*>(free);
        const int64_t head = chunk * heads, count = smaller(heads, all - head);
        const int64_t first = head * width / kLanes, last = ceil_div((head + count) * width, kLanes);
        const int64_t stride = (last - first) * kLanes;
        for (int64_t panel = first; panel < last; ++panel) {
            sum_panel<W, R>(p, panel, x, totals + (panel - first) * kLanes, stride);
        }
        finish_heads(p, head, count, 0, R, totals + (head * width - first * kLanes), stride);
    });
}

template <class W>
void run_format(const LinearProblem& p) {
    switch (p.rows) {
        case 1: return run_rows<W, 1>(p);
        case 2: return run_rows<W, 2>(p);
        case 3: return run_rows<W, 3>(p);
        case 4: return run_rows<W, 4>(p);
        default: break;
    }
    if constexpr (kFewRows > 4) {
        switch (p.rows) {
            case 5: return run_rows<W, 5>(p);
            case 6: return run_rows<W, 6>(p);
            case 7: return run_rows<W, 7>(p);
            case 8: return run_rows<W, 8>(p);
            default: break;
        }
    }
}

}  // namespace

void linear_few_rows(const LinearProblem& p) {
#if defined(__AVX512BF16__)
    if (in_pairs(p)) return run_format<PanelBf16Dot>(p);
#endif
    switch (p.weight_dtype) {
        case OST_F32: return run_format<PanelF32>(p);
        case OST_F16: return run_format<PanelF16>(p);
        case OST_BF16: return run_format<PanelBf16>(p);
        default: break;
    }
    with_block(p.weight_dtype, [&](auto block) { run_format<PanelBlocks<decltype(block)>>(p); });
}

}  // namespace ost::OST_UNIT
