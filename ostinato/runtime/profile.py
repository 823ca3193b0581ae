"""A profile: what each step of an entry takes, as plain data, with what it reads, writes and computes.

Times are in seconds. How they were measured is said in `Profile.method`, what makes them differ from an undisturbed run in `Profile.notes`; the time of such a
run is measured in the same minute and stands beside their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.ir.files import named_path, write_text
from ostinato.runtime.trace_events import trace_json

__all__ = ["Profile", "StepOperand", "StepTime", "StepTotal", "chrome_json", "layer_of"]


@dataclass(frozen=True, slots=True)
class StepOperand:
    """An operand of a step where it lay: its value's name, its region ("arena", "weights", ...), the address of its first byte, its bytes, and what is done
    with them."""

    value: str
    region: str
    address: int
    nbytes: int
    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step. `seconds` is the mean of the middle half of all runs, `best` the least of them.

    `op` is the operator of its node, "copy" where it only moves bytes; `impl` the row that was chosen, `kernel` what it runs, `kind` the kind of step
    ("launch", "gemm", "copy", "fill", "call"). `bytes_read`, `bytes_written` and `flops` are the operator's own facts at the full extents of the entry's
    shapes, not what caches make of them. `line` is the user's, empty where none is known, `launch` the shape of a launch on a GPU, and `dtypes` those of
    the first two operands that are no integers.
    """

    position: int
    node: str
    op: str
    kernel: str
    kind: str
    seconds: float
    bytes_read: int
    bytes_written: int
    flops: int
    best: float = 0.0
    impl: str = ""
    line: str = ""
    launch: str = ""
    dtypes: tuple[str, ...] = ()
    operands: tuple[StepOperand, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def layer(self) -> str:
        """The layer of its node: "layers.3" of "layers.3.attn.q", and the first part of any other name."""
        return layer_of(self.node)


@dataclass(frozen=True, slots=True)
class StepTotal:
    """Steps that have a name in common, an operator's or a layer's."""

    name: str
    steps: int
    seconds: float
    bytes_read: int
    bytes_written: int
    flops: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The steps of an entry with their times.

    `whole_seconds` is a run that nothing disturbs: all steps in one submission, captured where the executable is; `sum_seconds` is what the steps take one by
    one. `overhead_seconds` was measured without a step and is taken off each of them; `resolution_seconds` is how finely the clock tells times apart. Both
    are of the clock that `method` names.
    """

    entry: str
    device: str
    mode: str
    steps: tuple[StepTime, ...]
    runs: int
    whole_seconds: float
    whole_best: float = 0.0
    overhead_seconds: float = 0.0
    resolution_seconds: float = 0.0
    method: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sum_seconds(self) -> float:
        """What all steps take together, one by one."""
        return sum(step.seconds for step in self.steps)

    def by_operator(self) -> tuple[StepTotal, ...]:
        """Steps of the same operator together, the longest first."""
        return self._totals({step.position: step.op for step in self.steps})

    def by_layer(self) -> tuple[StepTotal, ...]:
        """Steps of the same layer together, in the order in which layers begin."""
        names = {step.position: step.layer for step in self.steps}
        found = {total.name: total for total in self._totals(names)}
        return tuple(found[name] for name in dict.fromkeys(names.values()))

    def to_chrome_json(self) -> str:
        """The profile as a trace for chrome://tracing and Perfetto; see `runtime/trace_events.py`."""
        return chrome_json([self])

    def save(self, path: str | Path) -> str:
        """Writes `to_chrome_json` to a file and returns its path. Raises `ConfigError` for a place that cannot be written."""
        return write_text(named_path(path), self.to_chrome_json())

    def _totals(self, names: Mapping[int, str]) -> tuple[StepTotal, ...]:
        groups: dict[str, list[StepTime]] = {}
        for step in self.steps:
            groups.setdefault(names[step.position], []).append(step)
        found = [
            StepTotal(
                name,
                len(group),
                sum(step.seconds for step in group),
                sum(step.bytes_read for step in group),
                sum(step.bytes_written for step in group),
                sum(step.flops for step in group),
            )
            for name, group in groups.items()
        ]
        return tuple(sorted(found, key=lambda total: (-total.seconds, total.name)))


def chrome_json(profiles: Sequence[Profile]) -> str:
    """Profiles as one trace, in which each is a process."""
    return trace_json([event for number, profile in enumerate(profiles, 1) for event in _events(profile, number)])


def layer_of(node: str) -> str:
    """The part of a node's name that says where in the model it is: up to the first number, or the first part alone."""
    parts = node.split(".")
    for index, part in enumerate(parts[1:], 1):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return parts[0]


def _events(profile: Profile, process: int) -> Iterator[dict[str, object]]:
    """One thread with the steps, one behind the other, and one with the undisturbed run, from the same beginning."""
    about = {
        "entry": profile.entry,
        "device": profile.device,
        "mode": profile.mode,
        "runs": profile.runs,
        "method": profile.method,
        "notes": list(profile.notes),
        "sum_us": profile.sum_seconds * 1e6,
        "whole_us": profile.whole_seconds * 1e6,
    }
    yield _named("process_name", process, 0, f"ostinato {profile.entry} on {profile.device}, {profile.mode}")
    yield _named("thread_name", process, 1, "steps, timed one by one")
    yield _named("thread_name", process, 2, "a run that nothing disturbs")
    start = 0.0
    for step in profile.steps:
        yield {
            "name": step.node,
            "cat": step.op,
            "ph": "X",
            "ts": start * 1e6,
            "dur": step.seconds * 1e6,
            "pid": process,
            "tid": 1,
            "args": _arguments(step),
        }
        start += step.seconds
    yield {
        "name": f"{profile.entry} ({profile.mode})",
        "cat": "run",
        "ph": "X",
        "ts": 0.0,
        "dur": profile.whole_seconds * 1e6,
        "pid": process,
        "tid": 2,
        "args": about,
    }


def _named(what: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _arguments(step: StepTime) -> dict[str, object]:
    return {
        "step": step.position,
        "node": step.node,
        "op": step.op,
        "impl": step.impl,
        "kernel": step.kernel,
        "kind": step.kind,
        "line": step.line,
        "launch": step.launch,
        "bytes_read": step.bytes_read,
        "bytes_written": step.bytes_written,
        "flops": step.flops,
        "best_us": step.best * 1e6,
        "addresses": {
            f"{'read' * operand.reads}{'write' * operand.writes} {operand.region} {operand.value}": (
                f"{operand.address:#x} +{operand.nbytes}"
            )
            for operand in step.operands
        },
    }
