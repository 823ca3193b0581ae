// The sum of a whole tensor, and means over rows of packed tokens. Sums are taken over runs that are counted from the
// first value, and the runs added up in ascending order: neither threads nor a row's place in its batch change a bit.
#include "double_sum.h"
#include "work.h"

namespace ost::OST_UNIT {

namespace {

constexpr int64_t kRun = 32;  // tokens whose float32 sum is taken before it is added to the row's
constexpr int kVectors = 4;   // columns are walked in blocks of so many vectors
constexpr int64_t kBlock = kVectors * VW;

// The mean of `count` rows of x, `stride` values apart, over `lanes` <= kBlock columns.
template <class T>
OST_INLINE void mean_block(const T* x, int64_t stride, int64_t count, int64_t lanes, T* y) {
    vf total[kVectors] = {zero(), zero(), zero(), zero()};
    const bool whole = lanes == kBlock;
    int used[kVectors];
    for (int i = 0; i < kVectors; ++i) used[i] = static_cast<int>(larger(0, smaller(VW, lanes - i * VW)));
    for (int64_t first = 0; first < count; first += kRun) {
        const int64_t end = smaller(count, first + kRun);
        vf run[kVectors] = {zero(), zero(), zero(), zero()};
        for (int64_t token = first; token < end; ++token) {
            const T* from = x + token * stride;
#pragma GCC unroll 4
            for (int i = 0; i < kVectors; ++i) {
                run[i] = run[i] + (whole ? load(from + i * VW) : load_n(from + i * VW, used[i]));
            }
        }
        for (int i = 0; i < kVectors; ++i) total[i] = total[i] + run[i];
    }
    const vf divisor = splat(count == 0 ? 1.0f : static_cast<float>(count));
    for (int i = 0; i < kVectors; ++i) store_n(y + i * VW, total[i] / divisor, used[i]);
}

// Operands x [tokens, width], start, length, count?, y [rows, width].
void masked_mean(const Call& call) {
    const int64_t tokens = call.integer(0), width = call.integer(1), capacity = call.integer(2);
    const int64_t rows = valid_rows(call, 3, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(3), [&](auto type) {
        using T = decltype(type);
        if (!covers(call, 0, area(tokens, width), sizeof(T)) || !covers(call, 1, capacity, 4) ||
            !covers(call, 2, capacity, 4) || !covers(call, 4, area(capacity, width), sizeof(T))) {
            return;
        }
        const T* x = call.pointer<const T>(0);
        const auto* start = call.pointer<const int32_t>(1);
        const auto* length = call.pointer<const int32_t>(2);
        T* y = call.pointer<T>(4);
        const Call* const outer = &call;
        const int64_t blocks = ceil_div(width, kBlock);
        const double cost = kStreamNanoseconds * static_cast<double>(kBlock * ceil_div(tokens, rows));
        for_rows(call, rows * blocks, cost, [=](int64_t begin, int64_t end) {
            for (int64_t unit = begin; unit < end; ++unit) {
                const int64_t row = unit / blocks, column = unit % blocks * kBlock;
                int64_t first = start[row], count = length[row];
                if (count <= 0 || first < 0 || first + count > tokens) {
                    if (count != 0) report(*outer, OST_OUT_OF_RANGE);
                    first = count = 0;
                }
                mean_block(x + first * width + column, width, count, smaller(kBlock, width - column),
                           y + row * width + column);
            }
        });
    });
}

constexpr int64_t kSumRun = 4096;  // values whose sum is an entry of the workspace

// Operands x, count?, workspace (a double for each run), y.
void reduce_sum(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 1, capacity);
    const int64_t all = area(capacity, width), runs = all < 0 ? -1 : ceil_div(rows * width, kSumRun);
    if (!covers(call, 0, all, 4) || !covers(call, 2, runs, 8) || !covers(call, 3, 1, 4)) return;
    const float* x = call.pointer<const float>(0);
    double* partial = call.pointer<double>(2);
    const int64_t count = rows * width;
    for_rows(call, runs, kStreamNanoseconds * kSumRun, [=](int64_t begin, int64_t end) {
        for (int64_t run = begin; run < end; ++run) {
            partial[run] = double_sum(x + run * kSumRun, smaller(kSumRun, count - run * kSumRun));
        }
    });
    double total = 0;
    for (int64_t run = 0; run < runs; ++run) total += partial[run];
    *call.pointer<float>(3) = static_cast<float>(total);
}

constexpr KernelEntry entries[] = {
    {"reduce_sum", reduce_sum, 4, 2, 1u << 1},
    {"masked_mean", masked_mean, 5, 4, 1u << 3},
};

}  // namespace

KernelTable reduce_kernels();
KernelTable reduce_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
