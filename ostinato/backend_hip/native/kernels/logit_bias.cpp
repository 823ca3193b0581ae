// Numbers added to the logits of a few tokens of each row. The pairs of a row are applied in order by one worker: a token
// that is listed twice has the same bits everywhere. y may be the logits themselves.
#include "selection.h"

namespace ost::OST_UNIT {

void add_at_tokens(const Call& call) {
    const int64_t capacity = call.integer(0), vocabulary = call.integer(1), width = call.integer(2);
    const int64_t rows = valid_rows(call, 4, capacity);
    if (empty(call, rows, vocabulary)) return;
    if (!covers(call, 0, area(capacity, vocabulary), 4) || !covers(call, 1, area(capacity, width), 4) ||
        !covers(call, 2, area(capacity, width), 4) || !covers(call, 3, capacity, 4) ||
        !covers(call, 5, area(capacity, vocabulary), 4)) {
        return;
    }
    const float* logits = call.pointer<const float>(0);
    const auto* tokens = call.pointer<const int32_t>(1);
    const float* bias = call.pointer<const float>(2);
    const auto* pairs = call.pointer<const int32_t>(3);
    float* y = call.pointer<float>(5);
    const double cost = kStreamNanoseconds * static_cast<double>(vocabulary);
    for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            float* out = y + row * vocabulary;
            if (y != logits) std::memcpy(out, logits + row * vocabulary, static_cast<size_t>(vocabulary) * 4);
            if (pairs[row] < 0 || pairs[row] > width) {
                report(call, OST_OUT_OF_RANGE);
                continue;
            }
            for (int64_t i = row * width; i < row * width + pairs[row]; ++i) {
                if (tokens[i] < 0 || tokens[i] >= vocabulary) {
                    report(call, OST_OUT_OF_RANGE);
                } else {
                    out[tokens[i]] += bias[i];
                }
            }
        }
    });
}

}  // namespace ost::OST_UNIT
