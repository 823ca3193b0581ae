// Kernels that turn logits into a token or a loss, and that go on from a token to the next.
#pragma once

#include "work.h"

namespace ost::OST_UNIT {

void argmax(const Call& call);         // selection.cpp
void cross_entropy(const Call& call);  // selection.cpp
void sample(const Call& call);         // sample.cpp
void penalize(const Call& call);       // penalize.cpp
void add_at_tokens(const Call& call);  // logit_bias.cpp
void advance(const Call& call);        // advance.cpp

// Largest value of a row. `usable` is false when the row holds NaN or +inf, or nothing above -inf.
struct RowPeak {
    float value;
    bool usable;
};
RowPeak row_peak(const float* x, int64_t width);

// The first place of `value` in a row that holds it.
int32_t first_place(const float* x, int64_t width, float value);

}  // namespace ost::OST_UNIT
