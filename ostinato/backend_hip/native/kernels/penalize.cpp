// Repetition, frequency and presence penalties of the tokens that a row has seen; see ir/ops/penalize.py for their
// order.
#include "selection.h"

namespace ost::OST_UNIT {

namespace {

struct Penalties {
    float repetition;
    float presence;
    float frequency;
};

// `times` has an entry a token of the vocabulary. Only the entries of tokens that stand in the row are written and
// read: first how often each was generated, then, once it is penalised, a mark. False when a token is not in the
// vocabulary.
bool penalize_row(float* logits, int64_t vocabulary, const int32_t* tokens, int64_t prompt, int64_t length,
                  const Penalties& penalties, int32_t* times) {
    constexpr int32_t kDone = -1;
    for (int64_t i = 0; i < length; ++i) {
        if (tokens[i] < 0 || tokens[i] >= vocabulary) return false;
        times[tokens[i]] = 0;
    }
    for (int64_t i = prompt; i < length; ++i) ++times[tokens[i]];
    for (int64_t i = 0; i < length; ++i) {
        int32_t& generated = times[tokens[i]];
        if (generated == kDone) continue;
        float& logit = logits[tokens[i]];
        logit = logit > 0.0f ? logit / penalties.repetition : logit * penalties.repetition;
        if (generated > 0) {
            logit = logit - penalties.frequency * static_cast<float>(generated);
            logit = logit - penalties.presence;
        }
        generated = kDone;
    }
    return true;
}

}  // namespace

// Operands logits, tokens, prompt_length, length, repetition, presence, frequency, count?, y (may be logits),
// workspace: an int32 for each logit.
void penalize(const Call& call) {
    const int64_t capacity = call.integer(0), vocabulary = call.integer(1), width = call.integer(2);
    const int64_t rows = valid_rows(call, 7, capacity);
    if (empty(call, rows, vocabulary)) return;
    const int64_t logits = area(capacity, vocabulary);
    if (!covers(call, 0, logits, 4) || !covers(call, 1, area(capacity, width), 4) || !covers(call, 8, logits, 4) ||
        !covers(call, 9, logits, 4)) {
        return;
    }
    for (uint32_t i = 2; i < 7; ++i) {
        if (!covers(call, i, capacity, 4)) return;
    }
    const Call* const outer = &call;
    const double cost = kStreamNanoseconds * static_cast<double>(vocabulary) + static_cast<double>(4 * width);
    for_rows(call, rows, cost, [=](int64_t begin, int64_t end) {
        const float* x = outer->pointer<const float>(0);
        const auto* tokens = outer->pointer<const int32_t>(1);
        const auto* prompt_length = outer->pointer<const int32_t>(2);
        const auto* length = outer->pointer<const int32_t>(3);
        float* y = outer->pointer<float>(8);
        auto* times = outer->pointer<int32_t>(9);
        for (int64_t row = begin; row < end; ++row) {
            const int64_t at = row * vocabulary;
            if (x != y) std::memcpy(y + at, x + at, static_cast<size_t>(vocabulary) * sizeof(float));
            const Penalties penalties = {outer->pointer<const float>(4)[row], outer->pointer<const float>(5)[row],
                                         outer->pointer<const float>(6)[row]};
            if (penalties.repetition == 1.0f && penalties.presence == 0.0f && penalties.frequency == 0.0f) continue;
            const int64_t prompt = prompt_length[row], seen = length[row];
            const bool inside = 0 <= prompt && prompt <= seen && seen <= width;
            if (!inside ||
                !penalize_row(y + at, vocabulary, tokens + row * width, prompt, seen, penalties, times + at)) {
                report(*outer, OST_OUT_OF_RANGE);
            }
        }
    });
}

}  // namespace ost::OST_UNIT
