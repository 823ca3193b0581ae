// Row-major storage: sizes of rows and reading a piece of one as floats. Blocks are GGUF's, as in the file:
//   q8_0 { half d; int8 q[32] }   q4_0 { half d; uint8 q[16] }   q4_1 { half d; half m; uint8 q[16] }
// with element i of a four-bit block in the low half of byte i and element i + 16 in its high half. Addresses may be
// unaligned: rows are read where a file is mapped.
#pragma once

#include "simd.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kBlockElements = 32;

OST_INLINE bool is_block(int64_t dtype) { return dtype == OST_Q8_0 || dtype == OST_Q4_0 || dtype == OST_Q4_1; }

// Bytes of a row of `columns` elements; -1 for a dtype that is not stored in rows or a length it cannot have.
OST_INLINE int64_t row_bytes(int64_t dtype, int64_t columns) {
    const int64_t blocks = columns % kBlockElements == 0 ? columns / kBlockElements : -1;
    switch (dtype) {
        case OST_Q8_0: return area(blocks, 34);
        case OST_Q4_0: return area(blocks, 18);
        case OST_Q4_1: return area(blocks, 20);
        default: break;
    }
    const int64_t bytes = element_bytes(dtype);
    return bytes == 0 ? -1 : area(columns, bytes);
}

template <class T>
OST_INLINE T read_unaligned(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

OST_INLINE void widen_block(int64_t dtype, const char* block, float* out) {
    const float d = widen(read_unaligned<f16>(block));
    if (dtype == OST_Q8_0) {
        for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<signed char>(block[2 + i]));
        return;
    }
    const bool minimum = dtype == OST_Q4_1;
    const float m = minimum ? widen(read_unaligned<f16>(block + 2)) : 0.0f;
    const auto* q = reinterpret_cast<const unsigned char*>(block) + (minimum ? 4 : 2);
    for (int i = 0; i < 16; ++i) {
        const int low = q[i] & 15;
        const int high = q[i] >> 4;
        out[i] = minimum ? d * static_cast<float>(low) + m : d * static_cast<float>(low - 8);
        out[i + 16] = minimum ? d * static_cast<float>(high) + m : d * static_cast<float>(high - 8);
    }
}

inline constexpr int64_t kPiece = 64;  // most elements a piece has; whole blocks

template <class T>
OST_INLINE void widen_halves(const char* from, int64_t count, float* out) {
    T halves[kPiece];  // aligned, which `from` need not be
    std::memcpy(halves, from, static_cast<size_t>(count) * sizeof(T));
    int64_t i = 0;
    for (; i + VW <= count; i += VW) store(out + i, load(halves + i));
    for (; i < count; ++i) out[i] = widen(halves[i]);
}

// Elements [k, k + count) of a row as floats; for blocks k and count are multiples of 32. count <= kPiece.
OST_INLINE void widen_piece(int64_t dtype, const char* row, int64_t k, int64_t count, float* out) {
    if (dtype == OST_F32) {
        std::memcpy(out, row + k * 4, static_cast<size_t>(count) * 4);
    } else if (is_block(dtype)) {
        const int64_t bytes = row_bytes(dtype, kBlockElements);
        for (int64_t i = 0; i < count; i += kBlockElements) {
            widen_block(dtype, row + (k + i) / kBlockElements * bytes, out + i);
        }
    } else if (dtype == OST_F16) {
        widen_halves<f16>(row + k * 2, count, out);
    } else {
        widen_halves<bf16>(row + k * 2, count, out);
    }
}

template <class T>
OST_INLINE void narrow_piece(const float* from, int64_t count, T* to) {
    int64_t i = 0;
    for (; i + VW <= count; i += VW) store(to + i, load(from + i));
    for (; i < count; ++i) narrow(from[i], to[i]);
}

}  // namespace ost::OST_UNIT
