"""Programs: shared regions, conflicts between entries, hashes, JSON and text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError, StaleArtifact
from ostinato.ir.graph import Graph, Role
from ostinato.ir.step import REGION_KINDS, Region
from ostinato.ir.version import VERSION
from ostinato.planner.check import check_entry, check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import PLAN_VERSION, EntryPlan, ProgramPlan
from ostinato.planner.plan_text import print_program
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from tests.planner.bench_plans import one_lane, two_lanes
from tests.planner.fakes import DEVICE, FAKE_OPS, FAKE_TARGET, GraphMaker, fake_range


def planned(**graphs: Graph) -> dict[str, tuple[Graph, EntryPlan]]:
    return {name: (graph, plan_entry(graph, FAKE_TARGET, name=name, ops=FAKE_OPS)) for name, graph in graphs.items()}


def program(**graphs: Graph) -> ProgramPlan:
    """Built and proven."""
    built = build_program(planned(**graphs))
    check_program(built, graphs, FAKE_TARGET, ops=FAKE_OPS)
    return built


def reader(weights: list[tuple[str, int]], *, width: int, state: bool = False) -> Graph:
    """Reads each weight once, through a chain of values of `width` bytes."""
    make = GraphMaker()
    x = make.input("x", width)
    for name, size in weights:
        x = make.unary(f"with_{name}", make.binary(f"b_{name}", x, make.weight(name, size)))
    if state:
        x = make.binary("tail", x, make.update("s1", make.input("s", 24, Role.STATE), x))
    return make.graph(x)


# shared regions


def test_regions_are_as_large_as_the_largest_entry_never_the_sum() -> None:
    sizes = {f"w{width}": width for width in (8, 64, 32)}
    built = program(**{name: reader([("a", 8), ("b", 8)], width=width) for name, width in sizes.items()})
    arenas = [entry.stats.arena_bytes for entry in built.entries.values()]
    assert built.size_of(Region(DEVICE, "arena")) == max(arenas) == 128
    assert built.size_of(Region(DEVICE, "io")) == 128
    assert built.size_of(Region("fake:1", "io")) == 0
    assert tuple(str(item.region) for item in built.regions) == tuple(f"fake:0/{kind}" for kind in REGION_KINDS)
    assert built.devices == (DEVICE,)


def test_entries_with_other_weights_in_another_order_read_the_same_bytes() -> None:
    built = program(
        first=reader([("a", 20), ("b", 8)], width=8),
        second=reader([("c", 16), ("b", 8), ("a", 20)], width=8, state=True),
    )
    assert [(slot.name, slot.range.offset) for slot in built.weights] == [("a", 0), ("b", 24), ("c", 32)]
    places = {
        name: {
            o.value: o.range for step in entry.steps for o in step.operands if o and o.range.region.kind == "weights"
        }
        for name, entry in built.entries.items()
    }
    assert places["first"]["a"] == places["second"]["a"] == fake_range("weights", 0, 20)
    assert places["second"]["c"] == fake_range("weights", 32, 16)


def test_parts_of_weights_and_state_move_with_their_slot() -> None:
    def halves(order: list[str]) -> Graph:
        make = GraphMaker()
        x = make.input("x", 8)
        for name in order:
            make.weight(name, 16)
            make.input(f"s_{name}", 16, Role.STATE)
        for name in order:
            updated = make.update(f"u_{name}", make.part(f"p_{name}", f"s_{name}", 8, 16), x)
            x = make.binary(f"x_{name}", make.part(f"h_{name}", name, 8, 16), updated)
        return make.graph(x)

    built = program(first=halves(["a", "b"]), second=halves(["b", "a"]))
    for entry in built.entries.values():
        found = {o.value: o.range.offset for step in entry.steps for o in step.operands if o is not None}
        assert (found["h_a"], found["h_b"]) == (8, 24)
        assert (found["p_a"], found["p_b"]) == (8, 24)


def test_constants_are_stored_once_whatever_their_name() -> None:
    def use(name: str, data: bytes) -> Graph:
        make = GraphMaker()
        return make.graph(make.unary("y", make.constant(name, data)))

    built = program(one=use("c", b"same"), two=use("other", b"same"), three=use("c", b"else"))
    assert [(slot.name, slot.data, slot.range.offset) for slot in built.constants] == [
        ("c", b"same", 0),
        ("c@three", b"else", 8),
    ]
    found = built.constant(built.constants[1].type, b"else")
    assert found is built.constants[1]


def test_disagreements_name_both_entries() -> None:
    parts = GraphMaker()
    parts.weight("b", 8, tensor="another.tensor")
    role = GraphMaker()
    role.input("a", 8, Role.STATE)
    with pytest.raises(PlanError) as caught:
        build_program(
            planned(
                first=reader([("a", 8), ("b", 8)], width=8),
                second=reader([("a", 16)], width=8),
                third=parts.graph("b"),
                fourth=role.graph("a"),
            )
        )
    text = str(caught.value)
    assert "weight %a is u8[8] in first and u8[16] in second" in text
    assert "weight %b is made of b[0:8] none in first and of another.tensor[0:8] none in third" in text
    assert "%a is a weight in first and a state in fourth" in text


def test_entries_of_two_targets_or_under_wrong_names_are_refused() -> None:
    entries = planned(one=reader([], width=8), two=reader([], width=8))
    graph, plan = entries["two"]
    other = plan.model_copy(update={"target": "gpu"})
    with pytest.raises(
        PlanError, match=r"different targets \(one: fake on fake:0 aligned to 8, two: gpu on fake:0 aligned to 8\)"
    ):
        build_program({**entries, "two": (graph, other)})
    with pytest.raises(PlanError, match="three is the plan of two"):
        build_program({"three": (graph, plan)})


def test_a_program_of_nothing() -> None:
    built = build_program({})
    assert built.regions == ()
    assert check_program(built, {}, FAKE_TARGET, ops=FAKE_OPS) == {}


def test_one_entry_can_be_proven_by_itself() -> None:
    bench = one_lane()
    report = check_entry(bench.graphs["side"], bench.program.entries["side"], bench.program, FAKE_TARGET, ops=FAKE_OPS)
    assert (report.entry, report.steps, report.lanes) == ("side", 3, 1)
    assert report.graph_hash == bench.program.entries["side"].graph_hash


# hashes, JSON, text


def test_the_same_graphs_give_the_same_plan_byte_for_byte() -> None:
    assert program_to_json(one_lane().program) == program_to_json(one_lane().program)
    assert print_program(two_lanes().program) == print_program(two_lanes().program)


def test_hashes_cover_everything_and_tell_parts_apart() -> None:
    bench = one_lane()
    base = bench.program.hashes
    slot = bench.entry.slots[0].model_copy(update={"last": 99})
    lifetimes = bench.with_entry(slots=(slot, *bench.entry.slots[1:])).program.hashes
    assert lifetimes.entries["main"] != base.entries["main"]
    assert lifetimes.entries["side"] == base.entries["side"]
    assert (lifetimes.shared == base.shared, lifetimes.program == base.program) == (True, False)
    weights = bench.with_program(weights=bench.program.weights[::-1]).program.hashes
    assert weights.shared != base.shared
    assert weights.entries == base.entries
    for other in (
        bench.with_step("m", lane=1),
        bench.with_step("m", cache_policy="stream"),
        bench.with_operand("m", 0, early=True),
        bench.with_entry(options={"precision": "f32"}),
        bench.with_entry(dims={"N": 4}),
    ):
        assert other.program.hashes.entries["main"] != base.entries["main"]


def test_json_reads_back_to_an_equal_plan() -> None:
    for bench in (one_lane(), two_lanes()):
        special = bench.with_step("y", params=(1, 1.0, -0.0, 2**62, float("inf"), 1e-300))
        for plan in (bench.program, special.program):
            text = program_to_json(plan)
            back = program_from_json(text)
            assert back == plan
            assert program_to_json(back) == text
            params = [step.params for entry in back.entries.values() for step in entry.steps]
            expected = [step.params for entry in plan.entries.values() for step in entry.steps]
            assert repr(params) == repr(expected)
    assert check_program(
        program_from_json(program_to_json(one_lane().program)), one_lane().graphs, FAKE_TARGET, ops=FAKE_OPS
    )


def test_damaged_json_is_refused_with_the_reason() -> None:
    text = program_to_json(one_lane().program)
    with pytest.raises(PlanError, match="not a saved plan"):
        program_from_json(text[:1000])
    with pytest.raises(PlanError, match="not a saved plan"):
        program_from_json("{}")
    data = json.loads(text)
    data["plan"]["entries"]["main"]["steps"][0]["lane"] = 7
    with pytest.raises(PlanError, match=r"hashes differ:\n  program: stated .*\n  entry main: stated") as caught:
        program_from_json(json.dumps(data))
    assert "shared regions" not in str(caught.value)
    data = json.loads(text)
    data["plan"]["version"] = 99
    with pytest.raises(StaleArtifact, match=f"plan version: the plan has 99, wanted is {PLAN_VERSION}"):
        program_from_json(json.dumps(data))
    data = json.loads(text)
    del data["plan"]["entries"]["main"]["io_bytes"]
    with pytest.raises(PlanError, match=r"damaged plan: plan\.entries\.main\.io_bytes"):
        program_from_json(json.dumps(data))
    data = json.loads(text)
    data["plan"]["extra"] = 1
    with pytest.raises(PlanError, match="damaged plan"):
        program_from_json(json.dumps(data))


def test_text_is_for_people() -> None:
    make = GraphMaker()
    t = make.unary("t", make.input("x", 16), "work")
    u = make.binary("u", t, make.weight("w", 16), "in_place")
    make.update("s1", make.input("s", 16, Role.STATE), u)
    graph = make.graph(make.unary("y", u), "x")
    plan = plan_entry(graph, FAKE_TARGET, name="e", dims={"N": 4}, options={"precision": "f32"}, ops=FAKE_OPS)
    built = build_program({"e": (graph, plan)})
    hashes = built.hashes
    text = print_program(built)
    for line in (
        f"program version={PLAN_VERSION}  library={VERSION}  hash={hashes.program}  shared={hashes.shared}",
        "   ".join(
            f"region fake:0/{kind} {size}"
            for kind, size in (("arena", 40), ("weights", 16), ("state", 16), ("io", 48), ("constants", 0))
        ),
        "weight %w  fake:0/weights@0  +16  u8[16]  w[0:16]",
        "state %s  fake:0/state@0  +16  u8[16]",
        f"plan @e  target=fake  device=fake:0  align=8  graph={plan.graph_hash}  dims=N=4  options=precision=f32",
        "stats  steps=5  launches=4  copies=1  strided_copies=0  in_place=1  io=48",
        f"stats  arena=40  lower_bound=40  ratio=1.0000  sum=56  reused=0  optimal by {plan.stats.solver}",
        "stats  arena fragmentation worst=0.6000 at step 2 mean=0.4500",
        "peak   arena at step 1  #workspace of t %t",
        "input %x   io@0   +16  u8[16]",
        "slot %t %u            arena@24  +16  live [1,5)",
        "slot #workspace of t  arena@0   +24  live [1,2)",
        "step 0 copy           read %x!:io@0                   write %x:io@32",
        "step 1 unary_kernel   read %x!:io@0                   write %t:arena@24  work arena@0 +24  params 16,0.5",
        "step 3 update_kernel  read %s!:state@0 %u:arena@24    write %s!:state@0                    params 16,0.5",
    ):
        assert line in text.splitlines(), text


def test_lanes_and_events_are_printed() -> None:
    lines = print_program(two_lanes().program).splitlines()
    assert any(line.endswith("params 17,0.5  lane 1 wait 1 signal 3") for line in lines)


def test_the_peak_names_bytes_and_tenants() -> None:
    make = GraphMaker()
    big, small = make.unary("big", make.input("x", 64)), make.unary("small", make.input("z", 8))
    graph = make.graph(make.binary("y", big, small))
    plan = plan_entry(graph, FAKE_TARGET, name="e", ops=FAKE_OPS)
    assert plan.peak == "entry e needs 72 bytes of arena, 72 live at step 1: %big 64, %small 8"


def test_bindings_are_found_by_their_bytes() -> None:
    entry = one_lane().entry
    x = entry.inputs[1]
    inside = replace(x.range, offset=x.range.offset + 8, size=4)
    assert entry.binding_of(inside) is x
    assert entry.binding_of(fake_range("arena", 0, 4)) is None
