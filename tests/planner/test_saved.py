"""Saved plans: what is read back is the plan that was saved, and is used for nothing but what it was made for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError, StaleArtifact
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry, prepare
from ostinato.planner.plan import PLAN_VERSION, ProgramPlan
from ostinato.planner.problem import problem_from_csv, problem_to_csv, violations
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.saved import Purpose, program_from_json, program_to_json, read_plan
from ostinato.planner.settings import PlanSettings
from ostinato.planner.solvers import solve
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker
from tests.planner.mutation_cases import random_graph

OPTIONS = {"precision": "f32", "fuse": "on"}


def graph_of(width: int = 16) -> Graph:
    make = GraphMaker()
    t = make.unary("t", make.input("x", width), "work")
    return make.graph(make.binary("y", t, make.weight(f"w{width}", width)))


def saved_text(**changes: object) -> str:
    entries = {}
    for name, width in (("one", 16), ("two", 32)):
        graph = graph_of(width)
        plan = plan_entry(graph, FAKE_TARGET, name=name, dims={"N": width}, options=OPTIONS, ops=FAKE_OPS)
        entries[name] = (graph, plan)
    return program_to_json(build_program(entries).model_copy(update=changes))


def purposes() -> dict[str, Purpose]:
    return {name: Purpose(graph_of(width), {"N": width}, OPTIONS) for name, width in (("one", 16), ("two", 32))}


def test_a_plan_is_read_back_for_what_it_was_made_for_and_proven() -> None:
    saved = read_plan(saved_text(), FAKE_TARGET, purposes())
    assert saved.graphs == {}
    graphs = {name: purpose.graph for name, purpose in purposes().items()}
    assert check_program(saved.plan, graphs, FAKE_TARGET, ops=FAKE_OPS)
    assert saved.plan == program_from_json(saved_text())


def other_rows() -> Target:
    rows = tuple(replace(row, priority=7) if row.identity == "unary@work" else row for row in FAKE_TARGET.rows)
    return replace(FAKE_TARGET, rows=rows)


def with_purpose(**changes: object) -> dict[str, Purpose]:
    return {**purposes(), "one": replace(purposes()["one"], **changes)}  # type: ignore[arg-type]


STALE: dict[str, tuple[str, Callable[[], tuple[Target, dict[str, Purpose]]]]] = {
    "graph": ("entry one, graph: the plan has ", lambda: (FAKE_TARGET, with_purpose(graph=graph_of(24)))),
    "dimension": (
        "entry one, dimension N: the plan has 16, wanted is 8",
        lambda: (FAKE_TARGET, with_purpose(dims={"N": 8})),
    ),
    "option": (
        "entry one, option precision: the plan has f32, wanted is bf16",
        lambda: (FAKE_TARGET, with_purpose(options={**OPTIONS, "precision": "bf16"})),
    ),
    "absent option": (
        "entry one, option fuse: the plan has on, wanted is absent",
        lambda: (FAKE_TARGET, with_purpose(options={"precision": "f32"})),
    ),
    "new option": (
        "entry one, option solver: the plan has absent, wanted is exact",
        lambda: (FAKE_TARGET, with_purpose(options={**OPTIONS, "solver": "exact"})),
    ),
    "target": ("target: the plan has fake, wanted is gpu", lambda: (replace(FAKE_TARGET, name="gpu"), purposes())),
    "device": (
        "device: the plan has fake:0, wanted is fake:1",
        lambda: (replace(FAKE_TARGET, device="fake:1"), purposes()),
    ),
    "alignment": ("alignment: the plan has 8, wanted is 16", lambda: (replace(FAKE_TARGET, alignment=16), purposes())),
    "rows": ("rows of the target: the plan has ", lambda: (other_rows(), purposes())),
    "lacking entry": (
        "entry three: the plan has none",
        lambda: (FAKE_TARGET, {**purposes(), "three": purposes()["two"]}),
    ),
    "spare entry": (
        "entry two: only the plan has it",
        lambda: (FAKE_TARGET, {"one": purposes()["one"]}),
    ),
}


@pytest.mark.parametrize("what", STALE)
def test_a_plan_made_for_something_else_is_refused(what: str) -> None:
    words, wanted = STALE[what]
    with pytest.raises(StaleArtifact) as caught:
        read_plan(saved_text(), *wanted())
    assert any(words in line for line in caught.value.differences), caught.value.differences
    assert all(line in str(caught.value) for line in caught.value.differences)


def test_all_differences_are_listed_at_once() -> None:
    wanted = with_purpose(graph=graph_of(8), dims={"N": 8}, options={"precision": "bf16"})
    with pytest.raises(StaleArtifact) as caught:
        read_plan(saved_text(package_version="0.0.1"), replace(FAKE_TARGET, name="gpu"), wanted)
    kinds = [line.partition(":")[0] for line in caught.value.differences]
    assert kinds == [
        "library",
        "entry one, graph",
        "entry one, target",
        "entry one, dimension N",
        "entry one, option fuse",
        "entry one, option precision",
        "entry two, target",
    ]


def test_a_plan_of_another_version_says_which_library_made_it() -> None:
    data = json.loads(saved_text())
    data["plan"] |= {"version": PLAN_VERSION + 1, "package_version": "9.9.9", "unknown": [1]}
    with pytest.raises(StaleArtifact) as caught:
        read_plan(json.dumps(data), FAKE_TARGET, purposes())
    assert [line.partition(":")[0] for line in caught.value.differences] == ["plan version", "library"]
    assert "library: the plan has 9.9.9" in str(caught.value)


def test_a_plan_that_was_changed_is_damaged_and_not_stale() -> None:
    data = json.loads(saved_text())
    data["plan"]["entries"]["one"]["options"]["precision"] = "bf16"
    with pytest.raises(PlanError, match="hashes differ"):
        read_plan(json.dumps(data), FAKE_TARGET, purposes())


def test_a_forged_plan_is_read_but_never_proven() -> None:
    """Whoever writes fitting hashes over a wrong plan meets the checker."""
    program = program_from_json(saved_text())
    entry = program.entries["one"]
    spoiled = entry.model_copy(update={"steps": entry.steps[::-1]})
    text = program_to_json(program.model_copy(update={"entries": {**program.entries, "one": spoiled}}))
    saved = read_plan(text, FAKE_TARGET, purposes())
    with pytest.raises(PlanError, match="is not proven"):
        check_program(saved.plan, {n: p.graph for n, p in purposes().items()}, FAKE_TARGET, ops=FAKE_OPS)


def recomputed() -> tuple[Graph, Graph, ProgramPlan]:
    """A graph whose first value is cheap and long-lived, the graph that it becomes under a limit, and the plan of that."""
    make = GraphMaker()
    a = make.unary("a", make.input("x", 64))
    last = a
    for index in range(4):
        last = make.unary(f"b{index}", last)
    graph = make.graph(make.binary("y", last, a))
    limit = PlanSettings(memory_limit=128)
    cloned, plan = fit_entry(graph, FAKE_TARGET, name="one", options=OPTIONS, settings=limit, ops=FAKE_OPS)
    assert plan.clones
    return graph, cloned, build_program({"one": (cloned, plan)})


def test_a_plan_that_recomputes_comes_with_its_graph() -> None:
    graph, cloned, program = recomputed()
    text = program_to_json(program, {"one": cloned})
    purpose = Purpose(graph, {}, {**OPTIONS, "memory_limit": "128"})
    saved = read_plan(text, FAKE_TARGET, {"one": purpose})
    assert saved.graphs == {"one": cloned}
    check_program(saved.plan, saved.graphs, FAKE_TARGET, sources={"one": graph}, ops=FAKE_OPS)
    with pytest.raises(PlanError, match=r"entries \['one'\] recompute values, and their graphs are not given"):
        program_to_json(program)
    with pytest.raises(StaleArtifact, match="option memory_limit: the plan has 128, wanted is absent"):
        read_plan(text, FAKE_TARGET, {"one": replace(purpose, options=OPTIONS)})


def test_a_changed_graph_of_a_plan_that_recomputes_is_damage() -> None:
    graph, cloned, program = recomputed()
    data = json.loads(program_to_json(program, {"one": cloned}))
    purpose = {"one": Purpose(graph, {}, {**OPTIONS, "memory_limit": "128"})}
    for text, words in (
        (data["graphs"]["one"].replace("b3", "b9"), "has hash"),
        ("graph @", "the graph of entry one: line 1"),
        (None, "the graph of entry one"),
    ):
        data["graphs"] = {} if text is None else {"one": text}
        with pytest.raises(PlanError, match=words):
            read_plan(json.dumps(data), FAKE_TARGET, purpose)


def test_rows_have_the_same_hash_in_every_process_and_another_for_every_change() -> None:
    base = FAKE_TARGET.rows_hash
    assert replace(FAKE_TARGET, rows=tuple(replace(row) for row in FAKE_TARGET.rows)).rows_hash == base
    assert "0x" not in base
    row, *rest = FAKE_TARGET.rows
    changes = (
        replace(row, in_place=(("y", "x"),)),
        replace(row, strided=frozenset({"x"})),
        replace(row, operands=("x", "y")),
        replace(row, layouts=(("x", ("AB",)),)),
        replace(row, architectures=("other",)),
    )
    hashes = {replace(FAKE_TARGET, rows=(change, *rest)).rows_hash for change in changes}
    hashes.add(replace(FAKE_TARGET, rows=(*rest, row)).rows_hash)
    assert len(hashes - {base}) == len(changes) + 1


# the problem behind a plan


def test_a_plans_problem_reads_back_equal_and_its_placement_solves_it(seed: int) -> None:
    for round_number in range(60):
        rng = random.Random(f"{seed}.{round_number}")
        graph = random_graph(rng, rng.randint(3, 20))
        settings = PlanSettings(in_place=rng.random() < 0.5, reuse=rng.random() < 0.8, order="program")
        entry = plan_entry(graph, FAKE_TARGET, name="e", settings=settings, ops=FAKE_OPS)
        problem = entry.problem()
        assert problem_from_csv(problem_to_csv(problem)) == problem
        assert not violations(problem, entry.placement())
        prepared = prepare(graph, FAKE_TARGET, settings=settings, ops=FAKE_OPS).problem
        by_id = {buffer.id: buffer for buffer in prepared.buffers}
        assert {buffer.id: buffer for buffer in problem.buffers} == by_id
        outcome = solve(problem)
        assert not violations(problem, outcome.solution)
        assert outcome.solution.height == entry.stats.arena_bytes or settings.reuse


def test_an_empty_plan_has_an_empty_problem() -> None:
    make = GraphMaker()
    entry = plan_entry(make.graph(make.input("x", 8)), FAKE_TARGET, name="e", ops=FAKE_OPS)
    assert entry.problem().buffers == ()
    assert entry.placement().height == 0


def test_program_plans_without_entries_are_saved_too() -> None:
    assert program_from_json(program_to_json(build_program({}))) == ProgramPlan(
        entries={}, regions=(), weights=(), parameters=(), state=(), constants=()
    )
