// How the rows of a kernel become chunks of pool work.
//
// A job shorter than waking a worker costs runs as one chunk on the caller. That decision, and the chunk size, only say
// who computes a row: no kernel that uses `for_rows` carries a value from one row to the next.
#pragma once

#include "simd.h"
#include "thread_pool.h"

namespace ost::OST_UNIT {

// Below this much work a job is not shared out; above it a chunk holds about a third as much.
inline constexpr double kInlineNanoseconds = 20000.0;
inline constexpr double kChunkNanoseconds = 7000.0;

// What one float costs in a pass that only streams it, and in one that takes its exponential; rough, for chunk sizes.
inline constexpr double kStreamNanoseconds = 1.0 / VW;
inline constexpr double kExponentialNanoseconds = 5.0 / VW;

// f(begin, end) over [0, rows) in ranges; `nanoseconds` is the rough cost of one row.
template <class F>
OST_INLINE void for_rows(const Call& call, int64_t rows, double nanoseconds, const F& f) {
    if (rows <= 0) return;
    int64_t step = rows;
    if (static_cast<double>(rows) * nanoseconds > kInlineNanoseconds) {
        step = larger(1, static_cast<int64_t>(kChunkNanoseconds / nanoseconds));
    }
    call.pool->parallel(ceil_div(rows, step), [&](int64_t chunk, void*) {
        const int64_t begin = chunk * step;
        f(begin, smaller(rows, begin + step));
    });
}

// The same for an elementwise kernel over `count` values, in whole vectors.
template <class F>
OST_INLINE void for_elements(const Call& call, int64_t count, double nanoseconds, const F& f) {
    constexpr int64_t block = 1024;
    for_rows(call, ceil_div(count, block), nanoseconds * block,
             [&](int64_t begin, int64_t end) { f(begin * block, smaller(count, end * block)); });
}

// The first n lanes; nearly always all of them.
template <class T>
OST_INLINE vf load_lanes(const T* p, int n) {
    return n == VW ? load(p) : load_n(p, n);
}
template <class T>
OST_INLINE void store_lanes(T* p, vf x, int n) {
    if (n == VW) {
        store(p, x);
    } else {
        store_n(p, x, n);
    }
}

// Lanes [0, n) keep x, the others become `other`.
OST_INLINE vf keep_first(vf x, int64_t n, vf other) {
    alignas(64) static constexpr int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return select(load_i(lanes) < splat_i(static_cast<int32_t>(n)), x, other);
}

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNotANumber = __builtin_nanf("");

}  // namespace ost::OST_UNIT
