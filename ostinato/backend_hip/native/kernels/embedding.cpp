// embedding_<W>: rows of a table by id. The table may be row-major or packed in panels, so that a tied output
// projection and the embedding share one copy; then a row is gathered from one lane of its panel.
#include "panel.h"
#include "rows.h"
#include "thread_pool.h"

namespace ost::OST_UNIT {

KernelTable embedding_kernels();

namespace {

enum Layout { kRows = 0, kPanels = 1 };

// Elements [k, k + count) of one lane of a panel as floats; k and count multiples of 32 for block types.
OST_INLINE void widen_lane(int64_t dtype, const char* panel, int64_t lane, int64_t k, int64_t count, float* out) {
    switch (dtype) {
        case OST_F32:
            for (int64_t i = 0; i < count; ++i) out[i] = reinterpret_cast<const float*>(panel)[(k + i) * kLanes + lane];
            return;
        case OST_F16:
            for (int64_t i = 0; i < count; ++i) {
                out[i] = widen(reinterpret_cast<const f16*>(panel)[(k + i) * kLanes + lane]);
            }
            return;
        case OST_BF16:
            for (int64_t i = 0; i < count; ++i) {
                const int64_t at = k + i;
                out[i] = widen(reinterpret_cast<const bf16*>(panel)[(at / 2 * kLanes + lane) * 2 + at % 2]);
            }
            return;
        default: break;
    }
    with_block(dtype, [&](auto block) {
        using Block = decltype(block);
        using Panel = PanelBlocks<Block>;
        for (int64_t i = k; i < k + count; i += kQuantBlock) {
            const char* from = panel_at<Panel>(panel, i);
            const int group = static_cast<int>(i % Panel::kBlock / kQuantBlock);
            BlockHeader header = {};
            Panel::read_lane(from, lane, header);
            widen_group<Block>(header, group, Panel::read_codes(from, group, lane), out + (i - k));
        }
    });
}

// ids i32, w, count?, y | M, V, D, y_dt, layout
template <int64_t kDtype>
void embedding(const Call& call) {
    const int64_t m = call.integer(0);
    const int64_t vocabulary = call.integer(1);
    const int64_t d = call.integer(2);
    const int64_t y_dtype = call.integer(3);
    const int64_t layout = call.integer(4);
    const int64_t row_size = d < 0 ? -1 : row_bytes(kDtype, d);
    const int64_t panel_size = d < 0 ? -1 : panel_bytes(kDtype, d);
    if (m < 0 || vocabulary < 0 || row_size < 0 || (layout != kRows && layout != kPanels) || !is_float(y_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const bool table = layout == kRows ? covers(call, 1, vocabulary, row_size)
                                       : covers(call, 1, ceil_div(vocabulary, kLanes), panel_size);
    if (!table || !covers(call, 0, m, 4) || !covers(call, 3, area(m, d), row_bytes(y_dtype, 1))) return;
    const auto* ids = call.pointer<const int32_t>(0);
    const auto* w = call.pointer<const char>(1);
    with_float_dtype(call, y_dtype, [&](auto type) {
        auto* y = call.pointer<decltype(type)>(3);
        call.pool->parallel(valid_rows(call, 2, m), [&](int64_t row, void*) {
            const int64_t id = ids[row];
            const bool known = id >= 0 && id < vocabulary;
            if (!known) report(call, OST_OUT_OF_RANGE);
            for (int64_t k = 0; k < d; k += kPiece) {
                const int64_t count = smaller(kPiece, d - k);
                float values[kPiece] = {};
                if (known && layout == kRows) {
                    widen_piece(kDtype, w + id * row_size, k, count, values);
                } else if (known) {
                    widen_lane(kDtype, w + id / kLanes * panel_size, id % kLanes, k, count, values);
                }
                narrow_piece(values, count, y + row * d + k);
            }
        });
    });
}

#define OST_ENTRY(name, dtype, type) {"embedding_" #name, embedding<dtype>, 4, 5, 1u << 2},
constexpr KernelEntry entries[] = {OST_FLOAT_FORMATS(OST_ENTRY) OST_BLOCK_FORMATS(OST_ENTRY)};

}  // namespace

KernelTable embedding_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
