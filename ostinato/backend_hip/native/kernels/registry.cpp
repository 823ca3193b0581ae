// All kernels of one ISA unit. Compiled once per unit, like every file in this folder.
//
// To add a kernel: write it in a file of its family and name it in that family's table. To add a family: a file with a
// function `KernelTable <family>_kernels()` in namespace ost::OST_UNIT, a line in each of the two lists below, and the
// file's name in CMakeLists.txt. Nothing registers itself: what exists can be read here.
#include "kernel.h"

namespace ost::OST_UNIT {

KernelTable linear_kernels();
KernelTable matmul_kernels();
KernelTable pack_kernels();
KernelTable embedding_kernels();
KernelTable attention_kernels();
KernelTable norm_kernels();
KernelTable rotary_kernels();
KernelTable elementwise_kernels();
KernelTable cache_kernels();
KernelTable reduce_kernels();
KernelTable selection_kernels();
KernelTable norm_backward_kernels();
KernelTable elementwise_backward_kernels();
KernelTable movement_backward_kernels();
KernelTable loss_kernels();
KernelTable optimizer_kernels();

KernelUnit kernel_unit();

namespace {
constexpr KernelFamily families[] = {
    linear_kernels,
    matmul_kernels,
    pack_kernels,
    embedding_kernels,
    attention_kernels,
    norm_kernels,
    rotary_kernels,
    elementwise_kernels,
    cache_kernels,
    reduce_kernels,
    selection_kernels,
    norm_backward_kernels,
    loss_kernels,
    optimizer_kernels,
    elementwise_backward_kernels,
    movement_backward_kernels,
};
}  // namespace

KernelUnit kernel_unit() { return {families, sizeof families / sizeof families[0]}; }

}  // namespace ost::OST_UNIT
