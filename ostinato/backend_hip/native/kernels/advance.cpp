// The inputs of a decode step moved on to the next token, in place; see ir/ops/advance.py for what a row that stays is.
#include "selection.h"

namespace ost::OST_UNIT {

namespace {

// Wraps where int32 ends.
void increase(int32_t* at) { *at = static_cast<int32_t>(static_cast<uint32_t>(*at) + 1u); }

}  // namespace

// Operands token, input_ids, position, length, sample_index, history, history_length, rotary_length?, count?.
void advance(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1), context = call.integer(2);
    const int64_t rows = valid_rows(call, 8, capacity);
    if (empty(call, rows)) return;
    if (width < 0) return report(call, OST_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < 8; ++i) {
        const bool absent = i == 7 && call.operands[i].address == nullptr;
        if (!absent && !covers(call, i, i == 5 ? area(capacity, width) : capacity, 4)) return;
    }
    const auto* token = call.pointer<const int32_t>(0);
    auto* input_ids = call.pointer<int32_t>(1);
    auto* position = call.pointer<int32_t>(2);
    auto* length = call.pointer<int32_t>(3);
    auto* sample_index = call.pointer<int32_t>(4);
    auto* history = call.pointer<int32_t>(5);
    auto* history_length = call.pointer<int32_t>(6);
    auto* rotary_length = call.pointer<int32_t>(7);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t next = static_cast<int64_t>(position[row]) + 1, seen = history_length[row];
        if (token[row] < 0 || next < 1 || next >= context || seen >= width) continue;
        input_ids[row] = token[row];
        increase(&position[row]);
        increase(&length[row]);
        increase(&sample_index[row]);
        if (rotary_length != nullptr) increase(&rotary_length[row]);
        if (seen > 0) {
            history[row * width + seen] = token[row];
            increase(&history_length[row]);
        }
    }
}

}  // namespace ost::OST_UNIT
