"""Steps whose best place is known without a search: right before the first step that needs them, or right behind the last one that they need.

Late: a step that touches no bytes of the arena but its own results (it reads inputs, weights, state) frees nothing whenever it runs, so that waiting only
keeps bytes away from the steps in between; and where what it needs for itself alone (its workspace, results that nobody reads) is no larger than what the
step that needs it adds, it costs no more there.

Early: a step whose results take no bytes of the arena (it updates state or makes outputs) can only free bytes; and where its workspace is no larger than that
of a step it needs, it costs no more right behind that one.

Some order with the least peak has all of these in their places, so that only the rest, the core, needs a search. They would hide the cuts of the graph, too:
a step that may run anywhere stands beside all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostinato.planner.liveness import taken_over
from ostinato.planner.order_model import OrderModel

__all__ = ["Tidied", "tidied"]


@dataclass(frozen=True, slots=True)
class Tidied:
    """A model with late and early steps in their places, numbered in that order; `program` is each step's number in the program.

    `late` marks the late steps. `core` is None for late and early steps; for the others it lists the core steps that must be done before.
    """

    model: OrderModel
    program: tuple[int, ...]
    late: tuple[bool, ...]
    core: tuple[tuple[int, ...] | None, ...]


def tidied(model: OrderModel) -> Tidied:
    """The model in tidied order: the core as in the program, the rest in its places. Its peak is never above program order's."""
    steps = range(len(model.before))
    behind: list[list[int]] = [[] for _ in steps]
    for step, needed in enumerate(model.before):
        for other in needed:
            behind[other].append(step)
    made = [0] * len(model.before)  # bytes of each step's results
    kept = [0] * len(model.before)  # of those that somebody reads
    for storage, users in enumerate(model.users()):
        made[users[0]] += model.sizes[storage]
        kept[users[0]] += model.sizes[storage] if len(users) > 1 else 0
    adds = [  # at least: as if every operand died with the step
        made[step] + model.workspaces[step] - taken_over(model.takes[step], model.touches[step], model.sizes)
        for step in steps
    ]
    late = [
        bool(kept[step] and behind[step])
        and all(model.maker[storage] == step for storage in model.touches[step])
        and made[step] - kept[step] + model.workspaces[step] <= min(adds[other] for other in behind[step])
        for step in steps
    ]
    early = [
        not made[step]
        and not any(late[other] for other in model.before[step])
        and model.workspaces[step] <= min((model.workspaces[other] for other in model.before[step]), default=0)
        for step in steps
    ]
    aside = [one or other for one, other in zip(late, early, strict=True)]
    order = _placed(model, behind, late, early)
    place = {step: place for place, step in enumerate(order)}
    core: list[tuple[int, ...] | None] = []
    for step in order:
        needs = [place[other] for other in _through(model.before, aside, model.before[step]) if not aside[other]]
        core.append(None if aside[step] else tuple(sorted(needs)))
    return Tidied(model.reindexed(order), order, tuple(late[step] for step in order), tuple(core))


def _through(before: Sequence[Sequence[int]], aside: Sequence[bool], needed: Iterable[int]) -> set[int]:
    """These steps and what those of them that are set aside need, through further ones set aside."""
    found: set[int] = set()
    pending = list(needed)
    while pending:
        step = pending.pop()
        if step not in found:
            found.add(step)
            if aside[step]:
                pending += before[step]
    return found


def _placed(
    model: OrderModel, behind: Sequence[Sequence[int]], late: Sequence[bool], early: Sequence[bool]
) -> tuple[int, ...]:
    missing = [len(needed) for needed in model.before]
    order: list[int] = []
    placed = [False] * len(missing)
    turns = deque(step for step, number in enumerate(missing) if early[step] and not number)
    for step in range(len(missing)):
        if not (late[step] or early[step]):
            waited = _through(model.before, late, model.before[step])
            turns += sorted(other for other in waited if late[other] and not placed[other])
            turns.append(step)
        while turns:
            turn = turns.popleft()
            order.append(turn)
            placed[turn] = True
            for other in reversed(behind[turn]):
                missing[other] -= 1
                if early[other] and not missing[other]:
                    turns.appendleft(other)
    return tuple(order)
