"""Random graphs of fake operators, planned, spoiled and judged: the checker refuses a plan exactly when execution on tagged bytes shows harm.

Correct plans must pass (no false alarm); plans whose liveness was made wrong on purpose, whose buffers were moved, or whose events were dropped must be refused
if and only if some interleaving gives wrong bytes. The planner's own placement test accepts all of them: it trusts the same wrong lifetimes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Graph, Role
from ostinato.planner.check import check_program
from ostinato.planner.lower import Prepared, prepare
from ostinato.planner.order import Scheduled
from ostinato.planner.plan import EntryPlan
from ostinato.planner.problem import Problem, Solution, violations
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from ostinato.planner.solvers import solve
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker
from tests.planner.tagged import is_harmful

SIZES = (0, 8, 12, 16, 24)


def random_graph(rng: random.Random, nodes: int) -> Graph:
    """Reads recent values more often than old ones, so that lifetimes vary; views, state, in-place rows and workspaces included."""
    make = GraphMaker()
    size = rng.choice(SIZES)
    values = [make.input("x", size), make.weight("w", size)]
    state = make.input("s", 16, Role.STATE)
    for index in range(nodes):
        name = f"v{index}"
        source = rng.choice(values[-4:])
        count = make.types[source].elements
        kind = rng.random()
        same = [value for value in values[-6:] if make.types[value].elements == count and value not in strided(make)]
        contiguous = source not in strided(make)
        if not contiguous:
            values.append(make.unary(name, source, "strided"))
        elif kind < 0.3:
            values.append(make.unary(name, source, rng.choice(("plain", "in_place", "work"))))
        elif kind < 0.55:
            impl = rng.choice(("plain", "in_place", "in_place_a"))
            values.append(make.binary(name, source, rng.choice(same), impl))
        elif kind < 0.65:
            values += make.pair((name, f"{name}b"), source, rng.choice(same), rng.choice(("plain", "in_place")))
        elif kind < 0.75 and count and count % 2 == 0:
            make.split((name, f"{name}b"), source)
            values += [name, f"{name}b"]
        elif kind < 0.85 and count >= 8:
            start, step = rng.randrange(0, 5), rng.choice((1, 1, 2))
            values.append(make.part(name, source, start, rng.randrange(start + 1, count + 1), step))
        elif kind < 0.92:
            state = make.update(name, state, source, rng.choice(("plain", "result")))
        else:
            values.append(make.unary(name, source, "plain", size=rng.choice(SIZES)))
    returnable = [value for value in values if value not in strided(make)]
    outputs = [rng.choice(returnable[-5:]) for _ in range(rng.randint(1, 3))]
    return make.graph(*outputs, *([make.unary("peek", state)] if rng.random() < 0.5 else []))


def strided(make: GraphMaker) -> set[str]:
    found: set[str] = set()
    for node in make.nodes:
        if node.op == "part" and (node.attrs["step"] != 1 or node.operands[0] in found):
            found.add(node.name)
    return found


def random_schedule(rng: random.Random, graph: Graph) -> tuple[Scheduled, ...]:
    """Program order on two lanes, with an event for every dependence that crosses them."""
    turns: list[Scheduled] = []
    touched: dict[str, list[int]] = {}  # content -> steps that made or read it
    base: dict[str, str] = {item.value.name: item.value.name for item in graph.inputs}
    for node in graph.nodes:
        sources = [base[name] for name in node.operands if name is not None]
        if FAKE_OPS[node.op].is_view:
            base[node.name] = sources[0]
            continue
        before = {touched[source][0] for source in sources if touched.get(source)}
        if node.op == "update":
            before |= set(touched.get(sources[0], ()))
        lane = rng.randrange(2)
        position = len(turns)
        waits = tuple(sorted(other for other in before if turns[other].lane != lane))
        for other in waits:
            turns[other] = replace(turns[other], signals=(other,))
        turns.append(Scheduled(node, lane, waits))
        for source in sources:
            touched.setdefault(source, []).append(position)
        for value in node.results:
            base[value.name] = value.name
            touched[value.name] = [position]
            if node.op == "update":
                touched[value.name] = [position]
    return tuple(turns)


def verdicts(graph: Graph, entry: EntryPlan) -> tuple[bool, bool, str]:
    """Refused by the checker, harmful by execution, and what the checker said."""
    program = build_program({"e": (graph, entry)})
    harmful = is_harmful(graph, program.entries["e"], program, FAKE_TARGET)
    try:
        check_program(program, {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    except PlanError as error:
        return True, harmful, str(error)
    return False, harmful, ""


def emit(prepared: Prepared, problem: Problem, offsets: Sequence[int] | None = None) -> EntryPlan:
    """The plan of a (wrong) problem, at the solver's offsets or at given ones."""
    outcome = solve(problem)
    if offsets is not None:
        height = max((o + b.size for o, b in zip(offsets, problem.buffers, strict=True)), default=0)
        bound = replace(outcome.bound, height=min(outcome.bound.height, height))
        outcome = replace(outcome, solution=Solution(tuple(offsets), height), bound=bound)
    else:
        assert not violations(problem, outcome.solution)
    return prepared.emit(outcome, name="e", dims={}, options={})


def dropped_last_use(rng: random.Random, problem: Problem) -> Problem | None:
    long_lived = [i for i, buffer in enumerate(problem.buffers) if buffer.upper - buffer.lower > 1]
    if not long_lived:
        return None
    index = rng.choice(long_lived)
    buffers = list(problem.buffers)
    buffers[index] = replace(buffers[index], upper=buffers[index].upper - 1)
    return Problem(tuple(buffers))


def assert_agreement(refused: bool, harmful: bool, said: str, seed: str) -> None:
    assert refused == harmful, f"{seed}: checker {'refuses' if refused else 'accepts'}, harm {harmful}\n{said}"


def test_correct_plans_are_proven_and_wrong_liveness_is_refused_exactly_when_it_harms(seed: int) -> None:
    found = {True: 0, False: 0}
    for round_number in range(250):
        rng = random.Random(f"{seed}.{round_number}")
        graph = random_graph(rng, rng.randint(3, 18))
        prepared = prepare(graph, FAKE_TARGET, settings=PlanSettings(in_place=rng.random() < 0.7), ops=FAKE_OPS)
        refused, harmful, said = verdicts(graph, emit(prepared, prepared.problem))
        assert not refused, said
        assert not harmful
        wrong = dropped_last_use(rng, prepared.problem)
        if wrong is not None:
            refused, harmful, said = verdicts(graph, emit(prepared, wrong))
            assert_agreement(refused, harmful, said, f"{seed}.{round_number}")
            found[refused] += 1
    assert found[True] >= 40, found
    assert found[False] >= 40, found


def test_moved_buffers_are_refused_exactly_when_they_harm(seed: int) -> None:
    found = {True: 0, False: 0}
    for round_number in range(250):
        rng = random.Random(f"{seed}.{round_number}")
        graph = random_graph(rng, rng.randint(3, 14))
        prepared = prepare(graph, FAKE_TARGET, ops=FAKE_OPS)
        if not prepared.problem.buffers:
            continue
        outcome = solve(prepared.problem)
        offsets = list(outcome.solution.offsets)
        offsets[rng.randrange(len(offsets))] = 8 * rng.randrange(outcome.solution.height // 8 + 1)
        refused, harmful, said = verdicts(graph, emit(prepared, prepared.problem, offsets))
        assert_agreement(refused, harmful, said, f"{seed}.{round_number}")
        found[refused] += 1
    assert found[True] >= 40, found
    assert found[False] >= 40, found


@pytest.mark.parametrize("lost", ["nothing", "wait", "last use"])
def test_two_lanes_agree_over_every_interleaving(seed: int, lost: str) -> None:
    found = {True: 0, False: 0}
    for round_number in range(60):
        rng = random.Random(f"{seed}.{round_number}")
        graph = random_graph(rng, rng.randint(2, 5))
        prepared = prepare(graph, FAKE_TARGET, schedule=random_schedule(rng, graph), ops=FAKE_OPS)
        problem = prepared.problem
        if lost == "last use":
            problem = dropped_last_use(rng, problem) or problem
        entry = emit(prepared, problem)
        waiting = [index for index, step in enumerate(entry.steps) if step.waits]
        if lost == "wait" and waiting:
            steps = list(entry.steps)
            index = rng.choice(waiting)
            steps[index] = replace(steps[index], waits=steps[index].waits[1:])
            entry = entry.model_copy(update={"steps": tuple(steps)})
        refused, harmful, said = verdicts(graph, entry)
        assert_agreement(refused, harmful, said, f"{seed}.{round_number}")
        found[refused] += 1
    if lost == "nothing":
        assert not found[True], found
    if lost == "wait":
        assert found[True] >= 5, found
