"""What tests of operator order share: the model of a graph of fake operators, its legal orders, and schedules of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from ostinato.ir.graph import Graph
from ostinato.planner.lower import prepare
from ostinato.planner.order import Scheduled, program_order
from ostinato.planner.order_model import OrderModel, order_model
from tests.planner.fakes import ALIGNMENT, FAKE_OPS, FAKE_TARGET

__all__ = ["all_orders", "model_of", "names_of", "random_order", "schedule_of"]


def model_of(graph: Graph, *, in_place: bool = True) -> OrderModel:
    prepared = prepare(graph, FAKE_TARGET, ops=FAKE_OPS)
    return order_model(graph, FAKE_OPS, prepared.storages, prepared.calls, alignment=ALIGNMENT, in_place=in_place)


def schedule_of(graph: Graph, order: Sequence[int]) -> tuple[Scheduled, ...]:
    """The graph's steps in that order, on one lane."""
    program = program_order(graph, FAKE_OPS)
    return tuple(program[step] for step in order)


def names_of(graph: Graph, order: Sequence[int]) -> list[str]:
    return [turn.node.name for turn in schedule_of(graph, order)]


def random_order(rng: random.Random, model: OrderModel) -> list[int]:
    """A legal order of all steps."""
    order: list[int] = []
    left = set(range(len(model.before)))
    while left:
        ready = sorted(step for step in left if left.isdisjoint(model.before[step]))
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


def all_orders(model: OrderModel, limit: int) -> Iterator[tuple[int, ...]]:
    """The legal orders of all steps, the first `limit` of them; depth first without recursion."""
    count = len(model.before)
    stack: list[tuple[int, ...]] = [()]
    found = 0
    while stack and found < limit:
        order = stack.pop()
        if len(order) == count:
            found += 1
            yield order
            continue
        done = set(order)
        stack += [(*order, step) for step in range(count) if step not in done and done.issuperset(model.before[step])]
