// pack_<W> and copy_rows: from rows as a checkpoint has them to the places kernels read. One call writes some logical
// rows of a weight, so that parts of it may come from several tensors, straight from the mapped file; rows already
// written by other calls are left alone. Values change only as much as a change of float type asks for.
#include "panel.h"
#include "rows.h"
#include "thread_pool.h"
#include "transpose.h"

namespace ost::OST_UNIT {

KernelTable pack_kernels();

namespace {

enum Layout { kRows = 0, kPanels = 1, kPairs = 2 };

struct Packing {
    const Call* call;
    int64_t src_dtype;
    int64_t k;
    int64_t rows;
    int64_t first;  // logical row of the destination that source row 0 becomes
    int64_t total;  // logical rows of the destination
    const char* source;
    const int64_t* index;
    int64_t source_row_bytes;
    int64_t source_rows;
    char* to;
};

// Start of the source row for logical row `row`; null, and reported, when its index is outside of the source.
const char* source_row(const Packing& p, int64_t row) {
    const int64_t at = p.index[row - p.first];
    if (at < 0 || at >= p.source_rows) {
        report(*p.call, OST_OUT_OF_RANGE);
        return nullptr;
    }
    return p.source + at * p.source_row_bytes;
}

enum Lane { kOther, kZero, kWrite };

struct PanelRows {
    const char* rows[kLanes];
    Lane lanes[kLanes];
    bool any;
};

// What this call has to do with each lane of a panel.
PanelRows panel_rows(const Packing& p, int64_t layout, int64_t panel) {
    const bool holds_last = p.rows > 0 && p.first + p.rows == p.total;
    PanelRows result = {};
    for (int lane = 0; lane < kLanes; ++lane) {
        int64_t row = panel * kLanes + lane;
        bool padding = row >= p.total;
        if (layout == kPairs) {
            const int64_t half = p.total / 2;
            const int64_t within = panel * (kLanes / 2) + lane % (kLanes / 2);
            padding = within >= half;
            row = lane < kLanes / 2 ? within : half + within;
        }
        result.lanes[lane] = kOther;
        if (padding) {
            if (holds_last) result.lanes[lane] = kZero;
        } else if (row >= p.first && row < p.first + p.rows) {
            result.rows[lane] = source_row(p, row);
            result.lanes[lane] = result.rows[lane] != nullptr ? kWrite : kZero;
        }
        result.any = result.any || result.lanes[lane] != kOther;
    }
    return result;
}

// A panel of floats is rows of 32 units, one a lane: a value, or for bf16 two values of k side by side. They are put
// together as floats and transposed in registers.
template <class T>
struct Unit {
    static constexpr int kValues = 1;
    using Stored = T;
    OST_INLINE void make(const float* values, int64_t count, float* units) {
        std::memcpy(units, values, static_cast<size_t>(count) * sizeof(float));
    }
};
template <>
struct Unit<bf16> {
    static constexpr int kValues = 2;
    using Stored = float;  // two bf16 as they are
    OST_INLINE void make(const float* values, int64_t count, float* units) {
        bf16 narrow[kPiece] = {};  // an odd end is completed with zero
        narrow_piece(values, count, narrow);
        std::memcpy(units, narrow, static_cast<size_t>(ceil_div(count, 2)) * sizeof(float));
    }
};

template <class T>
void pack_float_panel(const Packing& p, const PanelRows& from, char* panel) {
    using Stored = typename Unit<T>::Stored;
    constexpr int kUnits = kPiece / Unit<T>::kValues;
    const int64_t piece_bytes = row_bytes(p.src_dtype, kPiece);
    for (int64_t k = 0; k < p.k; k += kPiece) {
        const int64_t count = smaller(kPiece, p.k - k);
        const int64_t units = ceil_div(count, Unit<T>::kValues);
        auto* to = reinterpret_cast<Stored*>(panel) + k / Unit<T>::kValues * kLanes;
        float piece[kLanes][kUnits];
        for (int lane = 0; lane < kLanes; ++lane) {
            if (from.lanes[lane] == kWrite) {
                // 32 rows are more streams than the hardware follows by itself.
                const char* next = from.rows[lane] + (k / kPiece + 1) * piece_bytes;
                for (int64_t line = 0; line < piece_bytes; line += 64) prefetch(next + line);
                float values[kPiece];
                widen_piece(p.src_dtype, from.rows[lane], k, count, values);
                Unit<T>::make(values, count, piece[lane]);
            } else {
                for (float& unit : piece[lane]) unit = 0.0f;
            }
        }
        for (int first = 0; first < kLanes; first += VW) {
            bool whole = true;
            for (int lane = first; lane < first + VW; ++lane) whole = whole && from.lanes[lane] != kOther;
            int64_t u = 0;
            for (; whole && u + VW <= units; u += VW) {
                vf square[VW];
#pragma GCC unroll 16
                for (int i = 0; i < VW; ++i) square[i] = load(&piece[first + i][u]);
                transpose(square);
#pragma GCC unroll 16
                for (int i = 0; i < VW; ++i) store(to + (u + i) * kLanes + first, square[i]);
            }
            for (int lane = first; lane < first + VW; ++lane) {
                if (from.lanes[lane] == kOther) continue;
                for (int64_t i = u; i < units; ++i) narrow(piece[lane][i], to[i * kLanes + lane]);
            }
        }
    }
}

template <class Block>
void pack_block_panel(const Packing& p, const PanelRows& from, char* panel) {
    using Panel = PanelBlocks<Block>;
    for (int64_t b = 0; b < p.k / Block::kValues; ++b, panel += Panel::kBlockBytes) {
        for (int lane = 0; lane < kLanes; ++lane) {
            if (from.lanes[lane] == kOther) continue;
            static const char zeros[Block::kBytes] = {};
            const char* block = from.lanes[lane] == kWrite ? from.rows[lane] + b * Block::kBytes : zeros;
            Panel::write_lane(panel, lane, block);
            for (int group = 0; group < Block::kValues / kQuantBlock; ++group) {
                Panel::write_codes(panel, group, lane, Block::codes(block, group));
            }
        }
    }
}

void pack_panels(const Packing& p, int64_t dtype, int64_t layout) {
    const int64_t bytes = panel_bytes(dtype, p.k);
    const int64_t panels = layout == kPairs ? ceil_div(p.total / 2, kLanes / 2) : ceil_div(p.total, kLanes);
    p.call->pool->parallel(panels, [&](int64_t panel, void*) {
        const PanelRows from = panel_rows(p, layout, panel);
        if (!from.any) return;
        char* to = p.to + panel * bytes;
        switch (dtype) {
            case OST_F32: return pack_float_panel<float>(p, from, to);
            case OST_F16: return pack_float_panel<f16>(p, from, to);
            case OST_BF16: return pack_float_panel<bf16>(p, from, to);
            default: break;
        }
        with_block(dtype, [&](auto block) { pack_block_panel<decltype(block)>(p, from, to); });
    });
}

template <class T>
void convert_row(const Packing& p, const char* from, T* to) {
    for (int64_t k = 0; k < p.k; k += kPiece) {
        const int64_t count = smaller(kPiece, p.k - k);
        float values[kPiece];
        if (from != nullptr) {
            widen_piece(p.src_dtype, from, k, count, values);
        } else {
            for (float& value : values) value = 0.0f;
        }
        narrow_piece(values, count, to + k);
    }
}

void copy_to_rows(const Packing& p, int64_t dtype) {
    const int64_t bytes = row_bytes(dtype, p.k);
    p.call->pool->parallel(p.rows, [&](int64_t i, void*) {
        const char* from = source_row(p, p.first + i);
        char* to = p.to + (p.first + i) * bytes;
        if (p.src_dtype == dtype) {
            if (from != nullptr) {
                std::memcpy(to, from, static_cast<size_t>(bytes));
            } else {
                std::memset(to, 0, static_cast<size_t>(bytes));
            }
            return;
        }
        switch (dtype) {
            case OST_F32: return convert_row(p, from, reinterpret_cast<float*>(to));
            case OST_F16: return convert_row(p, from, reinterpret_cast<f16*>(to));
            default: return convert_row(p, from, reinterpret_cast<bf16*>(to));
        }
    });
}

// Fills in what both kernels share; false, and reported, when parameters do not fit together.
bool prepare(const Call& call, int64_t src_dtype, int64_t dst_dtype, int64_t k, int64_t rows, int64_t first,
             int64_t total, Packing& p) {
    p.call = &call;
    p.src_dtype = src_dtype;
    p.k = k;
    p.rows = rows;
    p.first = first;
    p.total = total;
    p.source = call.pointer<const char>(0);
    p.index = call.pointer<const int64_t>(1);
    p.to = call.pointer<char>(2);
    const bool convertible = is_float(dst_dtype) && (is_float(src_dtype) || is_block(src_dtype));
    bool valid = k >= 0 && rows >= 0 && first >= 0 && total >= first && total - first >= rows;
    valid = valid && (convertible || src_dtype == dst_dtype);
    p.source_row_bytes = valid ? row_bytes(src_dtype, k) : -1;
    valid = valid && p.source_row_bytes >= 0 && row_bytes(dst_dtype, k) >= 0;
    if (!valid) {
        report(call, OST_INVALID_ARGUMENT);
        return false;
    }
    p.source_rows = p.source_row_bytes == 0
                        ? INT64_MAX
                        : static_cast<int64_t>(call.operands[0].bytes / static_cast<uint64_t>(p.source_row_bytes));
    return covers(call, 1, rows, 8);
}

// pack: source, row_index i64[rows], dst | src_dt, K, rows, dst_first_row, dst_rows_total, layout
template <int64_t kDtype>
void pack(const Call& call) {
    const int64_t layout = call.integer(5);
    const int64_t total = call.integer(4);
    Packing p = {};
    if (!prepare(call, call.integer(0), kDtype, call.integer(1), call.integer(2), call.integer(3), total, p)) return;
    const bool known = layout == kRows || layout == kPanels || (layout == kPairs && total % 2 == 0);
    if (!known) return report(call, OST_INVALID_ARGUMENT);
    if (layout == kRows) {
        if (covers(call, 2, total, row_bytes(kDtype, p.k))) copy_to_rows(p, kDtype);
        return;
    }
    if (p.k == 0) return;
    const int64_t panels = layout == kPairs ? ceil_div(total / 2, kLanes / 2) : ceil_div(total, kLanes);
    if (covers(call, 2, panels, panel_bytes(kDtype, p.k))) pack_panels(p, kDtype, layout);
}

// copy_rows: source, row_index i64[rows], dst | src_dt, dst_dt, K, rows, dst_first_row
void copy_rows(const Call& call) {
    const int64_t dtype = call.integer(1);
    const int64_t rows = call.integer(3);
    const int64_t first = call.integer(4);
    Packing p = {};
    if (!prepare(call, call.integer(0), dtype, call.integer(2), rows, first, plus(first, rows), p)) return;
    if (covers(call, 2, first + rows, row_bytes(dtype, p.k))) copy_to_rows(p, dtype);
}

#define OST_ENTRY(name, dtype, type) {"pack_" #name, pack<dtype>, 3, 6, 0},
constexpr KernelEntry entries[] = {
    OST_FLOAT_FORMATS(OST_ENTRY) OST_BLOCK_FORMATS(OST_ENTRY){"copy_rows", copy_rows, 3, 5, 0},
};

}  // namespace

KernelTable pack_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
