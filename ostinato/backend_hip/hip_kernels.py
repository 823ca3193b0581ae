"""Kernels on a device: taken from what was compiled ahead, else from the cache on disk, else compiled side by side; loaded once.

Kernels are asked for by instance, and an instance that was not compiled ahead is a module of its own: whoever wants it, in whatever company, finds it in the
cache, and all cores compile. Only who asks for many of one file, as a check of all kernels does, gets them as one module. What was loaded stays until the
device goes, whoever asked for it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.kernel_source import Instance, assemble, compile_options, source_hash
from ostinato.backend_hip.prebuilt import PACKAGED, Module, Prebuilt, module_key
from ostinato.ir.forks import renew_after_fork
from ostinato.ir.version import VERSION

__all__ = ["HipKernels"]

_MOST_COMPILERS = 16
"""At a time: each takes some hundred MiB."""
_MANY = 8
"""Instances of one file; more than a program has."""


class HipKernels:
    """The kernels of one device. Threads may share it."""

    def __init__(self, device: _native.GpuDevice, cache: CodeCache, ahead: Path = PACKAGED) -> None:
        """`ahead` is the folder of what was compiled ahead, by default the package's."""
        self.cache = cache
        self._ahead = Prebuilt(ahead, device.gpu.platform, device.architecture)
        self._device = device
        self.after_fork()
        renew_after_fork(self)
        self._modules: dict[Instance, _native.GpuModule] = {}
        self._modules_ahead: dict[bytes, _native.GpuModule] = {}
        self._trusted: dict[tuple[str, str], Module] = {}

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def module_count(self) -> int:
        return len(set(map(id, self._modules.values())))

    def load(self, wanted: Iterable[Instance]) -> None:
        """Compiles and loads what is not there yet. Raises `BackendError` with the compiler's words, `LifecycleError` while this thread captures."""
        with self._lock:
            missing = {instance for instance in wanted if instance not in self._modules}
            if missing:
                self._load(missing)

    def function(self, instance: Instance, shared_bytes: int = 0) -> _native.GpuFunction:
        """The kernel of an instance that was loaded, allowed that much dynamic shared memory."""
        return self._modules[instance].function(instance.name.symbol, _letters(instance), shared_bytes)

    def trust(self, modules: Iterable[Module]) -> None:
        """Has these modules run in place of what would be compiled, where their kernel files are what they were compiled of; the caller answers for them."""
        with self._lock:
            for module in modules:
                self._trusted |= {
                    (module.file, text): module for text in module.kernels if module.key == self._key(module.file)
                }

    def compiled(self, wanted: Iterable[Instance]) -> list[Module]:
        """The modules that have these entry points, from where `load` has them."""
        missing = set(wanted)
        with self._lock:
            ahead = self._codes_ahead(missing)
            groups = _groups(missing.difference(*ahead.values()))
            made = [(tuple(found), code) for code, found in ahead.items()]
            made += [(group, self._code(group)) for group in groups]
        return [
            Module(self._key(found[0].name.file), found[0].name.file, frozenset(item.text for item in found), code)
            for found, code in made
        ]

    def _key(self, file: str) -> str:
        return module_key(file, self._ahead.platform, self._ahead.architecture)

    def _codes_ahead(self, wanted: set[Instance]) -> dict[bytes, list[Instance]]:
        """Code that need not be compiled, and those of `wanted` that are in it: what the caller trusts, then what came with the package."""
        found: dict[bytes, list[Instance]] = {}
        for instance in wanted:
            module = self._trusted.get((instance.name.file, instance.text))
            if module is not None:
                found.setdefault(module.code, []).append(instance)
        for code, instances in self._ahead.codes(wanted.difference(*found.values())).items():
            found.setdefault(code, []).extend(instances)
        return found

    def _load(self, missing: set[Instance]) -> None:
        ahead = self._codes_ahead(missing)
        groups = _groups(missing.difference(*ahead.values()))
        with ThreadPoolExecutor(max(1, min(len(groups), _MOST_COMPILERS, _cores()))) as pool:
            codes = list(pool.map(self._code, groups))
        made = [_native.GpuModule(self._device, code) for code in codes]
        found = {instance: module for group, module in zip(groups, made, strict=True) for instance in group}
        ready = {hashlib.sha256(code).digest(): code for code in ahead}
        for key in ready.keys() - self._modules_ahead.keys():
            self._modules_ahead[key] = _native.GpuModule(self._device, ready[key])
        for key, code in ready.items():
            found |= dict.fromkeys(ahead[code], self._modules_ahead[key])
        for instance, module in found.items():
            module.function(instance.name.symbol, _letters(instance))  # all are there, or none is kept
        self._modules |= found

    def _code(self, group: tuple[Instance, ...]) -> bytes:
        source = assemble(group[0].name.file, group)
        options = compile_options(self._device.gpu.platform, self._device.architecture)
        key = source_hash(source, *options, *self._compiler, VERSION)
        name = f"{group[0].name if len(group) == 1 else group[0].name.file}.hip"
        return self.cache.code(key, lambda: self._device.gpu.compile(source, name, list(options)))

    @functools.cached_property
    def _compiler(self) -> tuple[str, ...]:
        """Which compiler it is, in all words that it has for itself."""
        gpu = self._device.gpu
        report = next(report for report in gpu.reports if report.role == "compiler")
        major, minor = gpu.compiler_version
        return (report.name, report.version, f"{major}.{minor}")


def _groups(instances: Iterable[Instance]) -> list[tuple[Instance, ...]]:
    """What become modules, in an order of their own."""
    by_file: dict[str, list[Instance]] = {}
    for instance in sorted(instances, key=lambda instance: instance.text):
        by_file.setdefault(instance.name.file, []).append(instance)
    groups: list[tuple[Instance, ...]] = []
    for found in by_file.values():
        together = len(found) > _MANY and len({instance.name.symbol for instance in found}) == len(found)
        groups += [tuple(found)] if together else [(instance,) for instance in found]
    return groups


def _letters(instance: Instance) -> str:
    """The parameters of an entry point as the native layer names them."""
    return "p" * instance.operands + instance.params + "pu"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
