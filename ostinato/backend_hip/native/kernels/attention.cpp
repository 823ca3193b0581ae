#include "attention.h"

namespace ost::OST_UNIT {

namespace {
constexpr KernelEntry entries[] = {
    {"attention_packed", attention_packed, 9, 14, 1u << 7},
    {"attention_causal", attention_causal, 4, 19, 0},
    {"attention_bidirectional", attention_bidirectional, 8, 14, 1u << 6},
    {"attention_causal_saved", attention_causal_saved, 5, 19, 0},
    {"attention_log_sum", attention_log_sum, 3, 19, 0},
    {"attention_causal_backward", attention_causal_backward, 10, 20, 0},
    {"attention_bidirectional_backward", attention_bidirectional_backward, 11, 14, 0},
    {"attention_scores_backward", attention_scores_backward, 5, 8, 0},
    {"attention_probability_gradient", attention_probability_gradient, 3, 7, 0},
    {"attention_value_gradient", attention_value_gradient, 3, 7, 0},
};
}  // namespace

KernelTable attention_kernels();
KernelTable attention_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
