// Parts that the attention kernels share: the grouping of query heads, and when work is worth sharing out.
#pragma once

#include "attention_tile.h"
#include "work.h"

namespace ost::OST_UNIT {

// Roughly what one core does on tiles, in operations a nanosecond, and streams, in bytes a nanosecond.
inline constexpr double kTileRate = VW == 16 ? 100.0 : VW == 8 ? 60.0 : 10.0;
inline constexpr double kStreamRate = 40.0;

// Query heads that share a KV head are handled together, in `parts` groups of at most `heads` where a tile holds fewer.
struct HeadGroups {
    int64_t per_kv;  // H / KV
    int64_t heads;   // heads of one group, the last of a KV head may have fewer
    int64_t parts;   // groups of one KV head
    int64_t count;   // all groups

    HeadGroups(int64_t query_heads, int64_t kv_heads, int64_t tile_rows) {
        per_kv = query_heads / kv_heads;
        parts = ceil_div(per_kv, tile_rows);
        heads = ceil_div(per_kv, parts);
        parts = ceil_div(per_kv, heads);
        count = kv_heads * parts;
    }
    int64_t kv_head(int64_t group) const { return group / parts; }
    int64_t first_head(int64_t group) const { return kv_head(group) * per_kv + group % parts * heads; }
    int64_t size(int64_t group) const { return smaller(heads, per_kv - group % parts * heads); }
};

OST_INLINE const char* at(const void* base, int64_t element, int64_t size) {
    return static_cast<const char*>(base) + element * size;
}
OST_INLINE char* at(void* base, int64_t element, int64_t size) { return static_cast<char*>(base) + element * size; }

// Distances in elements between batches, tokens and heads; the head width is contiguous.
struct Strides {
    int64_t batch, token, head;
};

// Elements from the first to one past the last that the strides reach; -1 when they are not usable.
OST_INLINE int64_t extent(const Strides& s, int64_t batches, int64_t tokens, int64_t heads, int64_t width) {
    const int64_t outer = plus(area(batches - 1, s.batch), area(tokens - 1, s.token));
    return plus(outer, plus(area(heads - 1, s.head), width));
}

// A window and a soft cap that mean something; 0 switches either off.
OST_INLINE bool usable(int64_t window, float soft_cap) {
    return window >= 0 && soft_cap >= 0 && soft_cap < kInfinity;
}

void attention_packed(const Call& call);
void attention_causal(const Call& call);
void attention_bidirectional(const Call& call);
void attention_causal_saved(const Call& call);
void attention_log_sum(const Call& call);
void attention_causal_backward(const Call& call);
void attention_bidirectional_backward(const Call& call);
void attention_scores_backward(const Call& call);
void attention_probability_gradient(const Call& call);
void attention_value_gradient(const Call& call);

}  // namespace ost::OST_UNIT
