"""What the nodes of one step must be: a recorded node compared with the step that it should be. Part of `conformance.py`, whose rules these are.

Arguments of a kernel are those of an entry point (`docs/gpu-kernels.md`): a pointer an operand, the parameters as 64-bit integers and doubles, the address of
the status word, and the number of the step as 32 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ostinato.ir.step import Launch, StepKind
from ostinato.runtime.device import CapturedNode

__all__ = [
    "AGAIN",
    "ALLOWED",
    "Expected",
    "Home",
    "Place",
    "Problem",
    "aligned",
    "bits",
    "node_problems",
    "vendor_problems",
]

ALLOWED = ("kernel", "copy", "fill")
"""Types of node that a step may record."""
_NODE_OF: Mapping[StepKind, str] = {StepKind.LAUNCH: "kernel", StepKind.COPY: "copy", StepKind.FILL: "fill"}
_RULE_OF: Mapping[StepKind, int] = {StepKind.LAUNCH: 4, StepKind.COPY: 9, StepKind.FILL: 9}
_AHEAD = 64
"""How many nodes or steps a match looks ahead."""
AGAIN = "capture again; if this comes back, report it with the driver's version"
"""The hint where there is nothing better to say."""
_UNREADABLE = "the driver does not show the parameters of kernels: `ostinato doctor --conformance` tells its version"


@dataclass(frozen=True, slots=True)
class Home:
    """Where an operand may lie: bytes [start, end) of what is called `name`."""

    name: str
    start: int
    end: int

    def holds(self, address: int, nbytes: int) -> bool:
        return self.start <= address and address + nbytes <= self.end


@dataclass(frozen=True, slots=True)
class Place:
    """A planned operand: its value's name, its address and bytes, what is done with them, and where it may lie (None: the plan has nothing there).

    `early`: no step of the run writes it before, so that a kernel may read it ahead of the one before.
    """

    name: str
    address: int
    nbytes: int
    reads: bool
    writes: bool
    home: Home | None
    scratch: bool = False
    """A workspace, which a vendor's kernel may leave unused."""
    early: bool = False

    @property
    def end(self) -> int:
        return self.address + self.nbytes


@dataclass(frozen=True, slots=True)
class Expected:
    """A step as its nodes must be: `number` is its place in the table, `count` the nodes it records. An absent operand is None."""

    number: int
    node: str
    kind: StepKind
    kernel: str
    operands: tuple[Place | None, ...]
    params: tuple[int | float, ...]
    launch: Launch | None
    function: int
    status: int
    count: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, by the number of the rule, with the operand's name where it is about one; `unread` where only the driver does not show it."""

    rule: int
    message: str
    tensor: str = ""
    hint: str = AGAIN
    unread: bool = False


Where = Callable[[int], str]
"""What lies at an address, for people."""


def bits(value: int | float) -> bytes:
    """A parameter as a kernel takes it."""
    return struct.pack("<d", value) if isinstance(value, float) else struct.pack("<q", value)


def node_problems(node: CapturedNode, step: Expected, where: Where) -> Iterator[Problem]:
    """What is wrong with the one node of a launch, copy or fill."""
    wanted = _NODE_OF[step.kind]
    if node.type != wanted:
        yield Problem(_RULE_OF[step.kind], f"a {node.type} node stands where the step records a {wanted}")
    elif step.kind is StepKind.LAUNCH:
        yield from _shape_problems(node, step)
        yield from _argument_problems(node, step, where)
    else:
        yield from _move_problems(node, step, where)


def _shape_problems(node: CapturedNode, step: Expected) -> Iterator[Problem]:
    if node.function != step.function:
        yield Problem(4, f"launches the function {node.function:#x}, {step.kernel} is {step.function:#x}")
    if step.launch is None:
        yield Problem(4, "the plan has no shape for this launch", hint="plan for the target of the device")
        return
    for what, found, wanted in (
        ("grid", node.grid, step.launch.grid),
        ("block", node.block, step.launch.block),
        ("shared bytes", node.shared_bytes, step.launch.shared),
    ):
        if found != wanted:
            yield Problem(4, f"{what} {found}, planned {wanted}")


def _argument_problems(node: CapturedNode, step: Expected, where: Where) -> Iterator[Problem]:
    arguments, pointers = node.arguments, len(step.operands)
    if arguments is None:
        yield Problem(5, f"the arguments of {step.kernel} cannot be read back", hint=_UNREADABLE, unread=True)
        return
    sizes = [8] * (pointers + len(step.params) + 1) + [4]
    if [len(argument) for argument in arguments] != sizes:
        found = [len(argument) for argument in arguments]
        yield Problem(5, f"arguments of {found} bytes, {step.kernel} takes {sizes}")
        return
    numbers = [int.from_bytes(argument, "little") for argument in arguments]
    for index, (place, number) in enumerate(zip(step.operands, numbers, strict=False)):
        yield from _pointer_problems(f"pointer {index}", place, number, where)
    for index, param in enumerate(step.params):
        if arguments[pointers + index] != bits(param):
            read = struct.unpack("<d" if isinstance(param, float) else "<q", arguments[pointers + index])[0]
            yield Problem(7, f"scalar {index} is {read!r}, the step has {param!r}")
    if numbers[-2] != step.status:
        yield Problem(8, f"the status word is at {where(numbers[-2])}, the table's is at {step.status:#x}")
    if numbers[-1] != step.number:
        yield Problem(8, f"reports as step {numbers[-1]}, is step {step.number}")


def _pointer_problems(what: str, place: Place | None, address: int, where: Where) -> Iterator[Problem]:
    if place is None:
        if address:
            yield Problem(5, f"{what} is {where(address)}, the operand is absent")
        return
    if address != place.address:
        yield Problem(5, f"{what} is {where(address)}, planned {place.address:#x}", place.name)
    if place.nbytes == 0:
        return
    if place.home is None:
        yield _homeless(place, where)
    elif not place.home.holds(address, place.nbytes):
        home = f"{place.home.name} [{place.home.start:#x}, {place.home.end:#x})"
        yield Problem(6, f"{what} with {place.nbytes} bytes at {address:#x} is not inside {home}", place.name)


def _homeless(place: Place, where: Where) -> Problem:
    return Problem(6, f"the plan has nothing at {where(place.address)} for {place.nbytes} bytes", place.name)


def _move_problems(node: CapturedNode, step: Expected, where: Where) -> Iterator[Problem]:
    places = [place for place in step.operands if place is not None]
    ends = [("source", node.source), ("destination", node.to)] if step.kind is StepKind.COPY else [("fill", node.to)]
    if len(places) != len(ends):
        yield Problem(9, f"the step has {len(places)} operands, a {step.kind.value} has {len(ends)}")
        return
    for place, (what, address) in zip(places, ends, strict=True):
        for problem in _pointer_problems(f"its {what}", place, address, where):
            yield Problem(9 if problem.rule == 5 else problem.rule, problem.message, problem.tensor)
    if any(node.nbytes != place.nbytes for place in places):
        yield Problem(9, f"{node.nbytes} bytes, planned {places[-1].nbytes}", places[-1].name)
    if step.kind is StepKind.FILL and (node.value,) != step.params:
        yield Problem(9, f"filled with {node.value:#x}, planned {step.params}")


def vendor_problems(
    nodes: Sequence[CapturedNode], step: Expected, ours: frozenset[int], memory: Sequence[Home], where: Where
) -> tuple[list[Problem], list[int]]:
    """What is wrong with the nodes of a vendor's step, and which of them (by index) cannot be judged.

    `ours` are the functions of our own kernels. A 64-bit word of an argument is taken for a pointer when it lies in `memory`.
    """
    places = [place for place in step.operands if place is not None and place.nbytes]
    problems = [_homeless(place, where) for place in places if place.home is None]
    opaque: list[int] = []
    seen: set[int] = set()
    for index, node in enumerate(nodes):
        if node.type != "kernel":
            written = [place for place in places if place.writes]
            if not any(place.address <= node.to and node.to + node.nbytes <= place.end for place in written):
                problems.append(
                    Problem(10, f"a {node.type} of the vendor's writes {node.nbytes} bytes at {where(node.to)}")
                )
            continue
        if node.function in ours:
            problems.append(Problem(10, "one of our kernels stands where the vendor's are expected"))
        elif node.arguments is None:
            opaque.append(index)
        else:
            words = set(_words(node.arguments))
            seen |= words
            for word in sorted(words):
                known = any(place.address <= word <= place.end for place in places)
                if not known and any(home.start <= word < home.end for home in memory):
                    problems.append(Problem(10, f"an argument of the vendor's points at {where(word)}"))
    if not opaque and any(node.type == "kernel" for node in nodes):
        problems += [
            Problem(10, f"no argument of the vendor's is the planned address {place.address:#x}", place.name)
            for place in places
            if place.address not in seen and not place.scratch
        ]
    return problems, opaque


def _words(arguments: Sequence[bytes]) -> Iterator[int]:
    """Every aligned 64-bit word of the arguments, those inside of structures among them."""
    for argument in arguments:
        for start in range(0, len(argument) - 7, 8):
            yield int.from_bytes(argument[start : start + 8], "little")


def aligned(
    nodes: Sequence[int], slots: Sequence[int], fits: Callable[[int, int], bool]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Which node is whose: (node, slot) pairs, nodes that are nobody's, and slots without a node.

    Equal numbers are paired in turn. Otherwise, at a node that does not fit, whichever of the two lists finds its next fit sooner (within a short distance)
    goes on to it; where neither does, the two are a pair all the same, and what is wrong will be said of it.
    """
    if len(nodes) == len(slots):
        return list(zip(nodes, slots, strict=True)), [], []
    pairs: list[tuple[int, int]] = []
    loose: list[int] = []
    missing: list[int] = []
    i = j = 0
    while i < len(nodes) and j < len(slots):
        for skipped in range(_AHEAD):
            if i + skipped < len(nodes) and fits(nodes[i + skipped], slots[j]):
                loose += nodes[i : i + skipped]
                i += skipped
                break
            if skipped and j + skipped < len(slots) and fits(nodes[i], slots[j + skipped]):
                missing += slots[j : j + skipped]
                j += skipped
                break
        pairs.append((nodes[i], slots[j]))
        i, j = i + 1, j + 1
    return pairs, [*loose, *nodes[i:]], [*missing, *slots[j:]]
