// Writing keys and values of new tokens into the block cache.
//
// Tokens that point outside (row, position or block) are skipped and reported. Two tokens of one call at the same row
// and position are the caller's mistake: which of them is kept is not defined.
#include "cache.h"

namespace ost::OST_UNIT {

namespace {

void kv_store(const Call& call) {
    const int64_t capacity = call.integer(0), heads = call.integer(1), width = call.integer(2);
    const int64_t tokens = valid_rows(call, 5, capacity);
    if (empty(call, tokens, heads, width)) return;
    const CachePlaces places = {&call,
                                call.pointer<const int32_t>(2),
                                call.pointer<const int32_t>(3),
                                call.pointer<const int32_t>(4),
                                heads,
                                width,
                                call.integer(3),
                                call.integer(4),
                                call.integer(5),
                                call.integer(6)};
    if (!places.valid()) return report(call, OST_INVALID_ARGUMENT);
    with_float_dtype(call, call.integer(7), [&](auto in_type) {
        with_float_dtype(call, call.integer(8), [&](auto cache_type) {
            using In = decltype(in_type);
            using Cache = decltype(cache_type);
            const int64_t size = area(capacity, heads, width);
            if (!covers(call, 0, size, sizeof(In)) || !covers(call, 1, size, sizeof(In)) ||
                !covers(call, 2, capacity, 4) || !covers(call, 3, capacity, 4) ||
                !covers(call, 4, area(places.table_rows, places.table_width), 4) ||
                !covers(call, 6, places.elements(), sizeof(Cache)) ||
                !covers(call, 7, places.elements(), sizeof(Cache))) {
                return;
            }
            const In* keys = call.pointer<const In>(0);
            const In* values = call.pointer<const In>(1);
            Cache* key_cache = call.pointer<Cache>(6);
            Cache* value_cache = call.pointer<Cache>(7);
            const double cost = 2 * kStreamNanoseconds * static_cast<double>(heads * width);
            for_rows(call, tokens, cost, [=](int64_t begin, int64_t end) {
                for (int64_t n = begin; n < end; ++n) {
                    int64_t to = places.of(n);
                    if (to < 0) continue;
                    for (int64_t h = 0; h < heads; ++h, to += places.head_stride()) {
                        const int64_t from = (n * heads + h) * width;
                        convert_run(keys + from, key_cache + to, width);
                        convert_run(values + from, value_cache + to, width);
                    }
                }
            });
        });
    });
}

constexpr KernelEntry entries[] = {
    {"kv_store", kv_store, 8, 9, 1u << 5},
};

}  // namespace

KernelTable cache_kernels();
KernelTable cache_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
