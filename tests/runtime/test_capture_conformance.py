"""Capture conformance: a graph that is the plan is proven, and each rule finds what was changed in a graph, a table or a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.step import Launch, Region, StepKind
from ostinato.runtime.conformance import PlacedMemory, TableFacts
from tests.runtime.capture_plans import (
    BASES,
    DEVICE,
    STATUS,
    Captured,
    Recorded,
    at,
    chain,
    random_plan,
    reads,
    small_plan,
    writes,
)

GOOD = small_plan()
A, G1, G2, Z, B, COPY = range(6)
"""The nodes of the small plan."""
ARENA, IO, WEIGHTS, STATE = (BASES[kind] for kind in ("arena", "io", "weights", "state"))


def test_a_graph_that_is_the_plan_is_proven_and_its_numbers_are_told_apart() -> None:
    report = GOOD.examine()
    report.check()
    assert (report.launches, report.vendor_nodes, report.copies, report.fills) == (2, 2, 1, 1)
    assert (report.graph_nodes, report.dependencies) == (6, 5)
    assert report.opaque == ("step 1 (g), graph node 1", "step 1 (g), graph node 2")


def inserted(good: Captured, index: int, node: Recorded) -> Captured:
    return replace(good, nodes=(*good.nodes[:index], node, *good.nodes[index:]), edges=chain(len(good.nodes) + 1))


def without(good: Captured, index: int) -> Captured:
    return replace(good, nodes=(*good.nodes[:index], *good.nodes[index + 1 :]), edges=chain(len(good.nodes) - 1))


def cut(good: Captured, first: int, second: int) -> Captured:
    return replace(good, edges=tuple(edge for edge in good.edges if edge != (first, second)))


def facts(good: Captured, **changes: object) -> Captured:
    return replace(good, facts=replace(good.facts, **changes))  # type: ignore[arg-type]


def table(good: Captured, number: int, **changes: object) -> Captured:
    """Another step in the table alone."""
    step = replace(good.steps[number], **changes)  # type: ignore[arg-type]
    return replace(good, steps=(*good.steps[:number], step, *good.steps[number + 1 :]))


def part_of_weight(good: Captured) -> Captured:
    """The first step reads 32 bytes of its weight."""
    x, _, a = good.entry.steps[0].operands
    return good.with_step(0, operands=(x, reads("w", at("weights", 64, 32)), a))


Change = Callable[[Captured], Captured]
# what was changed -> the rules that must find it (and no others), and words of the first finding
CHANGES: dict[str, tuple[Change, set[int], str]] = {
    "a table of other steps": (lambda c: table(c, 3, kernel="test/test:c"), {1}, "step 3 .b.*kernel test/test:c"),
    "a table of other operands": (
        lambda c: table(c, 0, operands=((IO + 64, 64), *c.steps[0].operands[1:])),
        {1},
        "step 0 .a., %x: the table has 64 bytes at",
    ),
    "a table of other scalars": (lambda c: table(c, 0, params=(3.0, 0.5)), {1}, r"parameters \(3.0, 0.5\)"),
    "a table of another launch": (lambda c: table(c, 0, launch=Launch((1, 1, 1), (64, 1, 1))), {1}, "has launch 1x1x1"),
    "a table of another kind": (lambda c: table(c, 2, kind=StepKind.COPY), {1}, "has kind copy, the plan's fill"),
    "a table with fewer operands": (lambda c: table(c, 4, operands=c.steps[4].operands[:1]), {1}, "1 operands"),
    "a shorter table": (lambda c: replace(c, steps=c.steps[:4]), {1}, "4 steps, the plan has 5"),
    "facts of a longer table": (lambda c: facts(c, functions=(*c.facts.functions, 0)), {1}, "6 functions"),
    "a step that is no node": (lambda c: c.with_step(2, kind=StepKind.CALL), {1}, "call step cannot be captured"),
    "an additional launch": (lambda c: inserted(c, 3, c.nodes[A]), {2}, "7 nodes .* record 6; no step records node 3"),
    "an additional vendor's node": (lambda c: inserted(c, 3, c.nodes[G1]), {2}, "no step records node 3"),
    "an additional node at the end": (lambda c: inserted(c, 6, c.nodes[A]), {2}, "no step records node 6"),
    "an additional node at the start": (lambda c: inserted(c, 0, c.nodes[Z]), {2}, "no step records node 0"),
    "a missing launch": (lambda c: without(c, B), {2}, "5 nodes were captured.* nothing was recorded for step b"),
    "a missing vendor's node": (lambda c: without(c, G2), {2}, "nothing was recorded for step g"),
    "a table that expects two nodes of a launch": (
        lambda c: facts(c, node_counts=(2, 2, 1, 1, 1)),
        {2},
        "step 0 .a.: the table says 2 nodes, the plan 1",
    ),
    "a node that allocates": (lambda c: inserted(c, 3, Recorded("allocate")), {2, 3}, "node 3: .*'allocate'"),
    "a node that frees": (lambda c: inserted(c, 3, Recorded("free")), {2, 3}, "'free'"),
    "a node that calls the host": (lambda c: inserted(c, 0, Recorded("host")), {2, 3}, "'host'"),
    "a graph in the graph": (lambda c: inserted(c, 6, Recorded("graph")), {2, 3}, "'graph'"),
    "an allocation in place of a launch": (lambda c: c.with_node(A, type="allocate"), {2, 3}, "'allocate'"),
    "another function": (lambda c: c.with_node(A, function=0x1234), {4}, "step 0 .a., graph node 0: .*0x1234"),
    "another grid": (lambda c: c.with_node(B, grid=(1, 1, 1)), {4}, r"grid \(1, 1, 1\), planned \(2, 1, 1\)"),
    "another block": (lambda c: c.with_node(B, block=(32, 1, 1)), {4}, r"block \(32, 1, 1\)"),
    "other shared bytes": (lambda c: c.with_node(B, shared_bytes=0), {4}, "shared bytes 0, planned 128"),
    "a launch without a shape": (lambda c: c.with_step(0, launch=None), {4}, "no shape"),
    "a fill in place of a launch": (lambda c: c.with_node(A, type="fill"), {4}, "a fill node stands where"),
    "another pointer in the weight": (
        lambda c: part_of_weight(c).with_argument(A, 1, WEIGHTS + 96),
        {5},
        "%w: pointer 1 is 0x200000060 .byte 96 of hip:0/weights., planned 0x200000040",
    ),
    "a pointer of an absent operand": (lambda c: c.with_argument(B, 1, ARENA), {5}, "the operand is absent"),
    "a null pointer": (lambda c: c.with_argument(A, 0, 0), {5, 6}, "pointer 0 is null"),
    "arguments that cannot be read": (lambda c: c.with_node(A, arguments=None), {5}, "cannot be read back"),
    "an argument too many": (
        lambda c: c.with_node(A, arguments=(*(c.nodes[A].arguments or ()), b"\0" * 8)),
        {5},
        r"arguments of \[8, .*\] bytes",
    ),
    "a pointer beside its slice": (lambda c: c.with_argument(A, 2, ARENA + 64), {5, 6}, "byte 64 of hip:0/arena"),
    "a pointer across the end of its slice": (lambda c: c.with_argument(A, 2, ARENA + 8), {5, 6}, "%a: pointer 2"),
    "a pointer out of all memory": (lambda c: c.with_argument(A, 2, 0x6666), {5, 6}, "in no memory of this executable"),
    "a pointer beside its weight": (lambda c: c.with_argument(A, 1, WEIGHTS), {5, 6}, "byte 0 of hip:0/weights"),
    "a slot that is not live": (
        lambda c: c.with_entry(slots=(c.entry.slots[0].model_copy(update={"last": 1}), *c.entry.slots[1:])),
        {6},
        "step 1 .g., graph node 1, %a: the plan has nothing at",
    ),
    "a plan of dead bytes": (
        lambda c: c.with_entry(slots=(*c.entry.slots[:4], c.entry.slots[4].model_copy(update={"first": 4}))),
        {6},
        "step 3 .b., graph node 4, %b: the plan has nothing at",
    ),
    "a slot that is too short": (
        lambda c: c.with_entry(
            slots=(c.entry.slots[0].model_copy(update={"range": at("arena", 0, 32)}), *c.entry.slots[1:])
        ),
        {6},
        "step 0 .a., graph node 0, %a: the plan has nothing at",
    ),
    "a weight that is too short": (
        lambda c: replace(c, program=c.program.model_copy(update={"weights": ()})),
        {6},
        "%w: the plan has nothing at",
    ),
    "a region too small": (
        lambda c: replace(
            c, memory=PlacedMemory(tuple((r, base, 64 if r.kind == "state" else n) for r, base, n in c.memory.regions))
        ),
        {6},
        "%cache: the plan has nothing at",
    ),
    "another integer": (lambda c: c.with_argument(A, 3, 4), {7}, "scalar 0 is 4, the step has 3"),
    "another double": (lambda c: c.with_argument(A, 4, b"\0" * 8), {7}, "scalar 1 is 0.0, the step has 0.5"),
    "another status word": (lambda c: c.with_argument(A, -2, STATUS + 4), {8}, "status word is at"),
    "another number of the step": (lambda c: c.with_argument(B, -1, 2), {8}, "reports as step 2, is step 3"),
    "a copy to another place": (lambda c: c.with_node(COPY, to=IO), {6, 9}, "its destination is .*byte 0 of hip:0/io"),
    "a copy from another place": (lambda c: c.with_node(COPY, source=ARENA), {6, 9}, "its source is"),
    "a copy of fewer bytes": (lambda c: c.with_node(COPY, nbytes=16), {9}, "16 bytes, planned 32"),
    "a fill of another place": (lambda c: c.with_node(Z, to=ARENA + 64), {6, 9}, "its fill is"),
    "a fill of more bytes": (lambda c: c.with_node(Z, nbytes=64), {9}, "64 bytes, planned 48"),
    "a fill with another value": (lambda c: c.with_node(Z, value=8), {9}, "filled with 0x8"),
    "a launch in place of a fill": (lambda c: c.with_node(Z, type="kernel"), {9}, "a kernel node stands where"),
    "our kernel as the vendor's": (
        lambda c: c.with_node(G1, function=c.facts.functions[0]),
        {10},
        "one of our kernels",
    ),
    "a vendor's fill outside of its results": (
        lambda c: c.with_node(G1, type="fill", to=ARENA, nbytes=64),
        {10},
        "a fill of the vendor's writes 64 bytes at .*byte 0 of hip:0/arena",
    ),
    "a missing edge to a reader": (lambda c: cut(c, A, G1), {11}, "%a: read after write at .*from step 0 .a."),
    "a missing edge to what takes the bytes": (lambda c: cut(c, G2, Z), {11}, "%z: write after read at"),
    "no edge": (lambda c: replace(c, edges=()), {11}, "step 1 .g., graph node 1, %a: read after write"),
    "an edge turned round": (
        lambda c: replace(cut(c, B, COPY), edges=(*cut(c, B, COPY).edges, (COPY, A))),
        {11},
        "read after write",
    ),
    "a cycle": (lambda c: replace(c, edges=(*c.edges, (B, G1))), {11}, "form a cycle in or before nodes 1, 2, 3, 4, 5"),
    "an edge to nowhere": (lambda c: replace(c, edges=(*c.edges, (5, 6))), {11}, "1 edges name nodes"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_by_its_rules_alone(what: str) -> None:
    change, rules, words = CHANGES[what]
    report = change(GOOD).examine()
    assert {finding.rule for finding in report.findings} == rules
    if rules:
        with pytest.raises(PlanError, match=words):
            report.check()


def test_every_rule_has_a_change_that_it_alone_finds() -> None:
    alone = {next(iter(rules)) for _, rules, _ in CHANGES.values() if len(rules) == 1}
    assert alone == set(range(1, 12)) - {3}, "a forbidden node is always one too many, or one too few"


def test_all_findings_are_told_with_their_hints() -> None:
    wrong = cut(GOOD.with_node(A, grid=(9, 1, 1)).with_argument(A, 3, 4).with_node(Z, value=1), G2, Z)
    report = wrong.examine()
    assert [(finding.rule, finding.step, finding.node) for finding in report.findings] == [
        (4, 0, A),
        (7, 0, A),
        (9, 2, Z),
        (11, 2, Z),
        (11, 2, Z),
        (11, 3, B),
    ]
    with pytest.raises(PlanError) as caught:
        report.check()
    text = str(caught.value)
    assert "6 findings" in text
    assert [f"\n  {number}. rule" in text for number in range(1, 8)] == [True] * 6 + [False]
    assert text.count("hint:") == 7


def test_one_node_too_many_does_not_blur_what_else_is_wrong() -> None:
    report = inserted(GOOD, 3, GOOD.nodes[A]).with_node(6, nbytes=16).with_node(5, grid=(1, 1, 1)).examine()
    assert [(finding.rule, finding.node) for finding in report.findings] == [(2, None), (4, 5), (9, 6)]


def test_no_bit_of_a_graph_may_be_another(rng: np.random.Generator) -> None:
    """Of random plans: any bit of any argument, address, size, value or shape of our own nodes."""
    for _ in range(300):
        good = random_plan(rng, int(rng.integers(1, 6)))
        good.examine().check()
        index = int(rng.integers(len(good.nodes)))
        node = good.nodes[index]
        if node.type == "kernel" and node.arguments is not None:
            number = int(rng.integers(-3, len(node.arguments)))
            if number < 0:
                field = ("grid", "block", "shared_bytes")[number]
                wrong = good.with_node(index, **{field: flipped(getattr(node, field), rng)})
            else:
                wrong = good.with_argument(index, number, flipped(node.arguments[number], rng))
        elif node.type == "fill":
            field = ("to", "nbytes", "value")[rng.integers(3)]
            wrong = good.with_node(index, **{field: flipped(getattr(node, field), rng)})
        else:
            wrong = good.with_node(index, function=good.facts.functions[0] or 0x7000, type="free")
        findings = wrong.examine().findings
        assert findings
        assert {finding.node for finding in findings} <= {index, None}


def flipped(value: object, rng: np.random.Generator) -> object:
    """The same with one bit the other way."""
    match value:
        case bytes():
            data = bytearray(value)
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
            return bytes(data)
        case int():
            return value ^ 1 << int(rng.integers(32))
        case tuple():
            place = int(rng.integers(len(value)))
            return (*value[:place], flipped(value[place], rng), *value[place + 1 :])
    raise AssertionError(value)


# the vendor's nodes


def vendor(*arguments: bytes) -> Captured:
    """The vendor's first node shows its arguments, and there is no second one."""
    found = without(GOOD, G2).with_node(G1, arguments=arguments)
    return facts(found, node_counts=(1, 1, 1, 1, 1))


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def test_a_vendors_arguments_are_judged_where_they_can_be_read() -> None:
    operands = (ARENA, WEIGHTS + 64, ARENA + 64)
    good = vendor(words(*operands[:2]), b"\1\0\0\0", words(17, operands[2], ARENA + 64 + 100))
    report = good.examine()
    report.check()
    assert (report.vendor_nodes, report.opaque) == (1, ())
    (missing,) = vendor(words(*operands[:2])).examine().findings
    assert (missing.rule, missing.tensor) == (10, "g")
    (beside,) = vendor(words(*operands, STATE)).examine().findings
    assert "points at 0x300000000 (byte 0 of hip:0/state)" in str(beside)


def test_a_vendors_fill_of_its_workspace_is_the_steps_own() -> None:
    GOOD.with_node(G1, type="fill", to=ARENA + 256, nbytes=64).examine().check()


# memory that the caller bound, ranges of steps


def bound(address: int) -> Captured:
    """The small plan over a caller's output."""
    return replace(GOOD, memory=replace(GOOD.memory, bound=((at("io", 64, 32), address),)))


def test_a_bound_buffer_stands_for_the_planned_bytes() -> None:
    address = 0x8_0000_0000
    stale = bound(address)
    assert {finding.rule for finding in stale.examine().findings} == {1, 6, 9}
    right = table(stale, 4, operands=(GOOD.steps[4].operands[0], (address, 32))).with_node(COPY, to=address)
    right.examine().check()
    (beside,) = {f.message for f in right.with_node(COPY, to=address + 32).examine().findings if f.rule == 6}
    assert "the buffer bound to %y" in beside


def test_hazards_are_those_of_the_addresses_that_buffers_have() -> None:
    """An output that the caller bound over the state must wait for what reads the state."""
    over = table(bound(STATE), 4, operands=(GOOD.steps[4].operands[0], (STATE, 32))).with_node(COPY, to=STATE)
    over.examine().check()
    report = cut(over, B, COPY).examine()
    assert {finding.rule for finding in report.findings} == {11}


def test_a_range_of_steps_is_proven_by_itself() -> None:
    part = replace(GOOD, nodes=GOOD.nodes[Z : B + 1], edges=((0, 1),), first=2, count=2)
    report = part.examine()
    report.check()
    assert (report.launches, report.fills, report.graph_nodes) == (1, 1, 2)
    to_the_end = replace(GOOD, nodes=GOOD.nodes[Z:], edges=chain(3), first=2)
    to_the_end.examine().check()
    (loose,) = replace(part, edges=()).examine().findings
    assert (loose.rule, loose.step, loose.name) == (11, 3, "b")


def test_nodes_may_be_listed_in_any_order() -> None:
    """A driver promises none: the edges tell."""
    listed = tuple(reversed(GOOD.nodes))
    last = len(listed) - 1
    edges = tuple((last - a, last - b) for a, b in GOOD.edges)
    replace(GOOD, nodes=listed, edges=edges).examine().check()


def test_a_copy_of_nothing_may_leave_no_node() -> None:
    nothing = at("io", 64, 0)
    operands = GOOD.entry.steps[4].operands
    empty = GOOD.with_step(4, operands=tuple(replace(o, range=nothing) for o in operands if o is not None))
    facts(without(empty, COPY), node_counts=(1, 2, 1, 1, 0)).examine().check()


def test_a_copy_to_where_it_comes_from_may_leave_no_node() -> None:
    place = at("arena", 192, 32)
    own = GOOD.with_step(4, operands=(reads("b", place), writes("b", place)))
    facts(without(own, COPY), node_counts=(1, 2, 1, 1, 0)).examine().check()
    report = facts(without(GOOD, COPY), node_counts=(1, 2, 1, 1, 0)).examine()
    assert {finding.rule for finding in report.findings} == {2}


def test_steps_around_one_without_nodes_are_ordered_with_one_another() -> None:
    """The fill takes bytes that the first step wrote and the product read; in between is a copy to where it comes from."""
    place = at("arena", 0, 48)
    own = GOOD.with_step(2, kind=StepKind.COPY, operands=(reads("z", place), writes("z", place)), params=())
    none = facts(without(own, Z), node_counts=(1, 2, 0, 1, 1))
    none.examine().check()
    (loose,) = cut(none, G2, G2 + 1).examine().findings[:1]
    assert (loose.rule, loose.step) == (11, 3)
    assert "from step 0 (a)" in loose.message


def test_a_region_of_another_device_is_in_no_memory() -> None:
    regions = tuple((Region("hip:1", r.kind), base, n) for r, base, n in GOOD.memory.regions)
    report = replace(GOOD, memory=PlacedMemory(regions)).examine()
    assert {finding.rule for finding in report.findings} == {1, 5, 6, 9}
    assert DEVICE == "hip:0"


def test_facts_are_plain_data() -> None:
    assert GOOD.facts == TableFacts(STATUS, (0x7000, 0, 0, 0x7030, 0), (1, 2, 1, 1, 1))
