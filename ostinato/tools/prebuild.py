"""Compiles the kernels that models need for GPUs that need not be here, into a folder that `backend_hip/prebuilt.py` reads.

    python -m ostinato.tools.prebuild --architectures gfx942,sm_90 --output ostinato/backend_hip/prebuilt smollm2 minilm

NVIDIA's architectures are compiled by NVRTC, AMD's by clang over a ROCm folder (hipRTC knows no card newer than itself). The models are planned as `LLM` and
`Embedder` plan them, with and without the vendor's GEMM; no weight is loaded. What a program wants besides is compiled where it runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.gpu_libraries import search_folders
from ostinato.backend_hip.kernel_source import Instance, compile_options, instance_of, modules
from ostinato.backend_hip.prebuilt import Prebuilt, clang_command
from ostinato.backend_hip.target import hip_target, wave_of
from ostinato.compiler import plan_text_program
from ostinato.frontend.model import load
from ostinato.ir.errors import BackendError, ConfigError, OstinatoError
from ostinato.ir.step import StepKind
from ostinato.ir.target import Target
from ostinato.served import decoder_entries, encoder_entries
from ostinato.stages import positions_of
from ostinato.tools.console import print_error
from ostinato.tools.options import EXIT_USAGE

__all__ = ["instances_of_model", "main", "prebuild"]

_ROCM = Path("/opt/rocm")


def instances_of_model(name: str, target: Target, sequences: Iterable[int]) -> Iterator[Instance]:
    """The kernels that a model needs on a target, for so many sequences at once."""
    model = load(name)
    made = (
        [decoder_entries(model, count, positions_of(model, None)) for count in sequences]
        if model.family.encoder is None
        else [encoder_entries(model, model.config.max_position_embeddings)]
    )
    for entries in made:
        for entry in plan_text_program(entries, target).plan.entries.values():
            for step in entry.steps:
                if step.kind is StepKind.LAUNCH and step.launch is not None:
                    yield instance_of(step.kernel, len(step.operands), step.params, step.launch)


def _with_clang(file: str, source: str, architecture: str, rocm: Path, clang: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "kernels.hip"), Path(folder, "kernels.co")
        text.write_text(source, encoding="utf-8")
        command = [*clang_command(architecture, rocm, clang), "-o", str(made), str(text)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            hint = "name AMD's clang with --clang, or the folder of ROCm with --rocm-path"
            raise ConfigError(f"the compiler {clang} cannot be run: {error.strerror}", hint=hint) from error
        if run.returncode:
            raise BackendError(
                f"{file} does not compile for {architecture}: {run.stderr.strip()}",
                hint="the compiler must know the architecture: name a newer one with --clang",
            )
        return made.read_bytes()


def prebuild(
    architecture: str, instances: Iterable[Instance], output: Path, *, rocm: Path = _ROCM, clang: str = ""
) -> dict[str, int]:
    """Compiles and files the modules of an architecture; bytes of code by kernel file. Raises `BackendError` with a compiler's words, `ConfigError` where
    there is no clang."""
    wanted = frozenset(instances)
    platform = "nvidia" if architecture.startswith("sm_") else "amd"
    if platform == "nvidia":
        gpu, options = _native.open_gpu(platform, search_folders(platform)), compile_options(platform, architecture)

        def made(file: str, source: str) -> bytes:
            return gpu.compile(source, f"{file}.hip", options)
    else:
        compiler = clang or str(rocm / "llvm" / "bin" / "clang++")

        def made(file: str, source: str) -> bytes:
            return _with_clang(file, source, architecture, rocm, compiler)

    sources, folder = modules(wanted), Prebuilt(output, platform, architecture)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = dict(zip(sources, pool.map(made, sources, sources.values()), strict=True))
    for file, code in codes.items():
        folder.write(file, (instance for instance in wanted if instance.name.file == file), code)
    return {file: len(code) for file, code in codes.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fills a folder; returns the exit code, 2 after an error that is shown."""
    parser = argparse.ArgumentParser(
        prog="python -m ostinato.tools.prebuild",
        description="Compiles the GPU kernels that models need into a folder. No GPU is needed: NVIDIA's architectures take the package nvidia-cuda-nvrtc, "
        "AMD's a ROCm folder.",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a directory, a .gguf file, smollm2, minilm")
    parser.add_argument("--architectures", required=True, help="one or more, such as gfx90a,gfx942,gfx1100,sm_90")
    parser.add_argument(
        "--output", type=Path, required=True, help="the folder to fill; a wheel carries ostinato/backend_hip/prebuilt"
    )
    parser.add_argument(
        "--sequences",
        default="1,8",
        metavar="N,...",
        help="how many sequences at once a decoder is planned for (default 1,8)",
    )
    parser.add_argument(
        "--rocm-path",
        type=Path,
        default=_ROCM,
        help=f"the folder of AMD's headers and device libraries (default {_ROCM})",
    )
    parser.add_argument(
        "--clang", default="", help="the compiler for AMD's architectures (default: that of the ROCm folder)"
    )
    given = parser.parse_args(arguments)
    try:
        _fill(given)
    except OstinatoError as error:
        print_error(error, as_json=False)
        return EXIT_USAGE
    return 0


def _fill(given: argparse.Namespace) -> None:
    counts = [int(text) if text.isdecimal() else 0 for text in given.sequences.split(",")]
    if not all(counts):
        raise ConfigError(f"--sequences is {given.sequences!r}, expected positive numbers", hint="like 1,8")
    for architecture in given.architectures.split(","):
        targets = [hip_target(architecture, wave_of(architecture), vendor=vendor) for vendor in (True, False)]
        wanted = {
            instance
            for model in given.models
            for target in targets
            for instance in instances_of_model(model, target, counts)
        }
        sizes = prebuild(architecture, wanted, given.output, rocm=given.rocm_path, clang=given.clang)
        sys.stdout.write(f"{architecture}: {len(wanted)} kernels of {len(sizes)} files, {sum(sizes.values())} bytes\n")


if __name__ == "__main__":
    sys.exit(main())
