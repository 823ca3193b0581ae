// Where the keys and values of a token go in the block cache.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

// Caches [blocks, heads, block_size, width], and per token its row of the block table and its position there.
struct CachePlaces {
    const Call* call;
    const int32_t* row_of_token;
    const int32_t* position;
    const int32_t* block_table;
    int64_t heads, width;
    int64_t blocks, block_size;
    int64_t table_width, table_rows;

    __attribute__((always_inline)) bool valid() const { return blocks >= 0 && block_size > 0 && table_width >= 0 && table_rows >= 0; }
    __attribute__((always_inline)) int64_t elements() const { return area(blocks, heads, block_size, width); }
    __attribute__((always_inline)) int64_t head_stride() const { return block_size * width; }
    // Elements before the token's place in the first head; -1 for a token that is not stored, and for one that points
    // outside, which is reported.
    __attribute__((always_inline)) int64_t of(int64_t token) const {
        const int64_t row = row_of_token[token];
        if (row < 0) return -1;
        const int64_t at = position[token], entry = at / block_size;
        const bool inside = row < table_rows && at >= 0 && entry < table_width;
        const int64_t block = inside ? block_table[row * table_width + entry] : -1;
        if (block < 0 || block >= blocks) {
            report(*call, OST_OUT_OF_RANGE);
            return -1;
        }
        return (block * heads * block_size + at % block_size) * width;
    }
};

}  // namespace ost::OST_UNIT
