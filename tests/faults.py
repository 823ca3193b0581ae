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
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import ostinato as ost
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.extending import (
    Arrays,
    CallSite,
    DType,
    Impl,
    Level,
    OperandSpec,
    Site,
    TensorType,
    Tolerance,
    by_dtypes,
    cost_per_element,
    define,
    element_launch,
    normal,
    readable,
    valid,
)
from ostinato.ir.graph import Attributes, Graph, Node, Value
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.planner.moved import moved, storages_of, with_entries
from ostinato.planner.plan import Slot
from ostinato.runtime.device import Device
from ostinato.runtime.exchange import Exchange
from ostinato.runtime.executable import Executable
from ostinato.runtime.runners import PlannedRunner
from ostinato.tools.bisect.report import BisectReport
from ostinato.tools.bisect.search import bisect
from ostinato.tools.compare.sides import Side

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


def _rows(site: CallSite) -> int:
    return site.operand(0).static_shape[0]


@contextmanager
def wrong_kernel(bench: Bench) -> Iterator[Planted]:
    """A row that is right but for one number of rows."""
    _, _, row = _normed(bench.plain)
    wrong = _with_eps(row, lambda site: 50.0 if _rows(site) == bench.tokens else site.real("eps"))
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
    with ost.extend(rows=[row], kernels=kernels):
        executable = bench.compiled(**options)
        yield Planted(executable, executable.clone("eager"), executable, "in_place", (row.identity,))


NORM_SOURCE = """
#include "device.h"

// A thread a row, which works out the mean anew for every column: right, but where y lies on x.
template <class X, class Y>
DEVICE void slow_norm(const X* x, const f32* gain, const i32* count, Y* y, i64 rows, i64 width, f64 eps, Status) {
    const i64 end = valid_rows(count, rows);
    for (i64 row = first_element(); row < end; row += element_step()) {
        for (i64 i = 0; i < width; i++) {
            f32 squares = 0.0f;
            for (i64 j = 0; j < width; j++) squares = fmaf(widen(x[row * width + j]), widen(x[row * width + j]), squares);
            const f32 factor = 1.0f / sqrtf(squares / static_cast<f32>(width) + static_cast<f32>(eps));
            narrow(widen(x[row * width + i]) * factor * gain[i], y[row * width + i]);
        }
    }
}
"""


def _norm_size(site: CallSite) -> tuple[int | float, ...]:
    rows, width = site.operand(0).static_shape
    return (rows, width, site.real("eps"))


IN_PLACE_ON_GPUS = replace(
    readable(
        "rms_norm",
        ("x", "gain", "count", "y"),
        by_dtypes("faults/norm", "slow_norm", 0, result=0),
        _norm_size,
        lambda site: element_launch(_rows(site)),
        lambda site: None if site.operand(0).rank == 2 else "two axes",
        in_place=(("y", "x"),),
    ),
    name="mine",
    level=Level.TUNED,
    priority=1000,
)


# passes


@dataclass(frozen=True)
class SwapGate:
    """ "Fuses" the first gate and up the wrong way round."""

    name: ClassVar[str] = "swap_gate"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        gated = next(node for node in graph.nodes if node.op == "swiglu")
        gate, up = gated.operands
        swapped = replace(gated, operands=(up, gate))
        nodes = tuple(swapped if node is gated else node for node in graph.nodes)
        return Graph(graph.name, graph.inputs, nodes, graph.outputs, graph.extents)


@dataclass(frozen=True)
class Harmless(SwapGate):
    """Changes nothing."""

    name: ClassVar[str] = "harmless"

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        return graph


@contextmanager
def wrong_fusion(bench: Bench) -> Iterator[Planted]:
    """A pass of the user's that changes what the graph computes, between two that do not."""

    @dataclass(frozen=True)
    class AlsoHarmless(Harmless):
        name: ClassVar[str] = "also_harmless"

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
    executable.regions = replace(regions, io=io, window=io.window(regions.stream))
    for name, plan in executable.entries.items():
        runner = executable.runner(name)
        assert isinstance(runner, PlannedRunner)
        runner.loaded.exchange = Exchange(plan, executable.regions)
        runner.inputs = runner.loaded.exchange.inputs
    yield Planted(executable, executable.clone("eager"), executable, "address", ("input_ids",))


# a kernel that does not repeat itself

_TURNS = itertools.count()


def _infer(site: Site) -> tuple[TensorType, ...]:
    return (site.operand(0).with_layout(None),)


def _wobble(call: Arrays) -> tuple[Any, ...]:
    return ((call.wide(0) + np.float32(1e-2) * (next(_TURNS) % 7)).astype(np.float32),)


WOBBLE = define(
    "wobble",
    "x, and a little that is another one each time: planted.",
    (OperandSpec("x", frozenset({DType.F32})),),
    ("y",),
    _infer,
    _wobble,
    lambda rng: iter([valid(normal((5, 7)))]),
    Tolerance(1.0, 0.0, "it is wrong on purpose"),
    cost=cost_per_element(2),
)
WOBBLE_SOURCE = """
#include "device.h"

// Blocks are numbered as they come, which nothing orders.
template <class X>
DEVICE void wobble(const X* x, const i32* count, X* y, u32* turn, i64 rows, i64 width, Status) {
    SHARED(u32, mine, 1);
    if (thread_index() == 0) mine[0] = atomic_add(turn, 1u);
    block_barrier();
    const i64 end = valid_rows(count, rows) * width;
    for (i64 i = first_element(); i < end; i += element_step())
        y[i] = x[i] + 1e-2f * static_cast<f32>(mine[0] % 64u);
}
"""
_WOBBLE_THREADS, _WOBBLE_BLOCKS = 64, 48


def _size(site: CallSite) -> tuple[int | float, ...]:
    rows = site.operand(0).static_shape[0]
    return (rows, site.operand(0).elements // max(1, rows))


WOBBLE_ON_GPUS = replace(
    readable(
        "wobble",
        ("x", "count", "y", "workspace"),
        by_dtypes("faults/wobble", "wobble", 0),
        _size,
        lambda site: replace(
            element_launch(site.operand(0).elements),
            grid=(max(_WOBBLE_BLOCKS, -(-site.operand(0).elements // _WOBBLE_THREADS)), 1, 1),
            block=(_WOBBLE_THREADS, 1, 1),
        ),
        lambda site: None,
    ),
    workspace=lambda site: 256,
)


@dataclass(frozen=True)
class WobbleLogits(SwapGate):
    """Puts the operator behind the logits."""

    name: ClassVar[str] = "wobble_logits"

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        made = graph.producers["logits"]
        steady = replace(made, results=(Value("steady", made.results[0].type),))
        shaken = Node("wobble", ("steady",), made.results, Attributes(), location=made.location)
        nodes = [item for node in graph.nodes for item in ((steady, shaken) if node is made else (node,))]
        return Graph(graph.name, graph.inputs, tuple(nodes), graph.outputs, graph.extents)


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


def _bench(model: str, device: str, folder: Path) -> Bench:
    """The bench that the command line asks for."""
    from benchmarks.models import CONFIGS, checkpoint
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
    name = checkpoint(model, "bf16" if model in CONFIGS and device.startswith("hip") else "f32")
    return Bench(ost.load(name), opened)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plants every fault, and says what named it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Planted faults, found and named.")
    parser.add_argument("--device", default="cpu", help="cpu, emulated, hip or hip:N")
    parser.add_argument("--model", default="tiny", help="tiny, S, Q, ... of benchmarks.models, or smollm2")
    parser.add_argument("--only", default="", help="part of the name of a fault")
    given = parser.parse_args(arguments)
    unnamed = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = _bench(given.model, given.device, Path(folder))
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
