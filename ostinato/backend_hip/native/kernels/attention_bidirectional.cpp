// Attention of an encoder over packed sequences in strided tensors: every token sees all tokens of its own row.
//
// A unit is a tile of tokens of one row times a group of heads. Tiles are counted from where a run of one row begins, so
// that sequences of any lengths fill them; who computes which does not touch a bit of the result.
#include "attention.h"

namespace ost::OST_UNIT {

namespace {

struct Encoder {
    const Call& call;
    int64_t tokens;  // valid ones
    int64_t heads = call.integer(1), kv_heads = call.integer(2), width = call.integer(3), rows = call.integer(4);
    Scoring scoring{static_cast<float>(call.real(5)), 0.0f};
    int64_t dtype = call.integer(6), y_dtype = call.integer(7);
    Strides q_strides{0, call.integer(8), call.integer(9)};
    Strides k_strides{0, call.integer(10), call.integer(11)};
    Strides v_strides{0, call.integer(12), call.integer(13)};
    const char* q = call.pointer<const char>(0);
    const char* k = call.pointer<const char>(1);
    const char* v = call.pointer<const char>(2);
    const int32_t* row_of_token = call.pointer<const int32_t>(3);
    const int32_t* start = call.pointer<const int32_t>(4);
    const int32_t* length = call.pointer<const int32_t>(5);
    char* y = call.pointer<char>(7);
    TileShape shape = tile_shape(width);
    HeadGroups groups{heads, kv_heads, shape.rows};

    Encoder(const Call& checked, int64_t valid_tokens) : call(checked), tokens(valid_tokens) {}

    // How many tokens the tokens of a row see; 0 if none, or if the row is not within the batch, which is reported.
    int64_t keys_of_row(int64_t row) const {
        if (row < 0) return 0;
        if (row < rows) {
            if (length[row] <= 0) return 0;
            if (start[row] >= 0 && start[row] <= tokens - length[row]) return length[row];
        }
        report(call, OST_OUT_OF_RANGE);
        return 0;
    }
    char* output(int64_t token, int64_t head) const {
        return at(y, (token * heads + head) * width, element_bytes(y_dtype));
    }
};

// Tokens [first, end) of one row, at most a tile of them.
void attend_tokens(const Encoder& e, int64_t first, int64_t end, int64_t group, void* scratch) {
    const int64_t row = e.row_of_token[first], keys = e.keys_of_row(row);
    const int64_t head = e.groups.first_head(group), count = e.groups.size(group);
    if (keys == 0) {
        for (int64_t t = first; t < end; ++t) {
            std::memset(e.output(t, head), 0, static_cast<size_t>(count * e.width * element_bytes(e.y_dtype)));
        }
        return;
    }
    const int64_t size = element_bytes(e.dtype), kv = e.groups.kv_head(group);
    Tile tile = make_tile(e.shape, e.scoring, scratch);
    for (int64_t t = first; t < end; ++t) {
        add_queries(tile, e.dtype, at(e.q, t * e.q_strides.token + head * e.q_strides.head, size), count,
                    e.q_strides.head, {0, keys});
    }
    KeyRows found{};
    found.keys = at(e.k, e.start[row] * e.k_strides.token + kv * e.k_strides.head, size);
    found.values = at(e.v, e.start[row] * e.v_strides.token + kv * e.v_strides.head, size);
    found.key_step = e.k_strides.token * size;
    found.value_step = e.v_strides.token * size;
    found.dtype = e.dtype;
    attend(tile, found);
    for (int64_t r = 0; r < tile.rows; ++r) {
        write_row(e.y_dtype, e.output(first + r / count, head + r % count), tile.total + r * e.shape.stride,
                  tile.folded_sum[r], e.width);
    }
}

// The tiles of `tile` tokens that begin in [first, end).
void attend_tiles(const Encoder& e, int64_t tile, int64_t first, int64_t end, int64_t group, void* scratch) {
    const int32_t* row = e.row_of_token;
    int64_t run = first;
    while (run > 0 && row[run - 1] == row[first]) --run;
    int64_t t = first;
    while (t < end && row[t] == row[first] && (t - run) % tile != 0) ++t;  // these belong to a tile that began earlier
    while (t < end) {
        int64_t next = t + 1;
        while (next < e.tokens && next - t < tile && row[next] == row[t]) ++next;
        attend_tokens(e, t, next, group, scratch);
        t = next;
    }
}

void share_out(const Encoder& e) {
    double keys = 0;
    for (int64_t t = 0; t < e.tokens; ++t) {
        const int64_t row = e.row_of_token[t];
        if (row >= 0 && row < e.rows) keys += static_cast<double>(larger(0, e.length[row]));
    }
    const int64_t threads = e.call.pool->threads();
    const double operations = 4.0 * keys * static_cast<double>(e.heads * e.width);
    const bool alone = threads == 1 || operations / kTileRate < kInlineNanoseconds;
    const int64_t fair = alone ? e.tokens : larger(4, ceil_div(e.tokens * e.groups.count, 4 * threads));
    const int64_t tile = larger(1, smaller(e.shape.rows / e.groups.heads, fair));
    const int64_t tiles = ceil_div(e.tokens, tile);
    const auto unit = [&](int64_t number, void* scratch) {
        const int64_t first = number / e.groups.count * tile;
        attend_tiles(e, tile, first, smaller(e.tokens, first + tile), number % e.groups.count, scratch);
    };
    const int64_t units = tiles * e.groups.count;
    if (alone) {
        e.call.pool->parallel(1, [&](int64_t, void* scratch) {
            for (int64_t u = 0; u < units; ++u) unit(u, scratch);
        });
    } else {
        e.call.pool->parallel(units, unit);
    }
}

}  // namespace

void attention_bidirectional(const Call& call) {
    const int64_t capacity = call.integer(0), heads = call.integer(1), kv_heads = call.integer(2);
    const int64_t width = call.integer(3), rows = call.integer(4), dtype = call.integer(6), y_dtype = call.integer(7);
    const auto strides = [&](uint32_t first) { return Strides{0, call.integer(first), call.integer(first + 1)}; };
    const int64_t tokens = valid_rows(call, 6, capacity);
    if (empty(call, tokens, heads, width)) return;
    if (kv_heads <= 0 || heads % kv_heads != 0 || width > kMaximumHeadWidth || rows < 0 || capacity > INT32_MAX ||
        !is_float(dtype) || !is_float(y_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const int64_t size = element_bytes(dtype);
    if (!covers(call, 0, extent(strides(8), 1, capacity, heads, width), size) ||
        !covers(call, 1, extent(strides(10), 1, capacity, kv_heads, width), size) ||
        !covers(call, 2, extent(strides(12), 1, capacity, kv_heads, width), size) || !covers(call, 3, capacity, 4) ||
        !covers(call, 4, rows, 4) || !covers(call, 5, rows, 4) ||
        !covers(call, 7, area(capacity, heads, width), element_bytes(y_dtype))) {
        return;
    }
    share_out(Encoder(call, tokens));
}

}  // namespace ost::OST_UNIT
