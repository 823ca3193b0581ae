// Products of two activations, a batch of matrices at a time.
//
// A unit of work is a block of rows and a group of columns of one result. Piece by piece along K, the rows of a and the
// columns of b are copied to the worker's scratch as floats, in the order in which the tiles of multiply.h read them;
// transposed and 16-bit operands cost no more than that copy. Pieces are added in ascending order, so that a row has
// the same bits whatever block, batch or thread computes it. Nothing else is read, and no workspace is asked for.
//
// Where the matrices lie is given as steps, so that heads of token-major tensors are read and written in place, and
// several matrices of a may share one of b.
#include "multiply.h"
#include "transpose.h"
#include "work.h"

namespace ost::OST_UNIT {

KernelTable matmul_kernels();

namespace {

constexpr int64_t kPieceDepth = 128;    // of K; 64 columns of it fill most of a first-level cache
constexpr int64_t kBlockRows = 96;      // whole tiles of every height
constexpr int64_t kTileColumns = 64;    // of b in scratch at a time
constexpr int64_t kGroupColumns = 256;  // of a unit, at most: what one copy of a's rows serves
// Floats between two rows of a in scratch, one cache line more than a power of two, which cache sets dislike.
constexpr int64_t kLeftStride = kPieceDepth + 16;
constexpr int64_t kLeftFloats = kBlockRows * kLeftStride;
constexpr int64_t kRightFloats = kPieceDepth * kTileColumns;
constexpr int64_t kSumFloats = kBlockRows * kGroupColumns;
static_assert((kLeftFloats + kRightFloats + kSumFloats) * 4 <= int64_t{kWorkerScratchBytes}, "a unit fits the scratch");

// A matrix as the product reads it: element (i, j) at i * stride + j, or at j * stride + i where it is transposed.
template <class T>
struct Matrix {
    const T* at;
    int64_t stride;
    bool transposed;
};

// Copies `rows` rows of `columns` elements, from element (row, column) on, as floats with `stride` between rows.
// Columns are completed to whole vectors with zeros.
template <class T>
void stage_rows(const T* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, from += from_stride, to += stride) {
        for (int64_t c = 0; c < columns; c += VW) {
            store(to + c, load_lanes(from + c, static_cast<int>(smaller(VW, columns - c))));
        }
    }
}

// The same of a transposed matrix: `from` holds `columns` runs of `rows` elements. Squares are turned in registers.
template <class T>
void stage_transposed(const T* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t stride) {
    for (int64_t c = 0; c < columns; c += VW) {
        const int64_t lines = smaller(VW, columns - c);
        for (int64_t r = 0; r < rows; r += VW) {
            const int64_t count = smaller(VW, rows - r);
            vf square[VW];
            for (int i = 0; i < VW; ++i) {
                square[i] = i < lines ? load_lanes(from + (c + i) * from_stride + r, static_cast<int>(count)) : zero();
            }
            transpose(square);
            for (int64_t i = 0; i < count; ++i) store(to + (r + i) * stride + c, square[i]);
        }
    }
}

template <class T>
void stage(const Matrix<T>& m, int64_t row, int64_t column, int64_t rows, int64_t columns, float* to, int64_t stride) {
    if (m.transposed) {
        stage_transposed(m.at + column * m.stride + row, m.stride, rows, columns, to, stride);
    } else {
        stage_rows(m.at + row * m.stride + column, m.stride, rows, columns, to, stride);
    }
}

struct Shape {
    int64_t rows;     // M, the valid ones
    int64_t depth;    // K
    int64_t columns;  // N
    int64_t line;     // between two rows of y
    float scale;
};

// Elements from one matrix to the next: of an entry of the first batch axis, of the matrices in each, and of a matrix
// from one row to the next, or from one column to the next where it is transposed.
struct Steps {
    int64_t entry, matrix, line;
    int64_t to(int64_t e, int64_t i) const { return e * entry + i * matrix; }
    // Elements from the first to the last one of `lines` lines of `width` each; negative where that overflows.
    int64_t span(int64_t entries, int64_t matrices, int64_t lines, int64_t width) const {
        if (entries == 0 || matrices == 0 || lines == 0 || width == 0) return 0;
        if (entry < 0 || matrix < 0 || line < 0) return -1;
        const int64_t first = plus(area(entries - 1, entry), area(matrices - 1, matrix));
        return plus(plus(first, area(lines - 1, line)), width);
    }
};

template <class T, class Y>
void compute_unit(const Matrix<T>& a, const Matrix<T>& b, Y* y, const Shape& shape, int64_t row, int64_t rows,
                  int64_t column, int64_t columns, float* scratch) {
    float* const left = scratch;
    float* const right = left + kLeftFloats;
    float* const sums = right + kRightFloats;
    float ones[kTileRows];
    for (float& one : ones) one = 1.0f;
    Stream none(nullptr, 0, 0);
    for (int64_t k = 0; k < shape.depth; k += kPieceDepth) {
        const int64_t depth = smaller(kPieceDepth, shape.depth - k);
        stage(a, row, k, rows, depth, left, kLeftStride);
        for (int64_t c = 0; c < columns; c += kTileColumns) {
            const int64_t wide = smaller(kTileColumns, columns - c);
            stage(b, k, column + c, depth, wide, right, kTileColumns);
            for_tiles(0, rows, [&](int64_t first, int64_t count) {
                multiply_rows(
                    count, ceil_div(wide, VW),
                    {left + first * kLeftStride, kLeftStride, right, kTileColumns, sums + first * kGroupColumns + c,
                     kGroupColumns, depth, kPieceDepth, k == 0 ? nullptr : ones, &none});
            });
        }
    }
    const vf scale = splat(shape.scale);
    for (int64_t r = 0; r < rows; ++r) {
        Y* to = y + (row + r) * shape.line + column;
        for (int64_t c = 0; c < columns; c += VW) {
            const vf total = shape.depth == 0 ? zero() : load(sums + r * kGroupColumns + c);
            store_lanes(to + c, total * scale, static_cast<int>(smaller(VW, columns - c)));
        }
    }
}

// Operands a, b, count?, y. Params: entries of the first batch axis, matrices in each, M, K, N, whether a and b are stored
// the other way round, scale, dtype of a and b, dtype of y, 1 where the count is of the rows M and not of the entries,
// how many matrices of a share one of b, then the steps of a, b and y.
void matmul(const Call& call) {
    const int64_t entries = call.integer(0), each = call.integer(1), m = call.integer(2), k = call.integer(3);
    const int64_t n = call.integer(4), shared = call.integer(11);
    const bool of_rows = call.integer(10) != 0;
    const int64_t valid = valid_rows(call, 2, of_rows ? m : entries);
    if (empty(call, entries, each, m, n, valid)) return;
    if (k < 0 || shared < 1 || each % shared != 0) return report(call, OST_INVALID_ARGUMENT);
    const auto steps = [&](uint32_t first) {
        return Steps{call.integer(first), call.integer(first + 1), call.integer(first + 2)};
    };
    const Steps of_a = steps(12), of_b = steps(15), of_y = steps(18);
    const int64_t matrices = area(of_rows ? entries : valid, each), rows = of_rows ? valid : m;
    with_float_dtype(call, call.integer(8), [&](auto type) {
        with_float_dtype(call, call.integer(9), [&](auto y_type) {
            using T = decltype(type);
            using Y = decltype(y_type);
            const bool a_turned = call.integer(5) != 0, b_turned = call.integer(6) != 0;
            if (!covers(call, 0, of_a.span(entries, each, a_turned ? k : m, a_turned ? m : k), sizeof(T)) ||
                !covers(call, 1, of_b.span(entries, each / shared, b_turned ? n : k, b_turned ? k : n), sizeof(T)) ||
                !covers(call, 3, of_y.span(entries, each, m, n), sizeof(Y)) ||
                !covers(call, 3, area(entries, each, m, n), sizeof(Y))) {  // so that a run ends
                return;
            }
            const T* a = call.pointer<const T>(0);
            const T* b = call.pointer<const T>(1);
            Y* y = call.pointer<Y>(3);
            const Shape shape = {rows, k, n, of_y.line, static_cast<float>(call.real(7))};
            const int64_t blocks = ceil_div(rows, kBlockRows);
            int64_t group = kTileColumns;  // wider where that leaves enough units for every thread
            const int64_t enough = 4 * static_cast<int64_t>(call.pool->threads());
            while (group < kGroupColumns && matrices * blocks * ceil_div(n, 2 * group) >= enough) group *= 2;
            const int64_t groups = ceil_div(n, group);
            call.pool->parallel(matrices * blocks * groups, [&](int64_t unit, void* scratch) {
                const int64_t number = unit / (blocks * groups), entry = number / each, matrix = number % each;
                const int64_t row = unit / groups % blocks * kBlockRows, column = unit % groups * group;
                const Matrix<T> left = {a + of_a.to(entry, matrix), of_a.line, a_turned};
                const Matrix<T> right = {b + of_b.to(entry, matrix / shared), of_b.line, b_turned};
                compute_unit(left, right, y + of_y.to(entry, matrix), shape, row, smaller(kBlockRows, rows - row),
                             column, smaller(group, n - column), static_cast<float*>(scratch));
            });
        });
    });
}

constexpr KernelEntry entries[] = {
    {"matmul", matmul, 4, 21, 1u << 2},
};

}  // namespace

KernelTable matmul_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
