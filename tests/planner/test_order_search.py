"""The order search: as good as every order tried, legal, deterministic, bounded, and taken only where the arena shrinks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.planner.graphs import graphs
from benchmarks.planner.order import least_peak_first, measure
from ostinato.ir.graph import Graph
from ostinato.planner import lower
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.order_model import OrderModel
from ostinato.planner.order_piece_search import Budget, OrderLimits, beam_order, best_order, exact_order
from ostinato.planner.order_pieces import Piece, cut_steps, piece_of
from ostinato.planner.order_search import best_steps
from ostinato.planner.order_tidy import tidied
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import PlanSettings
from tests.planner.fakes import FAKE_OPS, FAKE_TARGET, GraphMaker
from tests.planner.mutation_cases import random_graph
from tests.planner.orders import all_orders, model_of, names_of, random_order, schedule_of

NO_EXACT = OrderLimits(exact=0)


def random_model(rng: random.Random, steps: int) -> OrderModel:
    """A model with more freedom than graphs of one growing list have: results that nobody reads, in-place pairs, workspaces, dependences without bytes."""
    before: list[tuple[int, ...]] = []
    touches: list[tuple[int, ...]] = []
    takes: list[tuple[tuple[int, int], ...]] = []
    sizes: list[int] = []
    maker: list[int] = []
    for step in range(steps):
        reach = range(max(0, len(sizes) - rng.choice((4, 8, 99))), len(sizes))
        read = rng.sample(reach, min(len(reach), rng.choice((0, 1, 1, 2, 2, 3))))
        extra = {rng.randrange(step)} if step and rng.random() < 0.1 else set()
        before.append(tuple(sorted({maker[storage] for storage in read} | extra)))
        made = range(len(sizes), len(sizes) + rng.choice((0, 1, 1, 1, 2)))
        for _ in made:
            sizes.append(sizes[rng.choice(read)] if read and rng.random() < 0.5 else rng.choice((1, 2, 3, 5, 8)))
            maker.append(step)
        touches.append((*read, *made))
        pairs = [(new, old) for new in made for old in read if sizes[new] == sizes[old] and rng.random() < 0.7]
        takes.append(tuple(pairs))
    workspaces = tuple(rng.choice((0, 0, 0, 2, 6)) for _ in range(steps))
    return OrderModel(tuple(before), tuple(touches), workspaces, tuple(takes), tuple(sizes), tuple(maker))


def lowest_peak(model: OrderModel) -> int:
    """The best peak by dynamic programming over every downset, nothing left out."""
    count = len(model.before)
    needs = [sum(1 << other for other in needed) for needed in model.before]
    users = [sum(1 << step for step in using) for using in model.users()]
    layer = {0: 0}
    for _ in range(count):
        following: dict[int, int] = {}
        for done, peak in layer.items():
            for step in range(count):
                after = done | 1 << step
                if after == done or needs[step] & ~done:
                    continue
                reached = max(peak, _load(model, users, step, done))
                following[after] = min(following.get(after, reached), reached)
        layer = following
    return layer[(1 << count) - 1]


def _load(model: OrderModel, users: Sequence[int], step: int, done: int) -> int:
    alive = sum(size for size, using in zip(model.sizes, users, strict=True) if using & done and using & ~done)
    made = sum(size for size, maker in zip(model.sizes, model.maker, strict=True) if maker == step)
    taken: set[int] = set()
    for result, operand in model.takes[step]:
        if not users[operand] & ~(done | 1 << step) and taken.isdisjoint((result, operand)):
            taken.update((result, operand))
    return alive + made + model.workspaces[step] - sum(model.sizes[storage] for storage in taken) // 2


def whole(model: OrderModel) -> Piece:
    count = len(model.before)
    return piece_of(model, [False] * count, model.users(), 0, count)


def assert_legal(model: OrderModel, order: Sequence[int]) -> None:
    place = {step: place for place, step in enumerate(order)}
    assert sorted(order) == list(range(len(model.before)))
    assert all(place[other] < place[step] for step, needed in enumerate(model.before) for other in needed)


def models(seed: int, count: int, steps: int) -> Iterator[tuple[str, OrderModel]]:
    for number in range(count):
        rng = random.Random(f"{seed}.{number}")
        yield f"{seed}.{number}", random_model(rng, rng.randint(1, steps))


# as good as every order


def test_the_search_is_as_good_as_all_orders_of_small_graphs(seed: int) -> None:
    better = 0
    for number in range(120):
        rng = random.Random(f"{seed}.{number}")
        model = model_of(random_graph(rng, rng.randint(2, 9)))
        orders = list(all_orders(model, 3000))
        if not orders or len(orders) == 3000:
            continue
        lowest = min(model.peak(order) for order in orders)
        found = best_steps(model)
        program = model.peak(range(len(model.before)))
        assert (found is None) == (lowest == program), f"{seed}.{number}"
        if found is not None:
            assert_legal(model, found)
            assert model.peak(found) == lowest
            better += 1
    assert better >= 5


def test_the_search_is_as_good_as_dynamic_programming_without_shortcuts(seed: int) -> None:
    """Cuts, late and early steps, bounds, free runs and target order against none of these."""
    better = 0
    for name, model in models(seed, 1500, 11):
        lowest = lowest_peak(model)
        program = model.peak(range(len(model.before)))
        found = best_steps(model)
        assert (program if found is None else model.peak(found)) == lowest, name
        better += found is not None
        exact = exact_order(whole(model), 0, program + 1, Budget(10**6))
        assert exact.peak == exact.bound == lowest, name
        assert exact.order is not None
        assert_legal(model, exact.order)
        assert whole(model).bound() <= lowest, name
    assert better >= 300


def test_tidying_never_raises_the_peak_and_leaves_the_optimum(seed: int) -> None:
    moved = 0
    for name, model in models(seed, 300, 10):
        tidy = tidied(model)
        assert_legal(model, tidy.program)
        program = model.peak(range(len(model.before)))
        assert model.peak(tidy.program) == tidy.model.peak(range(len(model.before))) <= program, name
        assert lowest_peak(tidy.model) == lowest_peak(model), name
        moved += list(tidy.program) != list(range(len(model.before)))
    assert moved >= 30


def test_cuts_are_the_core_steps_that_stand_in_one_place_in_every_order(seed: int) -> None:
    cuts = 0
    for name, model in models(seed, 150, 7):
        core = [tuple(needed) for needed in model.before]
        orders = list(all_orders(model, 5040))
        fixed = [step for step in range(len(core)) if len({order.index(step) for order in orders}) == 1]
        assert cut_steps(core) == fixed, name
        cuts += len(fixed)
    assert cuts > 100


def test_beams_are_legal_below_the_ceiling_and_close(seed: int) -> None:
    found, optimal = 0, 0
    for name, model in models(seed, 200, 14):
        lowest = lowest_peak(model)
        program = model.peak(range(len(model.before)))
        beam = best_order(whole(model), 0, program, NO_EXACT, Budget(10**6))
        if beam.order is not None:
            assert_legal(model, beam.order)
            assert lowest <= model.peak(beam.order) == beam.peak < program, name
            found += 1
            optimal += beam.peak == lowest
        else:
            assert beam.peak == program
    assert optimal >= 0.9 * found > 20


def test_targets_floor_and_ceiling_are_kept(seed: int) -> None:
    for name, model in models(seed, 200, 10):
        lowest = lowest_peak(model)
        piece = whole(model)
        assert exact_order(piece, 0, lowest, Budget(10**6)).order is None, name
        assert exact_order(piece, 0, lowest, Budget(10**6)).bound == lowest, name
        floor = lowest + 3
        found = exact_order(piece, floor, floor + 1, Budget(10**6))
        assert found.order is not None
        assert model.peak(found.order) <= found.peak == floor, name
        assert beam_order(piece, 0, lowest, 10, Budget(10**6)).order is None, name


# bounded


def test_a_budget_that_ends_leaves_a_bound_and_no_order(seed: int) -> None:
    for name, model in models(seed, 100, 12):
        found = exact_order(whole(model), 0, 10**9, Budget(3))
        assert found.bound <= lowest_peak(model), name
        budget, count = Budget(40), len(model.before)
        best_order(whole(model), 0, 10**9, OrderLimits(), budget)
        assert budget.moves > -(count**2), "a state is settled, and then the budget is looked at"
        steps = best_steps(model, OrderLimits(exact=20, beam=20, total=40, width=2))
        assert steps is None or model.peak(steps) < model.peak(range(count)), name


def network(before: Sequence[Sequence[int]], sizes: Sequence[int]) -> OrderModel:
    """One result a step, read by those that need it."""
    steps = range(len(before))
    touches = tuple((*before[step], step) for step in steps)
    nothing = ((),) * len(before)
    return OrderModel(tuple(map(tuple, before)), touches, (0,) * len(before), nothing, tuple(sizes), tuple(steps))


def layers(count: int) -> OrderModel:
    """Layers whose second branch should come first."""
    before: list[tuple[int, ...]] = [()]
    sizes = [4]
    for _ in range(count):
        x = len(before) - 1
        before += [(x,), (x,), (x + 1,), (x + 2,), (x + 3, x + 4)]
        sizes += [8, 32, 1, 1, 4]
    return network(before, sizes)


def test_repeated_layers_are_worked_out_once() -> None:
    one = layers(1)
    best = best_steps(one)
    assert best is not None
    budget = OrderLimits(total=30)
    assert best_steps(one, budget) is not None
    many = layers(4000)  # 20,000 steps
    found = best_steps(many, budget)
    assert found is not None
    assert_legal(many, found)
    assert many.peak(found) == one.peak(best) < many.peak(range(len(many.before)))


@pytest.mark.parametrize(
    "before",
    [
        [()] + [(step,) for step in range(19_999)],
        [()] + [(0,)] * 19_998 + [tuple(range(1, 19_999))],
        [()] * 20_000,
        [(), (0,)] + [(0, step) for step in range(1, 19_999)],
    ],
    ids=["chain", "fan", "nothing shared", "one value for all"],
)
def test_20_000_steps_are_no_trouble(before: list[tuple[int, ...]]) -> None:
    model = network(before, [8 + step % 5 for step in range(20_000)])
    found = best_steps(model)
    if found is not None:
        assert_legal(model, found)
        assert model.peak(found) < model.peak(range(20_000))


def test_a_long_tangle_is_cut_where_least_crosses(seed: int) -> None:
    rng = random.Random(seed)
    before = [tuple(sorted(rng.sample(range(max(0, step - 30), step), min(step, 2)))) for step in range(2000)]
    model = network(before, [rng.choice((1, 2, 4, 8)) for _ in before])
    found = best_steps(model, OrderLimits(exact=2000, beam=20_000, total=100_000))
    assert found is not None
    assert_legal(model, found)
    assert model.peak(found) < model.peak(range(2000))


# plans


def plan(graph: Graph, order: str) -> EntryPlan:
    """Plans and proves."""
    entry = plan_entry(graph, FAKE_TARGET, name="e", settings=PlanSettings(order=order), ops=FAKE_OPS)
    check_program(build_program({"e": (graph, entry)}), {"e": graph}, FAKE_TARGET, ops=FAKE_OPS)
    return entry


def test_the_arena_is_never_larger_and_every_plan_is_proven(seed: int) -> None:
    smaller = 0
    for number in range(150):
        rng = random.Random(f"{seed}.{number}")
        graph = random_graph(rng, rng.randint(3, 30))
        given, searched = plan(graph, "program"), plan(graph, "search")
        assert searched.stats.arena_bytes <= given.stats.arena_bytes, f"{seed}.{number}"
        if searched.stats.arena_bytes == given.stats.arena_bytes:
            assert searched.steps == given.steps, "an order that saves nothing is not taken"
        else:
            smaller += 1
        assert plan(graph, "search") == searched
    assert smaller >= 10


def test_branches_run_so_that_the_larger_one_is_done_first() -> None:
    make = GraphMaker()
    stem = make.unary("stem", make.input("x", 16))
    small = make.unary("small_end", make.unary("small", stem, size=32), size=8)
    large = make.unary("large_end", make.unary("large", stem, size=64), size=8)
    middle = make.unary("middle_end", make.unary("middle", stem, size=48), size=8)
    graph = make.graph(make.binary("y", make.binary("t", small, large), middle))
    found = plan(graph, "search")
    assert [step.node for step in found.steps] == names_of(graph, best_steps(model_of(graph)) or ())
    assert (found.stats.arena_bytes, plan(graph, "program").stats.arena_bytes) == (16 + 64 + 8, 16 + 64 + 8 + 8)


def test_an_order_whose_arena_is_not_smaller_is_not_taken(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the search hands over: the placement decides."""
    rng = random.Random(seed)
    graph = random_graph(rng, 25)
    given = plan(graph, "program")
    model = model_of(graph)
    others = [random_order(rng, model) for _ in range(30)]
    arenas: set[int] = set()
    for order in others:
        turns = schedule_of(graph, order)
        scheduled = plan_entry(graph, FAKE_TARGET, name="e", schedule=turns, ops=FAKE_OPS)
        monkeypatch.setattr(lower, "search_order", lambda *_, turns=turns, **__: turns)
        best = min(given.stats.arena_bytes, scheduled.stats.arena_bytes)
        found = plan(graph, "search")
        assert found.stats.arena_bytes == best
        assert found.steps == (given if best == given.stats.arena_bytes else scheduled).steps
        arenas.add(scheduled.stats.arena_bytes - given.stats.arena_bytes)
    assert max(arenas) > 0


def test_without_reuse_the_order_is_the_programs(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, 20)
    apart = plan_entry(graph, FAKE_TARGET, name="e", settings=PlanSettings(reuse=False), ops=FAKE_OPS)
    assert [step.node for step in apart.steps] == [step.node for step in plan(graph, "program").steps]


# irregular networks


def test_networks_are_ordered_within_a_hundredth_and_a_half_of_the_optimum(seed: int) -> None:
    for family, graph in graphs(4, seed):
        found = measure(family, graph, 1_000_000)
        assert found.ours <= found.given, graph.name
        assert found.arena_ours <= found.arena_given, graph.name
        if found.proven:
            assert found.optimum <= found.ours <= 1.015 * found.optimum, graph.name
            assert found.optimum <= found.peer, graph.name


def test_the_peer_makes_legal_orders(seed: int) -> None:
    for _, model in models(seed, 100, 20):
        assert_legal(model, least_peak_first(model))


def test_networks_are_the_same_for_the_same_seed() -> None:
    assert [graph for _, graph in graphs(2, 5)] == [graph for _, graph in graphs(2, 5)]
    sizes = [len(graph.nodes) for _, graph in graphs(9)]
    assert min(sizes) >= 20
    assert max(sizes) <= 62
