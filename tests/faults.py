"""Planted faults: one of each kind that the tools must find and name, on the host, on the emulated GPU and on a real one.

Each is made through what a user has (rows and operators by `ost.extend`, passes), or, where nothing that is offered can go wrong so, by changing a program
behind the back of its checks: a plan after its proof, buffers after they were loaded. Each takes any decoder and any device, and says what must be named.

    python -m tests.faults                            a small model on the host
    python -m tests.faults --device hip --model Q     what the benchmarks call Q (Qwen2.5-0.5B's shape) on a card
    python -m tests.faults --device emulated

prints for each fault what named it, and in how many seconds; exit code 1 where one was not named.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.extending import (
    CallSite,
    Impl,
)
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.planner.moved import moved, storages_of, with_entries
from ostinato.planner.plan import Slot
from ostinato.runtime.device import Device
from ostinato.runtime.exchange import Exchange
from ostinato.runtime.executable import Executable
from ostinato.runtime.runners import PlannedRunner
from ostinato.tools.bisect.report import BisectReport
from ostinato.tools.bisect.search import bisect
from ostinato.tools.compare.sides import Side
from ostinato.tools.programs import precision_of
from tests.fault_parts import (
    IN_PLACE_ON_GPUS,
    NORM_SOURCE,
    WOBBLE,
    WOBBLE_ON_GPUS,
    WOBBLE_SOURCE,
    AlsoHarmless,
    Harmless,
    SwapGate,
    WobbleLogits,
    rows_of,
)

__all__ = ["FAULTS", "Bench", "Fault", "Planted", "found"]


@dataclass(frozen=True)
class Bench:
    """What a fault is planted in: a decoder, a device, tokens of the only bucket."""

    model: ost.Model
    device: Device
    tokens: int = 8
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def plain(self) -> ost.TextExecutable:
        """The program without a fault."""
        return self.compiled()

    @property
    def mode(self) -> str:
        """The fastest mode of the device."""
        return "captured" if self.device.captures else "planned"

    def compiled(self, mode: str | None = None, **options: Any) -> ost.TextExecutable:
        shape = {"buckets": {"B": [1], "T": [self.tokens]}, "context": 2 * self.tokens}
        return ost.compile(
            self.model, device=self.device, mode=mode or self.mode, **{**shape, **self.options, **options}
        )

    def side(self, name: str, **settings: Any) -> Side:
        return Side(name=name, device=self.device, **{**self.options, **settings})

    def bisect(self, planted: Planted, **options: Any) -> BisectReport:
        shape: dict[str, Any] = {"tokens": self.tokens}
        if not isinstance(planted.target, Executable):
            shape |= {"buckets": {"B": [1], "T": [self.tokens]}, "context": 2 * self.tokens}
        return bisect(planted.target, planted.left, planted.right, **{**shape, **options})


@dataclass(frozen=True)
class Planted:
    """A fault that is there: what to bisect, of which `kind` its culprit is, and of which names one must be named."""

    target: ost.Model | Executable
    left: Side | str | Executable
    right: Side | str | Executable
    kind: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and how it is planted for the length of a `with` block."""

    name: str
    plant: Callable[[Bench], AbstractContextManager[Planted]]


def found(report: BisectReport, planted: Planted) -> str:
    """The sentence that names the fault, empty where nothing does."""
    for culprit in report.culprits:
        told = {culprit.node, culprit.row, culprit.op, *culprit.names}
        if culprit.kind == planted.kind and told & set(planted.names):
            return culprit.text
    return ""


# rows


def _normed(executable: Executable) -> tuple[str, Node, Impl]:
    """The entry with the most rows, and its last node with a norm in it, with its row."""
    entry = max(executable.entries.values(), key=lambda plan: plan.dims["N"])
    graph, target = executable.program.graphs[entry.name], executable.program.target
    for node in reversed(graph.nodes):
        named = dict(zip((spec.name for spec in OP[node.op].operands), node.operands, strict=False))
        row = None if OP[node.op].is_view else target.row(node.op, node.impl or "")
        if (
            named.get("gain")
            and "eps" in node.attrs
            and row is not None
            and graph.types[node.operands[0] or ""].shape[0] == entry.dims["N"]
        ):
            return entry.name, node, row
    raise AssertionError("a decoder has a norm")


def _with_eps(row: Impl, eps: Callable[[CallSite], float], **changes: Any) -> Impl:
    """The row with another number in place of eps, before every other of its level."""

    def params(site: CallSite) -> tuple[int | float, ...]:
        found, known, wanted = row.params(site), site.real("eps"), eps(site)
        return tuple(wanted if known and type(value) is float and value == known else value for value in found)

    return replace(row, name="mine", params=params, priority=row.priority + 100, **changes)


@contextmanager
def wrong_kernel(bench: Bench) -> Iterator[Planted]:
    """A row that is right but for one number of rows."""
    _, _, row = _normed(bench.plain)
    wrong = _with_eps(row, lambda site: 50.0 if rows_of(site) == bench.tokens else site.real("eps"))
    with ost.extend(rows=[wrong]):
        yield Planted(
            bench.model,
            bench.side("reference", mode="reference"),
            bench.side(bench.mode, mode=bench.mode),
            "row",
            (wrong.identity,),
        )


@contextmanager
def nan_source(bench: Bench) -> Iterator[Planted]:
    """A kernel that takes the root of a negative number."""
    _, _, row = _normed(bench.plain)
    wrong = _with_eps(row, lambda site: -1e6)
    with ost.extend(rows=[wrong]):
        yield Planted(
            bench.model,
            bench.side("reference", mode="reference"),
            bench.side(bench.mode, mode=bench.mode),
            "nan",
            (wrong.identity,),
        )


@contextmanager
def frozen_scalar(bench: Bench) -> Iterator[Planted]:
    """A number of the host that the plan, and what is captured of it, has from when it was made."""
    _, _, row = _normed(bench.plain)
    knob = [1.0]
    follows = _with_eps(row, lambda site: site.real("eps") + knob[0] - 1.0)
    with ost.extend(rows=[follows]):
        executable = bench.compiled()
        executable.prewarm()
        knob[0] = 1.5
        yield Planted(executable, executable.clone("eager"), executable, "scalar", (follows.identity,))


@contextmanager
def wrong_in_place(bench: Bench) -> Iterator[Planted]:
    """A row that says its result may lie in an operand's bytes, and reads these after it wrote there."""
    if bench.device.captures:
        row, options = IN_PLACE_ON_GPUS, dict[str, Any](disable=("fuse_add_norm", "fuse_norm"))
        kernels = {"faults/norm": NORM_SOURCE}
    else:
        (known,) = [row for row in bench.device.target.rows_for("linear") if row.name == "host"]
        row, options, kernels = (
            replace(known, name="mine", priority=100, in_place=(("y", "x"),)),
            {"disable": ("fuse_residual",)},
            {},
        )
    if precision_of(bench.plain.program) != "f32":  # a result in f32 has no room in an operand in bf16
        options["precision"] = "bf16[q,k,v,gate,up,down]"
    with ost.extend(rows=[row], kernels=kernels):
        executable = bench.compiled(**options)
        yield Planted(executable, executable.clone("eager"), executable, "in_place", (row.identity,))


# passes


@contextmanager
def wrong_fusion(bench: Bench) -> Iterator[Planted]:
    """A pass of the user's that changes what the graph computes, between two that do not."""

    passes = (("cse", Harmless()), ("cse", SwapGate()), ("cse", AlsoHarmless()))
    plain, fused = bench.side("plain", mode=bench.mode), bench.side("mine", mode=bench.mode, passes=passes)
    yield Planted(bench.model, plain, fused, "pass", ("swap_gate",))


# places


@contextmanager
def wrong_lifetime(bench: Bench) -> Iterator[Planted]:
    """A plan that was changed after it was proven: two storages that are needed at a time have the same bytes."""
    executable = bench.plain
    entry = max(executable.entries.values(), key=lambda plan: plan.dims["N"])
    graph = executable.program.graphs[entry.name]
    kept, spoiler = _overlapping(entry.slots, graph)
    storages = storages_of(entry, graph)[spoiler.values[0]]
    tampered = moved(entry, graph, dict.fromkeys(storages, kept.range.offset))
    program = replace(executable.program, plan=with_entries(executable.program.plan, {entry.name: tampered}))
    wrong = ost.TextExecutable(program, executable.device, executable.regions.shared, mode=executable.mode)
    yield Planted(wrong, executable.clone("eager"), wrong, "bytes", (kept.values[0], spoiler.values[0]))


def _overlapping(slots: Sequence[Slot], graph: Graph) -> tuple[Slot, Slot]:
    """A value that is read after another one of as many bytes or more was made, by a node that does not read it; the latest there are."""
    alone = [slot for slot in slots if slot.values[0] in graph.producers]
    for spoiler in reversed(alone):
        reads = graph.producers[spoiler.values[0]].operands
        for kept in reversed(alone):
            between = kept.first < spoiler.first < kept.last - 1 and not set(kept.values) & set(reads)
            if between and kept.range.size <= spoiler.range.size:
                return kept, spoiler
    raise AssertionError("some value outlives another")


@contextmanager
def moved_buffer(bench: Bench) -> Iterator[Planted]:
    """Inputs and outputs that were put elsewhere behind the back of what was loaded, and captured, over the old ones."""
    executable = bench.compiled()
    executable.prewarm()
    regions = executable.regions
    io = executable.device.allocate(regions.io.nbytes)
    executable.runners.regions = replace(regions, io=io, window=io.window(regions.stream))
    for name, plan in executable.entries.items():
        runner = executable.runner(name)
        assert isinstance(runner, PlannedRunner)
        runner.loaded.exchange = Exchange(plan, executable.regions)
        runner.inputs = runner.loaded.exchange.inputs
    yield Planted(executable, executable.clone("eager"), executable, "address", ("input_ids",))


# a kernel that does not repeat itself


@contextmanager
def nondeterminism(bench: Bench) -> Iterator[Planted]:
    """A kernel whose result depends on the order in which its blocks come; on the host, on how often it was called."""
    with ost.extend(operators=[WOBBLE], rows=[WOBBLE_ON_GPUS], kernels={"faults/wobble": WOBBLE_SOURCE}):
        passes = (("cse", WobbleLogits()),)
        right = bench.side("mine", mode=bench.mode, passes=passes)
        yield Planted(bench.model, bench.side("plain", mode=bench.mode), right, "nondeterminism", ("logits", "wobble"))


FAULTS = (
    Fault("wrong kernel at one shape", wrong_kernel),
    Fault("wrong fusion", wrong_fusion),
    Fault("wrong lifetime", wrong_lifetime),
    Fault("wrong in-place", wrong_in_place),
    Fault("host scalar frozen in a capture", frozen_scalar),
    Fault("moved buffer", moved_buffer),
    Fault("NaN source", nan_source),
    Fault("nondeterministic kernel", nondeterminism),
)


def _bench(model: str, device: str, dtype: str, folder: Path) -> Bench:
    """The bench that the command line asks for."""
    from benchmarks.models import checkpoint
    from ostinato.backend_hip.device import HostDevice
    from ostinato.backend_hip.emulator.machine import emulated_gpu
    from ostinato.backend_hip.open import open_hip

    opened: Device
    if device == "emulated":
        opened = HipDevice(emulated_gpu(folder / "kernels").gpu.device(1))
    elif device.startswith("hip"):
        known = open_hip(int(device.partition(":")[2] or 0))
        opened = HipDevice(known.native)  # without records: planted rows are wrong, and validation would refuse them
    else:
        opened = HostDevice(threads=1)
    return Bench(ost.load(checkpoint(model, "f32")), opened, options={"precision": dtype})


def main(arguments: Sequence[str] | None = None) -> int:
    """Plants every fault, and says what named it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Planted faults, found and named.")
    parser.add_argument("--device", default="cpu", help="cpu, emulated, hip or hip:N")
    parser.add_argument("--model", default="tiny", help="tiny, S, Q, ... of benchmarks.models, or smollm2")
    parser.add_argument("--dtype", default="auto", help="f32, bf16 or bf16_results; by default the checkpoint's own")
    parser.add_argument("--only", default="", help="part of the name of a fault")
    given = parser.parse_args(arguments)
    unnamed = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = _bench(given.model, given.device, given.dtype, Path(folder))
        for fault in FAULTS:
            if given.only not in fault.name:
                continue
            begin = time.perf_counter()
            with fault.plant(bench) as planted:
                report = bench.bisect(planted, output=Path(folder) / fault.name.replace(" ", "-"))
                said = found(report, planted)
            unnamed += not said
            seconds = time.perf_counter() - begin
            reduced = (
                f"reduced to {len(report.reduced)} nodes" if report.reduced else f"not reduced: {report.unreduced}"
            )
            print(
                f"{'found' if said else 'NOT FOUND':9}  {seconds:6.1f} s  {report.trials:3} trials  {fault.name}: {said or report.verdict}"
            )
            print(f"           {reduced}")
            if not said:
                for culprit in report.culprits:
                    print(f"           {culprit}")
    return 1 if unnamed else 0


if __name__ == "__main__":
    sys.exit(main())
