// Kernels that move elements without looking at them: a strided read into a contiguous result, rows by
// index, tensors joined along an axis, and pairs of tensors whose runs are repeated.
#include "elementwise.h"

namespace ost::OST_UNIT {

namespace {

constexpr int kRank = 6;
constexpr int64_t kSquare = 32;  // side of the square in which two dimensions are walked together

struct Strided {
    int64_t dims[kRank];
    int64_t x_strides[kRank];
    int64_t y_strides[kRank];
};

// Rows [begin, end) of the two dimensions that are walked together.
template <class T>
void copy_square(const T* x, T* y, const Strided& s, int outer, int64_t begin, int64_t end) {
    const int inner = kRank - 1;
    const int64_t columns = s.dims[inner], step = s.x_strides[inner];
    for (int64_t first = 0; first < columns; first += step == 1 ? columns : kSquare) {
        const int64_t last = step == 1 ? columns : smaller(columns, first + kSquare);
        for (int64_t i = begin; i < end; ++i) {
            const T* from = x + i * s.x_strides[outer];
            T* to = y + i * s.y_strides[outer];
            if (step == 1) {
                std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(T));
            } else {
                for (int64_t j = first; j < last; ++j) to[j] = from[j * step];
            }
        }
    }
}

template <class T>
void copy_typed(const Call& call, const Strided& s, int64_t elements) {
    // The second dimension of the square: the one that is dense in x, so that both sides use whole cache lines.
    int outer = kRank - 2;
    for (int i = 0; i < kRank - 1; ++i) {
        if (s.x_strides[i] == 1 && s.dims[i] > 1) outer = i;
    }
    const T* const x = call.pointer<const T>(0);
    T* const y = call.pointer<T>(1);
    if (elements == s.dims[kRank - 1] && s.x_strides[kRank - 1] == 1) {
        return for_elements(call, elements, kStreamNanoseconds, [=](int64_t begin, int64_t end) {
            std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(T));
        });
    }
    const int64_t squares = ceil_div(s.dims[outer], kSquare);
    const int64_t rest = elements / (s.dims[outer] * s.dims[kRank - 1]);
    const double each = s.x_strides[kRank - 1] == 1 ? kStreamNanoseconds : 1.0;
    const double cost = each * static_cast<double>(elements) / static_cast<double>(rest * squares);
    for_rows(call, rest * squares, cost, [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
            int64_t index = unit / squares, x_offset = 0, y_offset = 0;
            for (int i = kRank - 2; i >= 0; --i) {
                if (i == outer) continue;
                x_offset += index % s.dims[i] * s.x_strides[i];
                y_offset += index % s.dims[i] * s.y_strides[i];
                index /= s.dims[i];
            }
            const int64_t first = unit % squares * kSquare;
            copy_square(x + x_offset, y + y_offset, s, outer, first, smaller(s.dims[outer], first + kSquare));
        }
    });
}

struct Bytes16 {
    uint64_t halves[2];
};

constexpr uint32_t kParts = 8;  // most operands of a concat

}  // namespace

void copy(const Call& call) {
    const int64_t size = call.integer(0), rank = call.integer(1);
    if (rank < 0 || rank > kRank) return report(call, OST_INVALID_ARGUMENT);
    // Right-aligned, neighbours that x stores in one run merged.
    Strided s;
    for (int i = 0; i < kRank; ++i) {
        s.dims[i] = 1;
        s.x_strides[i] = 0;
    }
    int64_t elements = 1, extent = 1;
    int place = kRank;
    for (int i = static_cast<int>(rank) - 1; i >= 0; --i) {
        const auto axis = static_cast<uint32_t>(i);
        const int64_t dim = call.integer(2 + axis), stride = call.integer(8 + axis);
        if (dim < 0 || stride < 0) return report(call, OST_INVALID_ARGUMENT);
        if (dim == 0) return;
        elements = area(elements, dim);
        extent = plus(extent, area(dim - 1, stride));
        if (dim == 1) continue;
        if (elements < 0 || extent < 0) return report(call, OST_INVALID_ARGUMENT);
        if (place < kRank && stride == s.dims[place] * s.x_strides[place]) {
            s.dims[place] *= dim;
            continue;
        }
        --place;
        s.dims[place] = dim;
        s.x_strides[place] = stride;
    }
    if (place == kRank) s.x_strides[kRank - 1] = 1;
    int64_t y_stride = 1;
    for (int i = kRank - 1; i >= 0; --i) {
        s.y_strides[i] = y_stride;
        y_stride *= s.dims[i];
    }
    if (!covers(call, 0, extent, size) || !covers(call, 1, elements, size)) return;
    switch (size) {
        case 1: return copy_typed<uint8_t>(call, s, elements);
        case 2: return copy_typed<uint16_t>(call, s, elements);
        case 4: return copy_typed<uint32_t>(call, s, elements);
        case 8: return copy_typed<uint64_t>(call, s, elements);
        case 16: return copy_typed<Bytes16>(call, s, elements);
        default: return report(call, OST_INVALID_ARGUMENT);
    }
}

void gather_rows(const Call& call) {
    const int64_t capacity = call.integer(0), available = call.integer(1), width = call.integer(2);
    const int64_t size = element_bytes(call.integer(3));
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, width)) return;
    if (size == 0 || available < 0) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, area(available, width), size) || !covers(call, 1, capacity, 4) ||
        !covers(call, 3, area(capacity, width), size)) {
        return;
    }
    const char* x = call.pointer<const char>(0);
    const auto* index = call.pointer<const int32_t>(1);
    char* y = call.pointer<char>(3);
    const int64_t bytes = width * size;
    const Call* const outer = &call;
    for_rows(call, rows, kStreamNanoseconds * static_cast<double>(bytes) / 4, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int64_t from = index[row];
            if (from >= 0 && from < available) {
                std::memcpy(y + row * bytes, x + from * bytes, static_cast<size_t>(bytes));
                continue;
            }
            std::memset(y + row * bytes, 0, static_cast<size_t>(bytes));
            if (from != -1) report(*outer, OST_OUT_OF_RANGE);
        }
    });
}

// Operands: up to eight parts, count?, y. Each of the rows of work holds `outer` runs; param 2 + i is the bytes of a
// run that part i gives, 0 where it is absent.
void concat(const Call& call) {
    const int64_t capacity = call.integer(0), outer = call.integer(1);
    const int64_t rows = valid_rows(call, kParts, capacity);
    if (empty(call, rows, outer)) return;
    const int64_t runs = area(capacity, outer);
    int64_t bytes = 0;
    for (uint32_t i = 0; i < kParts; ++i) {
        bytes = plus(bytes, call.integer(2 + i));
        if (!covers(call, i, runs, call.integer(2 + i))) return;
    }
    if (!covers(call, kParts + 1, runs, bytes)) return;
    const Call* const outside = &call;
    const double cost = kStreamNanoseconds * static_cast<double>(bytes) / 4;
    for_rows(call, rows * outer, cost, [=](int64_t begin, int64_t end) {
        for (int64_t run = begin; run < end; ++run) {
            char* to = outside->pointer<char>(kParts + 1) + run * bytes;
            for (uint32_t i = 0; i < kParts; ++i) {
                const int64_t size = outside->integer(2 + i);
                if (size == 0) continue;
                std::memcpy(to, outside->pointer<const char>(i) + run * size, static_cast<size_t>(size));
                to += size;
            }
        }
    });
}

// Operands k, v, count? of entries, k and v repeated. Params: element size, entries, repeats, then for k and for v the runs
// of an entry and the elements of a run. Every run stands `repeats` times in a row.
void repeat_pair(const Call& call) {
    const int64_t size = call.integer(0), capacity = call.integer(1), repeats = call.integer(2);
    const int64_t entries = valid_rows(call, 2, capacity);
    if (empty(call, entries, repeats)) return;
    if (size < 1) return report(call, OST_INVALID_ARGUMENT);
    for (uint32_t part = 0; part < 2; ++part) {
        if (empty(call, call.integer(3 + 2 * part), call.integer(4 + 2 * part))) return;
        const int64_t elements = area(capacity, call.integer(3 + 2 * part), call.integer(4 + 2 * part));
        if (!covers(call, part, elements, size) || !covers(call, 3 + part, area(elements, repeats), size)) return;
    }
    for (uint32_t part = 0; part < 2; ++part) {
        const int64_t bytes = area(call.integer(4 + 2 * part), size);
        const char* const x = call.pointer<const char>(part);
        char* const y = call.pointer<char>(3 + part);
        const double cost = kStreamNanoseconds * static_cast<double>(area(repeats, bytes)) / 4;
        for_rows(call, area(entries, call.integer(3 + 2 * part)), cost, [=](int64_t begin, int64_t end) {
            for (int64_t run = begin * repeats; run < end * repeats; ++run) {
                std::memcpy(y + run * bytes, x + run / repeats * bytes, static_cast<size_t>(bytes));
            }
        });
    }
}

}  // namespace ost::OST_UNIT
