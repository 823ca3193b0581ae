// Our declarations of AMD's interface against the HIP headers that are installed. Nothing runs: it compiles or it does not.
#include "native/gpu/amd.h"

#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1  // templates over the same names
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <hip/library_types.h>

#include "same.h"

using namespace ost::gpu;

#define CHECK(name, result, parameters) \
    static_assert(same::function<decltype(amd::RuntimeFunctions::name), decltype(&::name)>, #name);
OST_HIP_PLAIN(CHECK)
constexpr hipError_t (*malloc_async)(void**, size_t, hipStream_t) = &::hipMallocAsync;
static_assert(same::function<decltype(amd::RuntimeFunctions::hipMallocAsync), decltype(+malloc_async)>, "hipMallocAsync");
#undef CHECK
#define CHECK(name, result, parameters) \
    static_assert(same::function<decltype(amd::CompilerFunctions::name), decltype(&::name)>, #name);
OST_HIP_COMPILER(CHECK)
#undef CHECK

SAME_NUMBER(Error::kSuccess, hipSuccess);
SAME_NUMBER(Error::kInvalidValue, hipErrorInvalidValue);
SAME_NUMBER(Error::kOutOfMemory, hipErrorOutOfMemory);
SAME_NUMBER(Error::kNotInitialized, hipErrorNotInitialized);
SAME_NUMBER(Error::kDeinitialized, hipErrorDeinitialized);
SAME_NUMBER(Error::kInvalidConfiguration, hipErrorInvalidConfiguration);
SAME_NUMBER(Error::kInvalidDevicePointer, hipErrorInvalidDevicePointer);
SAME_NUMBER(Error::kInsufficientDriver, hipErrorInsufficientDriver);
SAME_NUMBER(Error::kInvalidDeviceFunction, hipErrorInvalidDeviceFunction);
SAME_NUMBER(Error::kNoDevice, hipErrorNoDevice);
SAME_NUMBER(Error::kInvalidDevice, hipErrorInvalidDevice);
SAME_NUMBER(Error::kInvalidImage, hipErrorInvalidImage);
SAME_NUMBER(Error::kInvalidContext, hipErrorInvalidContext);
SAME_NUMBER(Error::kNoBinaryForGpu, hipErrorNoBinaryForGpu);
SAME_NUMBER(Error::kEccNotCorrectable, hipErrorECCNotCorrectable);
SAME_NUMBER(Error::kInvalidKernelFile, hipErrorInvalidKernelFile);
SAME_NUMBER(Error::kInvalidSource, hipErrorInvalidSource);
SAME_NUMBER(Error::kFileNotFound, hipErrorFileNotFound);
SAME_NUMBER(Error::kSharedObjectSymbolNotFound, hipErrorSharedObjectSymbolNotFound);
SAME_NUMBER(Error::kOperatingSystem, hipErrorOperatingSystem);
SAME_NUMBER(Error::kInvalidHandle, hipErrorInvalidHandle);
SAME_NUMBER(Error::kIllegalState, hipErrorIllegalState);
SAME_NUMBER(Error::kNotFound, hipErrorNotFound);
SAME_NUMBER(Error::kNotReady, hipErrorNotReady);
SAME_NUMBER(Error::kIllegalAddress, hipErrorIllegalAddress);
SAME_NUMBER(Error::kLaunchOutOfResources, hipErrorLaunchOutOfResources);
SAME_NUMBER(Error::kLaunchTimeOut, hipErrorLaunchTimeOut);
SAME_NUMBER(Error::kContextIsDestroyed, hipErrorContextIsDestroyed);
SAME_NUMBER(Error::kAssert, hipErrorAssert);
SAME_NUMBER(Error::kLaunchFailure, hipErrorLaunchFailure);
SAME_NUMBER(Error::kCooperativeLaunchTooLarge, hipErrorCooperativeLaunchTooLarge);
SAME_NUMBER(Error::kNotSupported, hipErrorNotSupported);
SAME_NUMBER(Error::kStreamCaptureUnsupported, hipErrorStreamCaptureUnsupported);
SAME_NUMBER(Error::kStreamCaptureInvalidated, hipErrorStreamCaptureInvalidated);
SAME_NUMBER(Error::kStreamCaptureMerge, hipErrorStreamCaptureMerge);
SAME_NUMBER(Error::kStreamCaptureUnmatched, hipErrorStreamCaptureUnmatched);
SAME_NUMBER(Error::kStreamCaptureUnjoined, hipErrorStreamCaptureUnjoined);
SAME_NUMBER(Error::kStreamCaptureIsolation, hipErrorStreamCaptureIsolation);
SAME_NUMBER(Error::kStreamCaptureImplicit, hipErrorStreamCaptureImplicit);
SAME_NUMBER(Error::kCapturedEvent, hipErrorCapturedEvent);
SAME_NUMBER(Error::kStreamCaptureWrongThread, hipErrorStreamCaptureWrongThread);
SAME_NUMBER(Error::kGraphExecUpdateFailure, hipErrorGraphExecUpdateFailure);
SAME_NUMBER(Error::kUnknown, hipErrorUnknown);

SAME_NUMBER(CopyKind::kHostToHost, hipMemcpyHostToHost);
SAME_NUMBER(CopyKind::kHostToDevice, hipMemcpyHostToDevice);
SAME_NUMBER(CopyKind::kDeviceToHost, hipMemcpyDeviceToHost);
SAME_NUMBER(CopyKind::kDeviceToDevice, hipMemcpyDeviceToDevice);
SAME_NUMBER(CaptureMode::kGlobal, hipStreamCaptureModeGlobal);
SAME_NUMBER(CaptureMode::kThreadLocal, hipStreamCaptureModeThreadLocal);
SAME_NUMBER(CaptureMode::kRelaxed, hipStreamCaptureModeRelaxed);
SAME_NUMBER(CaptureStatus::kNone, hipStreamCaptureStatusNone);
SAME_NUMBER(CaptureStatus::kActive, hipStreamCaptureStatusActive);
SAME_NUMBER(CaptureStatus::kInvalidated, hipStreamCaptureStatusInvalidated);
SAME_NUMBER(kStreamNonBlocking, hipStreamNonBlocking);
SAME_NUMBER(kEventDisableTiming, hipEventDisableTiming);
SAME_NUMBER(PoolAttribute::kReleaseThreshold, hipMemPoolAttrReleaseThreshold);
SAME_NUMBER(PoolAttribute::kReservedCurrent, hipMemPoolAttrReservedMemCurrent);
SAME_NUMBER(PoolAttribute::kReservedHigh, hipMemPoolAttrReservedMemHigh);
SAME_NUMBER(PoolAttribute::kUsedCurrent, hipMemPoolAttrUsedMemCurrent);
SAME_NUMBER(PoolAttribute::kUsedHigh, hipMemPoolAttrUsedMemHigh);
SAME_NUMBER(FunctionAttribute::kMaxThreadsPerBlock, HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_NUMBER(FunctionAttribute::kSharedBytes, HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_NUMBER(FunctionAttribute::kConstantBytes, HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
SAME_NUMBER(FunctionAttribute::kLocalBytes, HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_NUMBER(FunctionAttribute::kRegisters, HIP_FUNC_ATTRIBUTE_NUM_REGS);
SAME_NUMBER(UpdateResult::kSuccess, hipGraphExecUpdateSuccess);
SAME_NUMBER(UpdateResult::kError, hipGraphExecUpdateError);
SAME_NUMBER(UpdateResult::kTopologyChanged, hipGraphExecUpdateErrorTopologyChanged);
SAME_NUMBER(UpdateResult::kNodeTypeChanged, hipGraphExecUpdateErrorNodeTypeChanged);
SAME_NUMBER(UpdateResult::kFunctionChanged, hipGraphExecUpdateErrorFunctionChanged);
SAME_NUMBER(UpdateResult::kParametersChanged, hipGraphExecUpdateErrorParametersChanged);
SAME_NUMBER(UpdateResult::kNotSupported, hipGraphExecUpdateErrorNotSupported);
SAME_NUMBER(UpdateResult::kUnsupportedFunctionChange, hipGraphExecUpdateErrorUnsupportedFunctionChange);
// The adaptor translates by where the numbers start; they must follow each other as ours do.
SAME_NUMBER(NodeType::kCopy, hipGraphNodeTypeMemcpy - hipGraphNodeTypeKernel);
SAME_NUMBER(NodeType::kFill, hipGraphNodeTypeMemset - hipGraphNodeTypeKernel);
SAME_NUMBER(NodeType::kHost, hipGraphNodeTypeHost - hipGraphNodeTypeKernel);
SAME_NUMBER(NodeType::kGraph, hipGraphNodeTypeGraph - hipGraphNodeTypeKernel);
SAME_NUMBER(NodeType::kEmpty, hipGraphNodeTypeEmpty - hipGraphNodeTypeKernel);
SAME_NUMBER(NodeType::kEventWait, hipGraphNodeTypeWaitEvent - hipGraphNodeTypeKernel);
SAME_NUMBER(NodeType::kEventRecord, hipGraphNodeTypeEventRecord - hipGraphNodeTypeKernel);
#if HIP_VERSION >= 60000000
SAME_NUMBER(NodeType::kAllocate, hipGraphNodeTypeMemAlloc);
SAME_NUMBER(NodeType::kFree, hipGraphNodeTypeMemFree);
SAME_NUMBER(12, hipGraphNodeTypeMemcpyFromSymbol);
SAME_NUMBER(13, hipGraphNodeTypeMemcpyToSymbol);
SAME_NUMBER(DataType::kBf16, HIP_R_16BF);
SAME_NUMBER(DataType::kI8, HIP_R_8I);
SAME_NUMBER(DataType::kI32, HIP_R_32I);
#else
SAME_NUMBER(8, hipGraphNodeTypeMemcpy1D - hipGraphNodeTypeKernel);
SAME_NUMBER(9, hipGraphNodeTypeMemcpyFromSymbol - hipGraphNodeTypeKernel);
SAME_NUMBER(10, hipGraphNodeTypeMemcpyToSymbol - hipGraphNodeTypeKernel);
#endif
SAME_NUMBER(DataType::kF32, HIP_R_32F);
SAME_NUMBER(DataType::kF16, HIP_R_16F);

SAME_NUMBER(amd::kClockRate, hipDeviceAttributeClockRate);
SAME_NUMBER(amd::kCooperativeLaunch, hipDeviceAttributeCooperativeLaunch);
SAME_NUMBER(amd::kIntegrated, hipDeviceAttributeIntegrated);
SAME_NUMBER(amd::kL2CacheSize, hipDeviceAttributeL2CacheSize);
SAME_NUMBER(amd::kMaxThreadsPerBlock, hipDeviceAttributeMaxThreadsPerBlock);
SAME_NUMBER(amd::kMaxThreadsPerMultiprocessor, hipDeviceAttributeMaxThreadsPerMultiProcessor);
SAME_NUMBER(amd::kMemoryBusWidth, hipDeviceAttributeMemoryBusWidth);
SAME_NUMBER(amd::kMemoryClockRate, hipDeviceAttributeMemoryClockRate);
SAME_NUMBER(amd::kMultiprocessorCount, hipDeviceAttributeMultiprocessorCount);
SAME_NUMBER(amd::kPciBusId, hipDeviceAttributePciBusId);
SAME_NUMBER(amd::kPciDeviceId, hipDeviceAttributePciDeviceId);
SAME_NUMBER(amd::kMaxRegistersPerBlock, hipDeviceAttributeMaxRegistersPerBlock);
SAME_NUMBER(amd::kMaxSharedMemoryPerBlock, hipDeviceAttributeMaxSharedMemoryPerBlock);
SAME_NUMBER(amd::kWarpSize, hipDeviceAttributeWarpSize);
SAME_NUMBER(amd::kMemoryPoolsSupported, hipDeviceAttributeMemoryPoolsSupported);
#if HIP_VERSION < 70000000  // 7 spells it hipDeviceAttributePciDomainId
SAME_NUMBER(amd::kPciDomainId, hipDeviceAttributePciDomainID);
#endif

static_assert(sizeof(hipDeviceProp_t) <= amd::kPropertiesBytes, "room for the properties");
#if HIP_VERSION >= 60000000
static_assert(offsetof(hipDeviceProp_t, gcnArchName) == amd::kArchitectureOffsetNew, "the architecture's name");
static_assert(sizeof(hipDeviceProp_t) == amd::kPropertiesSizeNew, "the properties");
#else
static_assert(offsetof(hipDeviceProp_t, gcnArchName) == amd::kArchitectureOffsetOld, "the architecture's name");
static_assert(sizeof(hipDeviceProp_t) == amd::kPropertiesSizeOld, "the properties");
#endif
static_assert(sizeof(hipDeviceProp_t::gcnArchName) == amd::kArchitectureBytes, "the architecture's name");

static_assert(sizeof(amd::KernelNodeParams) == sizeof(hipKernelNodeParams), "kernel nodes");
SAME_FIELD(amd::KernelNodeParams, block, hipKernelNodeParams, blockDim);
SAME_FIELD(amd::KernelNodeParams, extra, hipKernelNodeParams, extra);
SAME_FIELD(amd::KernelNodeParams, function, hipKernelNodeParams, func);
SAME_FIELD(amd::KernelNodeParams, grid, hipKernelNodeParams, gridDim);
SAME_FIELD(amd::KernelNodeParams, arguments, hipKernelNodeParams, kernelParams);
SAME_FIELD(amd::KernelNodeParams, shared_bytes, hipKernelNodeParams, sharedMemBytes);
static_assert(sizeof(amd::FillNodeParams) == sizeof(hipMemsetParams), "fill nodes");
SAME_FIELD(amd::FillNodeParams, to, hipMemsetParams, dst);
SAME_FIELD(amd::FillNodeParams, element_bytes, hipMemsetParams, elementSize);
SAME_FIELD(amd::FillNodeParams, height, hipMemsetParams, height);
SAME_FIELD(amd::FillNodeParams, pitch, hipMemsetParams, pitch);
SAME_FIELD(amd::FillNodeParams, value, hipMemsetParams, value);
SAME_FIELD(amd::FillNodeParams, width, hipMemsetParams, width);
static_assert(sizeof(amd::CopyNodeParams) == sizeof(hipMemcpy3DParms), "copy nodes");
SAME_FIELD(amd::CopyNodeParams, from_array, hipMemcpy3DParms, srcArray);
SAME_FIELD(amd::CopyNodeParams, from_position, hipMemcpy3DParms, srcPos);
SAME_FIELD(amd::CopyNodeParams, from, hipMemcpy3DParms, srcPtr);
SAME_FIELD(amd::CopyNodeParams, to_array, hipMemcpy3DParms, dstArray);
SAME_FIELD(amd::CopyNodeParams, to_position, hipMemcpy3DParms, dstPos);
SAME_FIELD(amd::CopyNodeParams, to, hipMemcpy3DParms, dstPtr);
SAME_FIELD(amd::CopyNodeParams, extent, hipMemcpy3DParms, extent);
SAME_FIELD(amd::CopyNodeParams, kind, hipMemcpy3DParms, kind);
SAME_FIELD(amd::Pitched, pointer, hipPitchedPtr, ptr);
SAME_FIELD(amd::Pitched, pitch, hipPitchedPtr, pitch);
SAME_FIELD(amd::Position, x, hipPos, x);
SAME_FIELD(amd::Volume, width, hipExtent, width);
SAME_FIELD(amd::Volume, height, hipExtent, height);
SAME_FIELD(amd::Volume, depth, hipExtent, depth);
