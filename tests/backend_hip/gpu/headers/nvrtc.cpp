// Our declarations of NVIDIA's run-time compiler against nvrtc.h.
#include "native/gpu/nvidia.h"

#include <nvrtc.h>

#include "same.h"

using namespace ost::gpu;

#define CHECK(name, result, parameters) \
    static_assert(same::function<decltype(nvidia::CompilerFunctions::name), decltype(&::name)>, #name);
OST_CUDA_COMPILER(CHECK)
#undef CHECK
SAME_NUMBER(0, NVRTC_SUCCESS);
SAME_NUMBER(6, NVRTC_ERROR_COMPILATION);
