// The rotation of q and k and the store of k and v in the block cache, in one pass over the tokens. q, k and v may be
// columns of one joint product.
#include "rope_store.h"

namespace ost::OST_UNIT {

namespace {

// Elements from the first one of the first head to the last one of the last head.
OST_INLINE int64_t reach(int64_t tokens, int64_t heads, int64_t width, int64_t token_stride, int64_t head_stride) {
    if (tokens == 0 || heads == 0 || width == 0) return 0;
    return plus(plus(area(tokens - 1, token_stride), area(heads - 1, head_stride)), width);
}

}  // namespace

// Operands q, k, v, then those of prepare_rope_store; parameters N, then those of prepare_rope_store, then the dtype of
// the inputs and the strides of tokens and of heads of q, k and v.
void rope_store(const Call& call) {
    const int64_t capacity = call.integer(0);
    const int64_t tokens = valid_rows(call, 8, capacity);
    RopeStore s = {};
    if (tokens == 0 || !prepare_rope_store(call, 3, 1, capacity, s)) return;
    const int64_t heads[3] = {s.heads, s.places.heads, s.places.heads}, width = s.places.width;
    with_float_dtype(call, s.q_dtype, [&](auto type) {
        using T = decltype(type);
        const T* from[3];
        int64_t token_stride[3], head_stride[3];
        for (uint32_t i = 0; i < 3; ++i) {
            from[i] = call.pointer<const T>(i);
            token_stride[i] = call.integer(11 + 2 * i);
            head_stride[i] = call.integer(12 + 2 * i);
            const int64_t extent = reach(capacity, heads[i], width, token_stride[i], head_stride[i]);
            if (!covers(call, i, extent, sizeof(T))) return;
        }
        const double cost = 2 * kStreamNanoseconds * static_cast<double>(s.all_heads() * width);
        for_rows(call, tokens, cost, [&](int64_t begin, int64_t end) {
            for (int64_t token = begin; token < end; ++token) {
                const int64_t place = s.places.of(token);
                int64_t head = 0;
                for (int i = 0; i < 3; ++i) {
                    const T* x = from[i] + token * token_stride[i];
                    for (int64_t h = 0; h < heads[i]; ++h) put_head(s, token, place, head++, x + h * head_stride[i]);
                }
            }
        });
    });
}

}  // namespace ost::OST_UNIT
