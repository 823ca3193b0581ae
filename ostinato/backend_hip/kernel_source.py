"""Sources of device kernels: which text a compiler gets for the kernels that a program needs.

A kernel is named by its file and instance, `norm/norm:rms_norm<f32,bf16>`: the function template `rms_norm` of `kernels/norm/norm.hip` at those types. All
instances of one file that are wanted together make one module: the file with the headers that it includes in place, then one entry point an instance. Entry
points have C names (`rms_norm_f32_bf16`) and take, in this order:

- a pointer for each operand of the implementation row, null where an optional one is absent;
- the row's parameters: an int as 64-bit integer, a float as double, so that nothing is rounded on the way;
- a pointer to the status word, behind which tickets lie, and the number of the step as 32-bit unsigned integers.

The same text goes to NVRTC, hipRTC, clang and, under the emulator, a C++ compiler. Nothing is compiled here, and no device is known here.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.step import Launch

__all__ = [
    "COMPILE_OPTIONS",
    "STATUS_BYTES",
    "Instance",
    "KernelName",
    "add_kernel_file",
    "assemble",
    "compile_options",
    "expanded",
    "has_kernel_file",
    "instance_of",
    "kernel_files",
    "kernel_name",
    "modules",
    "source_hash",
]

KERNELS = Path(__file__).resolve().parent / "kernels"

COMPILE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "nvrtc": ("--std=c++17", "--fmad=false", "--device-as-default-execution-space"),
    "hiprtc": ("-std=c++17", "-ffp-contract=off"),
    "clang": ("-std=c++17", "-ffp-contract=off"),
    "emulator": ("-std=c++17", "-ffp-contract=off"),
}
"""What each compiler must be told beside the architecture. Products and sums are contracted nowhere: kernels say fma() where they mean it."""

_COMPILERS = {"amd": ("hiprtc", "--offload-arch="), "nvidia": ("nvrtc", "--gpu-architecture=")}

STATUS_BYTES = 4096
"""The status word and the tickets behind it (`TICKETS` in kernels/device.h): zeros before a table's first run."""

_NAME = re.compile(r"(?P<file>[a-z0-9_]+/[a-z0-9_]+):(?P<function>[a-z0-9_]+)(?:<(?P<arguments>[a-z0-9_,]+)>)?")
_FILE = re.compile("[a-z0-9_]+/[a-z0-9_]+")
_USER_FILES: dict[str, str] = {}
_INCLUDE = re.compile(r'^#include "([a-z0-9_./]+)"$', re.MULTILINE)
_TYPES = {"i": "i64", "d": "f64"}


@dataclass(frozen=True, slots=True)
class KernelName:
    """The parts of a step's kernel: source file, function template and its arguments. Prints as the step has it."""

    file: str
    function: str
    arguments: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> KernelName:
        """Raises `BackendError` for a text that names no kernel of a device."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise BackendError(
                f"{text!r} is no name of a device kernel",
                hint="expected file:function<arguments>, as in norm/norm:rms_norm<f32,f32>",
            )
        arguments = found["arguments"]
        return KernelName(found["file"], found["function"], tuple(arguments.split(",")) if arguments else ())

    @property
    def symbol(self) -> str:
        """The C name of its entry point."""
        return "_".join((self.function, *self.arguments))

    def __str__(self) -> str:
        arguments = f"<{','.join(self.arguments)}>" if self.arguments else ""
        return f"{self.file}:{self.function}{arguments}"


def kernel_name(file: str, function: str, *arguments: str | int) -> str:
    """The text form of a kernel's name, as rows give it."""
    return str(KernelName(file, function, tuple(str(argument) for argument in arguments)))


@dataclass(frozen=True, slots=True)
class Instance:
    """An entry point: the kernel, its number of operands, its parameters (a letter each, "i" for int and "d" for float) and the threads of a block."""

    name: KernelName
    operands: int
    params: str
    threads: int

    @property
    def text(self) -> str:
        """The line that makes it."""
        pointers = [f"a{i}" for i in range(self.operands)]
        scalars = [f"p{i}" for i in range(len(self.params))]
        types = [_TYPES[letter] for letter in self.params]
        parameters = [f"void* {name}" for name in pointers] + [
            f"{t} {name}" for t, name in zip(types, scalars, strict=True)
        ]
        arguments = [f"Pointer{{{name}}}" for name in pointers] + scalars
        template = f"<{', '.join(self.name.arguments)}>" if self.name.arguments else ""
        call = f"({self.name.function}{template}({', '.join([*arguments, 'Start{status, step}'])}))"
        return f"KERNEL({self.name.symbol}, {self.threads}, ({', '.join([*parameters, 'u32* status', 'u32 step'])}), {call})"


def instance_of(kernel: str, operands: int, params: Sequence[int | float], launch: Launch) -> Instance:
    """The entry point for a launch of `kernel` with so many operands and these parameters. Raises `BackendError` for a name that is none of a device."""
    letters = "".join("d" if isinstance(param, float) else "i" for param in params)
    return Instance(KernelName.parse(kernel), operands, letters, launch.threads)


def compile_options(platform: str, architecture: str) -> tuple[str, ...]:
    """What the run-time compiler of a platform is told."""
    compiler, option = _COMPILERS[platform]
    return (option + architecture, *COMPILE_OPTIONS[compiler])


def modules(instances: Iterable[Instance]) -> dict[str, str]:
    """File -> assembled source with all its instances, sorted. Raises `BackendError` where one symbol would have two forms."""
    by_file: dict[str, dict[str, Instance]] = {}
    for instance in instances:
        known = by_file.setdefault(instance.name.file, {}).setdefault(instance.name.symbol, instance)
        if known != instance:
            raise BackendError(f"kernel {instance.name} is asked for as {known} and as {instance}")
    return {
        file: assemble(file, [found[symbol] for symbol in sorted(found)]) for file, found in sorted(by_file.items())
    }


def assemble(file: str, instances: Iterable[Instance]) -> str:
    """The text of one module. Raises `BackendError` where there is no such file."""
    if not has_kernel_file(file):
        raise BackendError(f"there is no kernel file {file}", hint=f"files: {', '.join(kernel_files())}")
    text = "".join(f"{instance.text}\n" for instance in instances)
    return f'{expanded(f"{file}.hip")}#line 1 "{file} instances"\n{text}'


def _file_text(name: str) -> str:
    found = _USER_FILES.get(name)
    return (KERNELS / name).read_text(encoding="utf-8") if found is None else found


@functools.cache
def expanded(name: str) -> str:
    """A file of the kernel folder with every header in the place where it is first included."""
    seen: set[str] = set()

    def text_of(name: str) -> str:
        seen.add(name)
        lines = [f'#line 1 "{name}"']
        for number, line in enumerate(_file_text(name).splitlines(), 1):
            found = _INCLUDE.fullmatch(line)
            if found is None:
                lines.append("" if line == "#pragma once" else line)
            elif found[1] not in seen:
                lines += [text_of(found[1]), f'#line {number + 1} "{name}"']
        return "\n".join(lines)

    return text_of(name) + "\n"


def add_kernel_file(file: str, text: str) -> None:
    """Adds the source of a user's kernel file ("mine/soften"), for as long as the process lives: modules are compiled of it by its name.

    Raises `ConfigError` for a name that is none, is one of ours, or was given another text before.
    """
    if _FILE.fullmatch(file) is None or file in kernel_files():
        what = "is one of ours" if file in kernel_files() else "is none"
        raise ConfigError(f"the kernel file {file!r} {what}", hint='name it folder/name, like "mine/soften"')
    if _USER_FILES.setdefault(f"{file}.hip", text) != text:
        raise ConfigError(
            f"the kernel file {file} was added with another text before",
            hint="another text goes by another name: kernels of the first one may be loaded",
        )


def has_kernel_file(file: str) -> bool:
    """Whether there is a kernel file of that name, ours or a user's."""
    return file in kernel_files() or f"{file}.hip" in _USER_FILES


@functools.cache
def kernel_files() -> tuple[str, ...]:
    """All kernel files of ours, without their ending."""
    return tuple(sorted(path.relative_to(KERNELS).with_suffix("").as_posix() for path in KERNELS.glob("*/*.hip")))


def source_hash(*parts: str) -> str:
    """What a compiled module is filed under: the hash of its source and of whatever else shaped it (architecture, options, compiler version)."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()
