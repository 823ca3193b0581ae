"""An operator order that needs fewer bytes than the program's.

    schedule = search_order(graph, ops, storages, calls, alignment=..., in_place=...)     None: there is none, or none was found

The steps fall into pieces that no order mixes (`order_pieces`), once those whose best place is known stand there (`order_tidy`). Only pieces whose peak is
above everything that cannot be avoided are touched, highest first: the rest stays as written, and where the program's peak is itself such a bound nothing is
searched at all. A piece is ordered exactly, or by beams where that is too much work (`order_piece_search`). Work is counted, not timed, so that the same
graph has the same order everywhere, and repeated layers are worked out once.

What falls here is the sum of bytes alive; whether the arena falls with it is for the placement to say, and `plan_entry` asks it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.ir.calls import NodeCall
from ostinato.ir.graph import Graph
from ostinato.ir.opdef import OpDef
from ostinato.planner.order import Scheduled, program_order
from ostinato.planner.order_model import OrderModel, order_model
from ostinato.planner.order_piece_search import Budget, Found, OrderLimits, best_order
from ostinato.planner.order_pieces import Piece, piece_of, segments_of
from ostinato.planner.order_tidy import tidied
from ostinato.planner.storage import Storages

__all__ = ["best_steps", "search_order"]

DEFAULT_LIMITS = OrderLimits()


def search_order(
    graph: Graph,
    ops: Mapping[str, OpDef],
    storages: Storages,
    calls: Mapping[str, NodeCall],
    *,
    alignment: int,
    in_place: bool,
    limits: OrderLimits = DEFAULT_LIMITS,
) -> tuple[Scheduled, ...] | None:
    """The nodes that run, on one lane, in an order with fewer bytes alive at its peak than program order has, or None."""
    steps = best_steps(order_model(graph, ops, storages, calls, alignment=alignment, in_place=in_place), limits)
    program = program_order(graph, ops)
    return None if steps is None else tuple(program[step] for step in steps)


def best_steps(model: OrderModel, limits: OrderLimits = DEFAULT_LIMITS) -> tuple[int, ...] | None:
    """All steps in an order with a lower peak than program order, or None."""
    highest = model.peak(range(len(model.before)))
    if not highest:
        return None
    tidy = tidied(model)
    during, between = tidy.model.profile(range(len(model.before)))
    segments = segments_of(tidy, between, limits.piece)
    peaks = {segment: max(during[slice(*segment)]) for segment in segments}
    inside = {step for segment in segments for step in range(*segment)}
    floor = max((load for step, load in enumerate(during) if step not in inside), default=0)
    users = tidy.model.users()
    pieces: dict[tuple[int, int], Piece] = {}
    bounds: dict[Piece, int] = {}
    for segment in sorted(segments, key=lambda item: -peaks[item]):
        if peaks[segment] <= floor or floor >= highest:
            break
        piece = pieces[segment] = piece_of(tidy.model, tidy.late, users, *segment)
        if piece not in bounds:
            bounds[piece] = piece.bound()
        floor = max(floor, between[segment[0]] + bounds[piece])
    order = list(range(len(model.before)))
    known: dict[tuple[Piece, int, int], Found] = {}
    budget = Budget(limits.total)
    for segment, piece in pieces.items():
        if peaks[segment] <= floor or floor >= highest:
            break
        live = between[segment[0]]
        key = (piece, floor - live, peaks[segment] - live)
        if key not in known:
            known[key] = best_order(*key, limits, budget)
        found = known[key]
        if found.order is not None:
            order[slice(*segment)] = [segment[0] + step for step in found.order]
        floor = max(floor, live + found.peak)
    return tuple(tidy.program[step] for step in order) if floor < highest else None
