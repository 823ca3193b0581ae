#include "attention_tile.h"

#include "multiply.h"
#include "transpose.h"
#include "work.h"

namespace ost::OST_UNIT {

TileShape tile_shape(int64_t width) {
    TileShape shape{};
    shape.width = width;
    shape.stride = ceil_div(width, VW) * VW;
    shape.chunk = width <= 128 ? 64 : width <= 256 ? 32 : 16;
    const int64_t shared = shape.width * shape.chunk + shape.chunk * shape.stride;
    const int64_t per_row = 3 * shape.stride + shape.chunk + VW + 7;
    const int64_t padding = 16 * 16;  // every array starts on 64 bytes
    const int64_t room = static_cast<int64_t>(kWorkerScratchBytes / sizeof(float)) - shared - padding;
    shape.rows = smaller(kMaximumTileRows, room / per_row / VW * VW);
    return shape;
}
static_assert(kWorkerScratchBytes / sizeof(float) >= 32 * kMaximumHeadWidth + 256 + 16 * (3 * kMaximumHeadWidth + 64),
              "the widest head leaves room for a tile of 16 rows");

Tile make_tile(const TileShape& shape, float scale, void* scratch) {
    auto* next = static_cast<float*>(scratch);
    const auto take = [&next](int64_t count) {
        float* start = next;
        next += ceil_div(count, 16) * 16;
        return start;
    };
    Tile tile{};
    tile.shape = shape;
    tile.scale = scale;
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
    tile.limit = reinterpret_cast<int32_t*>(take(shape.rows));
    tile.visible = reinterpret_cast<int32_t*>(take(shape.rows));
    return tile;
}

namespace {

// Blocks of the two products: head elements of a dot product, keys of a weighted sum.
constexpr int64_t kDotBlock = 16;
constexpr int64_t kValueBlock = 32;

template <class T>
void widen_row(const T* from, float* to, int64_t width, vf factor) {
    int64_t d = 0;
    for (; d + VW <= width; d += VW) store(to + d, load(from + d) * factor);
    if (d < width) store(to + d, load_n(from + d, static_cast<int>(width - d)) * factor);
}

template <class T>
void add_typed(Tile& tile, const T* queries, int64_t count, int64_t step, bool negative, int32_t limit) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = tile.rows++;
        widen_row(queries + i * step, tile.query + row * tile.shape.stride, tile.shape.width,
                  splat(negative ? -1.0f : 1.0f));
        tile.limit[row] = limit;
    }
}

void locate(const KeyRows& rows, int64_t first, int64_t count, const char** keys, const char** values) {
    const char* key = rows.keys + first * rows.key_step;
    const char* value = rows.values + first * rows.value_step;
    int64_t left_in_block = count;
    if (rows.table != nullptr) left_in_block = 0;
    for (int64_t j = 0; j < count; ++j) {
        if (left_in_block == 0) {
            const int64_t block = (first + j) / rows.block_keys;
            const int64_t inside = (first + j) - block * rows.block_keys;
            const int64_t base = rows.table[block] * rows.block_step;
            key = rows.keys + base + inside * rows.key_step;
            value = rows.values + base + inside * rows.value_step;
            left_in_block = rows.block_keys - inside;
        }
        keys[j] = key;
        values[j] = value;
        key += rows.key_step;
        value += rows.value_step;
        --left_in_block;
    }
}

// Keys as columns. Columns past the last key repeat it; their scores are masked.
template <class T>
void pack_keys(const Tile& tile, const char* const* rows, int64_t count, Stream& stream) {
    const int64_t width = tile.shape.width;
    const int64_t chunk = tile.shape.chunk;
    for (int64_t j = 0; j < count; j += VW) {
        const T* from[VW];
        for (int i = 0; i < VW; ++i) from[i] = reinterpret_cast<const T*>(rows[smaller(j + i, count - 1)]);
        int64_t d = 0;
        for (; d + VW <= width; d += VW) {
            stream.step(VW);
            vf block[VW];
#pragma GCC unroll 16
            for (int i = 0; i < VW; ++i) block[i] = load(from[i] + d);
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < VW; ++i) store(tile.keys + (d + i) * chunk + j, block[i]);
        }
        for (; d < width; ++d) {
            for (int i = 0; i < VW; ++i) tile.keys[d * chunk + j + i] = widen(from[i][d]);
        }
    }
}

// Values as float rows: in place when they already are whole vectors at one stride, else copied.
template <class T>
const float* pack_values(const Tile& tile, const char* const* rows, int64_t count, int64_t& stride) {
    if (sizeof(T) == sizeof(float) && tile.shape.stride == tile.shape.width) {
        const int64_t step = count > 1 ? rows[1] - rows[0] : 0;
        bool even = step % static_cast<int64_t>(sizeof(float)) == 0;
        for (int64_t j = 2; j < count; ++j) even = even && rows[j] - rows[j - 1] == step;
        if (even) {
            stride = step / static_cast<int64_t>(sizeof(float));
            return reinterpret_cast<const float*>(rows[0]);
        }
    }
    for (int64_t j = 0; j < count; ++j) {
        widen_row(reinterpret_cast<const T*>(rows[j]), tile.values + j * tile.shape.stride, tile.shape.width,
                  splat(1.0f));
    }
    stride = tile.shape.stride;
    return tile.values;
}

// Keys and values of one chunk, where they lie.
struct Chunk {
    int64_t count;
    const char* keys[kMaximumChunk];
    const char* values[kMaximumChunk];
};

void pack_keys(const Tile& tile, const Chunk& chunk, int64_t dtype, Stream& stream) {
    switch (dtype) {
        case OST_F16: return pack_keys<f16>(tile, chunk.keys, chunk.count, stream);
        case OST_BF16: return pack_keys<bf16>(tile, chunk.keys, chunk.count, stream);
        default: return pack_keys<float>(tile, chunk.keys, chunk.count, stream);
    }
}

const float* pack_values(const Tile& tile, const Chunk& chunk, int64_t dtype, int64_t& stride) {
    switch (dtype) {
        case OST_F16: return pack_values<f16>(tile, chunk.values, chunk.count, stride);
        case OST_BF16: return pack_values<bf16>(tile, chunk.values, chunk.count, stride);
        default: return pack_values<float>(tile, chunk.values, chunk.count, stride);
    }
}

// Scores become weights. A maximum of -inf (no key yet, or all scores -inf) is taken as 0, so that nothing becomes NaN.
void softmax_chunk(Tile& tile, int64_t first_row) {
    const int64_t chunk = tile.shape.chunk;
    const vf lowest = splat(-kInfinity);
    const int64_t aligned = first_row / VW * VW;
    float shift[kMaximumTileRows];
    for (int64_t r = aligned; r < first_row; ++r) shift[r] = 0.0f;
    for (int64_t r = first_row; r < tile.rows; ++r) {
        const float* scores = tile.weight + r * chunk;
        const int64_t count = tile.visible[r];
        vf high = lowest;
        int64_t j = 0;
        for (; j + VW <= count; j += VW) high = maximum(load(scores + j), high);
        if (j < count) high = maximum(keep_first(load(scores + j), count - j, lowest), high);
        const float best = count > 0 ? largest(high) * tile.scale : -kInfinity;
        const float before = tile.maximum[r];
        const float now = best > before ? best : before;
        shift[r] = now == -kInfinity ? 0.0f : now;
        tile.rescale[r] = before;
        tile.maximum[r] = now;
    }
    for (int64_t r = aligned; r < tile.rows; r += VW) {
        const int n = static_cast<int>(smaller(VW, tile.rows - r));
        store(tile.rescale + r, exp(load(tile.rescale + r) - load_n(shift + r, n)));
    }
    const vf scale = splat(tile.scale);
    for (int64_t r = first_row; r < tile.rows; ++r) {
        float* scores = tile.weight + r * chunk;
        const int64_t count = tile.visible[r];
        const vf offset = splat(-shift[r]);
        vf sums = load(tile.sums + r * VW) * splat(tile.rescale[r]);
        int64_t j = 0;
        for (; j + VW <= count; j += VW) {
            const vf weight = exp(fma(load(scores + j), scale, offset));
            store(scores + j, weight);
            sums = sums + weight;
        }
        if (j < count) {
            const vf weight = keep_first(exp(fma(load(scores + j), scale, offset)), count - j, zero());
            store(scores + j, weight);
            sums = sums + weight;
        }
        store(tile.sums + r * VW, sums);
    }
}

void add_values(Tile& tile, int64_t first_row, const float* values, int64_t value_stride, Stream& stream) {
    const int64_t vectors = tile.shape.stride / VW;
    const float one = 1.0f;
    const auto product = [&](int64_t row, int64_t first, int64_t end, const float* rescale) {
        Product p{};
        p.a = tile.weight + row * tile.shape.chunk + first;
        p.a_stride = tile.shape.chunk;
        p.b = values + first * value_stride;
        p.b_stride = value_stride;
        p.c = tile.output + row * tile.shape.stride;
        p.c_stride = tile.shape.stride;
        p.depth = end - first;
        p.block = kValueBlock;
        p.rescale = rescale;
        p.stream = &stream;
        return p;
    };
    for_tiles(first_row, tile.rows, [&](int64_t row, int64_t rows) {
        int64_t least = tile.visible[row], most = least;
        for (int64_t r = row + 1; r < row + rows; ++r) {
            least = smaller(least, tile.visible[r]);
            most = larger(most, tile.visible[r]);
        }
        // Together as far as all see, in whole blocks where they differ; then each row on its own.
        const int64_t common = least == most ? least : least / kValueBlock * kValueBlock;
        if (common > 0) multiply_rows(rows, vectors, product(row, 0, common, tile.rescale + row));
        for (int64_t r = row; r < row + rows; ++r) {
            if (tile.visible[r] == common) continue;
            multiply_rows(1, vectors, product(r, common, tile.visible[r], common > 0 ? &one : tile.rescale + r));
        }
    });
}

}  // namespace

void add_queries(Tile& tile, int64_t dtype, const void* queries, int64_t count, int64_t step, bool negative,
                 int32_t limit) {
    switch (dtype) {
        case OST_F16: return add_typed(tile, static_cast<const f16*>(queries), count, step, negative, limit);
        case OST_BF16: return add_typed(tile, static_cast<const bf16*>(queries), count, step, negative, limit);
        default: return add_typed(tile, static_cast<const float*>(queries), count, step, negative, limit);
    }
}

void attend_segment(Tile& tile, const KeyRows& rows, int64_t begin, int64_t end) {
    const TileShape& shape = tile.shape;
    for (int64_t r = 0; r < tile.rows; ++r) tile.maximum[r] = -kInfinity;
    for (int64_t i = 0; i < tile.rows * VW; i += VW) store(tile.sums + i, zero());
    for (int64_t i = 0; i < tile.rows * shape.stride; i += VW) store(tile.output + i, zero());
    const int64_t bytes = shape.width * (rows.dtype == OST_F32 ? 4 : 2);
    Chunk chunks[2];
    Chunk* now = &chunks[0];
    Chunk* next = &chunks[1];
    now->count = smaller(shape.chunk, end - begin);
    locate(rows, begin, now->count, now->keys, now->values);
    for (int64_t first = begin; first < end; first += shape.chunk) {
        next->count = larger(0, smaller(shape.chunk, end - first - shape.chunk));
        if (next->count > 0) locate(rows, first + shape.chunk, next->count, next->keys, next->values);
        // Rows of a causal tile have ascending limits: those that see nothing here are at its top.
        int64_t row = 0;
        while (row < tile.rows && tile.limit[row] <= first) ++row;
        for (int64_t r = row; r < tile.rows; ++r) {
            tile.visible[r] = static_cast<int32_t>(smaller(now->count, larger(0, tile.limit[r] - first)));
        }
        Stream values_now(now->values, now->count, bytes);
        Stream keys_next(next->keys, next->count, bytes);
        pack_keys(tile, *now, rows.dtype, values_now);
        const int64_t vectors = ceil_div(now->count, VW);
        for_tiles(row, tile.rows, [&](int64_t r, int64_t n) {
            Product p{};
            p.a = tile.query + r * shape.stride;
            p.a_stride = shape.stride;
            p.b = tile.keys;
            p.b_stride = shape.chunk;
            p.c = tile.weight + r * shape.chunk;
            p.c_stride = shape.chunk;
            p.depth = shape.width;
            p.block = kDotBlock;
            p.stream = &keys_next;
            multiply_rows(n, vectors, p);
        });
        softmax_chunk(tile, row);
        int64_t value_stride = 0;
        const float* values = pack_values(tile, *now, rows.dtype, value_stride);
        add_values(tile, row, values, value_stride, keys_next);
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

void attend(Tile& tile, const KeyRows& rows, int64_t end) {
    for (int64_t begin = 0; begin < end; begin += kSegmentKeys) {
        attend_segment(tile, rows, begin, smaller(end, begin + kSegmentKeys));
        if (begin == 0) {
            float* const output = tile.output;
            tile.output = tile.total;
            tile.total = output;
            for (int64_t r = 0; r < tile.rows; ++r) {
                tile.folded_maximum[r] = tile.maximum[r];
                tile.folded_sum[r] = tile.sum[r];
            }
            continue;
        }
        for (int64_t r = 0; r < tile.rows; ++r) {
            if (tile.limit[r] <= begin) continue;
            fold_row(tile.folded_maximum[r], tile.folded_sum[r], tile.total + r * tile.shape.stride, tile.maximum[r],
                     tile.sum[r], tile.output + r * tile.shape.stride, tile.shape.stride);
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
