// Attention over whole sequences in strided tensors: token t sees keys 0..t of its own sequence, or the
// last of them that a window leaves. For training it also gives the logarithm of each query's sum of exponentials.
#include <math.h>

#include "attention.h"

namespace ost::OST_UNIT {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Operands q, k, v, then y and log_sum [B,H,T] where they are; without y there is no v. Params: batches, tokens, heads,
// kv heads, width, scale, window, soft cap, dtypes of q and y, then the strides of q, k and v.
OST_INLINE void attend_sequences(const Call& call, uint32_t y_operand, uint32_t log_operand) {
    const bool sums_only = y_operand == kNone;
    const int64_t batches = call.integer(0), tokens = call.integer(1), heads = call.integer(2);
    const int64_t kv_heads = call.integer(3), width = call.integer(4), window = call.integer(6);
    const Scoring scoring{static_cast<float>(call.real(5)), static_cast<float>(call.real(7))};
    const int64_t dtype = call.integer(8), y_dtype = call.integer(9);
    const auto strides = [&](uint32_t first) {
        return Strides{call.integer(first), call.integer(first + 1), call.integer(first + 2)};
    };
    const Strides q = strides(10), k = strides(13), v = strides(16);
    if (empty(call, batches, tokens, heads, width)) return;
    if (kv_heads <= 0 || heads % kv_heads != 0 || width > kMaximumHeadWidth || tokens > INT32_MAX ||
        !usable(window, scoring.soft_cap) || !is_float(dtype) || !is_float(y_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const int64_t size = element_bytes(dtype), y_size = element_bytes(y_dtype);
    if (!covers(call, 0, extent(q, batches, tokens, heads, width), size) ||
        !covers(call, 1, extent(k, batches, tokens, kv_heads, width), size) ||
        (!sums_only && (!covers(call, 2, extent(v, batches, tokens, kv_heads, width), size) ||
                        !covers(call, y_operand, area(batches, tokens, heads, width), y_size))) ||
        (log_operand != kNone && !covers(call, log_operand, area(batches, tokens, heads), 4))) {
        return;
    }
    const auto* queries = call.pointer<const char>(0);
    const auto* keys = call.pointer<const char>(1);
    const auto* values = sums_only ? keys : call.pointer<const char>(2);
    auto* y = sums_only ? nullptr : call.pointer<char>(y_operand);
    auto* log_sum = log_operand == kNone ? nullptr : call.pointer<float>(log_operand);

    const TileShape shape = tile_shape(width);
    const HeadGroups groups(heads, kv_heads, shape.rows);
    const int64_t sequences = batches * groups.count;
    const int64_t threads = call.pool->threads();
    const int64_t fair = larger(4, ceil_div(tokens * sequences, 4 * threads));  // about four units a thread
    const int64_t block = larger(1, smaller(shape.rows / groups.heads, fair));
    const int64_t blocks = ceil_div(tokens, block);

    const auto unit = [&](int64_t number, void* scratch) {
        const int64_t first = (blocks - 1 - number / sequences) * block;  // long ones first
        const int64_t end = smaller(tokens, first + block);
        const int64_t batch = number % sequences / groups.count;
        const int64_t group = number % groups.count;
        const int64_t head = groups.first_head(group), size_of_group = groups.size(group), kv = groups.kv_head(group);
        Tile tile = make_tile(shape, scoring, scratch);
        tile.sums_only = sums_only;
        for (int64_t t = first; t < end; ++t) {
            add_queries(tile, dtype, at(queries, batch * q.batch + t * q.token + head * q.head, size), size_of_group,
                        q.head, keys_of(t, t + 1, window));
        }
        KeyRows rows{};
        rows.keys = at(keys, batch * k.batch + kv * k.head, size);
        rows.values = at(values, batch * v.batch + kv * v.head, size);
        rows.key_step = k.token * size;
        rows.value_step = v.token * size;
        rows.dtype = dtype;
        attend(tile, rows);
        for (int64_t r = 0; r < tile.rows; ++r) {
            const int64_t token = first + r / size_of_group, query = head + r % size_of_group;
            if (y != nullptr) {
                write_row(y_dtype, at(y, ((batch * tokens + token) * heads + query) * width, y_size),
                          tile.total + r * shape.stride, tile.folded_sum[r], width);
            }
            if (log_sum != nullptr) {
                log_sum[(batch * heads + query) * tokens + token] =
                    tile.folded_maximum[r] + static_cast<float>(::log(static_cast<double>(tile.folded_sum[r])));
            }
        }
    };
    const int64_t units = blocks * sequences;
    const int64_t most = window > 0 ? smaller(window, tokens) : tokens;  // keys of the last token
    const auto pairs = static_cast<double>(most) * (static_cast<double>(tokens) - 0.5 * static_cast<double>(most - 1));
    const double operations = 4.0 * static_cast<double>(sequences * groups.heads * width) * pairs;
    if (operations / kTileRate < kInlineNanoseconds) {
        call.pool->parallel(1, [&](int64_t, void* scratch) {
            for (int64_t u = 0; u < units; ++u) unit(u, scratch);
        });
    } else {
        call.pool->parallel(units, unit);
    }
}

}  // namespace

void attention_causal(const Call& call) { attend_sequences(call, 3, kNone); }
void attention_causal_saved(const Call& call) { attend_sequences(call, 3, 4); }
void attention_log_sum(const Call& call) { attend_sequences(call, kNone, 2); }

}  // namespace ost::OST_UNIT
