// Few rows of x: the time goes into reading the weights, once, at memory speed. Work is handed out in runs of panels;
// P panels are read side by side (linear_tile.h says why) and decoded in registers.
#include "linear_problem.h"

namespace ost::OST_UNIT {

namespace {

constexpr int64_t kUnitBytes = 128 * 1024;  // of weights in one unit of work, at least
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kMaximumUnitPanels = 32;

// Vectors a pass over a panel takes (C) and panels side by side (P) for R rows, so that sums, decoded weights and
// scales fit the registers: 32 of them with AVX-512, 16 elsewhere.
constexpr int vectors_of(int rows) { return VW == 16 ? 2 : VW == 8 ? (rows <= 2 ? 4 : 2) : (rows <= 2 ? 4 : 2); }
constexpr int panels_of(int rows) { return VW == 16 ? (rows <= 2 ? 4 : rows <= 4 ? 2 : 1) : 1; }

template <class W, int R, int P>
void panels_side_by_side(const LinearProblem& p, int64_t panel, const typename W::X* x, int64_t stride) {
    constexpr int C = vectors_of(R);
    constexpr bool kOnePass = C * VW == kLanes;
    float totals[R * P * kLanes];
    const char* start = p.weights + panel * p.panel_bytes;
    const char* end = start + p.panel_bytes;
    if constexpr (kOnePass) {
        tile<W, R, C, P, 0>({start, end, p.panel_bytes, 0}, x, stride, ceil_div(p.k, W::kPerX), totals, P * kLanes,
                            false);
    } else {
        int64_t k = 0;
        do {  // a chunk is passed over several times while it is in the cache
            const int64_t count = ceil_div(smaller(kChunk, p.k - k), W::kPerX);
            const char* chunk = start + k / kQuantBlock * (kQuantBlock / W::kBlock / W::kPerX * W::kBlockBytes);
            for (int column = 0; column < kLanes; column += C * VW) {
                tile<W, R, C, P, 0>({chunk, end, p.panel_bytes, column}, x + k / W::kPerX, stride, count, totals,
                                    P * kLanes, k > 0);
            }
            k += kChunk;
        } while (k < p.k);
    }
    for (int r = 0; r < R; ++r) {
        for (int i = 0; i < P; ++i) finish_row(p, panel + i, r, totals + (r * P + i) * kLanes);
    }
}

template <class W, int R>
void run_rows(const LinearProblem& p) {
    constexpr int P = panels_of(R);
    const int64_t enough = ceil_div(kUnitBytes, larger(1, p.panel_bytes));
    const int64_t share = p.panels / (kUnitsPerThread * p.pool->threads());
    int64_t unit = smaller(kMaximumUnitPanels, smaller(ceil_div(enough, P) * P, share / P * P));
    if (unit == 0) unit = larger(1, smaller(share, 2));
    const bool in_place = p.x_dtype == OST_F32 && sizeof(typename W::X) == sizeof(float) && W::kPerX == 1;
    p.pool->parallel(ceil_div(p.panels, unit), [&](int64_t chunk, void* scratch) {
        const auto* x = static_cast<const typename W::X*>(p.x);
        if (!in_place) {
            auto* staged = static_cast<typename W::X*>(scratch);
            stage_x(p, 0, R, 0, p.k, staged, ceil_div(p.k, W::kPerX));
            x = staged;
        }
        const int64_t last = smaller(p.panels, (chunk + 1) * unit);
        int64_t panel = chunk * unit;
        for (; panel + P <= last; panel += P) panels_side_by_side<W, R, P>(p, panel, x, ceil_div(p.k, W::kPerX));
        if constexpr (P > 2) {
            for (; panel + 2 <= last; panel += 2) panels_side_by_side<W, R, 2>(p, panel, x, ceil_div(p.k, W::kPerX));
        }
        for (; panel < last; ++panel) panels_side_by_side<W, R, 1>(p, panel, x, ceil_div(p.k, W::kPerX));
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
    if (p.weight_dtype == OST_BF16 && p.x_dtype == OST_BF16) return run_format<PanelBf16Dot>(p);
#endif
    switch (p.weight_dtype) {
        case OST_F32: return run_format<PanelF32>(p);
        case OST_F16: return run_format<PanelF16>(p);
        case OST_BF16: return run_format<PanelBf16>(p);
        case OST_Q8_0: return run_format<PanelQ8>(p);
        case OST_Q4_0: return run_format<PanelQ40>(p);
        case OST_Q4_1: return run_format<PanelQ41>(p);
        default: return;
    }
}

}  // namespace ost::OST_UNIT
