// Attention of a packed batch of tokens over a block cache: prefill, chunks, decode and any mix of them.
//
// Three ways to share the work, which differ in who computes what and not in a single bit of the result (see
// attention_tile.h): all on the caller when it is short; blocks of tokens times groups of heads; and, when tokens are
// few and contexts long, also segments of keys. Partial results of segments lie on the caller's stack and are folded in
// ascending order by whichever worker finishes a token's last segment, so no workspace is needed.
#include "attention.h"

namespace ost::OST_UNIT {

namespace {

struct Packed {
    const Call& call;
    int64_t tokens;  // valid ones
    int64_t heads = call.integer(1), kv_heads = call.integer(2), width = call.integer(3);
    int64_t blocks = call.integer(4), block_keys = call.integer(5);
    int64_t table_width = call.integer(6), rows = call.integer(7);
    int64_t window = call.integer(9);
    Scoring scoring{static_cast<float>(call.real(8)), static_cast<float>(call.real(10))};
    int64_t q_dtype = call.integer(11), cache_dtype = call.integer(12), y_dtype = call.integer(13);
    const char* q = call.pointer<const char>(0);
    const char* k_cache = call.pointer<const char>(1);
    const char* v_cache = call.pointer<const char>(2);
    const int32_t* row_of_token = call.pointer<const int32_t>(3);
    const int32_t* position = call.pointer<const int32_t>(4);
    const int32_t* block_table = call.pointer<const int32_t>(5);
    const int32_t* length = call.pointer<const int32_t>(6);
    char* y = call.pointer<char>(8);
    TileShape shape = tile_shape(width);
    HeadGroups groups{heads, kv_heads, shape.rows};

    Packed(const Call& checked, int64_t valid_tokens) : call(checked), tokens(valid_tokens) {}

    // Keys a token of a valid row sees, wherever they lie.
    KeyRange seen(int64_t token, int64_t row) const {
        const int64_t end = smaller(static_cast<int64_t>(position[token]) + 1, length[row]);
        return keys_of(position[token], end, window);
    }
    // Whether these keys of a row lie in blocks that exist.
    bool exist(int64_t row, KeyRange keys) const {
        if (keys.end > table_width * block_keys) return false;
        for (int64_t b = keys.first / block_keys; b * block_keys < keys.end; ++b) {
            const int32_t block = block_table[row * table_width + b];
            if (block < 0 || block >= blocks) return false;
        }
        return true;
    }
    KeyRows key_rows(int64_t row, int64_t kv) const {
        const int64_t size = element_bytes(cache_dtype);
        const int64_t head = kv * block_keys * width;
        KeyRows found{};
        found.keys = at(k_cache, head, size);
        found.values = at(v_cache, head, size);
        found.key_step = found.value_step = width * size;
        found.table = block_table + row * table_width;
        found.blocks = blocks;
        found.block_keys = block_keys;
        found.block_step = kv_heads * block_keys * width * size;
        found.dtype = cache_dtype;
        return found;
    }
    char* output(int64_t token, int64_t head) const {
        return at(y, (token * heads + head) * width, element_bytes(y_dtype));
    }
    void clear(int64_t token, int64_t group) const {
        std::memset(output(token, groups.first_head(group)), 0,
                    static_cast<size_t>(groups.size(group) * width * element_bytes(y_dtype)));
    }
    void add(Tile& tile, int64_t token, int64_t group, KeyRange keys) const {
        add_queries(tile, q_dtype, at(q, (token * heads + groups.first_head(group)) * width, element_bytes(q_dtype)),
                    groups.size(group), width, keys);
    }
    Tile tile(void* scratch) const { return make_tile(shape, scoring, scratch); }

    // The keys of a token, none if it sees nothing or points outside the cache, which is reported.
    KeyRange keys_of_token(int64_t token) const {
        const int64_t row = row_of_token[token];
        if (row < 0) return {0, 0};
        if (row < rows) {
            const KeyRange keys = seen(token, row);
            if (exist(row, keys)) return keys;
        }
        report(call, OST_OUT_OF_RANGE);
        return {0, 0};
    }
};

// Tokens [first, end) of one row, at most a tile of them.
void attend_run(const Packed& p, int64_t first, int64_t end, int64_t group, void* scratch) {
    const int64_t row = p.row_of_token[first];
    Tile tile = p.tile(scratch);
    bool written[kMaximumTileRows];  // by the tile, of each token
    for (int64_t t = first; t < end; ++t) {
        const KeyRange keys = p.keys_of_token(t);
        written[t - first] = keys.first < keys.end;
        if (written[t - first]) {
            p.add(tile, t, group, keys);
        } else {
            p.clear(t, group);
        }
    }
    if (tile.rows == 0) return;
    attend(tile, p.key_rows(row, p.groups.kv_head(group)));
    int64_t r = 0;
    for (int64_t t = first; t < end; ++t) {
        if (!written[t - first]) continue;
        for (int64_t h = 0; h < p.groups.size(group); ++h, ++r) {
            write_row(p.y_dtype, p.output(t, p.groups.first_head(group) + h), tile.total + r * p.shape.stride,
                      tile.folded_sum[r], p.width);
        }
    }
}

void attend_block(const Packed& p, int64_t first, int64_t end, int64_t group, void* scratch) {
    while (first < end) {
        int64_t next = first + 1;
        while (next < end && p.row_of_token[next] == p.row_of_token[first]) ++next;
        attend_run(p, first, next, group, scratch);
        first = next;
    }
}

constexpr int64_t kPartialFloats = 32 * 1024;  // on the caller's stack
constexpr int64_t kWaveUnits = 256;

// Floats that one segment of one unit leaves: maximum and sum of each row, then the rows.
int64_t partial_floats(const Packed& p) { return p.groups.heads * (p.shape.stride + 2); }

// Segments that some of these keys lie in.
int64_t segments_of(KeyRange keys) {
    return keys.first < keys.end ? ceil_div(keys.end, kSegmentKeys) - keys.first / kSegmentKeys : 0;
}

// One (token, head group) after another in waves whose partial results fit, every segment of a wave a unit of its own.
void attend_segments(const Packed& p, int64_t segments) {
    alignas(64) float partials[kPartialFloats];
    KeyRange keys[kWaveUnits];
    int32_t left[kWaveUnits];
    const int64_t each = partial_floats(p);
    const int64_t wave = smaller(kWaveUnits, kPartialFloats / (each * segments));
    const int64_t units = p.tokens * p.groups.count;
    for (int64_t first = 0; first < units; first += wave) {
        const int64_t now = smaller(wave, units - first);
        for (int64_t u = 0; u < now; ++u) {
            keys[u] = p.keys_of_token((first + u) / p.groups.count);
            left[u] = static_cast<int32_t>(segments_of(keys[u]));
            if (left[u] == 0) p.clear((first + u) / p.groups.count, (first + u) % p.groups.count);
        }
        p.call.pool->parallel(now * segments, [&](int64_t number, void* scratch) {
            const int64_t u = number / segments;
            const int64_t begin = (keys[u].first / kSegmentKeys + number % segments) * kSegmentKeys;
            if (begin >= keys[u].end) return;
            const int64_t token = (first + u) / p.groups.count, group = (first + u) % p.groups.count;
            const int64_t stride = p.shape.stride;
            Tile tile = p.tile(scratch);
            p.add(tile, token, group, keys[u]);
            const int64_t end = smaller(keys[u].end, begin + kSegmentKeys);
            attend_segment(tile, p.key_rows(p.row_of_token[token], p.groups.kv_head(group)), begin, end);
            float* mine = partials + number * each;
            for (int64_t r = 0; r < tile.rows; ++r) {
                mine[2 * r] = tile.maximum[r];
                mine[2 * r + 1] = tile.sum[r];
            }
            float* const outputs = mine + 2 * tile.rows;
            std::memcpy(outputs, tile.output, static_cast<size_t>(tile.rows * stride) * sizeof(float));
            if (__atomic_sub_fetch(&left[u], 1, __ATOMIC_ACQ_REL) != 0) return;
            // The last segment of this unit to finish: all are here.
            float* total = partials + u * segments * each;
            for (int64_t s = 1; s < segments_of(keys[u]); ++s) {
                const float* later = total + s * each;
                for (int64_t r = 0; r < tile.rows; ++r) {
                    fold_row(total[2 * r], total[2 * r + 1], total + 2 * tile.rows + r * stride, later[2 * r],
                             later[2 * r + 1], later + 2 * tile.rows + r * stride, stride);
                }
            }
            for (int64_t r = 0; r < tile.rows; ++r) {
                write_row(p.y_dtype, p.output(token, p.groups.first_head(group) + r),
                          total + 2 * tile.rows + r * stride, total[2 * r + 1], p.width);
            }
        });
    }
}

void share_out(const Packed& p) {
    // One look at the tokens: how many runs of one row, the keys seen in all, and segments at most.
    int64_t runs = 0, segments = 0;
    double keys = 0;
    for (int64_t t = 0; t < p.tokens; ++t) {
        const int64_t row = p.row_of_token[t];
        if (t == 0 || row != p.row_of_token[t - 1]) ++runs;
        if (row < 0 || row >= p.rows) continue;
        KeyRange seen = p.seen(t, row);
        seen.end = smaller(seen.end, p.table_width * p.block_keys);
        segments = larger(segments, segments_of(seen));
        keys += static_cast<double>(larger(0, seen.end - seen.first));
    }
    const int64_t threads = p.call.pool->threads();
    const int64_t run = ceil_div(p.tokens, runs);
    const double tiles = 4.0 * keys * static_cast<double>(p.heads * p.width) / kTileRate;
    const auto key_bytes = static_cast<double>(2 * p.kv_heads * p.width * element_bytes(p.cache_dtype));
    const double stream = keys / static_cast<double>(run) * key_bytes / kStreamRate;
    const bool alone = threads == 1 || (tiles > stream ? tiles : stream) < kInlineNanoseconds;

    const int64_t token_units = p.tokens * p.groups.count;
    const bool uneven = token_units < threads || (token_units < 4 * threads && token_units % threads != 0);
    if (!alone && run == 1 && segments > 1 && uneven && partial_floats(p) * segments <= kPartialFloats) {
        return attend_segments(p, segments);
    }
    const int64_t fair = alone ? p.tokens : ceil_div(token_units, 4 * threads);
    const int64_t block = larger(1, smaller(smaller(p.shape.rows / p.groups.heads, run), fair));
    const int64_t blocks = ceil_div(p.tokens, block);
    const auto unit = [&](int64_t number, void* scratch) {
        // Later tokens of a prompt see more: they go first.
        const int64_t first = (blocks - 1 - number / p.groups.count) * block;
        attend_block(p, first, smaller(p.tokens, first + block), number % p.groups.count, scratch);
    };
    const int64_t units = blocks * p.groups.count;
    if (alone) {
        p.call.pool->parallel(1, [&](int64_t, void* scratch) {
            for (int64_t u = 0; u < units; ++u) unit(u, scratch);
        });
    } else {
        p.call.pool->parallel(units, unit);
    }
}

}  // namespace

void attention_packed(const Call& call) {
    const int64_t capacity = call.integer(0), heads = call.integer(1), kv_heads = call.integer(2);
    const int64_t width = call.integer(3), blocks = call.integer(4), block_keys = call.integer(5);
    const int64_t table_width = call.integer(6), rows = call.integer(7), q_dtype = call.integer(11);
    const int64_t cache_dtype = call.integer(12), y_dtype = call.integer(13);
    const int64_t tokens = valid_rows(call, 7, capacity);
    if (empty(call, tokens, heads, width)) return;
    if (kv_heads <= 0 || heads % kv_heads != 0 || width > kMaximumHeadWidth || blocks < 0 || block_keys <= 0 ||
        table_width < 0 || rows < 0 || table_width > INT32_MAX / block_keys ||
        !usable(call.integer(9), static_cast<float>(call.real(10))) || !is_float(q_dtype) || !is_float(cache_dtype) ||
        !is_float(y_dtype)) {
        return report(call, OST_INVALID_ARGUMENT);
    }
    const int64_t cache = area(blocks, kv_heads, block_keys, width);
    const int64_t cache_size = element_bytes(cache_dtype);
    if (!covers(call, 0, area(capacity, heads, width), element_bytes(q_dtype)) || !covers(call, 1, cache, cache_size) ||
        !covers(call, 2, cache, cache_size) || !covers(call, 3, capacity, 4) ||
        !covers(call, 4, capacity, 4) || !covers(call, 5, area(rows, table_width), 4) || !covers(call, 6, rows, 4) ||
        !covers(call, 8, area(capacity, heads, width), element_bytes(y_dtype))) {
        return;
    }
    share_out(Packed(call, tokens));
}

}  // namespace ost::OST_UNIT
