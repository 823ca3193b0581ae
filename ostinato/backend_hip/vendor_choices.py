"""Algorithms of the vendor's GEMM: chosen once, recorded, verified when they are read again.

The vendor proposes algorithms for a product; the first one that runs with a finite result, the same twice, is taken, and a capture of it says how many nodes it
records. The choice is kept on the device, so that whatever runs the product in this process runs that algorithm, and in a file of JSON lines beside the
compiled kernels, under everything it depends on: the product, its workspace, the card, the driver, the library. Another process uses it once the vendor has
said that it is good for the product. A record of another driver or library is reported and not used, nor is a line that does not check; a later line replaces
an earlier one. The file is user data: it may be deleted at any time.

Choosing, and running a product for the first time on a thread that is to capture it, needs memory for one operand and a result beside what is there; it is
given back at once.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import xxhash

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import default_folder
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.types import Array, DType

__all__ = ["ChoiceCounters", "Gemm", "VendorChoices", "vendor_choices"]

_FILE = "vendor_choices.jsonl"
_SECONDS = 600
"""Of waiting for another process that chooses."""
_TILE_BYTES = 1 << 20
"""Of random values, which scratch memory repeats."""
_PIECE = 1 << 24
"""Elements of a result that are looked at together."""
_DTYPES = {dtype.number: dtype for dtype in (DType.F32, DType.F16, DType.BF16)}

Operands = Sequence[tuple[int, int]]
"""Address and bytes of each of `GEMM_OPERANDS`, (0, 0) where absent."""


@dataclass(frozen=True, slots=True)
class ChoiceCounters:
    """What was asked for: products known in this process, taken from the record, chosen. `stale`: chosen though there is a record of another driver or
    library; `refused`: recorded ones that the vendor does not take; `damaged`: lines of the record that do not check."""

    hits: int = 0
    recorded: int = 0
    chosen: int = 0
    stale: int = 0
    refused: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product with its algorithm: `node_count` is how many nodes a capture of it records."""

    device: _native.GpuDevice
    params: GemmParams
    problem: _native.GemmProblem
    choice: _native.GemmChoice
    workspace: int
    node_count: int

    def run(self, operands: Operands, stream: _native.Stream | None = None) -> None:
        """Submits the product to a stream (None: the device's default one). Raises `ConfigError` for operands off their alignment."""
        a, b, bias, c, d, workspace = (address for address, _ in operands)
        p = self.params
        _native.gemm(
            self.device,
            self.problem,
            self.choice,
            a,
            b,
            c or d,
            d,
            bias,
            p.alpha,
            p.beta,
            workspace,
            self.workspace,
            stream,
        )

    def warm(self) -> None:
        """Makes it ready to be captured on this thread: runs it once, in memory of its own, unless this thread did."""
        if not _native.gemm_is_warm(self.device, self.problem, self.choice):
            with _scratch(self.device, self.params, self.workspace) as scratch:
                scratch.run(self)

    def step(self, node: str, operands: Operands) -> _native.GpuStep:
        """The product as a step of a table."""
        a, b, bias, c, d, workspace = (address for address, _ in operands)
        p = self.params
        return _native.GpuStep.gemm(
            node, self.problem, self.choice, a, b, c or d, d, bias, p.alpha, p.beta, workspace, self.workspace
        )


class VendorChoices:
    """The choices of one device. Threads may share it."""

    def __init__(self, device: _native.GpuDevice, folder: Path | None = None) -> None:
        self.path = (default_folder() if folder is None else folder) / _FILE
        self._device = device
        self._lock = threading.RLock()
        self._known: dict[tuple[GemmParams, int], Gemm] = {}
        self._counters = ChoiceCounters()
        self._warned: set[str] = set()

    @property
    def counters(self) -> ChoiceCounters:
        return self._counters

    def clear(self) -> None:
        """Forgets choices and counters of this process; the record stays."""
        with self._lock:
            self._known.clear()
            self._counters = ChoiceCounters()
            self._warned.clear()

    def gemm(self, params: Sequence[int | float], workspace: int, node: str | None = None) -> Gemm:
        """The product of these parameters with so many bytes of workspace, ready to be captured on this thread.

        Raises `BackendError` where no algorithm of the vendor's can be used, `CapacityError` without memory to try them, `LifecycleError` where a choice or
        a first run would be needed while this thread captures.
        """
        wanted = GemmParams(*params)  # type: ignore[arg-type]
        with self._lock:
            found = self._known.get((wanted, workspace))
            if found is None:
                found = self._known[wanted, workspace] = self._looked_up(wanted, workspace, node)
            else:
                self._count(hits=1)
        found.warm()
        return found

    def _looked_up(self, params: GemmParams, workspace: int, node: str | None) -> Gemm:
        """From the record, or chosen and recorded."""
        with self._locked():
            records = self._records()
            mine = {"environment": self._environment, "params": list(params), "workspace": workspace}
            record = records.get(_key(mine))
            if record is not None:
                found = self._verified(params, workspace, record)
                if found is not None:
                    self._count(recorded=1)
                    return found
                self._count(refused=1)
                self._warn(
                    "refused", f"{self.path} records an algorithm that the vendor does not take; another is chosen"
                )
            elif any(r["params"] == mine["params"] and r["workspace"] == workspace for r in records.values()):
                self._count(stale=1)
                self._warn(
                    "stale", f"{self.path} records algorithms for another card, driver or library; they are chosen anew"
                )
            found = self._chosen(params, workspace, node)
            self._count(chosen=1)
            self._append(
                {
                    **mine,
                    "algorithm": found.choice.algorithm,
                    "needs": found.choice.workspace_bytes,
                    "nodes": found.node_count,
                }
            )
            return found

    def _verified(self, params: GemmParams, workspace: int, record: Mapping[str, Any]) -> Gemm | None:
        problem = _problem(params)
        choice = _native.GemmChoice(record["algorithm"], record["needs"])
        if not _native.gemm_accepts(self._device, problem, choice, workspace):
            return None
        return Gemm(self._device, params, problem, choice, workspace, record["nodes"])

    def _chosen(self, params: GemmParams, workspace: int, node: str | None) -> Gemm:
        problem, refused = _problem(params), list[str]()
        with _scratch(self._device, params, workspace) as scratch:
            for choice in self._proposed(problem, workspace, refused):
                tried = Gemm(self._device, params, problem, choice, workspace, 0)
                try:
                    reason = scratch.refusal(tried)
                except BackendError as error:
                    reason = error.message
                if reason is None:
                    return replace(tried, node_count=self._recorded_nodes(scratch, tried))
                refused.append(reason)
        raise BackendError(
            f"the vendor has no algorithm for {params}: {'; '.join(refused) or 'it proposes none'}",
            node=node,
            hint='run the operator by our own kernels: levels={"linear": "tuned", "matmul": "readable"}',
        )

    def _proposed(
        self, problem: _native.GemmProblem, workspace: int, refused: list[str]
    ) -> Sequence[_native.GemmChoice]:
        try:
            return _native.gemm_choices(self._device, problem, workspace)
        except BackendError as error:
            refused.append(error.message)
            return ()

    def _recorded_nodes(self, scratch: _Scratch, tried: Gemm) -> int:
        """How many nodes a capture of the product has. The stream it needs is no reason for the device to lose its pool."""
        banned = self._device.pool_banned
        count = _captured_nodes(self._device, lambda stream: scratch.run(tried, stream))
        if not banned:
            self._device.hand_off()
        return count

    # the record

    @functools.cached_property
    def _environment(self) -> dict[str, str | int]:
        device = self._device
        runtime = next(report for report in device.gpu.reports if report.role == "runtime")
        return {
            "platform": device.gpu.platform,
            "device": device.name,
            "architecture": device.architecture,
            "multiprocessors": device.multiprocessors,
            "runtime": runtime.version,
            "library": _native.vendor_version(device),
        }

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the record for this process. A folder that has no place for a lock costs time and nothing else."""
        lock = filelock.FileLock(self.path.with_suffix(".lock"), timeout=_SECONDS)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            self._warn(
                "unkept", f"algorithms are not recorded in {self.path}: {error}; they are chosen in every process"
            )
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _records(self) -> dict[str, Mapping[str, Any]]:
        """What the file says, by key; a later line replaces an earlier one."""
        try:
            lines = self.path.read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            self._warn("unread", f"{self.path} cannot be read: {error}; algorithms are chosen anew")
            return {}
        records = [_record(line) for line in lines if line.strip()]
        damaged = sum(record is None for record in records)
        if damaged:
            with self._lock:
                self._counters = replace(self._counters, damaged=damaged)
            self._warn("damaged", f"{damaged} of {len(records)} lines of {self.path} do not check and are ignored")
        return {_key(record): record for record in records if record is not None}

    def _append(self, record: Mapping[str, Any]) -> None:
        """One line more, by one write: whoever reads sees all of it, or a last line that does not check."""
        line = json.dumps({"record": record, "digest": _digest(record)}, separators=(",", ":")) + "\n"
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                end = os.fstat(descriptor).st_size
                torn = bool(end) and os.pread(descriptor, 1, end - 1) != b"\n"  # a process died while it wrote
                os.write(descriptor, (b"\n" if torn else b"") + line.encode("ascii"))
            finally:
                os.close(descriptor)
        except OSError as error:
            self._warn(
                "unkept", f"algorithms are not recorded in {self.path}: {error}; they are chosen in every process"
            )

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counters = replace(
                self._counters, **{name: getattr(self._counters, name) + count for name, count in more.items()}
            )

    def _warn(self, what: str, text: str) -> None:
        """Once for each kind of trouble."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(text, RuntimeWarning, stacklevel=2)


_CHOICES: dict[tuple[str, int, Path], VendorChoices] = {}
_CHOICES_LOCK = threading.Lock()


def vendor_choices(device: _native.GpuDevice, folder: Path | None = None) -> VendorChoices:
    """The choices of a device that everything in this process shares, recorded in `folder` (None: the user's)."""
    made = VendorChoices(device, folder)
    with _CHOICES_LOCK:
        return _CHOICES.setdefault((device.gpu.platform, device.index, made.path), made)


def _captured_nodes(device: _native.GpuDevice, submit: Callable[[_native.Stream], None]) -> int:
    stream = _native.Stream(device, non_blocking=True)
    return _native.HipGraphExecutable.capture(stream, lambda: submit(stream)).node_count


def _problem(params: GemmParams) -> _native.GemmProblem:
    p = params
    types = (p.a_type, p.b_type, p.c_type, p.d_type)
    a, b, c, d = (_dtype(number).value for number in types)
    return _native.GemmProblem(
        p.m,
        p.n,
        p.k,
        (a, b, c, d),
        (p.a_leading, p.b_leading, p.c_leading, p.d_leading),
        bool(p.transpose_a),
        bool(p.transpose_b),
        bias="" if p.bias_type == NO_BIAS else _dtype(p.bias_type).value,
        batches=p.batches,
        strides=(p.a_stride, p.b_stride, p.c_stride, p.d_stride),
    )


def _dtype(number: int) -> DType:
    found = _DTYPES.get(number)
    if found is None:
        raise ConfigError(f"a product by the vendor has no operands of dtype number {number}")
    return found


# lines of the record


def _key(record: Mapping[str, Any]) -> str:
    return _text({name: record[name] for name in ("environment", "params", "workspace")})


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(record: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(_text(record).encode("ascii"))


def _record(line: bytes) -> Mapping[str, Any] | None:
    """The record of a line, None for a line that does not check."""
    try:
        value = json.loads(line)
        record = value["record"]
        return record if value["digest"] == _digest(record) else None
    except (ValueError, KeyError, TypeError):
        return None


# trying an algorithm


class _Scratch:
    """Memory to try a product in: one block that every operand is read from, a result and a workspace."""

    def __init__(self, params: GemmParams, source: int, result: int, workspace: int, device: _native.GpuDevice) -> None:
        self._device, self._result = device, result
        self._bytes = _extent(params.d_type, params.m, params.n, params.d_leading, params.d_stride, params.batches)
        self._dtype = _dtype(params.d_type).numpy
        bias = (0, 0) if params.bias_type == NO_BIAS else (source, 0)
        self._operands = (
            (source, 0),
            (source, 0),
            bias,
            (source, 0) if params.beta else (0, 0),
            (result, 0),
            (workspace, 0),
        )

    def run(self, gemm: Gemm, stream: _native.Stream | None = None) -> None:
        gemm.run(self._operands, stream)

    def refusal(self, gemm: Gemm) -> str | None:
        """Why an algorithm cannot be used, None where it can: two runs over poison, looked at whole."""
        first, second = self._run_over_poison(gemm), self._run_over_poison(gemm)
        if first.tobytes() != second.tobytes():
            return "two runs differ"
        values = first.view(self._dtype)
        pieces = range(0, values.size, _PIECE)
        return None if all(np.isfinite(values[i : i + _PIECE]).all() for i in pieces) else "the result is not finite"

    def _run_over_poison(self, gemm: Gemm) -> Array:
        _native.fill_async(self._result, self._device, 0xFF, self._bytes)
        self.run(gemm)
        found = np.empty(self._bytes, np.uint8)
        _native.copy_async(found.ctypes.data, None, self._result, self._device, self._bytes)
        self._device.synchronize()
        return found


@contextmanager
def _scratch(device: _native.GpuDevice, params: GemmParams, workspace: int) -> Iterator[_Scratch]:
    """Scratch memory for a product, with random values to multiply."""
    p = params
    a = (p.k, p.m) if p.transpose_a else (p.m, p.k)
    b = (p.n, p.k) if p.transpose_b else (p.k, p.n)
    source_bytes = max(
        _extent(p.a_type, *a, p.a_leading, p.a_stride, p.batches),
        _extent(p.b_type, *b, p.b_leading, p.b_stride, p.batches),
        _extent(p.c_type, p.m, p.n, p.c_leading, p.c_stride, p.batches) if p.beta else 0,
        0 if p.bias_type == NO_BIAS else _dtype(p.bias_type).nbytes(p.m),
    )
    result_bytes = _extent(p.d_type, p.m, p.n, p.d_leading, p.d_stride, p.batches)
    with (
        _block(device, source_bytes) as source,
        _block(device, result_bytes) as result,
        _block(device, workspace) as work,
    ):
        _fill_with_values(device, source, source_bytes, _dtype(p.a_type))
        yield _Scratch(p, source, result, work, device)


@contextmanager
def _block(device: _native.GpuDevice, nbytes: int) -> Iterator[int]:
    address = device.allocate(nbytes) if nbytes else 0
    try:
        yield address
    finally:
        if address:
            device.free(address)


def _extent(type_number: int, rows: int, columns: int, leading: int, stride: int, batches: int) -> int:
    """Bytes from the first to the last element of column-major matrices."""
    return _dtype(type_number).nbytes((batches - 1) * stride + (columns - 1) * leading + rows)


def _fill_with_values(device: _native.GpuDevice, address: int, nbytes: int, dtype: DType) -> None:
    """Random values in [-1, 1), those of a tile again and again."""
    size = dtype.nbytes(1)
    tile = np.random.default_rng(0).uniform(-1, 1, min(nbytes, _TILE_BYTES) // size + 1).astype(dtype.numpy)
    done = min(nbytes, tile.nbytes)
    _native.copy_async(address, device, tile.ctypes.data, None, done)
    device.synchronize()
    while done < nbytes:
        more = min(done, nbytes - done)
        _native.copy_async(address + done, device, address, device, more)
        done += more
    device.synchronize()
