// Sums over the rows of a matrix, column by column: gradients of gains and biases.
//
// Rows are added in ascending order, in runs whose float32 sum is taken before it is added to the column's: a column
// has the same bits whatever thread sums it, and its error grows with the number of runs and not of rows.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kColumnRun = 32;                      // rows
inline constexpr int64_t kColumnBlock = VW > 8 ? 2 * VW : 32;  // columns of a unit of work
inline constexpr int kColumnVectors = static_cast<int>(kColumnBlock / VW);

// y[c] = sum over rows of value(row, first column, lanes); `nanoseconds` is the cost of one value.
template <class F>
OST_INLINE void sum_columns(const Call& call, int64_t rows, int64_t width, float* y, double nanoseconds,
                            const F& value) {
    const double cost = nanoseconds * static_cast<double>(kColumnBlock * larger(1, rows));
    for_rows(call, ceil_div(width, kColumnBlock), cost, [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t column = unit * kColumnBlock;
            int used[kColumnVectors];
            vf total[kColumnVectors];
            for (int i = 0; i < kColumnVectors; ++i) {
                used[i] = static_cast<int>(larger(0, smaller(VW, width - column - i * VW)));
                total[i] = zero();
            }
            const bool whole = column + kColumnBlock <= width;
            for (int64_t first = 0; first < rows; first += kColumnRun) {
                const int64_t last = smaller(rows, first + kColumnRun);
                vf run[kColumnVectors];
                for (vf& each : run) each = zero();
                for (int64_t row = first; row < last; ++row) {
                    if (whole) {
#pragma GCC unroll 8
                        for (int i = 0; i < kColumnVectors; ++i) run[i] = run[i] + value(row, column + i * VW, VW);
                    } else {
                        for (int i = 0; i < kColumnVectors && used[i] > 0; ++i) {
                            run[i] = run[i] + value(row, column + i * VW, used[i]);
                        }
                    }
                }
                for (int i = 0; i < kColumnVectors; ++i) total[i] = total[i] + run[i];
            }
            for (int i = 0; i < kColumnVectors && used[i] > 0; ++i) store_lanes(y + column + i * VW, total[i], used[i]);
        }
    });
}

}  // namespace ost::OST_UNIT
