"""Algorithms of the vendor's GEMM: chosen once, recorded, verified when they are read again.

The vendor proposes algorithms for a product; the first one that runs with a finite result, the same twice, is taken, and a capture of it says how many nodes it
records. The choice is kept on the device, so that whatever runs the product in this process runs that algorithm, and in a file (`vendor_record.py`) under
everything it depends on: the product, its workspace, the card, the driver, the library. Another process uses it once the vendor has said that it is good for
the product. A record of another driver or library is reported and not used. What a screening found for the product (`vendor_screen.py`) goes before all that,
under the same conditions.

Choosing, and running a product for the first time on a thread that is to capture it, needs memory for one operand and a result beside what is there; it is
given back at once.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ostinato.backend_hip import _native
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.vendor_record import (
    KEY,
    Record,
    VendorRecord,
    differences,
    is_record,
    record_key,
    solution_key,
    solutions,
)
from ostinato.backend_hip.vendor_scratch import Operands, gemm_dtype, scratch
from ostinato.ir.errors import BackendError, LifecycleError
from ostinato.ir.forks import renew_after_fork

__all__ = [
    "ChoiceCounters",
    "Gemm",
    "VendorChoices",
    "gemm_problem",
    "vendor_choices",
    "vendor_environment",
]


@dataclass(frozen=True, slots=True)
class ChoiceCounters:
    """What was asked for: products known in this process, taken from what a screening found, taken from the record, chosen. `stale`: records of another driver
    or library that were not used; `refused`: recorded ones that the vendor does not take; `damaged`: lines of the record that do not check."""

    hits: int = 0
    screened: int = 0
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
        a, b, bias, c, d, work = (address for address, _ in operands)
        alpha, beta = self.params.alpha, self.params.beta
        _native.gemm(
            self.device, self.problem, self.choice, a, b, c or d, d, bias, alpha, beta, work, self.workspace, stream
        )

    def step(self, node: str, operands: Operands) -> _native.GpuStep:
        """The product as a step of a table."""
        a, b, bias, c, d, work = (address for address, _ in operands)
        alpha, beta = self.params.alpha, self.params.beta
        return _native.GpuStep.gemm(
            node, self.problem, self.choice, a, b, c or d, d, bias, alpha, beta, work, self.workspace
        )

    def counted(self, operands: Operands) -> Gemm:
        """The same with its nodes counted. The stream that takes is no reason for the device to lose its pool."""
        banned = self.device.pool_banned
        count = self._captured(operands)
        if not banned:
            self.device.hand_off()
        return replace(self, node_count=count)

    def _captured(self, operands: Operands) -> int:
        stream = _native.Stream(self.device, non_blocking=True)
        return _native.HipGraphExecutable.capture(stream, lambda: self.run(operands, stream)).node_count

    def warm(self) -> None:
        """Makes it ready to be captured on this thread: runs it once, in memory of its own, unless this thread did."""
        if not _native.gemm_is_warm(self.device, self.problem, self.choice):
            with scratch(self.device, self.params, self.workspace) as memory:
                self.run(memory.operands)


class VendorChoices:
    """The choices of one device. Threads may share it."""

    def __init__(self, device: _native.GpuDevice, folder: Path | None = None) -> None:
        self.record = VendorRecord(folder)
        self.solutions = solutions()
        self.use_solutions = True
        self._device = device
        self.after_fork()
        renew_after_fork(self)
        self._known: dict[tuple[GemmParams, int], Gemm] = {}
        self._counters = ChoiceCounters()
        self._warned: set[str] = set()
        self._trusted: dict[str, Record] = {}

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    @property
    def counters(self) -> ChoiceCounters:
        return self._counters

    def trust(self, records: Iterable[Record]) -> None:
        """Takes these records before those of the machine for what they are of: this card, driver and library. The caller answers for them."""
        with self._lock:
            self._trusted |= {record_key(record): record for record in records if is_record(record)}

    def chosen(self, params: Sequence[int | float], workspace: int, node: str | None = None) -> Record:
        """The record of the algorithm that a product has here. Raises what `gemm` raises."""
        found = self.gemm(params, workspace, node)
        said = {"algorithm": found.choice.algorithm, "needs": found.choice.workspace_bytes, "nodes": found.node_count}
        return {**solution_key(self._environment, params, workspace), **said}

    def clear(self) -> None:
        """Forgets choices and counters of this process; the record stays."""
        with self._lock:
            self._known.clear()
            self._trusted.clear()
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
        if _native.capturing():
            raise LifecycleError(
                "this thread captures; algorithms are chosen before",
                node=node,
                hint="make the table before the capture",
            )
        path = self.record.path
        mine = solution_key(self._environment, params, workspace)
        given = self._trusted.get(record_key(mine))
        if given is not None and (found := self._verified(params, workspace, given)) is not None:
            self._count(recorded=1)
            return found
        screened = self._screened(params, workspace, mine)
        if screened is not None:
            self._count(screened=1)
            return screened
        with self.record.locked() as unlocked:
            lines = self.record.read()
            if lines.trouble:
                self._warn("unread", f"{path} cannot be read: {lines.trouble}; algorithms are chosen anew")
            if lines.damaged:
                self._counters = replace(self._counters, damaged=lines.damaged)
                self._warn("damaged", f"{lines.damaged} of {lines.lines} lines of {path} do not check and are ignored")
            record = lines.records.get(record_key(mine))
            if record is not None:
                found = self._verified(params, workspace, record)
                if found is not None:
                    self._count(recorded=1)
                    return found
                self._count(refused=1)
                self._warn("refused", f"{path} records an algorithm that the vendor does not take; another is chosen")
            elif other := _of_the_same_product(lines.records.values(), mine):
                self._count(stale=1)
                self._warn(
                    "stale",
                    f"{path} is of another card, driver or library ({differences(other, mine)}); algorithms are chosen anew",
                )
            found = self._chosen(params, workspace, node)
            self._count(chosen=1)
            chosen = {"algorithm": found.choice.algorithm, "needs": found.choice.workspace_bytes}
            unkept = unlocked or self.record.append({**mine, **chosen, "nodes": found.node_count})
            if unkept:
                self._warn("unkept", f"algorithms are not recorded in {path}: {unkept}; every process chooses them")
            return found

    def _screened(self, params: GemmParams, workspace: int, mine: Record) -> Gemm | None:
        """What a screening on this card found for the product, where the vendor still takes it."""
        if not self.use_solutions:
            return None
        path, lines = self.solutions.path, self.solutions.read()
        again = "screen it again with `ostinato evidence screen`"
        if lines.trouble or lines.damaged:
            trouble = lines.trouble or f"{lines.damaged} of {lines.lines} lines do not check and are ignored"
            self._warn("unread solutions", f"{path}: {trouble}")
        record = lines.records.get(record_key(mine))
        if record is None:
            if other := _of_the_same_product(lines.records.values(), mine):
                self._count(stale=1)
                reason = differences(other, mine)
                self._warn("stale solutions", f"{path} is not used: it is of {reason}; {again}")
            return None
        found = self._verified(params, workspace, record)
        if found is None:
            self._count(refused=1)
            self._warn("refused solutions", f"{path} has an algorithm that the vendor does not take; {again}")
        return found

    def _verified(self, params: GemmParams, workspace: int, record: Record) -> Gemm | None:
        problem = gemm_problem(params)
        choice = _native.GemmChoice(record["algorithm"], record["needs"])
        if not _native.gemm_accepts(self._device, problem, choice, workspace):
            return None
        return Gemm(self._device, params, problem, choice, workspace, record["nodes"])

    def _chosen(self, params: GemmParams, workspace: int, node: str | None) -> Gemm:
        problem, refused = gemm_problem(params), list[str]()
        with scratch(self._device, params, workspace) as memory:
            for choice in self._proposed(problem, workspace, refused):
                tried = Gemm(self._device, params, problem, choice, workspace, 0)
                try:
                    reason = memory.refusal(tried.run)
                except BackendError as error:
                    reason = error.message
                if reason is None:
                    return tried.counted(memory.operands)
                refused.append(reason)
        raise BackendError(
            f"the vendor has no algorithm for {params}: {'; '.join(refused) or 'it proposes none'}",
            node=node,
            hint=f'levels={{"{node or "linear"}": "hip"}} runs it by a kernel of our own',
        )

    def _proposed(
        self, problem: _native.GemmProblem, workspace: int, refused: list[str]
    ) -> Sequence[_native.GemmChoice]:
        try:
            return _native.gemm_choices(self._device, problem, workspace)
        except BackendError as error:
            refused.append(error.message)
            return ()

    @functools.cached_property
    def _environment(self) -> dict[str, str | int]:
        return vendor_environment(self._device)

    def _count(self, **more: int) -> None:
        old = self._counters
        self._counters = replace(old, **{name: getattr(old, name) + count for name, count in more.items()})

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
        return _CHOICES.setdefault((device.gpu.platform, device.index, made.record.path), made)


def vendor_environment(device: _native.GpuDevice) -> dict[str, str | int]:
    """What of a device, its driver and its library a choice depends on."""
    runtime = next(report for report in device.gpu.reports if report.role == "runtime")
    return {
        "platform": device.gpu.platform,
        "device": device.name,
        "architecture": device.architecture,
        "multiprocessors": device.multiprocessors,
        "runtime": runtime.version,
        "library": _native.vendor_version(device),
    }


def _of_the_same_product(records: Iterable[Record], key: Record) -> Record | None:
    """The last record of a product, whatever it was made on."""
    same = [record for record in records if all(record[name] == key[name] for name in KEY if name != "environment")]
    return same[-1] if same else None


def gemm_problem(params: GemmParams) -> _native.GemmProblem:
    """The product as the native layer has it."""
    p = params
    a, b, c, d = (gemm_dtype(number).value for number in (p.a_type, p.b_type, p.c_type, p.d_type))
    return _native.GemmProblem(
        p.m,
        p.n,
        p.k,
        (a, b, c, d),
        (p.a_leading, p.b_leading, p.c_leading, p.d_leading),
        bool(p.transpose_a),
        bool(p.transpose_b),
        bias="" if p.bias_type == NO_BIAS else gemm_dtype(p.bias_type).value,
        batches=p.batches,
        strides=(p.a_stride, p.b_stride, p.c_stride, p.d_stride),
    )
