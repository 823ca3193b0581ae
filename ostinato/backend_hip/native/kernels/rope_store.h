// Where the heads of a token's q, k and v go once they are computed: q, turned, to a result; k, turned, and v into the
// caches. One head at a time, from floats of any type, so that a projection can hand over its sums as they are.
#pragma once

#include "cache.h"
#include "rotary.h"

namespace ost::OST_UNIT {

struct RopeStore {
    int64_t heads;  // of q; places.heads are those of k, and of v
    int64_t half;   // pairs that are turned
    const float* cosine;
    const float* sine;
    CachePlaces places;
    int64_t q_dtype, cache_dtype;
    void* q;
    void* key_cache;
    void* value_cache;

    __attribute__((always_inline)) int64_t all_heads() const { return heads + 2 * places.heads; }
};

// Fills in what kernels have from operand `first` on: cosine, sine, row_of_token, position, block_table, count, q and the
// two caches; and from parameter `param` on: heads of q and of k, width, half, blocks, block_size, table_width,
// table_rows, dtypes of q and of the caches. False, and reported, where something does not fit `tokens`.
OST_INLINE bool prepare_rope_store(const Call& call, uint32_t first, uint32_t param, int64_t tokens, RopeStore& s) {
    s.heads = call.integer(param);
    s.half = call.integer(param + 3);
    s.cosine = call.pointer<const float>(first);
    s.sine = call.pointer<const float>(first + 1);
    s.places = {&call,
                call.pointer<const int32_t>(first + 2),
                call.pointer<const int32_t>(first + 3),
                call.pointer<const int32_t>(first + 4),
                call.integer(param + 1),
                call.integer(param + 2),
                call.integer(param + 4),
                call.integer(param + 5),
                call.integer(param + 6),
                call.integer(param + 7)};
    s.q_dtype = call.integer(param + 8);
    s.cache_dtype = call.integer(param + 9);
    s.q = call.pointer<void>(first + 6);
    s.key_cache = call.pointer<void>(first + 7);
    s.value_cache = call.pointer<void>(first + 8);
    const CachePlaces& at = s.places;
    const bool valid = at.valid() && s.heads >= 0 && at.heads >= 0 && at.width >= 0 && s.half >= 0 &&
                       s.half <= at.width / 2 && is_float(s.q_dtype) && is_float(s.cache_dtype);
    if (!valid) {
        report(call, OST_INVALID_ARGUMENT);
        return false;
    }
    return covers(call, first, area(tokens, s.half), 4) && covers(call, first + 1, area(tokens, s.half), 4) &&
           covers(call, first + 2, tokens, 4) && covers(call, first + 3, tokens, 4) &&
           covers(call, first + 4, area(at.table_rows, at.table_width), 4) &&
           covers(call, first + 6, area(tokens, s.heads, at.width), element_bytes(s.q_dtype)) &&
           covers(call, first + 7, at.elements(), element_bytes(s.cache_dtype)) &&
           covers(call, first + 8, at.elements(), element_bytes(s.cache_dtype));
}

// Head `head` of q, then of k, then of v of a token whose place in the caches is `place`.
template <class X>
OST_INLINE void put_head(const RopeStore& s, int64_t token, int64_t place, int64_t head, const X* x) {
    const int64_t width = s.places.width, half = s.half;
    const float* cosine = s.cosine + token * half;
    const float* sine = s.sine + token * half;
    const auto turned = [&](auto* y) __attribute__((always_inline)) {
        rotate_split_half(x, cosine, sine, y, half);
        if (2 * half < width) convert_run(x + 2 * half, y + 2 * half, width - 2 * half);
    };
    if (head < s.heads) {
        with_known_float(s.q_dtype, [&](auto type) __attribute__((always_inline)) {
            turned(static_cast<decltype(type)*>(s.q) + (token * s.heads + head) * width);
        });
    } else if (place >= 0) {
        with_known_float(s.cache_dtype, [&](auto type) __attribute__((always_inline)) {
            using Cache = decltype(type);
            const bool key = head < s.heads + s.places.heads;
            const int64_t of_cache = head - s.heads - (key ? 0 : s.places.heads);
            Cache* to = static_cast<Cache*>(key ? s.key_cache : s.value_cache) + place + of_cache * s.places.head_stride();
            if (key) {
                turned(to);
            } else {
                convert_run(x, to, width);
            }
        });
    }
}

}  // namespace ost::OST_UNIT
