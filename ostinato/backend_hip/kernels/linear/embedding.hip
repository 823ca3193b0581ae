// Rows of a table by id, dequantised exactly; a thread an element. An id out of range gives zeros and is reported.
#include "blocks.h"

template <class W, class Y>
DEVICE void embedding(const i32* ids, const W* weight, const i32* count, Y* y, i64 entries, i64 inner, i64 vocabulary,
                      i64 width, Status status) {
    const i64 end = valid_rows(count, entries) * inner * width;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 id = ids[i / width];
        const bool known = id >= 0 && id < vocabulary;
        if (!known) status.out_of_range();
        narrow(known ? weight_at(weight_row(weight, id, width), i % width) : 0.0f, y[i]);
    }
}
