// Keys and values of one chunk: where they lie, and how they become the operands of the two products of a tile.
#pragma once

#include "attention_tile.h"
#include "multiply.h"
#include "transpose.h"
#include "work.h"

namespace ost::OST_UNIT {

// Keys and values of one chunk, where they lie.
struct Chunk {
    int64_t count;
    const char* keys[kMaximumChunk];
    const char* values[kMaximumChunk];
};

// Keys [first, first + count), none for a count below 1. A key that no row sees may lie in a block that does not exist:
// the first one stands in for it, and its scores are masked.
static inline void locate(const KeyRows& rows, int64_t first, int64_t count, Chunk& chunk) {
    chunk.count = larger(0, count);
    const char* key = rows.keys + first * rows.key_step;
    const char* value = rows.values + first * rows.value_step;
    int64_t left_in_block = count;
    if (rows.table != nullptr) left_in_block = 0;
    for (int64_t j = 0; j < count; ++j) {
        if (left_in_block == 0) {
            const int64_t index = (first + j) / rows.block_keys;
            const int64_t inside = (first + j) - index * rows.block_keys;
            const int32_t block = rows.table[index];
            const int64_t base = block >= 0 && block < rows.blocks ? block * rows.block_step : 0;
            key = rows.keys + base + inside * rows.key_step;
            value = rows.values + base + inside * rows.value_step;
            left_in_block = rows.block_keys - inside;
        }
        chunk.keys[j] = key;
        chunk.values[j] = value;
        key += rows.key_step;
        value += rows.value_step;
        --left_in_block;
    }
}

template <class T>
OST_INLINE void widen_row(const T* from, float* to, int64_t width, vf factor) {
    int64_t d = 0;
    for (; d + VW <= width; d += VW) store(to + d, load(from + d) * factor);
    if (d < width) store(to + d, load_n(from + d, static_cast<int>(width - d)) * factor);
}

// Keys as columns, from `column` (a multiple of VW) on. Columns past the last key repeat it; their scores are masked.
template <class T>
OST_INLINE void pack_keys(const Tile& tile, const Chunk& keys, int64_t column, Stream& stream) {
    const int64_t width = tile.shape.width;
    const int64_t chunk = tile.shape.chunk;
    for (int64_t j = column; j < keys.count; j += VW) {
        const T* from[VW];
        for (int i = 0; i < VW; ++i) from[i] = reinterpret_cast<const T*>(keys.keys[smaller(j + i, keys.count - 1)]);
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

// Values as float rows, from `column` on: in place when they already are whole vectors at one stride, else copied.
template <class T>
OST_INLINE const float* pack_values(const Tile& tile, const Chunk& values, int64_t column, int64_t& stride) {
    const char* const* rows = values.values;
    if (sizeof(T) == sizeof(float) && tile.shape.stride == tile.shape.width) {
        const int64_t step = values.count > 1 ? rows[1] - rows[0] : 0;
        bool even = step % static_cast<int64_t>(sizeof(float)) == 0;
        for (int64_t j = 2; j < values.count; ++j) even = even && rows[j] - rows[j - 1] == step;
        if (even) {
            stride = step / static_cast<int64_t>(sizeof(float));
            return reinterpret_cast<const float*>(rows[0]);
        }
    }
    for (int64_t j = column; j < values.count; ++j) {
        widen_row(reinterpret_cast<const T*>(rows[j]), tile.values + j * tile.shape.stride, tile.shape.width,
                  splat(1.0f));
    }
    stride = tile.shape.stride;
    return tile.values;
}

OST_INLINE void pack_keys(const Tile& tile, const Chunk& keys, int64_t column, int64_t dtype, Stream& stream) {
    switch (dtype) {
        case OST_F16: return pack_keys<f16>(tile, keys, column, stream);
        case OST_BF16: return pack_keys<bf16>(tile, keys, column, stream);
        default: return pack_keys<float>(tile, keys, column, stream);
    }
}

OST_INLINE const float* pack_values(const Tile& tile, const Chunk& values, int64_t column, int64_t dtype,
                                    int64_t& stride) {
    switch (dtype) {
        case OST_F16: return pack_values<f16>(tile, values, column, stride);
        case OST_BF16: return pack_values<bf16>(tile, values, column, stride);
        default: return pack_values<float>(tile, values, column, stride);
    }
}

}  // namespace ost::OST_UNIT
