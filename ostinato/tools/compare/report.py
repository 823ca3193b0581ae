"""What `ostinato compare` prints with `--json`: verdicts by pair, what each side took, and where a difference comes from."""

from __future__ import annotations

from typing import Literal

from ostinato.tools.report import Number, Report

__all__ = [
    "AddressFinding",
    "BreakEven",
    "Cause",
    "CompareReport",
    "Mismatch",
    "ModeTiming",
    "NodePlace",
    "NonFinite",
    "OperatorError",
    "OperatorTable",
    "PairVerdict",
    "ProcessDigest",
    "SideCounts",
    "SideReport",
    "Verdict",
]

Verdict = Literal["bit-equal", "within contract", "mismatch"]
Required = Literal["bit-equal", "within contract"]
Finite = Literal["NaN", "inf", "-inf", "finite"]


class Mismatch(Report):
    """The worst disagreement of a pair: which output of which step of the left side, at which index, the two values, and their distance. `case`, `row` and
    `position` say which sequence of the work that is, and which of its tokens."""

    output: str
    step: int
    index: tuple[int, ...]
    left: Number
    right: Number
    difference: Number
    case: str = ""
    row: int = 0
    position: int = 0


class NodePlace(Report):
    """A node as it ran: its operator and row, the line of the model that made it, and the element that is looked at."""

    node: str
    op: str
    row: str | None
    file: str | None
    line: int | None
    entry: str
    step: int
    value: str
    index: tuple[int, ...]

    @property
    def where(self) -> str:
        """The node with its row and line, for people."""
        row = "" if self.row is None else f"@{self.row}"
        line = "" if self.file is None else f" at {self.file}:{self.line}"
        return f"{self.node} ({self.op}{row}){line}"


class Cause(Report):
    """What was found at the first node that is wrong by itself, on the same operands as its reference.

    "kernel": its result is not what the operator's reference gives; `in_place` is the operand whose bytes that result took, where it took any. "overwritten":
    an operand was no longer what had been made, `writer` wrote there. "unrepeatable": it gave two results on the same operands. "capture": it gives something
    else within a captured graph.
    """

    kind: Literal["kernel", "overwritten", "unrepeatable", "capture"]
    side: str
    place: NodePlace
    expected: Number
    found: Number
    allowed: Number | None = None
    writer: str | None = None
    in_place: str | None = None

    def __str__(self) -> str:
        at = f"{self.place.value}{list(self.place.index)}"
        match self.kind:
            case "kernel":
                said = f"gives {self.found:.9g} at {at}, its reference {self.expected:.9g} on the same operands"
                said += "" if self.allowed is None else f" ({self.allowed:.3g} apart is allowed)"
                said += "" if self.in_place is None else f"; it is written over its operand {self.in_place}"
            case "overwritten":
                by = "somebody" if self.writer is None else f"step {self.writer}"
                said = f"reads {at} as {self.found:.9g}, made was {self.expected:.9g}: {by} wrote over it"
            case "unrepeatable":
                said = f"gives {self.expected:.9g} and then {self.found:.9g} at {at} on the same operands"
            case "capture":
                said = f"gives {self.found:.9g} at {at} within a captured graph, {self.expected:.9g} outside of one"
        return f"{self.side}: {self.place.where} {said}"


class PairVerdict(Report):
    """Two sides beside each other. `required` is the contract that holds for the pair, `tolerance` the largest difference that it allows; `divergence` is the
    first node whose results differ."""

    left: str
    right: str
    required: Required
    verdict: Verdict
    tolerance: Number
    worst: Mismatch | None
    first_divergent_node: str | None
    compared: int = 0
    divergence: NodePlace | None = None
    left_value: Number | None = None
    right_value: Number | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the contract of this pair holds."""
        return self.verdict == "bit-equal" or (self.verdict == "within contract" and self.required == "within contract")


class ModeTiming(Report):
    """Median time of all steps of a side over `runs` replays; `repeats` says that each gave the bits of the first."""

    mode: str
    seconds: float
    runs: int
    repeats: bool


class SideCounts(Report):
    """What a replay of all steps takes of a side: kernels launched, native calls that submit them, nodes of captured graphs, steps of the plans (copies among
    them), memory asked of the device; and the bytes of its program there, the arena's and weights' among them."""

    launches: int
    submissions: int
    graph_nodes: int
    steps: int
    copies: int
    strided_copies: int
    allocations: int
    allocated_bytes: int
    arena_bytes: int
    weight_bytes: int
    device_bytes: int


class BreakEven(Report):
    """From how many replays of the work on this side is the faster one, with the time of making it ready paid: `replays` None where it never is."""

    against: str
    ready_seconds: float
    saved_seconds: float
    replays: int | None


class SideReport(Report):
    """One side: how it ran, and what came of it. `digest` is that of all its answers; `unrepeated` says what a later replay gave otherwise."""

    name: str
    mode: str
    device: str
    precision: str
    policy: str
    program: str
    steps: int
    seconds: float
    ready_seconds: float
    repeats: bool
    digest: str
    unrepeated: Mismatch | None = None
    counts: SideCounts | None = None
    break_even: BreakEven | None = None


class OperatorError(Report):
    """How far the nodes of one row are from their operator's reference on the same operands. `relative` divides by the reference or the root mean square of
    its values, whichever is larger, and `ulp` counts units in the last place there. `outside` nodes are beyond the operator's tolerance, by `worst_ratio`."""

    op: str
    row: str | None
    nodes: int
    max: Number
    rms: Number
    relative: Number
    ulp: Number
    outside: int
    worst_ratio: Number
    worst: NodePlace


class OperatorTable(Report):
    """The operators of a side's program, in order of first use, over `steps` steps of the work."""

    side: str
    steps: int
    rows: tuple[OperatorError, ...]


class NonFinite(Report):
    """Where NaN or infinity in a side's outputs began: the first node whose result is not finite while its operands are. `weight` names one that is not finite
    itself; `reference` is what the operator's reference gives there on the same operands."""

    side: str
    place: NodePlace
    found: Finite
    reference: Finite
    weight: str | None = None

    def __str__(self) -> str:
        whose = "" if self.weight is None else f", from weight {self.weight}, which is not finite itself"
        beside = f", where its reference is {self.reference}" if self.reference != self.found else ""
        return f"{self.side}: {self.found} begins at {self.place.where}, {self.place.value}{list(self.place.index)}{whose}{beside}"


class AddressFinding(Report):
    """What the audit of a side found: an address that is no longer what was planned or captured, or a number of the host that has changed since."""

    side: str
    kind: str
    name: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.side}: {self.kind}: {self.name}: {self.message}"


class ProcessDigest(Report):
    """A side compiled and run in a process of its own."""

    side: str
    process: int
    digest: str
    equal: bool


class CompareReport(Report):
    """`ostinato compare` and `ostinato.compare`: verdicts by pair, times by side. `ok` is true when every contract holds, every side repeats itself and gives
    the same in other processes. `not_covered` is what the work did not try, which `ok` says nothing about."""

    kind: Literal["compare"] = "compare"
    ok: bool
    model: str
    modes: tuple[str, ...]
    steps: int
    replays: int
    poison: bool
    seed: int
    pairs: tuple[PairVerdict, ...]
    timings: tuple[ModeTiming, ...]
    tokens: int = 0
    cases: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    sides: tuple[SideReport, ...] = ()
    causes: tuple[Cause, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    addresses: tuple[AddressFinding, ...] = ()
    operators: tuple[OperatorTable, ...] = ()
    processes: tuple[ProcessDigest, ...] = ()

    def pair_lines(self) -> list[str]:
        """One line for each pair: verdict, worst difference and where, first node that differs."""
        lines = []
        for pair in self.pairs:
            line = f"{pair.left} / {pair.right}: {pair.verdict}" + (
                "" if pair.ok else f" ({pair.required} is required)"
            )
            if pair.worst is not None:
                worst = pair.worst
                place = f"step {worst.step} {worst.output}{list(worst.index)}"
                line += f", largest difference {worst.difference:.3g} at {place}: {worst.left:.9g} / {worst.right:.9g}"
                line += f" ({worst.case}, row {worst.row}, position {worst.position})" if worst.case else ""
            if pair.first_divergent_node is not None:
                line += f", first node that differs: {pair.first_divergent_node}"
            if pair.note:
                line += f"; {pair.note}"
            lines.append(line)
        return lines

    def finding_lines(self) -> list[str]:
        """What was found to be wrong beside the pairs: one line each."""
        lines = [str(found) for found in (*self.causes, *self.non_finite, *self.addresses)]
        for side in self.sides:
            if side.unrepeated is not None:
                at = side.unrepeated
                lines.append(
                    f"{side.name}: does not repeat itself: {at.output}{list(at.index)} of step {at.step} is {at.left:.9g}, then {at.right:.9g}"
                )
        lines += [f"{item.side}: process {item.process} gives other bits" for item in self.processes if not item.equal]
        return lines

    def __str__(self) -> str:
        lines = self.pair_lines() + self.finding_lines()
        for timing in self.timings:
            repeats = "" if timing.repeats else ", does not repeat itself"
            lines.append(f"{timing.mode}: {timing.seconds * 1e3:.3g} ms, median of {timing.runs}{repeats}")
        lines += [f"not covered: {line}" for line in self.not_covered]
        return "\n".join(lines)
