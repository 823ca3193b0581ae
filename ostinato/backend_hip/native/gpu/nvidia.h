// What of NVIDIA's C interfaces is used: the driver (libcuda), run-time compilation (libnvrtc) and vendor GEMM
// (libcublasLt), as amd.h does it for AMD. Symbols carry the version whose meaning is meant; a driver keeps them all.
#pragma once

#include "gpu_api.h"

namespace ost::gpu::nvidia {

constexpr int kOldestDriver = 12000;  // 12.0: kernel nodes with contexts, the update's result as a struct

using Context = struct ContextHandle*;
using Address = unsigned long long;  // CUdeviceptr

enum Attribute : int {
    kMaxThreadsPerBlock = 1,
    kMaxSharedMemoryPerBlock = 8,
    kWarpSize = 10,
    kMaxRegistersPerBlock = 12,
    kClockRate = 13,
    kMultiprocessorCount = 16,
    kIntegrated = 18,
    kPciBusId = 33,
    kPciDeviceId = 34,
    kMemoryClockRate = 36,
    kMemoryBusWidth = 37,
    kL2CacheSize = 38,
    kMaxThreadsPerMultiprocessor = 39,
    kPciDomainId = 50,
    kCapabilityMajor = 75,
    kCapabilityMinor = 76,
    kCooperativeLaunch = 95,
    kMaxSharedMemoryPerBlockOptIn = 97,
    kMemoryPoolsSupported = 115,
};

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
    Function function;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    void** arguments;
    void** extra;
    void* kernel;
    Context context;
};

struct CopyNodeParams {  // CUDA_MEMCPY3D_v2
    size_t from_x, from_y, from_z, from_level;
    int from_type;
    const void* from_host;
    Address from_device;
    void* from_array;
    void* reserved0;
    size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_level;
    int to_type;
    void* to_host;
    Address to_device;
    void* to_array;
    void* reserved1;
    size_t to_pitch, to_height;
    size_t width_bytes, height, depth;
};
constexpr int kMemoryHost = 1;
constexpr int kMemoryDevice = 2;
constexpr int kMemoryArray = 3;
constexpr int kMemoryUnified = 4;

struct FillNodeParams {  // CUDA_MEMSET_NODE_PARAMS_v1
    Address to;
    size_t pitch;
    unsigned value;
    unsigned element_bytes;
    size_t width;
    size_t height;
};

struct UpdateInfo {  // CUgraphExecUpdateResultInfo_v1
    UpdateResult result;
    Node failed;
    Node failed_from;
};

// What an edge says beside its nodes: of type kEarlyEdge it starts the later kernel early, which then waits by itself.
struct EdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};
constexpr int kEarlyEdge = 1;

struct LaunchAttribute {  // CUlaunchAttribute; the value is a union of 64 bytes
    int id;
    char pad[4];
    int value;
    char rest[60];
};
constexpr int kEarlyLaunch = 6;     // programmatic stream serialization
constexpr int kEarlyCapability = 9;  // of devices that have it

struct LaunchConfiguration {  // CUlaunchConfig
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    Stream stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

// clang-format off
#define OST_CUDA_RUNTIME(X)                                                                                            \
    X(cuInit, int, (unsigned))                                                                                         \
    X(cuDriverGetVersion, int, (int*))                                                                                 \
    X(cuGetErrorName, int, (int, const char**))                                                                        \
    X(cuGetErrorString, int, (int, const char**))                                                                      \
    X(cuDeviceGetCount, int, (int*))                                                                                   \
    X(cuDeviceGetName, int, (char*, int, int))                                                                         \
    X(cuDeviceTotalMem_v2, int, (size_t*, int))                                                                        \
    X(cuDeviceGetAttribute, int, (int*, Attribute, int))                                                               \
    X(cuDevicePrimaryCtxRetain, int, (Context*, int))                                                                  \
    X(cuCtxPushCurrent_v2, int, (Context))                                                                             \
    X(cuCtxPopCurrent_v2, int, (Context*))                                                                             \
    X(cuCtxSynchronize, int, ())                                                                                       \
    X(cuMemGetInfo_v2, int, (size_t*, size_t*))                                                                        \
    X(cuMemAlloc_v2, int, (Address*, size_t))                                                                          \
    X(cuMemFree_v2, int, (Address))                                                                                    \
    X(cuMemHostAlloc, int, (void**, size_t, unsigned))                                                                 \
    X(cuMemFreeHost, int, (void*))                                                                                     \
    X(cuMemcpyAsync, int, (Address, Address, size_t, Stream))                                                          \
    X(cuMemcpyHtoDAsync_v2, int, (Address, const void*, size_t, Stream))                                               \
    X(cuMemcpyDtoHAsync_v2, int, (void*, Address, size_t, Stream))                                                     \
    X(cuMemcpyDtoDAsync_v2, int, (Address, Address, size_t, Stream))                                                   \
    X(cuMemsetD8Async, int, (Address, unsigned char, size_t, Stream))                                                  \
    X(cuMemAllocAsync, int, (Address*, size_t, Stream))                                                                \
    X(cuMemFreeAsync, int, (Address, Stream))                                                                          \
    X(cuDeviceGetDefaultMemPool, int, (Pool*, int))                                                                    \
    X(cuMemPoolGetAttribute, int, (Pool, PoolAttribute, void*))                                                        \
    X(cuMemPoolSetAttribute, int, (Pool, PoolAttribute, void*))                                                        \
    X(cuMemPoolTrimTo, int, (Pool, size_t))                                                                            \
    X(cuStreamCreate, int, (Stream*, unsigned))                                                                        \
    X(cuStreamDestroy_v2, int, (Stream))                                                                               \
    X(cuStreamQuery, int, (Stream))                                                                                    \
    X(cuStreamSynchronize, int, (Stream))                                                                              \
    X(cuStreamWaitEvent, int, (Stream, Event, unsigned))                                                               \
    X(cuEventCreate, int, (Event*, unsigned))                                                                          \
    X(cuEventDestroy_v2, int, (Event))                                                                                 \
    X(cuEventRecord, int, (Event, Stream))                                                                             \
    X(cuEventQuery, int, (Event))                                                                                      \
    X(cuEventSynchronize, int, (Event))                                                                                \
    X(cuEventElapsedTime, int, (float*, Event, Event))                                                                 \
    X(cuStreamBeginCapture_v2, int, (Stream, CaptureMode))                                                             \
    X(cuStreamEndCapture, int, (Stream, Graph*))                                                                       \
    X(cuStreamIsCapturing, int, (Stream, CaptureStatus*))                                                              \
    X(cuThreadExchangeStreamCaptureMode, int, (CaptureMode*))                                                          \
    X(cuGraphCreate, int, (Graph*, unsigned))                                                                          \
    X(cuGraphDestroy, int, (Graph))                                                                                    \
    X(cuGraphAddKernelNode_v2, int, (Node*, Graph, const Node*, size_t, const KernelNodeParams*))                      \
    X(cuGraphAddDependencies, int, (Graph, const Node*, const Node*, size_t))                                          \
    X(cuGraphGetNodes, int, (Graph, Node*, size_t*))                                                                   \
    X(cuGraphGetEdges, int, (Graph, Node*, Node*, size_t*))                                                            \
    X(cuGraphNodeGetType, int, (Node, int*))                                                                           \
    X(cuGraphKernelNodeGetParams_v2, int, (Node, KernelNodeParams*))                                                   \
    X(cuGraphMemcpyNodeGetParams, int, (Node, CopyNodeParams*))                                                        \
    X(cuGraphMemsetNodeGetParams, int, (Node, FillNodeParams*))                                                        \
    X(cuGraphInstantiateWithFlags, int, (GraphExec*, Graph, unsigned long long))                                       \
    X(cuGraphExecUpdate_v2, int, (GraphExec, Graph, UpdateInfo*))                                                      \
    X(cuGraphLaunch, int, (GraphExec, Stream))                                                                         \
    X(cuGraphExecDestroy, int, (GraphExec))                                                                            \
    X(cuModuleLoadData, int, (Module*, const void*))                                                                   \
    X(cuModuleUnload, int, (Module))                                                                                   \
    X(cuModuleGetFunction, int, (Function*, Module, const char*))                                                      \
    X(cuFuncGetAttribute, int, (int*, FunctionAttribute, Function))                                                    \
    X(cuFuncSetAttribute, int, (Function, FunctionAttribute, int))                                                     \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, int, (int*, Function, int, size_t))                                 \
    X(cuLaunchKernel, int, (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,    \
                            void**, void**))                                                                           \
    X(cuLaunchKernelEx, int, (const LaunchConfiguration*, Function, void**, void**))

// Of drivers from 12.3 on; null in older ones.
#define OST_CUDA_RUNTIME_12_3(X)                                                                                       \
    X(cuGraphGetEdges_v2, int, (Graph, Node*, Node*, EdgeData*, size_t*))

#define OST_CUDA_COMPILER(X)                                                                                           \
    X(nvrtcVersion, int, (int*, int*))                                                                                 \
    X(nvrtcGetErrorString, const char*, (int))                                                                         \
    X(nvrtcCreateProgram, int, (Program*, const char*, const char*, int, const char* const*, const char* const*))      \
    X(nvrtcCompileProgram, int, (Program, int, const char* const*))                                                    \
    X(nvrtcGetProgramLogSize, int, (Program, size_t*))                                                                 \
    X(nvrtcGetProgramLog, int, (Program, char*))                                                                       \
    X(nvrtcGetCUBINSize, int, (Program, size_t*))                                                                      \
    X(nvrtcGetCUBIN, int, (Program, char*))                                                                            \
    X(nvrtcDestroyProgram, int, (Program*))
// clang-format on

// cublasLt
constexpr int kComputeF32 = 68;
constexpr int kComputeF32FastTf32 = 77;
constexpr int kComputeI32 = 72;
constexpr int kOperationNone = 0;
constexpr int kOperationTranspose = 1;
constexpr int kDescriptionTransposeA = 3;
constexpr int kDescriptionTransposeB = 4;
constexpr int kDescriptionEpilogue = 7;
constexpr int kDescriptionBias = 8;
constexpr int kDescriptionBiasType = 26;
constexpr int kLayoutBatchCount = 5;
constexpr int kLayoutBatchStride = 6;
constexpr int kPreferenceWorkspace = 1;
constexpr int kPreferenceAlignmentA = 5;
constexpr int kPreferenceAlignmentB = 6;
constexpr int kPreferenceAlignmentC = 7;
constexpr int kPreferenceAlignmentD = 8;

struct GemmAlgorithm {
    uint64_t data[8];
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
#define OST_CUDA_BLAS(X)                                                                                               \
    X(cublasLtGetStatusString, const char*, (int))                                                                     \
    X(cublasLtGetVersion, size_t, ())                                                                                  \
    X(cublasLtCreate, int, (Blas*))                                                                                    \
    X(cublasLtDestroy, int, (Blas))                                                                                    \
    X(cublasLtMatmulDescCreate, int, (GemmDescription*, int, DataType))                                                \
    X(cublasLtMatmulDescDestroy, int, (GemmDescription))                                                               \
    X(cublasLtMatmulDescSetAttribute, int, (GemmDescription, int, const void*, size_t))                                \
    X(cublasLtMatrixLayoutCreate, int, (MatrixLayout*, DataType, uint64_t, uint64_t, int64_t))                         \
    X(cublasLtMatrixLayoutDestroy, int, (MatrixLayout))                                                                \
    X(cublasLtMatrixLayoutSetAttribute, int, (MatrixLayout, int, const void*, size_t))                                 \
    X(cublasLtMatmulPreferenceCreate, int, (GemmPreference*))                                                          \
    X(cublasLtMatmulPreferenceDestroy, int, (GemmPreference))                                                          \
    X(cublasLtMatmulPreferenceSetAttribute, int, (GemmPreference, int, const void*, size_t))                           \
    X(cublasLtMatmulAlgoGetHeuristic, int, (Blas, GemmDescription, MatrixLayout, MatrixLayout, MatrixLayout,           \
                                            MatrixLayout, GemmPreference, int, GemmHeuristic*, int*))                  \
    X(cublasLtMatmulAlgoCheck, int, (Blas, GemmDescription, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout,    \
                                     const GemmAlgorithm*, GemmHeuristic*))                                            \
    X(cublasLtMatmul, int, (Blas, GemmDescription, const void*, const void*, MatrixLayout, const void*, MatrixLayout,  \
                            const void*, const void*, MatrixLayout, void*, MatrixLayout, const GemmAlgorithm*, void*,  \
                            size_t, Stream))
// clang-format on

#define OST_MEMBER(name, result, parameters) result(*name) parameters;
struct RuntimeFunctions {
    OST_CUDA_RUNTIME(OST_MEMBER)
    OST_CUDA_RUNTIME_12_3(OST_MEMBER)
};
struct CompilerFunctions {
    OST_CUDA_COMPILER(OST_MEMBER)
};
struct BlasFunctions {
    OST_CUDA_BLAS(OST_MEMBER)
};
#undef OST_MEMBER

}  // namespace ost::gpu::nvidia
