"""The environment of a record: what a device is, and with what its kernels were compiled."""

from __future__ import annotations

import functools
import platform

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.records import Environment
from ostinato.backend_hip.evidence.sources import kernel_hash
from ostinato.ir.version import VERSION

__all__ = ["gpu_environment", "host_environment", "unit_architecture"]

_COMPILERS = {"amd": "hipRTC", "nvidia": "NVRTC"}


def unit_architecture(unit: str) -> str:
    """How records name the host's kernel unit: "x86_64/avx512_bf16"."""
    return f"{platform.machine().lower().replace('amd64', 'x86_64')}/{unit}"


@functools.cache
def host_environment(cpu: str, unit: str) -> Environment:
    """The CPU of that name with one of its kernel units."""
    return Environment(
        device=cpu,
        architecture=unit_architecture(unit),
        compiler=_native.compiler,
        kernel_hash=kernel_hash(gpu=False),
        version=VERSION,
    )


def gpu_environment(device: _native.GpuDevice) -> Environment:
    """A card with its driver and libraries."""
    runtime = next((report.version for report in device.gpu.reports if report.role == "runtime"), "")
    blas = next((report for report in device.gpu.reports if report.role == "blas" and report.finding == "found"), None)
    return Environment(
        device=device.name,
        architecture=device.architecture,
        wave=device.wave,
        driver=runtime if device.gpu.platform == "nvidia" else "",
        runtime=runtime,
        vendor_library="" if blas is None else f"{blas.name} {_native.vendor_version(device)}",
        compiler=f"{_COMPILERS[device.gpu.platform]} {'.'.join(map(str, device.gpu.compiler_version))}",
        kernel_hash=kernel_hash(gpu=True),
        version=VERSION,
    )
