// Row-major storage: sizes of rows and reading a piece of one as floats. Blocks lie as in the file (blocks.h).
// Addresses may be unaligned: rows are read where a file is mapped.
#pragma once

#include "blocks.h"

namespace ost::OST_UNIT {

// Bytes of a row of `columns` elements; -1 for a dtype that is not stored in rows or a length it cannot have.
OST_INLINE int64_t row_bytes(int64_t dtype, int64_t columns) {
    int64_t bytes = -1;
    const bool blocks = with_block(dtype, [&](auto block) {
        using Block = decltype(block);
        if (columns % Block::kValues == 0) bytes = area(columns / Block::kValues, Block::kBytes);
    });
    const int64_t size = element_bytes(dtype);
    return blocks || size == 0 ? bytes : area(columns, size);
}

inline constexpr int64_t kPiece = 64;  // most elements a piece has; whole groups of a block

template <class T>
OST_INLINE void widen_halves(const char* from, int64_t count, float* out) {
    T halves[kPiece];  // aligned, which `from` need not be
    std::memcpy(halves, from, static_cast<size_t>(count) * sizeof(T));
    int64_t i = 0;
    for (; i + VW <= count; i += VW) store(out + i, load(halves + i));
    for (; i < count; ++i) out[i] = widen(halves[i]);
}

// Elements [k, k + count) of a row as floats; for blocks k and count are multiples of 32. count <= kPiece. It is long
// and called from many places, hence not inlined.
__attribute__((noinline)) static void widen_piece(int64_t dtype, const char* row, int64_t k, int64_t count,
                                                  float* out) {
    if (dtype == OST_F32) {
        std::memcpy(out, row + k * 4, static_cast<size_t>(count) * 4);
    } else if (dtype == OST_F16) {
        widen_halves<f16>(row + k * 2, count, out);
    } else if (dtype == OST_BF16) {
        widen_halves<bf16>(row + k * 2, count, out);
    } else {
        with_block(dtype, [&](auto block) {
            using Block = decltype(block);
            for (int64_t i = k; i < k + count; i += kQuantBlock) {
                const char* from = row + i / Block::kValues * Block::kBytes;
                widen_group<Block>(from, static_cast<int>(i % Block::kValues / kQuantBlock), out + (i - k));
            }
        });
    }
}

template <class T>
OST_INLINE void narrow_piece(const float* from, int64_t count, T* to) {
    int64_t i = 0;
    for (; i + VW <= count; i += VW) store(to + i, load(from + i));
    for (; i < count; ++i) narrow(from[i], to[i]);
}

}  // namespace ost::OST_UNIT
