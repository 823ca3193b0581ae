// How y = start + bias + scale * (a b) is cut into units of work and computed.
//
// A unit is a block of rows and a group of columns of one matrix. K is cut into pieces of nearly equal depth, which
// depends on K alone. Piece by piece the group's columns of b are copied to the worker's scratch, as floats in panels
// as wide as a tile of multiply.h; then all rows of the unit pass over them. Rows of a are read where they lie if they
// are floats that follow one another, and are copied block by block else; transposed and 16-bit operands cost no more
// than their copy. How many units there are weighs these copies against threads that wait for one another.
//
// Each element of a piece has one accumulator that runs over it in ascending order, and pieces are added in ascending
// order: a row has the same bits whatever unit, batch or thread computes it. Float results are added up in y itself;
// 16-bit ones of several pieces in the scratch, rounded once.
#include "product.h"

#include "multiply.h"
#include "transpose.h"
#include "work.h"

namespace ost::OST_UNIT {

namespace {

constexpr int64_t kScratchFloats = int64_t{kWorkerScratchBytes} / 4;
constexpr int64_t kMostDepth = 384;  // of a piece
constexpr int64_t kDepthStep = 16;
constexpr int64_t kBlockRows = 96;  // of a at a time; whole tiles of every height
constexpr int64_t kPanelColumns = int64_t{kTileVectors} * VW;
constexpr int64_t kTileFloats = int64_t{kTileRows} * kPanelColumns;
constexpr int64_t kPad = 16;  // floats between rows of a in scratch: a power of two is what cache sets dislike

// Rows of a unit, at most: of one piece, and of several, between which y should stay in a cache.
constexpr int64_t kMostRows = 8192;
constexpr int64_t kMostSummedRows = 1024;

// Costs in multiplications that a tile does meanwhile, rough: of copying one element as it lies and turned, of fetching
// it where its matrix is larger than caches are, and of handing out a unit.
constexpr int64_t kCopyCost = 4;
constexpr int64_t kTurnCost = 10;
constexpr int64_t kFetchCost = 16;
constexpr int64_t kCachedElements = 1 << 20;
constexpr int64_t kUnitCost = 100000;
constexpr double kLate = 0.03;  // of a unit
constexpr int64_t kParts[] = {1, 2, 3, 4, 6, 8, 12, 16};  // units to try, of the fewest

int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

// Copies `rows` rows of `columns` elements, as floats with `stride` between rows. Columns are completed to whole
// vectors with zeros.
template <class T>
void stage_rows(const T* from, int64_t line, int64_t rows, int64_t columns, float* to, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, from += line, to += stride) {
        int64_t c = 0;
        for (; c + VW <= columns; c += VW) store(to + c, load(from + c));
        if (c < columns) store(to + c, load_n(from + c, static_cast<int>(columns - c)));
    }
}

// The same of a turned matrix: `from` holds `columns` runs of `rows` elements. Squares are turned in registers.
template <class T>
void stage_turned(const T* from, int64_t line, int64_t rows, int64_t columns, float* to, int64_t stride) {
    for (int64_t c = 0; c < columns; c += VW, from += VW * line) {
        const int64_t lines = smaller(VW, columns - c);
        for (int64_t r = 0; r < rows; r += VW) {
            const int64_t count = smaller(VW, rows - r);
            vf square[VW];
            if (lines == VW && count == VW) {
#pragma GCC unroll 16
                for (int i = 0; i < VW; ++i) square[i] = load(from + i * line + r);
                transpose(square);
#pragma GCC unroll 16
                for (int i = 0; i < VW; ++i) store(to + (r + i) * stride + c, square[i]);
                continue;
            }
            for (int i = 0; i < VW; ++i) {
                square[i] = i < lines ? load_lanes(from + i * line + r, static_cast<int>(count)) : zero();
            }
            transpose(square);
            for (int64_t i = 0; i < count; ++i) store(to + (r + i) * stride + c, square[i]);
        }
    }
}

// Matrix number `matrix` of entry `entry`, from element (row, column) on, `rows` by `columns` of it.
void stage(const Stacked& s, int64_t entry, int64_t matrix, int64_t row, int64_t column, int64_t rows, int64_t columns,
           float* to, int64_t stride) {
    const int64_t line = s.steps.line;
    const int64_t at = s.steps.to(entry, matrix) + (s.turned ? column * line + row : row * line + column);
    with_known_float(s.dtype, [&](auto type) {
        const auto* from = static_cast<const decltype(type)*>(s.at) + at;
        if (s.turned) {
            stage_turned(from, line, rows, columns, to, stride);
        } else {
            stage_rows(from, line, rows, columns, to, stride);
        }
    });
}

// to = from + bias + scale * products, `rows` by `columns`; bias and from may be null.
template <class From, class To>
void finish(const float* products, int64_t rows, int64_t columns, float factor, const float* bias, const From* from,
            int64_t from_line, To* to, int64_t to_line) {
    const vf scale = splat(factor);
    for (int64_t r = 0; r < rows; ++r, products += kPanelColumns, to += to_line) {
        for (int64_t c = 0; c < columns; c += VW) {
            const int count = static_cast<int>(smaller(VW, columns - c));
            const vf product = load(products + c);
            vf total = bias != nullptr ? fma(product, scale, load_lanes(bias + c, count)) : product * scale;
            if (from != nullptr) {
                const vf before = load_lanes(from + r * from_line + c, count);
                total = bias != nullptr ? total + before : fma(product, scale, before);
            }
            store_lanes(to + c, total, count);
        }
    }
}

// How a product is cut: K by its own size, the rest so that the slowest thread is done soonest.
struct Cut {
    int64_t pieces, depth;    // of K; depth of all but the last
    int64_t blocks, rows;     // of M
    int64_t groups, columns;  // of N; whole vectors
    bool staged;              // whether rows of a are copied
    bool summed;              // whether sums are in the scratch
    int64_t left() const { return staged ? kBlockRows * (depth + kPad) : 0; }
    int64_t sums() const { return summed ? rows * columns : 0; }
};

int64_t fetch_cost(int64_t rows, int64_t columns) {
    const int64_t elements = area(rows, columns);
    return elements < 0 || elements > kCachedElements ? kFetchCost : 0;
}

Cut cut(const DenseProduct& p) {
    Cut c = {};
    c.pieces = larger(1, ceil_div(p.depth, kMostDepth));
    c.depth = round_up(ceil_div(larger(1, p.depth), c.pieces), kDepthStep);
    c.staged = p.a.turned || p.a.dtype != OST_F32;
    c.summed = c.pieces > 1 && p.y_dtype != OST_F32;
    const int64_t most_rows = c.summed ? kBlockRows : c.pieces > 1 ? kMostSummedRows : kMostRows;
    const int64_t room = kScratchFloats - kTileFloats - c.left();
    const int64_t most_columns = room / (c.depth + (c.summed ? kBlockRows : 0)) / kPanelColumns * kPanelColumns;
    const int64_t a_cost = (!c.staged ? 0 : p.a.turned ? kTurnCost : kCopyCost) + fetch_cost(p.rows, p.depth);
    const int64_t b_cost = (p.b.turned ? kTurnCost : kCopyCost) + fetch_cost(p.depth, p.columns);
    const int64_t matrices = area(p.entries, p.each), threads = static_cast<int64_t>(p.pool->threads());
    const int64_t fewest_blocks = ceil_div(p.rows, most_rows), fewest_groups = ceil_div(p.columns, most_columns);
    double best = 0;
    for (int64_t i : kParts) {
        const int64_t rows = round_up(ceil_div(p.rows, fewest_blocks * i), kTileRows);
        const int64_t blocks = ceil_div(p.rows, rows);
        for (int64_t j : kParts) {
            const int64_t columns = round_up(ceil_div(p.columns, fewest_groups * j), VW);
            const int64_t groups = ceil_div(p.columns, columns);
            const double unit = static_cast<double>(rows * columns + a_cost * rows + b_cost * columns) +
                                static_cast<double>(kUnitCost) / static_cast<double>(c.depth * c.pieces);
            // A thread that comes late keeps the others waiting for part of a unit.
            const int64_t turns = ceil_div(matrices * blocks * groups, threads);
            const double time = unit * (static_cast<double>(turns) + kLate);
            if (c.rows == 0 || time < best) {
                best = time;
                c.blocks = blocks, c.rows = rows, c.groups = groups, c.columns = columns;
            }
            if (threads == 1 || columns <= kPanelColumns) break;
        }
        if (threads == 1 || rows <= kBlockRows / 2) break;
    }
    return c;
}

// Rows [row, row + rows) and depth [k, k + depth) of a, as lines of memory that will be read soon.
Stream fetch_ahead(const Stacked& a, int64_t entry, int64_t matrix, int64_t row, int64_t k, int64_t rows, int64_t depth,
                   const char* (&lines)[kMostDepth]) {
    const int64_t size = element_bytes(a.dtype), count = a.turned ? depth : rows;
    const int64_t at = a.steps.to(entry, matrix) + (a.turned ? k * a.steps.line + row : row * a.steps.line + k);
    for (int64_t i = 0; i < count; ++i) lines[i] = static_cast<const char*>(a.at) + (at + i * a.steps.line) * size;
    return Stream(lines, count, (a.turned ? rows : depth) * size);
}

// One unit: rows [row, row + rows), columns [column, column + columns) of a matrix.
template <class Y>
void compute(const DenseProduct& p, const Cut& cut, int64_t entry, int64_t matrix, int64_t row, int64_t rows,
             int64_t column, int64_t columns, float* scratch) {
    float* const tile = scratch;
    float* const left = tile + kTileFloats;
    float* const sums = left + cut.left();
    float* const right = sums + cut.sums();
    const char* lines[kMostDepth];
    const int64_t place = p.y_steps.to(entry, matrix) + row * p.y_steps.line + column;
    Y* const y = static_cast<Y*>(p.y) + place;
    const Y* const start = p.start == nullptr ? nullptr : static_cast<const Y*>(p.start) + place;
    if (p.depth == 0) std::memset(tile, 0, kTileFloats * sizeof(float));
    for (int64_t piece = 0; piece < cut.pieces; ++piece) {
        const int64_t k = piece * cut.depth, depth = smaller(cut.depth, p.depth - k);
        const bool first = piece == 0, last = piece + 1 == cut.pieces;
        const float* const bias = first && p.bias != nullptr ? p.bias + column : nullptr;
        for (int64_t c = 0; c < columns; c += kPanelColumns) {
            const int64_t wide = smaller(kPanelColumns, columns - c);
            stage(p.b, entry, matrix / p.shared, k, column + c, depth, wide, right + c * depth, round_up(wide, VW));
        }
        for (int64_t block = 0; block < rows; block += kBlockRows) {
            const int64_t high = smaller(kBlockRows, rows - block);
            const float* a = left;
            int64_t a_line = cut.depth + kPad;
            if (cut.staged) {
                stage(p.a, entry, matrix, row + block, k, high, depth, left, a_line);
            } else {
                a_line = p.a.steps.line;
                a = static_cast<const float*>(p.a.at) + p.a.steps.to(entry, matrix) + (row + block) * a_line + k;
            }
            // While these rows are multiplied, those of the next block are asked for, or of the next piece.
            const int64_t next = block + kBlockRows;
            Stream ahead(nullptr, 0, 0);
            if (next < rows) {
                ahead = fetch_ahead(p.a, entry, matrix, row + next, k, smaller(kBlockRows, rows - next), depth, lines);
            } else if (!last) {
                const int64_t deeper = k + depth, rest = smaller(cut.depth, p.depth - deeper);
                ahead = fetch_ahead(p.a, entry, matrix, row, deeper, smaller(kBlockRows, rows), rest, lines);
            }
            for (int64_t c = 0; c < columns; c += kPanelColumns) {
                const int64_t wide = smaller(kPanelColumns, columns - c), vectors = ceil_div(wide, VW);
                for_tiles(0, high, [&](int64_t r, int64_t count) {
                    multiply_rows(count, vectors,
                                  {a + r * a_line, a_line, right + c * depth, vectors * VW, tile, kPanelColumns, depth,
                                   kMostDepth, nullptr, &ahead});
                    const int64_t at = block + r;
                    Y* const to = y + at * p.y_steps.line + c;
                    const Y* const from = start == nullptr ? nullptr : start + at * p.y_steps.line + c;
                    float* const sum = cut.summed ? sums + at * cut.columns + c : nullptr;
                    const float* const b = bias == nullptr ? nullptr : bias + c;
                    const int64_t line = p.y_steps.line;
                    if (!cut.summed) {
                        finish(tile, count, wide, p.scale, b, first ? from : to, line, to, line);
                    } else if (first) {
                        finish(tile, count, wide, p.scale, b, from, line, sum, cut.columns);
                    } else if (!last) {
                        finish(tile, count, wide, p.scale, b, sum, cut.columns, sum, cut.columns);
                    } else {
                        finish(tile, count, wide, p.scale, b, sum, cut.columns, to, line);
                    }
                });
            }
        }
    }
}

}  // namespace

void multiply_dense(const DenseProduct& p) {
    const Cut c = cut(p);
    const int64_t units = c.blocks * c.groups;
    with_known_float(p.y_dtype, [&](auto type) {
        p.pool->parallel(area(p.entries, p.each) * units, [&](int64_t unit, void* scratch) {
            const int64_t number = unit / units, entry = number / p.each, matrix = number % p.each;
            const int64_t row = unit / c.groups % c.blocks * c.rows, column = unit % c.groups * c.columns;
            compute<decltype(type)>(p, c, entry, matrix, row, smaller(c.rows, p.rows - row), column,
                                    smaller(c.columns, p.columns - column), static_cast<float*>(scratch));
        });
    });
}

}  // namespace ost::OST_UNIT
