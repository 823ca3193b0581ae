// Our declarations of NVIDIA's driver against cuda.h. The macro makes the header show every version under its own name.
#include "native/gpu/nvidia.h"

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include "same.h"

using namespace ost::gpu;

#define CHECK(name, result, parameters) \
    static_assert(same::function<decltype(nvidia::RuntimeFunctions::name), decltype(&::name)>, #name);
OST_CUDA_RUNTIME(CHECK)
#if CUDA_VERSION >= 12030
OST_CUDA_RUNTIME_12_3(CHECK)
static_assert(sizeof(nvidia::EdgeData) == sizeof(CUgraphEdgeData), "CUgraphEdgeData");
static_assert(offsetof(nvidia::EdgeData, type) == offsetof(CUgraphEdgeData, type), "CUgraphEdgeData::type");
SAME_NUMBER(nvidia::kEarlyEdge, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
#endif
static_assert(sizeof(nvidia::LaunchAttribute) == sizeof(CUlaunchAttribute), "CUlaunchAttribute");
static_assert(offsetof(nvidia::LaunchAttribute, value) == offsetof(CUlaunchAttribute, value), "its value");
SAME_NUMBER(nvidia::kEarlyLaunch, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(sizeof(nvidia::LaunchConfiguration) == sizeof(CUlaunchConfig), "CUlaunchConfig");
SAME_FIELD(nvidia::LaunchConfiguration, grid_x, CUlaunchConfig, gridDimX);
SAME_FIELD(nvidia::LaunchConfiguration, block_x, CUlaunchConfig, blockDimX);
SAME_FIELD(nvidia::LaunchConfiguration, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(nvidia::LaunchConfiguration, stream, CUlaunchConfig, hStream);
SAME_FIELD(nvidia::LaunchConfiguration, attributes, CUlaunchConfig, attrs);
SAME_FIELD(nvidia::LaunchConfiguration, attribute_count, CUlaunchConfig, numAttrs);
#undef CHECK

// CUDA's driver has HIP's numbers wherever both have one: results pass through as they are.
SAME_NUMBER(Error::kSuccess, CUDA_SUCCESS);
SAME_NUMBER(Error::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_NUMBER(Error::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(Error::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_NUMBER(Error::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME_NUMBER(Error::kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_NUMBER(Error::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME_NUMBER(Error::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
SAME_NUMBER(Error::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_NUMBER(Error::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_NUMBER(Error::kEccNotCorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_NUMBER(Error::kInvalidKernelFile, CUDA_ERROR_INVALID_PTX);
SAME_NUMBER(Error::kInvalidSource, CUDA_ERROR_INVALID_SOURCE);
SAME_NUMBER(Error::kFileNotFound, CUDA_ERROR_FILE_NOT_FOUND);
SAME_NUMBER(Error::kSharedObjectSymbolNotFound, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND);
SAME_NUMBER(Error::kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
SAME_NUMBER(Error::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_NUMBER(Error::kIllegalState, CUDA_ERROR_ILLEGAL_STATE);
SAME_NUMBER(Error::kNotFound, CUDA_ERROR_NOT_FOUND);
SAME_NUMBER(Error::kNotReady, CUDA_ERROR_NOT_READY);
SAME_NUMBER(Error::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_NUMBER(Error::kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME_NUMBER(Error::kLaunchTimeOut, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_NUMBER(Error::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_NUMBER(Error::kAssert, CUDA_ERROR_ASSERT);
SAME_NUMBER(Error::kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME_NUMBER(Error::kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME_NUMBER(Error::kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME_NUMBER(Error::kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME_NUMBER(Error::kInvalidPc, CUDA_ERROR_INVALID_PC);
SAME_NUMBER(Error::kLaunchFailure, CUDA_ERROR_LAUNCH_FAILED);
SAME_NUMBER(Error::kCooperativeLaunchTooLarge, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
SAME_NUMBER(Error::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_NUMBER(Error::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_NUMBER(Error::kStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME_NUMBER(Error::kStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME_NUMBER(Error::kStreamCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME_NUMBER(Error::kStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME_NUMBER(Error::kStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME_NUMBER(Error::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_NUMBER(Error::kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
SAME_NUMBER(Error::kStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_NUMBER(Error::kGraphExecUpdateFailure, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
SAME_NUMBER(Error::kUnknown, CUDA_ERROR_UNKNOWN);
// The numbers that the adaptor takes for a driver that does not fit.
SAME_NUMBER(34, CUDA_ERROR_STUB_LIBRARY);
#if CUDA_VERSION >= 13000
SAME_NUMBER(36, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
#endif
SAME_NUMBER(803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_NUMBER(804, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);

SAME_NUMBER(CaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_NUMBER(CaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_NUMBER(CaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_NUMBER(CaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_NUMBER(CaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_NUMBER(CaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME_NUMBER(NodeType::kKernel, CU_GRAPH_NODE_TYPE_KERNEL);
SAME_NUMBER(NodeType::kCopy, CU_GRAPH_NODE_TYPE_MEMCPY);
SAME_NUMBER(NodeType::kFill, CU_GRAPH_NODE_TYPE_MEMSET);
SAME_NUMBER(NodeType::kHost, CU_GRAPH_NODE_TYPE_HOST);
SAME_NUMBER(NodeType::kGraph, CU_GRAPH_NODE_TYPE_GRAPH);
SAME_NUMBER(NodeType::kEmpty, CU_GRAPH_NODE_TYPE_EMPTY);
SAME_NUMBER(NodeType::kEventWait, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
SAME_NUMBER(NodeType::kEventRecord, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
SAME_NUMBER(NodeType::kAllocate, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
SAME_NUMBER(NodeType::kFree, CU_GRAPH_NODE_TYPE_MEM_FREE);
SAME_NUMBER(PoolAttribute::kReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME_NUMBER(PoolAttribute::kReservedCurrent, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME_NUMBER(PoolAttribute::kReservedHigh, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
SAME_NUMBER(PoolAttribute::kUsedCurrent, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME_NUMBER(PoolAttribute::kUsedHigh, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
SAME_NUMBER(FunctionAttribute::kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_NUMBER(FunctionAttribute::kSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_NUMBER(FunctionAttribute::kConstantBytes, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
SAME_NUMBER(FunctionAttribute::kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_NUMBER(FunctionAttribute::kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_NUMBER(FunctionAttribute::kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_NUMBER(UpdateResult::kSuccess, CU_GRAPH_EXEC_UPDATE_SUCCESS);
SAME_NUMBER(UpdateResult::kError, CU_GRAPH_EXEC_UPDATE_ERROR);
SAME_NUMBER(UpdateResult::kTopologyChanged, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
SAME_NUMBER(UpdateResult::kNodeTypeChanged, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
SAME_NUMBER(UpdateResult::kFunctionChanged, CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED);
SAME_NUMBER(UpdateResult::kParametersChanged, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
SAME_NUMBER(UpdateResult::kNotSupported, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
SAME_NUMBER(UpdateResult::kUnsupportedFunctionChange, CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE);

SAME_NUMBER(nvidia::kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_NUMBER(nvidia::kMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME_NUMBER(nvidia::kWarpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME_NUMBER(nvidia::kMaxRegistersPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
SAME_NUMBER(nvidia::kClockRate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_NUMBER(nvidia::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_NUMBER(nvidia::kIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME_NUMBER(nvidia::kPciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_NUMBER(nvidia::kPciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_NUMBER(nvidia::kMemoryClockRate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME_NUMBER(nvidia::kMemoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME_NUMBER(nvidia::kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_NUMBER(nvidia::kMaxThreadsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME_NUMBER(nvidia::kPciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_NUMBER(nvidia::kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(nvidia::kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(nvidia::kCooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
SAME_NUMBER(nvidia::kMaxSharedMemoryPerBlockOptIn, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_NUMBER(nvidia::kMemoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
SAME_NUMBER(nvidia::kMemoryHost, CU_MEMORYTYPE_HOST);
SAME_NUMBER(nvidia::kMemoryDevice, CU_MEMORYTYPE_DEVICE);
SAME_NUMBER(nvidia::kMemoryArray, CU_MEMORYTYPE_ARRAY);
SAME_NUMBER(nvidia::kMemoryUnified, CU_MEMORYTYPE_UNIFIED);

static_assert(sizeof(nvidia::Address) == sizeof(CUdeviceptr), "addresses");
static_assert(sizeof(nvidia::KernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2), "kernel nodes");
SAME_FIELD(nvidia::KernelNodeParams, function, CUDA_KERNEL_NODE_PARAMS_v2, func);
SAME_FIELD(nvidia::KernelNodeParams, grid_x, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
SAME_FIELD(nvidia::KernelNodeParams, block_x, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
SAME_FIELD(nvidia::KernelNodeParams, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
SAME_FIELD(nvidia::KernelNodeParams, arguments, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
SAME_FIELD(nvidia::KernelNodeParams, extra, CUDA_KERNEL_NODE_PARAMS_v2, extra);
SAME_FIELD(nvidia::KernelNodeParams, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern);
SAME_FIELD(nvidia::KernelNodeParams, context, CUDA_KERNEL_NODE_PARAMS_v2, ctx);
static_assert(sizeof(nvidia::CopyNodeParams) == sizeof(CUDA_MEMCPY3D_v2), "copy nodes");
SAME_FIELD(nvidia::CopyNodeParams, from_x, CUDA_MEMCPY3D_v2, srcXInBytes);
SAME_FIELD(nvidia::CopyNodeParams, from_type, CUDA_MEMCPY3D_v2, srcMemoryType);
SAME_FIELD(nvidia::CopyNodeParams, from_host, CUDA_MEMCPY3D_v2, srcHost);
SAME_FIELD(nvidia::CopyNodeParams, from_device, CUDA_MEMCPY3D_v2, srcDevice);
SAME_FIELD(nvidia::CopyNodeParams, to_x, CUDA_MEMCPY3D_v2, dstXInBytes);
SAME_FIELD(nvidia::CopyNodeParams, to_type, CUDA_MEMCPY3D_v2, dstMemoryType);
SAME_FIELD(nvidia::CopyNodeParams, to_host, CUDA_MEMCPY3D_v2, dstHost);
SAME_FIELD(nvidia::CopyNodeParams, to_device, CUDA_MEMCPY3D_v2, dstDevice);
SAME_FIELD(nvidia::CopyNodeParams, width_bytes, CUDA_MEMCPY3D_v2, WidthInBytes);
SAME_FIELD(nvidia::CopyNodeParams, height, CUDA_MEMCPY3D_v2, Height);
SAME_FIELD(nvidia::CopyNodeParams, depth, CUDA_MEMCPY3D_v2, Depth);
static_assert(sizeof(nvidia::FillNodeParams) == sizeof(CUDA_MEMSET_NODE_PARAMS), "fill nodes");
SAME_FIELD(nvidia::FillNodeParams, to, CUDA_MEMSET_NODE_PARAMS, dst);
SAME_FIELD(nvidia::FillNodeParams, pitch, CUDA_MEMSET_NODE_PARAMS, pitch);
SAME_FIELD(nvidia::FillNodeParams, value, CUDA_MEMSET_NODE_PARAMS, value);
SAME_FIELD(nvidia::FillNodeParams, element_bytes, CUDA_MEMSET_NODE_PARAMS, elementSize);
SAME_FIELD(nvidia::FillNodeParams, width, CUDA_MEMSET_NODE_PARAMS, width);
SAME_FIELD(nvidia::FillNodeParams, height, CUDA_MEMSET_NODE_PARAMS, height);
static_assert(sizeof(nvidia::UpdateInfo) == sizeof(CUgraphExecUpdateResultInfo), "updates");
SAME_FIELD(nvidia::UpdateInfo, result, CUgraphExecUpdateResultInfo, result);
SAME_FIELD(nvidia::UpdateInfo, failed, CUgraphExecUpdateResultInfo, errorNode);
SAME_FIELD(nvidia::UpdateInfo, failed_from, CUgraphExecUpdateResultInfo, errorFromNode);
