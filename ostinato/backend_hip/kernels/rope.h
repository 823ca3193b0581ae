// What stands between projections and attention: the rotation of a pair, and where a token lies in the block cache.
#pragma once
#include "words.h"

// The pair (a, b) by the angle of c and s.
DEVICE void turn(f32& a, f32& b, f32 c, f32 s) {
    const f32 first = fmaf(a, c, -(b * s));
    b = fmaf(b, c, a * s);
    a = first;
}

// Caches [blocks, heads, block_size, width], and per token its row of the block table and its position there.
struct Places {
    const i32 *row_of_token, *position, *block_table;
    i64 blocks, block_size, table_rows, table_width;

    // Elements before a token's place in the first head; -1 for a token that is not stored, and for one that points
    // outside, which is reported.
    DEVICE i64 of(i64 token, i64 heads, i64 width, Status status) const {
        const i64 row = row_of_token[token], at = position[token];
        if (row < 0) return -1;
        const bool inside = row < table_rows && at >= 0 && at / block_size < table_width;
        const i64 block = inside ? block_table[row * table_width + at / block_size] : -1;
        if (block < 0 || block >= blocks) {
            status.out_of_range();
            return -1;
        }
        return (block * heads * block_size + at % block_size) * width;
    }
};
