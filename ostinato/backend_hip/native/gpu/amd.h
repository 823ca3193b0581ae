// What of AMD's C interface is used: its structs as they lie in memory, its numbers where they are not gpu_api.h's, and
// its functions as one list. The list makes the table of loaded functions, the loader and the test that compares every
// line with the distribution's headers; the emulated device exports the same list.
#pragma once

#include "gpu_api.h"

namespace ost::gpu::amd {

// hipDeviceAttribute_t; the numbers are the same from 5.2 to 7.
enum Attribute : int {
    kClockRate = 5,
    kCooperativeLaunch = 10,
    kIntegrated = 16,
    kL2CacheSize = 19,
    kMaxThreadsPerBlock = 56,
    kMaxThreadsPerMultiprocessor = 57,
    kMemoryBusWidth = 59,
    kMemoryClockRate = 60,
    kMultiprocessorCount = 63,
    kPciBusId = 67,
    kPciDeviceId = 68,
    kPciDomainId = 69,
    kMaxRegistersPerBlock = 71,
    kMaxSharedMemoryPerBlock = 74,
    kWarpSize = 87,
    kMemoryPoolsSupported = 88,
};

// hipDeviceProp_t is asked for one thing, the architecture's name; it has two layouts (symbols with and without R0600).
constexpr size_t kPropertiesBytes = 2048;  // room for either
constexpr size_t kPropertiesSizeOld = 792;
constexpr size_t kArchitectureOffsetOld = 396;
constexpr size_t kPropertiesSizeNew = 1472;
constexpr size_t kArchitectureOffsetNew = 1160;
constexpr size_t kArchitectureBytes = 256;

struct Dim3 {
    uint32_t x, y, z;
};

struct KernelNodeParams {
    Dim3 block;
    void** extra;
    void* function;
    Dim3 grid;
    void** arguments;
    unsigned shared_bytes;
};

struct FillNodeParams {
    void* to;
    unsigned element_bytes;
    size_t height;
    size_t pitch;
    unsigned value;
    size_t width;
};

struct Position {
    size_t x, y, z;
};
struct Pitched {
    void* pointer;
    size_t pitch, x_size, y_size;
};
struct Volume {
    size_t width, height, depth;
};
struct CopyNodeParams {
    void* from_array;
    Position from_position;
    Pitched from;
    void* to_array;
    Position to_position;
    Pitched to;
    Volume extent;
    CopyKind kind;
};

// X(symbol, result, parameters). Every line is compared with the headers of the distribution.
// clang-format off
#define OST_HIP_OVERLOADED(X) /* the headers overload it for C++, so that its test must choose */                      \
    X(hipMallocAsync, Error, (void**, size_t, Stream))
#define OST_HIP_RUNTIME(X) OST_HIP_OVERLOADED(X) OST_HIP_PLAIN(X)
#define OST_HIP_PLAIN(X)                                                                                               \
    X(hipInit, Error, (unsigned))                                                                                      \
    X(hipDriverGetVersion, Error, (int*))                                                                              \
    X(hipRuntimeGetVersion, Error, (int*))                                                                             \
    X(hipGetErrorName, const char*, (Error))                                                                           \
    X(hipGetErrorString, const char*, (Error))                                                                         \
    X(hipGetLastError, Error, ())                                                                                      \
    X(hipGetDeviceCount, Error, (int*))                                                                                \
    X(hipGetDevice, Error, (int*))                                                                                     \
    X(hipSetDevice, Error, (int))                                                                                      \
    X(hipDeviceGetName, Error, (char*, int, int))                                                                      \
    X(hipDeviceTotalMem, Error, (size_t*, int))                                                                        \
    X(hipDeviceGetAttribute, Error, (int*, Attribute, int))                                                            \
    X(hipDeviceSynchronize, Error, ())                                                                                 \
    X(hipMemGetInfo, Error, (size_t*, size_t*))                                                                        \
    X(hipMalloc, Error, (void**, size_t))                                                                              \
    X(hipFree, Error, (void*))                                                                                         \
    X(hipHostMalloc, Error, (void**, size_t, unsigned))                                                                \
    X(hipHostFree, Error, (void*))                                                                                     \
    X(hipMemcpyAsync, Error, (void*, const void*, size_t, CopyKind, Stream))                                           \
    X(hipMemsetAsync, Error, (void*, int, size_t, Stream))                                                             \
    X(hipFreeAsync, Error, (void*, Stream))                                                                            \
    X(hipDeviceGetDefaultMemPool, Error, (Pool*, int))                                                                 \
    X(hipMemPoolGetAttribute, Error, (Pool, PoolAttribute, void*))                                                     \
    X(hipMemPoolSetAttribute, Error, (Pool, PoolAttribute, void*))                                                     \
    X(hipMemPoolTrimTo, Error, (Pool, size_t))                                                                         \
    X(hipStreamCreateWithFlags, Error, (Stream*, unsigned))                                                            \
    X(hipStreamDestroy, Error, (Stream))                                                                               \
    X(hipStreamQuery, Error, (Stream))                                                                                 \
    X(hipStreamSynchronize, Error, (Stream))                                                                           \
    X(hipStreamWaitEvent, Error, (Stream, Event, unsigned))                                                            \
    X(hipEventCreateWithFlags, Error, (Event*, unsigned))                                                              \
    X(hipEventDestroy, Error, (Event))                                                                                 \
    X(hipEventRecord, Error, (Event, Stream))                                                                          \
    X(hipEventQuery, Error, (Event))                                                                                   \
    X(hipEventSynchronize, Error, (Event))                                                                             \
    X(hipEventElapsedTime, Error, (float*, Event, Event))                                                              \
    X(hipStreamBeginCapture, Error, (Stream, CaptureMode))                                                             \
    X(hipStreamEndCapture, Error, (Stream, Graph*))                                                                    \
    X(hipStreamIsCapturing, Error, (Stream, CaptureStatus*))                                                           \
    X(hipThreadExchangeStreamCaptureMode, Error, (CaptureMode*))                                                       \
    X(hipGraphCreate, Error, (Graph*, unsigned))                                                                       \
    X(hipGraphDestroy, Error, (Graph))                                                                                 \
    X(hipGraphAddKernelNode, Error, (Node*, Graph, const Node*, size_t, const KernelNodeParams*))                      \
    X(hipGraphAddEmptyNode, Error, (Node*, Graph, const Node*, size_t))                                                \
    X(hipGraphAddDependencies, Error, (Graph, const Node*, const Node*, size_t))                                       \
    X(hipGraphGetNodes, Error, (Graph, Node*, size_t*))                                                                \
    X(hipGraphGetEdges, Error, (Graph, Node*, Node*, size_t*))                                                         \
    X(hipGraphNodeGetType, Error, (Node, int*))                                                                        \
    X(hipGraphKernelNodeGetParams, Error, (Node, KernelNodeParams*))                                                   \
    X(hipGraphMemcpyNodeGetParams, Error, (Node, CopyNodeParams*))                                                     \
    X(hipGraphMemsetNodeGetParams, Error, (Node, FillNodeParams*))                                                     \
    X(hipGraphInstantiateWithFlags, Error, (GraphExec*, Graph, unsigned long long))                                    \
    X(hipGraphExecUpdate, Error, (GraphExec, Graph, Node*, UpdateResult*))                                             \
    X(hipGraphLaunch, Error, (GraphExec, Stream))                                                                      \
    X(hipGraphExecDestroy, Error, (GraphExec))                                                                         \
    X(hipModuleLoadData, Error, (Module*, const void*))                                                                \
    X(hipModuleUnload, Error, (Module))                                                                                \
    X(hipModuleGetFunction, Error, (Function*, Module, const char*))                                                   \
    X(hipFuncGetAttribute, Error, (int*, FunctionAttribute, Function))                                                 \
    X(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, Error, (int*, Function, int, size_t))                        \
    X(hipModuleLaunchKernel, Error, (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
                                     Stream, void**, void**))

// No runtime of AMD's starts a kernel early, and HIP has no call for it. The emulated device has these, so that all
// above the table is tested without a card that can.
#define OST_HIP_EARLY(X)                                                                                               \
    X(emulatedLaunchEarly, Error, (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                                   Stream, void**))                                                                    \
    X(emulatedGraphGetEdges, Error, (Graph, Node*, Node*, uint8_t*, size_t*))

#define OST_HIP_COMPILER(X)                                                                                            \
    X(hiprtcVersion, int, (int*, int*))                                                                                \
    X(hiprtcGetErrorString, const char*, (int))                                                                        \
    X(hiprtcCreateProgram, int, (Program*, const char*, const char*, int, const char* const*, const char* const*))     \
    X(hiprtcCompileProgram, int, (Program, int, const char* const*))                                                   \
    X(hiprtcGetProgramLogSize, int, (Program, size_t*))                                                                \
    X(hiprtcGetProgramLog, int, (Program, char*))                                                                      \
    X(hiprtcGetCodeSize, int, (Program, size_t*))                                                                      \
    X(hiprtcGetCode, int, (Program, char*))                                                                            \
    X(hiprtcDestroyProgram, int, (Program*))
// clang-format on

// hipBLASLt of ROCm 6 and later.
constexpr int kComputeF32 = 2;          // HIPBLAS_COMPUTE_32F
constexpr int kComputeF32FastTf32 = 6;  // HIPBLAS_COMPUTE_32F_FAST_TF32
constexpr int kComputeI32 = 9;          // HIPBLAS_COMPUTE_32I
constexpr int kOperationNone = 111;
constexpr int kOperationTranspose = 112;
constexpr int kDescriptionTransposeA = 0;
constexpr int kDescriptionTransposeB = 1;
constexpr int kDescriptionEpilogue = 2;
constexpr int kDescriptionBias = 3;
constexpr int kDescriptionBiasType = 4;
constexpr int kLayoutBatchCount = 0;
constexpr int kLayoutBatchStride = 1;
constexpr int kPreferenceWorkspace = 1;

struct GemmAlgorithm {
    uint8_t data[16];
    size_t workspace_limit;
};
struct GemmHeuristic {
    GemmAlgorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
using GemmPreference = struct GemmPreferenceHandle*;

// clang-format off
#define OST_HIP_BLAS(X)                                                                                                \
    X(hipblasLtGetVersion, int, (Blas, int*))                                                                          \
    X(hipblasLtCreate, int, (Blas*))                                                                                   \
    X(hipblasLtDestroy, int, (Blas))                                                                                   \
    X(hipblasLtMatmulDescCreate, int, (GemmDescription*, int, DataType))                                               \
    X(hipblasLtMatmulDescDestroy, int, (GemmDescription))                                                              \
    X(hipblasLtMatmulDescSetAttribute, int, (GemmDescription, int, const void*, size_t))                               \
    X(hipblasLtMatrixLayoutCreate, int, (MatrixLayout*, DataType, uint64_t, uint64_t, int64_t))                        \
    X(hipblasLtMatrixLayoutDestroy, int, (MatrixLayout))                                                               \
    X(hipblasLtMatrixLayoutSetAttribute, int, (MatrixLayout, int, const void*, size_t))                                \
    X(hipblasLtMatmulPreferenceCreate, int, (GemmPreference*))                                                         \
    X(hipblasLtMatmulPreferenceDestroy, int, (GemmPreference))                                                         \
    X(hipblasLtMatmulPreferenceSetAttribute, int, (GemmPreference, int, const void*, size_t))                          \
    X(hipblasLtMatmulAlgoGetHeuristic, int, (Blas, GemmDescription, MatrixLayout, MatrixLayout, MatrixLayout,          \
                                             MatrixLayout, GemmPreference, int, GemmHeuristic*, int*))                 \
    X(hipblasLtMatmul, int, (Blas, GemmDescription, const void*, const void*, MatrixLayout, const void*, MatrixLayout, \
                             const void*, const void*, MatrixLayout, void*, MatrixLayout, const GemmAlgorithm*, void*, \
                             size_t, Stream))
// clang-format on

#define OST_MEMBER(name, result, parameters) result(*name) parameters;
struct RuntimeFunctions {
    OST_HIP_RUNTIME(OST_MEMBER)
    OST_HIP_EARLY(OST_MEMBER)
};
struct CompilerFunctions {
    OST_HIP_COMPILER(OST_MEMBER)
};
struct BlasFunctions {
    OST_HIP_BLAS(OST_MEMBER)
};
#undef OST_MEMBER

}  // namespace ost::gpu::amd
