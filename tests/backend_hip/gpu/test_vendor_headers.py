"""Our declarations of the vendors' interfaces are never trusted: each size, offset, number and signature is compared with whatever headers are installed.

Headers come from Debian (`libamdhip64-dev`), from a CUDA toolkit, from NVIDIA's Python packages (`nvidia-cuda-runtime`, `nvidia-cuda-nvrtc`,
`nvidia-cublas`), and from ROCm itself; the numbers of a newer HIP from the package `hip-python`.
"""

from __future__ import annotations

import ctypes
import importlib
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ostinato.backend_hip import cuda_graphs

HERE = Path(__file__).resolve().parent / "headers"
BACKEND = Path(__file__).resolve().parents[3] / "ostinato" / "backend_hip"
PACKAGES = Path(sysconfig.get_path("purelib")) / "nvidia"
HIP = (Path("/usr/include"), Path("/opt/rocm/include"))
CUDA = (*sorted(Path("/usr/local").glob("cuda*/include")), *sorted(PACKAGES.glob("*/include")))


def compile_only(source: Path, folders: Iterable[Path]) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "a C++ compiler is needed"
    options = [
        "-std=c++17",
        "-w",
        "-fsyntax-only",
        f"-I{BACKEND}",
        f"-I{HERE}",
        *(f"-isystem{folder}" for folder in folders),
    ]
    run = subprocess.run([compiler, *options, str(source)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def folders_with(header: str, candidates: Iterable[Path]) -> list[Path]:
    """Different folders that have the header (a link to another of them is no different one)."""
    found = {(folder / header).resolve(): folder for folder in candidates if (folder / header).is_file()}
    return list(found.values())


def check(
    source: str | Path, header: str, candidates: Iterable[Path], install: str, needs: Iterable[Path] = ()
) -> None:
    found = folders_with(header, candidates)
    if not found:
        pytest.skip(f"{header} is not installed: {install}")
    for folder in found:
        compile_only(HERE / source, (folder, *needs))


def test_hip() -> None:
    check("hip.cpp", "hip/hip_runtime_api.h", HIP, "apt install libamdhip64-dev")


def test_hipblaslt() -> None:
    check("hipblaslt.cpp", "hipblaslt/hipblaslt.h", HIP, "comes with ROCm 6 or newer")


def test_cuda_driver() -> None:
    check("cuda_driver.cpp", "cuda.h", CUDA, "pip install nvidia-cuda-runtime")


_PLACE = ("XInBytes", "Y", "Z", "LOD", "MemoryType", "Host", "Device", "Array", "", "Pitch", "Height")
LAYOUTS: dict[str, tuple[type[ctypes.Structure], tuple[str, ...]]] = {
    "CUDA_KERNEL_NODE_PARAMS_v2": (
        cuda_graphs._KernelParams,
        ("func", "gridDimX", "blockDimX", "sharedMemBytes", "kernelParams", "extra", "kern", "ctx"),
    ),
    "CUDA_MEMCPY3D_v2": (cuda_graphs._CopyParams, ("srcXInBytes", "dstXInBytes", "WidthInBytes", "Height", "Depth")),
    "CUDA_MEMSET_NODE_PARAMS_v1": (
        cuda_graphs._FillParams,
        ("dst", "pitch", "value", "elementSize", "width", "height"),
    ),
    "CUDA_MEM_ALLOC_NODE_PARAMS_v1": (
        cuda_graphs._AllocParams,
        ("poolProps", "accessDescs", "accessDescCount", "bytesize", "dptr"),
    ),
    "CUDA_HOST_NODE_PARAMS_v1": (cuda_graphs._HostParams, ("fn", "userData")),
    "CUgraphEdgeData": (cuda_graphs._Edge, ("from_port", "to_port", "type", "reserved")),
}
"""Structures of cuda.h that the reader of captured graphs has in Python, with the header's names of their fields."""


def test_structures_in_python(tmp_path: Path) -> None:
    lines = ["#include <cstddef>", "#define __CUDA_API_VERSION_INTERNAL 1", "#include <cuda.h>"]
    for name, (mine, fields) in LAYOUTS.items():
        lines.append(f'static_assert(sizeof({name}) == {ctypes.sizeof(mine)}, "{name}");')
        for (own, *_), theirs in zip(mine._fields_, fields, strict=True):
            lines.append(f'static_assert(offsetof({name}, {theirs}) == {getattr(mine, own).offset}, "{theirs}");')
    for (own, *_), theirs in zip(cuda_graphs._Place._fields_, _PLACE, strict=True):
        offset = getattr(cuda_graphs._Place, own).offset
        if theirs:
            lines.append(f'static_assert(offsetof(CUDA_MEMCPY3D_v2, src{theirs}) == {offset}, "{theirs}");')
    source = tmp_path / "structures.cpp"
    source.write_text("\n".join([*lines, ""]), encoding="utf-8")
    check(source, "cuda.h", CUDA, "pip install nvidia-cuda-runtime")


def test_nvrtc() -> None:
    check("nvrtc.cpp", "nvrtc.h", CUDA, "pip install nvidia-cuda-nvrtc")


def test_cublaslt() -> None:
    packages = {
        "crt/host_defines.h": "nvidia-cuda-crt",
        "nv/target": "nvidia-cuda-cccl",
        "cuda_runtime_api.h": "nvidia-cuda-runtime",
    }
    candidates = (*CUDA, *(folder / "cccl" for folder in CUDA))
    needs = {header: folders_with(header, candidates) for header in packages}
    for header, package in packages.items():
        if not needs[header]:
            pytest.skip(f"{header} is not installed: pip install {package}")
    check("cublaslt.cpp", "cublasLt.h", CUDA, "pip install nvidia-cublas", [found[0] for found in needs.values()])


def test_a_wrong_declaration_does_not_compile(tmp_path: Path) -> None:
    """The comparison bites: a number, a field and a signature that differ are each an error."""
    folder = folders_with("hip/hip_runtime_api.h", HIP)
    if not folder:
        pytest.skip("hip/hip_runtime_api.h is not installed: apt install libamdhip64-dev")
    text = (HERE / "hip.cpp").read_text(encoding="utf-8")
    for line in (
        "SAME_NUMBER(Error::kNotReady, hipErrorNotFound);",
        "SAME_FIELD(amd::FillNodeParams, width, hipMemsetParams, height);",
        'static_assert(same::function<decltype(amd::RuntimeFunctions::hipFree), decltype(&::hipMemset)>, "");',
        'static_assert(same::function<Error (*)(float*), decltype(&::hipDeviceSynchronize)>, "");',
    ):
        wrong = tmp_path / "wrong.cpp"
        wrong.write_text(f"{text}\n{line}\n", encoding="utf-8")
        with pytest.raises(AssertionError, match="static assertion failed"):
            compile_only(wrong, folder)


NUMBERS = {
    "hipDeviceAttribute_t": {
        "amd::kClockRate": "hipDeviceAttributeClockRate",
        "amd::kCooperativeLaunch": "hipDeviceAttributeCooperativeLaunch",
        "amd::kIntegrated": "hipDeviceAttributeIntegrated",
        "amd::kL2CacheSize": "hipDeviceAttributeL2CacheSize",
        "amd::kMaxThreadsPerBlock": "hipDeviceAttributeMaxThreadsPerBlock",
        "amd::kMaxThreadsPerMultiprocessor": "hipDeviceAttributeMaxThreadsPerMultiProcessor",
        "amd::kMemoryBusWidth": "hipDeviceAttributeMemoryBusWidth",
        "amd::kMemoryClockRate": "hipDeviceAttributeMemoryClockRate",
        "amd::kMultiprocessorCount": "hipDeviceAttributeMultiprocessorCount",
        "amd::kPciBusId": "hipDeviceAttributePciBusId",
        "amd::kPciDeviceId": "hipDeviceAttributePciDeviceId",
        "amd::kPciDomainId": "hipDeviceAttributePciDomainID",
        "amd::kMaxRegistersPerBlock": "hipDeviceAttributeMaxRegistersPerBlock",
        "amd::kMaxSharedMemoryPerBlock": "hipDeviceAttributeMaxSharedMemoryPerBlock",
        "amd::kWarpSize": "hipDeviceAttributeWarpSize",
        "amd::kMemoryPoolsSupported": "hipDeviceAttributeMemoryPoolsSupported",
    },
    "hipError_t": {
        "Error::kInvalidValue": "hipErrorInvalidValue",
        "Error::kOutOfMemory": "hipErrorOutOfMemory",
        "Error::kNoDevice": "hipErrorNoDevice",
        "Error::kNotReady": "hipErrorNotReady",
        "Error::kIllegalAddress": "hipErrorIllegalAddress",
        "Error::kLaunchFailure": "hipErrorLaunchFailure",
        "Error::kStreamCaptureUnsupported": "hipErrorStreamCaptureUnsupported",
        "Error::kStreamCaptureInvalidated": "hipErrorStreamCaptureInvalidated",
        "Error::kStreamCaptureWrongThread": "hipErrorStreamCaptureWrongThread",
        "Error::kGraphExecUpdateFailure": "hipErrorGraphExecUpdateFailure",
    },
    "hipGraphNodeType": {
        "NodeType::kKernel": "hipGraphNodeTypeKernel",
        "NodeType::kCopy": "hipGraphNodeTypeMemcpy",
        "NodeType::kFill": "hipGraphNodeTypeMemset",
        "NodeType::kHost": "hipGraphNodeTypeHost",
        "NodeType::kGraph": "hipGraphNodeTypeGraph",
        "NodeType::kEmpty": "hipGraphNodeTypeEmpty",
        "NodeType::kEventWait": "hipGraphNodeTypeWaitEvent",
        "NodeType::kEventRecord": "hipGraphNodeTypeEventRecord",
        "NodeType::kAllocate": "hipGraphNodeTypeMemAlloc",
        "NodeType::kFree": "hipGraphNodeTypeMemFree",
        "12": "hipGraphNodeTypeMemcpyFromSymbol",
        "13": "hipGraphNodeTypeMemcpyToSymbol",
    },
    "hipFunction_attribute": {
        "FunctionAttribute::kMaxThreadsPerBlock": "HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        "FunctionAttribute::kSharedBytes": "HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
        "FunctionAttribute::kConstantBytes": "HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES",
        "FunctionAttribute::kLocalBytes": "HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES",
        "FunctionAttribute::kRegisters": "HIP_FUNC_ATTRIBUTE_NUM_REGS",
    },
    "hipMemPoolAttr": {
        "PoolAttribute::kReleaseThreshold": "hipMemPoolAttrReleaseThreshold",
        "PoolAttribute::kReservedCurrent": "hipMemPoolAttrReservedMemCurrent",
        "PoolAttribute::kReservedHigh": "hipMemPoolAttrReservedMemHigh",
        "PoolAttribute::kUsedCurrent": "hipMemPoolAttrUsedMemCurrent",
        "PoolAttribute::kUsedHigh": "hipMemPoolAttrUsedMemHigh",
    },
    "hipStreamCaptureMode": {"CaptureMode::kThreadLocal": "hipStreamCaptureModeThreadLocal"},
    "hipStreamCaptureStatus": {"CaptureStatus::kInvalidated": "hipStreamCaptureStatusInvalidated"},
    "hipMemcpyKind": {
        "CopyKind::kHostToDevice": "hipMemcpyHostToDevice",
        "CopyKind::kDeviceToHost": "hipMemcpyDeviceToHost",
        "CopyKind::kDeviceToDevice": "hipMemcpyDeviceToDevice",
    },
    "hipGraphExecUpdateResult": {
        "UpdateResult::kUnsupportedFunctionChange": "hipGraphExecUpdateErrorUnsupportedFunctionChange"
    },
}
SIZES = {
    "amd::KernelNodeParams": "hipKernelNodeParams",
    "amd::FillNodeParams": "hipMemsetParams",
    "amd::CopyNodeParams": "hipMemcpy3DParms",
}


def test_numbers_and_sizes_of_a_newer_hip(tmp_path: Path) -> None:
    try:
        hip: Any = importlib.import_module("hip.hip")
    except ImportError:
        pytest.skip("hip-python is not installed: pip install --no-deps hip-python==7.2.2.562.43")
    properties, offset = hip.hipDeviceProp_t(), 1160
    ctypes.memmove(int(properties) + offset, b"gfx942\0", 7)
    assert properties.gcnArchName == b"gfx942"
    lines = ['#include "native/gpu/amd.h"', "using namespace ost::gpu;"]
    facts = [
        (ours, int(getattr(getattr(hip, kind), theirs)))
        for kind, pairs in NUMBERS.items()
        for ours, theirs in pairs.items()
    ]
    facts += [(f"sizeof({ours})", getattr(hip, theirs)().c_sizeof()) for ours, theirs in SIZES.items()]
    facts += [("amd::kPropertiesSizeNew", properties.c_sizeof()), ("amd::kArchitectureOffsetNew", offset)]
    lines += [f'static_assert(static_cast<long long>({ours}) == {number}, "{ours}");' for ours, number in facts]
    source = tmp_path / "newer.cpp"
    source.write_text("\n".join(lines), encoding="utf-8")
    compile_only(source, ())
