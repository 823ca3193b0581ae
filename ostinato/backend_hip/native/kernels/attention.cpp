#include "attention.h"

namespace ost::OST_UNIT {

namespace {
constexpr KernelEntry entries[] = {
    {"attention_packed", attention_packed, 9, 14, 1u << 7},
    {"attention_causal", attention_causal, 4, 19, 0},
    {"attention_bidirectional", attention_bidirectional, 8, 14, 1u << 6},
};
}  // namespace

KernelTable attention_kernels();
KernelTable attention_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
