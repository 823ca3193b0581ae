// The inputs of a decode step moved on to the next token, in place: a thread a row. A row that was given no token, has no
// position, or has no room for another one, stays as it is.
#include "device.h"

DEVICE void increase(i32& value) { value = static_cast<i32>(static_cast<u32>(value) + 1u); }

DEVICE void advance(const i32* token, i32* input_ids, i32* position, i32* length, i32* sample_index, i32* history,
                    i32* history_length, i32* rotary_length, const i32* count, i64 rows, i64 width, i64 context,
                    Status) {
    const i64 valid = valid_rows(count, rows);
    for (i64 row = first_element(); row < valid; row += element_step()) {
        const i64 next = static_cast<i64>(position[row]) + 1, seen = history_length[row];
        if (token[row] < 0 || next < 1 || next >= context || seen >= width) continue;
        input_ids[row] = token[row];
        increase(position[row]);
        increase(length[row]);
        increase(sample_index[row]);
        if (rotary_length != nullptr) increase(rotary_length[row]);
        if (seen > 0) {
            history[row * width + seen] = token[row];
            increase(history_length[row]);
        }
    }
}
