// Keys and values of new tokens into the block cache. Tokens that point outside are skipped and reported; of two tokens
// at one place, which is the caller's mistake, either may be kept.
#include "rope.h"

// k, v [tokens, heads, width]; caches [blocks, heads, block_size, width]; a thread an element of each.
template <class X, class C>
DEVICE void kv_store(const X* k, const X* v, const i32* row_of_token, const i32* position, const i32* block_table,
                     const i32* count, C* k_cache, C* v_cache, i64 tokens, i64 heads, i64 width, i64 blocks,
                     i64 block_size, i64 table_rows, i64 table_width, Status status) {
    const Places places = {row_of_token, position, block_table, blocks, block_size, table_rows, table_width};
    const i64 end = valid_rows(count, tokens) * heads * width;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 element = i % width, head = i / width % heads;
        const i64 place = places.of(i / width / heads, heads, width, status);
        if (place < 0) continue;
        const i64 to = place + head * block_size * width + element;
        narrow(widen(k[i]), k_cache[to]);
        narrow(widen(v[i]), v_cache[to]);
    }
}
