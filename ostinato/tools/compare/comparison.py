"""`compare`: sides of one program, or programs of one model, beside each other, with verdicts that follow from contracts and not from taste.

Modes of an executable run the same decisions and must be bit-equal: eager, planned, captured, guarded and "no-reuse" (planned, but no byte serves twice); so
must programs that turn out to make the same decisions, such as one loaded from an artifact. Everything else, the reference (the oracle in numpy, whose sums run
in another order), other policies, levels, passes and devices, a function of the caller's own, must agree within a tolerance that scales with the spread of the
outputs. Each side must repeat itself exactly, in this process and in others.

Where a contract is broken the cause is looked for, in this order: the first node whose results differ between the two; a node that is wrong by itself, on the
same operands as its reference; the place where NaN began; and the node that does not repeat itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from ostinato.artifact import Weights
from ostinato.frontend.model import Model
from ostinato.ir.checks import boolean, integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Role
from ostinato.ir.step import StepKind
from ostinato.passes.policy import Policy
from ostinato.runtime.device import Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.training.executable import TrainExecutable
from ostinato.saving.read import is_artifact
from ostinato.stages import open_model
from ostinato.tools.compare.asked import packed, sides_of
from ostinato.tools.compare.causes import Causes, affordable
from ostinato.tools.compare.coverage import not_covered
from ostinato.tools.compare.functions import named_function
from ostinato.tools.compare.judgement import checked_tolerance
from ostinato.tools.compare.processes import Again, require_told, run_processes
from ostinato.tools.compare.report import (
    CompareReport,
    Mismatch,
    PairVerdict,
)
from ostinato.tools.compare.runs import SideRun, run_function, run_side
from ostinato.tools.compare.sides import DEFAULT_SIDE, Side, Sides, how_saved, load_artifact, refuse_settings
from ostinato.tools.compare.summary import holds, programs_of, side_report, timing_of
from ostinato.tools.compare.training import compare_training
from ostinato.tools.compare.verdicts import Ran, first_wrong_step, identity_of, judge, mismatch_at
from ostinato.tools.compare.workload import DEFAULT_TOKENS, TEXTS, Case, Room, WorkStep, make_cases, room_of, steps_of
from ostinato.tools.programs import precision_of

__all__ = ["compare"]

ROWS = 8
"""Sequences at once of a model that is compiled here."""


def compare(
    target: Model | str | os.PathLike[str] | Executable,
    modes: Sequence[Any] = ("reference", "eager", "planned"),
    *,
    replays: int = 3,
    processes: int = 0,
    poison: bool = True,
    edges: bool = True,
    operators: bool = True,
    seed: int = 0,
    tokens: int | None = None,
    tolerance: float | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    context: int | None = None,
    device: str | Device = "auto",
    precision: str = "auto",
    policy: Policy | str = "balanced",
    memory_limit: int | str | None = None,
    threads: int = 0,
    isa: str = "auto",
    weights: Weights | None = None,
    trust: bool = False,
    recompile: bool = False,
    report_progress: Callable[[str], None] | None = None,
) -> CompareReport:
    """Runs the sides `modes` of a model, an artifact, or an executable over packed entries on the same token ids, and says how they agree; of a training step
    its modes, over loss, gradients, parameters and moments (`compare_training`).

    A side is a mode of an executable, "no-reuse" (planned, with bytes of their own for all activations), settings like "policy=strict" or
    "levels.linear=reference" (`parse_side`), the path of an artifact, a `Side`, an executable, or a function of the caller's own: given one sequence, int32
    [T], it gives logits [T, vocabulary] or [vocabulary], of an encoder an embedding [dimension].

    `tokens` is the length of the longest sequence (16, or less where the context is shorter); with `edges` sequences of one token, of one id, of the extreme
    ids and of just a bucket's size come beside those of chance. `replays` of each side must give the same bits, and so must `processes` fresh processes that
    compile the model again. `poison` fills with NaN what a run may not depend on. `operators` makes the table of errors by operator. `tolerance` replaces that
    of the precision, in standard deviations of the outputs.

    `buckets`, `context`, `device`, `precision`, `policy`, `memory_limit`, `threads` and `isa` are for a model: what sides do not say otherwise. `weights`,
    `trust` and `recompile` are for artifacts, as `load_executable` has them. The report is `ok` when every pair keeps its contract, and every side repeats
    itself here and in other processes.

    Raises `ConfigError` for sides, sizes, a seed or a target that cannot be used, and what `compile` raises for a model.
    """
    replays, seed = integer(replays, "replays", low=1), integer(seed, "seed", low=0)
    processes = integer(processes, "processes", low=0)
    for what, value in (("poison", poison), ("edges", edges), ("operators", operators)):
        boolean(value, what)
    tokens = None if tokens is None else integer(tokens, "tokens", low=1)
    tolerance = checked_tolerance(tolerance)
    said = report_progress or _nobody
    saved = how_saved(target, modes, weights=weights, trust=trust, recompile=recompile)
    if isinstance(target, TrainExecutable):
        if processes:
            raise ConfigError("another process cannot have this training step", hint="leave processes=0")
        return compare_training(
            target,
            modes,
            replays=replays,
            poison=poison,
            operators=operators,
            seed=seed,
            tolerance=tolerance,
            said=said,
        )
    base = replace(
        DEFAULT_SIDE,
        device=device,
        precision=precision,
        policy=policy,
        memory_limit=memory_limit,
        threads=threads,
        isa=isa,
    )
    opened, name = _opened(target, base, saved)
    if isinstance(opened, Executable):
        refuse_settings(base, buckets, context, opened=isinstance(target, Executable))
        base = DEFAULT_SIDE
    if isinstance(target, Executable) and processes:
        raise ConfigError("another process cannot have this executable", hint="give the model or its path")
    asked = sides_of(modes, base)
    functions = {side.name: named_function(side.function) for side in asked if side.function is not None}
    sides = Sides(opened, saved=saved, **_shapes(opened, tokens, buckets, context))
    executables = {side.name: _executable(sides, side) for side in asked if side.function is None}
    if not executables:
        raise ConfigError("no side runs a program", hint="compare a function with a mode, such as planned")
    room = reduce(Room.shared, map(room_of, executables.values()))
    longest = min(DEFAULT_TOKENS, room.longest) if tokens is None else tokens
    cases = make_cases(room, tokens=longest, seed=seed, edges=edges)

    settings = {
        "tokens": longest,
        "seed": seed,
        "edges": edges,
        "poison": poison,
        "buckets": None if buckets is None else dict(buckets),
        "context": context,
        "device": device,
        "precision": precision,
        "policy": policy,
        "memory_limit": memory_limit,
        "threads": threads,
        "isa": isa,
        **saved,
    }
    native = [side for side in asked if side.function is None and executables[side.name].mode != "reference"]
    again = Again(target=_path(target), modes=tuple(side.name for side in native), settings=settings)
    if processes:
        require_told(again, native, base)

    ran = _run_all(asked, executables, functions, cases, replays, poison, said)

    def work(executable: Any) -> list[WorkStep]:
        return [step for case in cases for step in steps_of(executable, case)]

    causes = Causes(sides, work, poison, tolerance, said)
    pairs = _pairs(ran, cases, tolerance, causes)
    for item in ran:
        if item.run.unrepeated is not None:
            causes.unrepeatable(item, replays, item.run.unrepeated.step + 1)
        if item.native and not np.isfinite(item.run.answers.values).all():
            causes.examine(item, _first_not_finite(item) + 1)
    tables = tuple(causes.table(item) for item in programs_of(ran)) if operators else ()
    checked = run_processes(again, {item.name: item.run.answers.digest for item in ran}, processes, said)
    shown = tuple(side_report(item, ran, item.run.answers.digest, _apart(item, cases)) for item in ran)
    steps = max(len(set(item.run.answers.steps)) for item in ran)
    return CompareReport(
        ok=holds(pairs, shown, causes.found) and all(item.equal for item in checked),
        model=name,
        modes=tuple(side.name for side in asked),
        steps=steps,
        replays=replays,
        poison=poison,
        seed=seed,
        pairs=pairs,
        timings=tuple(map(timing_of, ran)),
        tokens=longest,
        cases=tuple(case.name for case in cases),
        not_covered=not_covered(ran, executables, cases, sides.model),
        sides=shown,
        causes=tuple(causes.found),
        non_finite=tuple(causes.non_finite),
        addresses=tuple(causes.addresses),
        operators=tables,
        processes=checked,
    )


def _path(target: object) -> str:
    """What another process can open."""
    return str(target.checkpoint.path if isinstance(target, Model) else target)


def _executable(sides: Sides, side: Side) -> TextExecutable | EmbedExecutable:
    """What runs for a side: an executable of the caller's itself, as it is, otherwise one that is opened for it."""
    if side.executable is not None and side.mode == "auto":
        return packed(side.executable)
    return packed(sides.open(side))


def _nobody(text: str) -> None:
    del text


def _opened(target: object, base: Side, saved: Mapping[str, Any]) -> tuple[Model | Executable, str]:
    """What is compared, and what the report calls it."""
    if isinstance(target, Executable):
        return packed(target), "executable"
    if not isinstance(target, Model | str | os.PathLike):
        raise ConfigError(
            f"{target!r} of type {type(target).__name__} cannot be compared",
            hint="give a model, its path or name, an artifact or an executable; of an LLM its .executable",
        )
    if not isinstance(target, Model) and is_artifact(target):
        return packed(load_artifact(target, base, saved)), str(target)
    model = open_model(target)
    return model, str(model.checkpoint.path) if isinstance(target, Model) else str(target)


def _shapes(
    target: Model | Executable, tokens: int | None, buckets: Mapping[str, Sequence[int]] | None, context: int | None
) -> dict[str, Any]:
    """Buckets and context that sides of a model are compiled for: a few rows of the longest sequence, and a bucket of a quarter of that."""
    if isinstance(target, Executable):
        return {}
    longest = DEFAULT_TOKENS if tokens is None else tokens
    longest = longest if tokens is not None else min(longest, target.config.context_limit)
    encoder = target.family.encoder is not None
    if buckets is None:
        buckets = {"B": [TEXTS if encoder else ROWS], "T": sorted({max(1, longest // 4), longest})}
        context = context if encoder or context is not None else longest
    return {"buckets": buckets, "context": context}


def _run_all(
    asked: Sequence[Side],
    executables: Mapping[str, TextExecutable | EmbedExecutable],
    functions: Mapping[str, Callable[..., Any]],
    cases: Sequence[Case],
    replays: int,
    poison: bool,
    said: Callable[[str], None],
) -> list[Ran]:
    """Every side on the work, the interpreter once, and what runs in numpy on as many cases as it can be given; functions last, since they are asked what the
    others were."""
    runs: dict[str, SideRun] = {}
    for name, executable in executables.items():
        said(f"running {name}")
        reference = executable.mode == "reference"
        few = _few(cases, affordable(executable)) if reference or _in_numpy(executable) else cases
        runs[name] = run_side(executable, few, replays=1 if reference else replays, poison=poison)
    like = max((run.answers for run in runs.values()), key=lambda answers: len(answers.keys))
    for name, function in functions.items():
        said(f"asking {name}")
        runs[name] = run_function(function, name, cases, like, replays=replays)
    return [_ran(side, executables.get(side.name), runs[side.name]) for side in asked]


def _ran(side: Side, executable: TextExecutable | EmbedExecutable | None, run: SideRun) -> Ran:
    if executable is None:
        return Ran(side, None, run, f"function {side.name}", "f32")
    return Ran(side, executable, run, identity_of(executable), precision_of(executable.program))


def _in_numpy(executable: Executable) -> bool:
    """Whether products with weights run in numpy, at the speed of the interpreter."""
    for name, plan in executable.entries.items():
        graph = executable.program.graphs[name]
        weights = {item.value.name for item in graph.with_role(Role.WEIGHT)}
        for step in plan.steps:
            node = graph.producers.get(step.node)
            if step.kind is StepKind.CALL and node is not None and weights & set(node.operands):
                return True
    return False


def _few(cases: Sequence[Case], steps: int) -> Sequence[Case]:
    """The first cases of so many steps, and one at least."""
    taken, count = 0, 0
    for case in cases:
        if taken and count + case.rounds > steps:
            break
        taken, count = taken + 1, count + case.rounds
    return cases[:taken]


def _pairs(
    ran: Sequence[Ran], cases: Sequence[Case], tolerance: float | None, causes: Causes
) -> tuple[PairVerdict, ...]:
    """The verdict of every pair. Sides that gave the same bits part from a third one at the same node, which is looked for once."""
    places: dict[frozenset[str], PairVerdict] = {}
    found = []
    for left, right in combinations(ran, 2):
        pair = judge(left, right, cases, tolerance)
        if not pair.ok:
            both = frozenset(f"{item.run.answers.digest} {item.identity}" for item in (left, right))
            if both not in places or pair.required == "bit-equal":
                until = first_wrong_step(left.run.answers, right.run.answers, pair.tolerance) + 1
                places[both] = causes.divergence(pair, left, right, until)
            same = places[both]
            pair = pair.model_copy(
                update={
                    name: getattr(same, name)
                    for name in ("first_divergent_node", "divergence", "left_value", "right_value", "note")
                }
            )
        found.append(pair)
    return tuple(found)


def _first_not_finite(ran: Ran) -> int:
    """The first step whose answer is not finite."""
    bad = np.flatnonzero(~np.isfinite(ran.run.answers.values).all(axis=1))
    return ran.run.answers.steps[int(bad[0])]


def _apart(ran: Ran, cases: Sequence[Case]) -> Mismatch | None:
    """The first value that a replay gave otherwise."""
    at = ran.run.unrepeated
    if at is None:
        return None
    return mismatch_at(ran.run.answers, at.key, at.index, at.first, at.found, abs(at.first - at.found), cases)
