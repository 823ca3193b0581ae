// Where the sums of a product go: bias and residual added, SwiGLU, one to three results; or heads, turned and stored.
#pragma once

#include "linear_problem.h"
#include "rope_store.h"

namespace ost::OST_UNIT {

OST_INLINE void store_run(int64_t dtype, void* to, int64_t at, const float* from, int64_t count) {
    with_known_float(dtype, [&](auto type) { convert_run(from, static_cast<decltype(type)*>(to) + at, count); });
}

// totals[i] += values[i].
template <class T>
OST_INLINE void add_run(const T* values, float* totals, int64_t count) {
    for_vectors(count, [&](int64_t i, int n) {
        store_lanes(totals + i, load_lanes(totals + i, n) + load_lanes(values + i, n), n);
    });
}

// Writes row `row` of panel `panel`; totals holds its 32 sums and is used up.
OST_INLINE void finish_row(const LinearProblem& p, int64_t panel, int64_t row, float* totals) {
    if (p.swiglu) {
        constexpr int kPairs = kLanes / 2;
        for (int i = 0; i < kPairs; i += VW) store(totals + i, silu(load(totals + i)) * load(totals + kPairs + i));
        const int64_t first = panel * kPairs;
        store_run(p.y_dtype, p.y[0], row * p.columns[0] + first, totals, smaller(kPairs, p.columns[0] - first));
        return;
    }
    const int64_t first = panel * kLanes;
    const int64_t valid = smaller(kLanes, p.columns[0] + p.columns[1] + p.columns[2] - first);
    if (p.bias != nullptr) add_run(p.bias + first, totals, valid);
    if (p.residual != nullptr) {
        with_known_float(p.y_dtype, [&](auto type) {
            add_run(static_cast<const decltype(type)*>(p.residual) + row * p.columns[0] + first, totals, valid);
        });
    }
    int64_t begin = 0;  // first column of the output
    for (int o = 0; o < 3; ++o) {
        const int64_t end = begin + p.columns[o];
        const int64_t from = larger(first, begin);
        const int64_t to = smaller(first + valid, end);
        if (from < to) {
            store_run(p.y_dtype, p.y[o], row * p.columns[o] + from - begin, totals + (from - first), to - from);
        }
        begin = end;
    }
}

// Where a panel lies: the output that has all its columns (-1: they are split over outputs, or the last one is short),
// and its first column there.
struct PanelPlace {
    int output;
    int64_t column;
};
OST_INLINE PanelPlace place_of(const LinearProblem& p, int64_t panel) {
    const int64_t lanes = p.swiglu ? kLanes / 2 : kLanes;
    int64_t first = panel * lanes;
    for (int o = 0; o < 3; first -= p.columns[o++]) {
        if (first >= 0 && first + lanes <= p.columns[o]) return {o, first};
    }
    return {-1, 0};
}

// Asks for the memory of results that a tile will write: a store waits for its line, and stores wait for one another.
// A residual mostly lies there too.
OST_INLINE void fetch_results(const LinearProblem& p, int64_t panel, int64_t row, int64_t rows) {
    const PanelPlace place = place_of(p, panel);
    if (place.output < 0) return;
    const int64_t size = element_bytes(p.y_dtype), width = p.columns[place.output];
    const int64_t bytes = (p.swiglu ? kLanes / 2 : kLanes) * size;
    const char* y = static_cast<const char*>(p.y[place.output]) + (row * width + place.column) * size;
    for (int64_t r = 0; r < rows; ++r, y += width * size) {
        for (int64_t line = 0; line < bytes; line += 64) prefetch_to_write(y + line);
    }
}

// y may be residual.
template <class T>
OST_INLINE void finish_whole(const float* bias, const T* residual, int64_t rows, const float* totals, int64_t stride,
                             T* y, int64_t width) {
    constexpr int kVectors = kLanes / VW;
    vf b[kVectors];
#pragma GCC unroll 8
    for (int i = 0; bias != nullptr && i < kVectors; ++i) b[i] = load(bias + i * VW);
    for (int64_t r = 0; r < rows; ++r, totals += stride, y += width) {
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
            vf total = load(totals + i * VW);
            if (bias != nullptr) total = total + b[i];
            if (residual != nullptr) total = total + load(residual + r * width + i * VW);
            store(y + i * VW, total);
        }
    }
}

// Writes rows [row, row + rows) of panel `panel`, whose sums are `stride` floats apart and are used up. A whole panel
// without SwiGLU goes row by row without a decision in between: of a short product it is a tenth of the time else.
OST_INLINE void finish_rows(const LinearProblem& p, int64_t panel, int64_t row, int64_t rows, float* totals,
                            int64_t stride) {
    const PanelPlace place = place_of(p, panel);
    if (place.output < 0 || p.swiglu || p.y_dtype == OST_F16) {
        for (int64_t r = 0; r < rows; ++r) finish_row(p, panel, row + r, totals + r * stride);
        return;
    }
    const float* bias = p.bias == nullptr ? nullptr : p.bias + panel * kLanes;
    const int64_t width = p.columns[place.output], at = row * width + place.column;
    const auto write = [&](auto* y) __attribute__((always_inline)) {
        const auto* residual = static_cast<decltype(y)>(const_cast<void*>(p.residual));
        finish_whole(bias, residual == nullptr ? residual : residual + at, rows, totals, stride, y + at, width);
    };
    void* y = p.y[place.output];
    if (p.y_dtype == OST_F32) return write(static_cast<float*>(y));
    write(static_cast<bf16*>(y));
}

// Turns and stores heads [head, head + heads) of rows [row, row + rows), whose sums are `stride` floats apart and are
// used up.
OST_INLINE void finish_heads(const LinearProblem& p, int64_t head, int64_t heads, int64_t row, int64_t rows,
                             float* totals, int64_t stride) {
    const int64_t width = p.rope->places.width;
    for (int64_t r = 0; r < rows; ++r, totals += stride) {
        if (p.bias != nullptr) add_run(p.bias + head * width, totals, heads * width);
        const int64_t place = p.rope->places.of(row + r);
        for (int64_t h = 0; h < heads; ++h) put_head(*p.rope, row + r, place, head + h, totals + h * width);
    }
}

// The fewest heads that are whole panels together.
OST_INLINE int64_t heads_of_whole_panels(const LinearProblem& p) {
    int64_t heads = 1;
    while (heads * p.rope->places.width % kLanes != 0) heads *= 2;
    return heads;
}

OST_INLINE int64_t panels_of_whole_heads(const LinearProblem& p) {
    return heads_of_whole_panels(p) * p.rope->places.width / kLanes;
}

}  // namespace ost::OST_UNIT
