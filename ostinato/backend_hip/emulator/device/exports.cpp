// The library's promise: every function of the lists in amd.h is there. It does not link where one is missing.
#include "state.h"

namespace ost::gpu::amd {

extern "C" __attribute__((visibility("default"))) const void* const emulated_exports[] = {
#define OST_NAME(name, result, parameters) reinterpret_cast<const void*>(&name),
    OST_HIP_RUNTIME(OST_NAME) OST_HIP_EARLY(OST_NAME) OST_HIP_COMPILER(OST_NAME) OST_HIP_BLAS(OST_NAME)
#undef OST_NAME
};

}  // namespace ost::gpu::amd
