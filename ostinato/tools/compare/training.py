"""A training step's modes beside each other: the loss, gradients, parameters and moments of some steps on random batches.

Modes of one step must be bit-equal in all of them. The reference sums in another order: its loss, gradients and moments must agree within the tolerance of the
precision, in standard deviations of each tensor, and its parameters to two learning rates a step more, since an optimizer that divides a gradient by its size
turns the sign of one that is nearly zero into a whole step. Everything else (replays, poison, causes, operators) is as for inference.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ostinato.ir.errors import ConfigError
from ostinato.ir.example import IGNORED
from ostinato.ir.ops.optimizer import FACTOR_NAMES
from ostinato.ir.training import COUNTER, FACTORS, LOSS, TRAIN
from ostinato.ir.types import Array
from ostinato.runtime.training.checks import index_limits
from ostinato.runtime.training.executable import TrainExecutable
from ostinato.tools.compare.asked import sides_of
from ostinato.tools.compare.causes import Causes
from ostinato.tools.compare.differences import bits_equal, difference_of, place_of_largest, root_mean_square
from ostinato.tools.compare.judgement import tolerance_of
from ostinato.tools.compare.report import CompareReport, Mismatch, PairVerdict, Verdict
from ostinato.tools.compare.runs import Answers, Counted, SideRun, Unrepeated, counting, counts_of, poison_memory
from ostinato.tools.compare.sides import DEFAULT_SIDE, Side, Sides
from ostinato.tools.compare.summary import holds, programs_of, side_report, timing_of
from ostinato.tools.compare.verdicts import Ran, identity_of, is_exact
from ostinato.tools.compare.workload import WorkStep
from ostinato.tools.programs import precision_of

__all__ = ["STEPS", "compare_training"]

STEPS = 2
"""Training steps of a replay: the second one reads what the first has written."""
_BATCH = ("input_ids", "target")


@dataclass(frozen=True, slots=True)
class _Result:
    """What a side left: every tensor by its name, and the step (from 0) that it is of; the learning rates of all steps together."""

    tensors: Mapping[str, Array]
    steps: Mapping[str, int]
    learned: float

    @property
    def digest(self) -> str:
        found = hashlib.sha256()
        for name, values in self.tensors.items():
            found.update(f"{name} {values.dtype} {values.shape}".encode())
            found.update(np.ascontiguousarray(values).tobytes())
        return found.hexdigest()


def compare_training(
    step: TrainExecutable,
    modes: Sequence[Any],
    *,
    replays: int,
    poison: bool,
    operators: bool,
    seed: int,
    tolerance: float | None,
    said: Callable[[str], None],
) -> CompareReport:
    """Runs the modes of a training step, each from the parameters of the checkpoint, and says how they agree. The step itself is left as it is.

    Raises `ConfigError` for sides that are no modes, and for a step that takes other inputs than token ids and targets.
    """
    asked = sides_of(modes, DEFAULT_SIDE)
    if others := [side.name for side in asked if not side.compiled]:
        raise ConfigError(f"{others[0]} is no mode of a training step", hint="compare modes of the step")
    sides, work = Sides(step), _batches(step, seed)
    ran: list[Ran] = []
    results: list[_Result] = []
    for side in asked:
        said(f"running {side.name}")
        made, result = _run(sides, side, work, 1 if side.mode == "reference" else replays, poison)
        ran.append(made)
        results.append(result)
    causes = Causes(sides, lambda executable: list(work), poison, tolerance, said)
    pairs = []
    for (left, mine), (right, theirs) in combinations(zip(ran, results, strict=True), 2):
        pair = _judge(left, right, mine, theirs, tolerance)
        if not pair.ok and pair.worst is not None:
            pair = causes.divergence(pair, left, right, pair.worst.step + 1)
        pairs.append(pair)
    for item in ran:
        if item.run.unrepeated is not None:
            causes.unrepeatable(item, replays, item.run.unrepeated.step + 1)
    tables = tuple(causes.table(item) for item in programs_of(ran)) if operators else ()
    shown = tuple(
        side_report(item, ran, result.digest, _apart(item)) for item, result in zip(ran, results, strict=True)
    )
    return CompareReport(
        ok=holds(pairs, shown, causes.found),
        model="training step",
        modes=tuple(side.name for side in asked),
        steps=STEPS,
        replays=replays,
        poison=poison,
        seed=seed,
        pairs=tuple(pairs),
        timings=tuple(map(timing_of, ran)),
        cases=("random batches",),
        sides=shown,
        causes=tuple(causes.found),
        non_finite=tuple(causes.non_finite),
        addresses=tuple(causes.addresses),
        operators=tables,
    )


def _batches(step: TrainExecutable, seed: int) -> tuple[WorkStep, ...]:
    """The inputs of each step: ids and targets of chance, some of which are not learned, beside those that stand."""
    types = {binding.name: binding.type for binding in step.plan.inputs}
    standing = {name: np.asarray(value) for name, value in step.own_options["standing"].items()}
    if unknown := sorted(set(types) - {*_BATCH, COUNTER, *standing}):
        raise ConfigError(
            f"the step takes {', '.join(unknown)}, for which there are no random values", hint="keep_input() them first"
        )
    limits = index_limits(step.program.graphs[TRAIN]).rows
    rng = np.random.default_rng(seed)
    steps = []
    for number in range(1, STEPS + 1):
        inputs = {name: standing[name] for name in types if name in standing}
        for name in _BATCH:
            shape = types[name].static_shape
            inputs[name] = rng.integers(0, limits[name], shape, dtype=np.int32)
        learned = rng.random(types["target"].static_shape) < 0.9
        learned.flat[0] = True
        inputs["target"] = np.where(learned, inputs["target"], np.int32(IGNORED)).astype(np.int32)
        if COUNTER in types:
            inputs[COUNTER] = np.full(types[COUNTER].static_shape, number, types[COUNTER].dtype.numpy)
        steps.append(WorkStep(TRAIN, inputs, LOSS, 1))
    return tuple(steps)


def _run(sides: Sides, side: Side, work: Sequence[WorkStep], replays: int, poison: bool) -> tuple[Ran, _Result]:
    executable = sides.open(side)
    assert isinstance(executable, TrainExecutable), "a clone of a training step is one"
    with counting(executable) as counted:
        return _counted_run(side, executable, counted, work, replays, poison)


def _counted_run(
    side: Side, executable: TrainExecutable, counted: Counted, work: Sequence[WorkStep], replays: int, poison: bool
) -> tuple[Ran, _Result]:
    begin = time.perf_counter()
    executable.prewarm()
    ready = time.perf_counter() - begin
    first: _Result | None = None
    unrepeated: Unrepeated | None = None
    seconds: list[float] = []
    for replay in range(replays):
        executable.reset_state()
        counted.reset()
        result, spent = _replayed(executable, work, poison)
        seconds.append(spent)
        first = first or result
        if unrepeated is None:
            unrepeated = _change(replay, first, result)
    assert first is not None, "there is at least one replay"
    losses = np.array([[float(first.tensors[f"{LOSS} of step {number + 1}"])] for number in range(STEPS)], np.float32)
    keys = tuple((0, number, 0) for number in range(STEPS))
    answers = Answers(keys, losses, tuple(range(STEPS)), LOSS)
    run = SideRun(answers, unrepeated, tuple(seconds), ready, counts_of(executable, work, counted))
    return Ran(side, executable, run, identity_of(executable), precision_of(executable.program)), first


def _replayed(executable: TrainExecutable, work: Sequence[WorkStep], poison: bool) -> tuple[_Result, float]:
    tensors: dict[str, Array] = {}
    steps: dict[str, int] = {}
    spent, learned = 0.0, 0.0
    for number, step in enumerate(work):
        if poison:
            poison_memory(executable, state=False)
        begin = time.perf_counter()
        found = executable.run(TRAIN, step.inputs)
        spent += time.perf_counter() - begin
        for name, values in found.items():
            tensors[f"{name} of step {number + 1}"] = values
            steps[f"{name} of step {number + 1}"] = number
        if FACTORS in found:
            learned += float(found[FACTORS].reshape(-1)[FACTOR_NAMES.index("learning_rate")])
    for name in executable.state_names:
        tensors[name], steps[name] = executable.read_state(name), STEPS - 1
    return _Result(tensors, steps, learned), spent


def _change(replay: int, first: _Result, found: _Result) -> Unrepeated | None:
    """The first tensor that a replay gave otherwise."""
    for name, values in first.tensors.items():
        if not bits_equal(values, found.tensors[name]):
            a, b = (np.asarray(array).astype(np.float64).reshape(-1) for array in (values, found.tensors[name]))
            at = int(np.argmax(difference_of(a, b)))
            step = first.steps[name]
            return Unrepeated(replay, (0, step, 0), step, at, float(a[at]), float(b[at]))
    return None


def _judge(left: Ran, right: Ran, mine: _Result, theirs: _Result, tolerance: float | None) -> PairVerdict:
    exact = is_exact(left, right)
    relative = tolerance_of((left.precision, right.precision), tolerance)
    assert isinstance(left.executable, TrainExecutable)
    learnable = set(left.executable.state_names)
    oracle = theirs if not right.native else mine
    worst: Mismatch | None = None
    excess, allowed = -1.0, 0.0
    equal = True
    for name, values in mine.tensors.items():
        other = theirs.tensors[name]
        if bits_equal(values, other):
            continue
        equal = False
        limit = 0.0 if exact else relative * root_mean_square(oracle.tensors[name])
        limit += 0.0 if exact or name not in learnable else 2 * oracle.learned
        difference = difference_of(values, other)
        index = place_of_largest(difference)
        far = float(difference[index])
        ratio = far / limit if limit else np.inf
        if ratio > excess:
            excess, allowed = ratio, limit
            worst = Mismatch(
                output=name,
                step=mine.steps[name],
                index=index,
                left=float(values[index]),
                right=float(other[index]),
                difference=far,
            )
    verdict: Verdict = "bit-equal" if equal else "within contract" if excess <= 1 else "mismatch"
    return PairVerdict(
        left=left.name,
        right=right.name,
        required="bit-equal" if exact else "within contract",
        verdict=verdict,
        tolerance=allowed,
        worst=worst,
        first_divergent_node=None,
        compared=len(mine.tensors),
    )


def _apart(ran: Ran) -> Mismatch | None:
    """The first value that a replay gave otherwise."""
    at = ran.run.unrepeated
    if at is None:
        return None
    difference = abs(at.first - at.found)
    return Mismatch(output=LOSS, step=at.step, index=(at.index,), left=at.first, right=at.found, difference=difference)
