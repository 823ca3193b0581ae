#include "attention_tile.h"

#include "attention_keys.h"

namespace ost::OST_UNIT {

TileShape tile_shape(int64_t width) {
    TileShape shape{};
    shape.width = width;
    shape.stride = ceil_div(width, VW) * VW;
    shape.chunk = width <= 128 ? 64 : width <= 256 ? 32 : 16;
    const int64_t shared = shape.width * shape.chunk + shape.chunk * shape.stride;
    const int64_t per_row = 3 * shape.stride + shape.chunk + VW + 9;
    const int64_t padding = 16 * 18;  // every array starts on 64 bytes
    const int64_t room = static_cast<int64_t>(kWorkerScratchBytes / sizeof(float)) - shared - padding;
    shape.rows = smaller(kMaximumTileRows, room / per_row / VW * VW);
    return shape;
}
static_assert(kWorkerScratchBytes / sizeof(float) >= 32 * kMaximumHeadWidth + 288 + 16 * (3 * kMaximumHeadWidth + 64),
              "the widest head leaves room for a tile of 16 rows");

Tile make_tile(const TileShape& shape, const Scoring& scoring, void* scratch) {
    auto* next = static_cast<float*>(scratch);
    const auto take = [&next](int64_t count) {
        float* start = next;
        next += ceil_div(count, 16) * 16;
        return start;
    };
    Tile tile{};
    tile.shape = shape;
    tile.scoring = scoring;
    tile.keys = take(shape.width * shape.chunk);
    tile.values = take(shape.chunk * shape.stride);
    tile.query = take(shape.rows * shape.stride);
    tile.output = take(shape.rows * shape.stride);
    tile.total = take(shape.rows * shape.stride);
    tile.weight = take(shape.rows * shape.chunk);
    tile.sums = take(shape.rows * VW);
    tile.maximum = take(shape.rows);
    tile.rescale = take(shape.rows);
    tile.sum = take(shape.rows);
    tile.folded_maximum = take(shape.rows);
    tile.folded_sum = take(shape.rows);
    tile.first = reinterpret_cast<int32_t*>(take(shape.rows));
    tile.end = reinterpret_cast<int32_t*>(take(shape.rows));
    tile.low = reinterpret_cast<int32_t*>(take(shape.rows));
    tile.high = reinterpret_cast<int32_t*>(take(shape.rows));
    return tile;
}

namespace {

// Blocks of the two products: head elements of a dot product, keys of a weighted sum.
constexpr int64_t kDotBlock = 16;
constexpr int64_t kValueBlock = 32;

template <class T>
void add_typed(Tile& tile, const T* queries, int64_t count, int64_t step, KeyRange keys) {
    const vf sign = splat(tile.scoring.scale < 0 ? -1.0f : 1.0f);  // so that scores are scaled by something positive
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = tile.rows++;
        widen_row(queries + i * step, tile.query + row * tile.shape.stride, tile.shape.width, sign);
        tile.first[row] = static_cast<int32_t>(keys.first);
        tile.end[row] = static_cast<int32_t>(keys.end);
    }
}

// f(j, from, to) for the vectors j, j + VW, .. that hold elements [low, high): lanes [from, to) of each are among them.
template <class F>
OST_INLINE void for_vectors(int64_t low, int64_t high, const F& f) {
    int64_t j = low & -static_cast<int64_t>(VW);
    if (j < low && j < high) {
        f(j, low - j, smaller(VW, high - j));
        j += VW;
    }
    for (; j + VW <= high; j += VW) f(j, 0, VW);
    if (j < high) f(j, 0, high - j);
}

// Lanes [from, to) keep x, the others become `other`; nothing to do for a whole vector.
OST_INLINE vf keep_lanes(vf x, int64_t from, int64_t to, vf other) {
    if (to < VW) x = keep_first(x, to, other);
    return from > 0 ? keep_first(other, from, x) : x;
}

// Scores of rows [first_row, end_row) become weights. A maximum of -inf (no key yet, or all scores -inf) is taken as 0,
// so that nothing becomes NaN.
void softmax_chunk(Tile& tile, int64_t first_row, int64_t end_row) {
    const int64_t chunk = tile.shape.chunk;
    const vf lowest = splat(-kInfinity);
    const float size = tile.scoring.scale < 0 ? -tile.scoring.scale : tile.scoring.scale;
    const bool capped = tile.scoring.soft_cap > 0;
    const vf cap = splat(tile.scoring.soft_cap), reciprocal = splat(1.0f / tile.scoring.soft_cap);
    const float factor = capped ? 1.0f : size;
    const int64_t aligned = first_row / VW * VW;
    float shift[kMaximumTileRows];
    for (int64_t r = aligned; r < first_row; ++r) shift[r] = 0.0f;
    for (int64_t r = first_row; r < end_row; ++r) {
        float* scores = tile.weight + r * chunk;
        if (capped) {
            for_vectors(tile.low[r], tile.high[r], [&](int64_t j, int64_t, int64_t) {
                store(scores + j, soft_cap(load(scores + j) * splat(size), cap, reciprocal));
            });
        }
        vf high = lowest;
        for_vectors(tile.low[r], tile.high[r], [&](int64_t j, int64_t from, int64_t to) {
            high = maximum(keep_lanes(load(scores + j), from, to, lowest), high);
        });
        const float best = tile.low[r] < tile.high[r] ? largest(high) * factor : -kInfinity;
        const float before = tile.maximum[r];
        const float now = best > before ? best : before;
        shift[r] = now == -kInfinity ? 0.0f : now;
        tile.rescale[r] = before;
        tile.maximum[r] = now;
    }
    for (int64_t r = aligned; r < end_row; r += VW) {
        const int n = static_cast<int>(smaller(VW, end_row - r));
        store(tile.rescale + r, exp(load(tile.rescale + r) - load_n(shift + r, n)));
    }
    const vf scale = splat(factor);
    for (int64_t r = first_row; r < end_row; ++r) {
        float* scores = tile.weight + r * chunk;
        const vf offset = splat(shift[r]);
        vf sums = load(tile.sums + r * VW) * splat(tile.rescale[r]);
        for_vectors(tile.low[r], tile.high[r], [&](int64_t j, int64_t from, int64_t to) {
            // Not fused: the largest score is the one that was rounded into the shift, and its weight is 1.
            const vf weight = keep_lanes(exp(load(scores + j) * scale - offset), from, to, zero());
            store(scores + j, weight);
            sums = sums + weight;
        });
        store(tile.sums + r * VW, sums);
    }
}

// Values of one chunk, and what reads ahead meanwhile. Weighted sums are cut into blocks of kValueBlock keys, counted from
// the first of the chunk.
struct Values {
    const float* rows;
    int64_t stride;
    Stream* stream;
};
OST_INLINE int64_t whole_blocks(int64_t keys) { return keys & -kValueBlock; }
OST_INLINE int64_t started_blocks(int64_t keys) { return whole_blocks(keys + kValueBlock - 1); }
static_assert((kValueBlock & (kValueBlock - 1)) == 0, "a power of two");

OST_INLINE Product weighted_sum(const Tile& tile, const Values& values, int64_t row, int64_t first, int64_t end,
                                const float* factors) {
    Product p{};
    p.a = tile.weight + row * tile.shape.chunk + first;
    p.a_stride = tile.shape.chunk;
    p.b = values.rows + first * values.stride;
    p.b_stride = values.stride;
    p.c = tile.output + row * tile.shape.stride;
    p.c_stride = tile.shape.stride;
    p.depth = end - first;
    p.block = kValueBlock;
    p.rescale = factors;
    p.stream = values.stream;
    return p;
}

constexpr float kOnes[] = {1, 1, 1, 1, 1, 1};
static_assert(kTileRows <= sizeof kOnes / sizeof *kOnes, "a factor for each row of a register tile");

// Adds keys [first, end) to `rows` rows, whose earlier sums are multiplied by `factors`. False when there are none.
OST_INLINE bool add_keys(const Tile& tile, const Values& values, int64_t row, int64_t rows, int64_t first, int64_t end,
                         const float* factors) {
    if (first >= end) return false;
    const int64_t vectors = tile.shape.stride / VW;
    const int64_t edge = smaller(end, started_blocks(first));
    if (first < edge) {
        multiply_rows(rows, vectors, weighted_sum(tile, values, row, first, edge, factors));
        factors = kOnes;
    }
    if (edge < end) multiply_rows(rows, vectors, weighted_sum(tile, values, row, edge, end, factors));
    return true;
}

// Adds what `rows` rows from `row` on see: what all of them see together, the rest each on its own.
OST_INLINE void add_values(const Tile& tile, const Values& values, int64_t row, int64_t rows) {
    const float* factors = tile.rescale + row;
    int64_t low = tile.low[row], high = tile.high[row];
    bool same = true;
    for (int64_t r = row + 1; r < row + rows; ++r) same = same && tile.low[r] == low && tile.high[r] == high;
    if (same) {
        add_keys(tile, values, row, rows, low, high, factors);
        return;
    }
    low = 0;
    for (int64_t r = row; r < row + rows; ++r) {
        low = larger(low, started_blocks(tile.low[r]));
        high = smaller(high, whole_blocks(tile.high[r]));
    }
    float left[kTileRows];
    if (low > 0) {
        for (int64_t r = row; r < row + rows; ++r) {
            const bool before = add_keys(tile, values, r, 1, tile.low[r], smaller(tile.high[r], low), tile.rescale + r);
            left[r - row] = before ? 1.0f : tile.rescale[r];
        }
        factors = left;
    }
    if (add_keys(tile, values, row, rows, low, high, factors)) factors = kOnes;
    high = larger(low, high);
    for (int64_t r = row; r < row + rows; ++r) {
        add_keys(tile, values, r, 1, larger(tile.low[r], high), tile.high[r], factors + r - row);
    }
}

// What rows see of keys [first, first + count): sets low and high, and returns the range of rows that see any.
KeyRange look_at(Tile& tile, int32_t first, int32_t count) {
    for (int64_t r = 0; r < tile.rows; ++r) {
        const int32_t from = tile.first[r] - first, to = tile.end[r] - first;
        const int32_t low = from > 0 ? from : 0, high = to < count ? to : count;
        tile.low[r] = low < high ? low : 0;
        tile.high[r] = low < high ? high : 0;
    }
    KeyRange seeing{0, tile.rows};
    while (seeing.first < seeing.end && tile.high[seeing.first] == 0) ++seeing.first;
    while (seeing.first < seeing.end && tile.high[seeing.end - 1] == 0) --seeing.end;
    return seeing;
}

}  // namespace

void add_queries(Tile& tile, int64_t dtype, const void* queries, int64_t count, int64_t step, KeyRange keys) {
    switch (dtype) {
        case OST_F16: return add_typed(tile, static_cast<const f16*>(queries), count, step, keys);
        case OST_BF16: return add_typed(tile, static_cast<const bf16*>(queries), count, step, keys);
        default: return add_typed(tile, static_cast<const float*>(queries), count, step, keys);
    }
}

void attend_segment(Tile& tile, const KeyRows& rows, int64_t begin, int64_t end) {
    const TileShape& shape = tile.shape;
    int64_t least = end;
    for (int64_t r = 0; r < tile.rows; ++r) {
        tile.maximum[r] = -kInfinity;
        least = smaller(least, tile.first[r]);
    }
    std::memset(tile.sums, 0, static_cast<size_t>(tile.rows * VW) * sizeof *tile.sums);
    std::memset(tile.output, 0, static_cast<size_t>(tile.rows * shape.stride) * sizeof *tile.output);
    begin += larger(0, least - begin) / shape.chunk * shape.chunk;
    const int64_t bytes = shape.width * (rows.dtype == OST_F32 ? 4 : 2);
    Chunk chunks[2];
    Chunk* now = &chunks[0];
    Chunk* next = &chunks[1];
    locate(rows, begin, smaller(shape.chunk, end - begin), *now);
    for (int64_t first = begin; first < end; first += shape.chunk) {
        locate(rows, first + shape.chunk, smaller(shape.chunk, end - first - shape.chunk), *next);
        Stream values_now(now->values, now->count, bytes);
        Stream keys_next(next->keys, next->count, bytes);
        const KeyRange seeing = look_at(tile, static_cast<int32_t>(first), static_cast<int32_t>(now->count));
        if (seeing.first < seeing.end) {
            int64_t least_low = now->count;
            for (int64_t r = seeing.first; r < seeing.end; ++r) least_low = smaller(least_low, tile.low[r]);
            const int64_t column = least_low / VW * VW;
            pack_keys(tile, *now, column, rows.dtype, values_now);
            for_tiles(seeing.first, seeing.end, [&](int64_t r, int64_t n) {
                Product p{};
                p.a = tile.query + r * shape.stride;
                p.a_stride = shape.stride;
                p.b = tile.keys + column;
                p.b_stride = shape.chunk;
                p.c = tile.weight + r * shape.chunk + column;
                p.c_stride = shape.chunk;
                p.depth = shape.width;
                p.block = kDotBlock;
                p.stream = &keys_next;
                multiply_rows(n, ceil_div(now->count - column, VW), p);
            });
            softmax_chunk(tile, seeing.first, seeing.end);
            if (!tile.sums_only) {
                Values values{nullptr, 0, &keys_next};
                values.rows = pack_values(tile, *now, column, rows.dtype, values.stride);
                for_tiles(seeing.first, seeing.end, [&](int64_t r, int64_t n) { add_values(tile, values, r, n); });
            }
        }
        Chunk* const done = now;
        now = next;
        next = done;
    }
    for (int64_t r = 0; r < tile.rows; ++r) tile.sum[r] = sum(load(tile.sums + r * VW));
}

void fold_row(float& maximum, float& sum, float* total, float later_maximum, float later_sum, const float* later,
              int64_t stride) {
    const float now = later_maximum > maximum ? later_maximum : maximum;
    const vf shift = splat(now == -kInfinity ? 0.0f : now);
    const vf keep = exp(splat(maximum) - shift);
    const vf add = exp(splat(later_maximum) - shift);
    sum = fma(splat(sum), keep, splat(later_sum) * add)[0];
    maximum = now;
    for (int64_t d = 0; d < stride; d += VW) store(total + d, fma(load(total + d), keep, load(later + d) * add));
}

void attend(Tile& tile, const KeyRows& rows) {
    int64_t least = tile.first[0], most = tile.end[0];
    for (int64_t r = 1; r < tile.rows; ++r) {
        least = smaller(least, tile.first[r]);
        most = larger(most, tile.end[r]);
    }
    const int64_t start = least / kSegmentKeys * kSegmentKeys;
    for (int64_t begin = start; begin < most; begin += kSegmentKeys) {
        attend_segment(tile, rows, begin, smaller(most, begin + kSegmentKeys));
        if (begin == start) {
            float* const output = tile.output;
            tile.output = tile.total;
            tile.total = output;
        }
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* total = tile.total + r * tile.shape.stride;
            const float* output = tile.output + r * tile.shape.stride;
            if (begin == start || tile.first[r] >= begin) {  // nothing before it: not even a sum with zeros
                if (begin != start) std::memcpy(total, output, static_cast<size_t>(tile.shape.stride) * sizeof *total);
                tile.folded_maximum[r] = tile.maximum[r];
                tile.folded_sum[r] = tile.sum[r];
            } else if (tile.end[r] > begin) {
                fold_row(tile.folded_maximum[r], tile.folded_sum[r], total, tile.maximum[r], tile.sum[r], output,
                         tile.shape.stride);
            }
        }
    }
}

namespace {
template <class T>
void write_typed(T* y, const float* total, float sum, int64_t width) {
    // A sum of zero: nothing was seen, or every score was -inf.
    const vf divisor = splat(sum == 0.0f ? 1.0f : sum);
    int64_t d = 0;
    for (; d + VW <= width; d += VW) store(y + d, load(total + d) / divisor);
    if (d < width) store_n(y + d, load(total + d) / divisor, static_cast<int>(width - d));
}
}  // namespace

void write_row(int64_t dtype, void* y, const float* total, float sum, int64_t width) {
    switch (dtype) {
        case OST_F16: return write_typed(static_cast<f16*>(y), total, sum, width);
        case OST_BF16: return write_typed(static_cast<bf16*>(y), total, sum, width);
        default: return write_typed(static_cast<float*>(y), total, sum, width);
    }
}

}  // namespace ost::OST_UNIT
