// Keys and values of packed tokens in a block cache: where they lie, and which of them a token sees. Blocks of keys that
// no token sees need not exist.
#pragma once
#include "scoring.h"

// Where key and value j of a row begin, in elements, and whether all of them begin at multiples of 16 bytes if the first
// do.
struct InBlocks {
    const i32* table;
    i64 kv_heads, kv;
    u32 block_size;  // keys are counted in 31 bits, and so are those of a block
    i64 width;
    DEVICE bool whole(int size) const { return width * size % 16 == 0; }
    DEVICE i64 key(i64 j) const {
        const u32 block = static_cast<u32>(j) / block_size, inside = static_cast<u32>(j) % block_size;
        return ((table[block] * kv_heads + kv) * block_size + inside) * width;
    }
    DEVICE i64 value(i64 j) const { return key(j); }
};

// What some keys amount to: their largest score, their weights' sum, and for each d of [0, width) that of weighted
// values. A result is their quotient, and 0 where there is no key.
DEVICE f32 quotient(f32 output, f32 sum) { return sum == 0.0f ? 0.0f : output / sum; }

// What a packed token sees, of a row of so many keys that has room for `most`. A token sees the keys up to its position
// and below its row's length; a row of -1 is none.
struct Sight {
    i64 start, end;
    bool bad;  // there is no such row, or it has no room for them
};
DEVICE Sight sight_of(i64 row, i64 position, i64 length, i64 rows, i64 most, i64 window) {
    const i64 start = window_start(position, window), end = row < 0 ? 0 : smaller<i64>(position + 1, length);
    const bool bad = row >= rows || (end > start && end > most);
    return {start, bad ? 0 : end, bad};
}
// Whether some block of keys [start, end) does not exist.
DEVICE bool blocks_missing(const i32* table, i64 start, i64 end, i64 blocks, i64 block_size) {
    bool bad = false;
    if (start < end) {
        const u32 size = static_cast<u32>(block_size), last = static_cast<u32>(end - 1) / size;
        for (u32 b = static_cast<u32>(start) / size + thread_index(); b <= last; b += thread_count()) {
            bad = bad || table[b] < 0 || table[b] >= blocks;
        }
    }
    return block_any(bad);
}
