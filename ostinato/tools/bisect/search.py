"""`bisect`: two sides of a program that do not agree, and what makes the difference.

In this order, and as far as there is something to find: a side that is refused or does not repeat itself; memory that moved and numbers of the host that
changed behind a loaded plan; the first node at which the sides part, and the first one that is not what its operands make it; then, by leaving out halves of
what was decided, the captured step, the two tenants of the same bytes, the result in an operand's bytes, the early start, the implementation row, and the
pass. What is found is reduced to the nodes that show it alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.artifact import Weights
from ostinato.frontend.model import Model
from ostinato.ir.checks import instance, integer, several
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.files import named_path
from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.saving.read import is_artifact
from ostinato.stages import open_model
from ostinato.tools.bisect.culprits import Culprits
from ostinato.tools.bisect.engine import Trials
from ostinato.tools.bisect.reduce import reduced
from ostinato.tools.bisect.report import BisectReport, Culprit
from ostinato.tools.bisect.steps import walked
from ostinato.tools.bisect.subject import Outputs, Subject, compared, contract_of, outputs_of
from ostinato.tools.compare.asked import packed
from ostinato.tools.compare.functions import answers_of, named_function
from ostinato.tools.compare.judgement import checked_tolerance
from ostinato.tools.compare.probe import Probe
from ostinato.tools.compare.sides import (
    DEFAULT_SIDE,
    Side,
    Sides,
    how_saved,
    load_artifact,
    parse_side,
    refuse_settings,
)
from ostinato.tools.compare.workload import (
    DEFAULT_TOKENS,
    TEXTS,
    Case,
    WorkStep,
    longest_sequence,
    make_cases,
    room_of,
    steps_of,
)
from ostinato.tools.repro.bundle import need_new_folder, write_bundle

__all__ = ["bisect"]

_Target = Model | str | os.PathLike[str] | Executable


def bisect(
    target: _Target,
    left: Side | str | Executable | Callable[..., Any] = "eager",
    right: Side | str | Executable = "auto",
    *,
    base: Side = DEFAULT_SIDE,
    buckets: Mapping[str, Sequence[int]] | None = None,
    context: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    runs: int = 3,
    tolerance: float | None = None,
    work: Sequence[WorkStep] | None = None,
    output: str | os.PathLike[str] | None = None,
    extension: str = "",
    weights: Weights | None = None,
    trust: bool = False,
    recompile: bool = False,
    report_progress: Callable[[str], None] | None = None,
) -> BisectReport:
    """Says what makes `right` differ from `left`, which is taken to be right, and writes what reproduces it.

    The sides are modes, settings or artifacts as `ost.compare` takes them, on top of `base`, or executables, of which the right one itself is looked at: its
    state is reset. The left one may be a function of yours as `ost.compare` takes it. `buckets`, `context`, `tokens` (of the longest sequence) and `seed`
    make the work, or `work` is it. Each side runs `runs` times, to see whether it repeats itself. `tolerance` replaces that of the precision, in standard
    deviations of the outputs, for sides that need not give equal bits. `output` is a folder for the repro bundle, which must not exist; `extension` names the
    function that adds your rows and operators ("module:function"), for who runs the bundle. `weights`, `trust` and `recompile` are for artifacts, as
    `load_executable` has them.

    Raises `ConfigError` for sides, sizes and places that cannot be used, and what compiling and the left side raise.
    """
    begin = time.perf_counter()
    told = report_progress or (lambda text: None)
    runs, seed = integer(runs, "runs", low=2), integer(seed, "seed", low=0)
    length = None if tokens is None else integer(tokens, "tokens", low=1)
    checked = checked_tolerance(tolerance)
    base = instance(base, Side, "base") or DEFAULT_SIDE
    if output is not None:
        need_new_folder(named_path(output))
    saved = how_saved(target, (left, right), weights=weights, trust=trust, recompile=recompile)
    told("compiling")
    name = "executable" if isinstance(target, Executable) else _name(target)
    if isinstance(target, Executable) or is_artifact(name):
        refuse_settings(base, buckets, context, opened=isinstance(target, Executable))
        target = target if isinstance(target, Executable) else load_artifact(name, base, saved)
        base = DEFAULT_SIDE
    opening = _Opening(target, base, buckets, context, length, saved)
    b = opening.subject(right, "right")
    steps, case = (_given(work), None) if work is not None else _work(b.executable, length, seed)
    a = opening.left(left, b, steps, case)
    _require_alike(a, b, steps)
    search = _Search(a, b, steps, runs, checked, told)
    found = search.run()
    facts: dict[str, Any] = {"model": name, "left": a.name, "right": b.name, "seed": seed, **found}
    if facts.get("culprits"):
        facts |= search.reduce(facts["culprits"], output, name, seed, extension)
    elif output is not None and not facts["ok"]:
        facts["unreduced"] = "there is no culprit that a bundle could show"
    trials = search.trials
    return BisectReport(trials=trials.count, refused=trials.refused, seconds=time.perf_counter() - begin, **facts)


class _Search:
    """One bisection."""

    def __init__(
        self,
        left: Subject,
        right: Subject,
        work: tuple[WorkStep, ...],
        runs: int,
        tolerance: float | None,
        told: Callable[[str], None],
    ) -> None:
        self.left, self.right, self.work, self.runs, self.told = left, right, work, runs, told
        self.looked_at = right
        self.trials = Trials(told)
        self.contract = contract_of(left, right, tolerance)
        self.limit = 0.0
        self.first: tuple[int, str] | None = None
        self.good: Outputs = ()

    def run(self) -> dict[str, Any]:
        """The facts of the report."""
        self.told(f"running {self.left.name}")
        self.good = self.left.outputs(self.work)
        culprits = Culprits(self.left, self.right, self.work, self.good, self.contract, self.trials, self.told)
        self.told(f"running {self.right.name}")
        try:
            found = outputs_of(self.right.executable, self.work)
        except OstinatoError as error:
            self.limit = self.contract.limit(self.good, self.good)
            named = culprits.refused(error)
            return {"absolute": self.limit, "ok": False, "verdict": "error", "culprits": named}
        self.limit = self.contract.limit(self.good, found)
        facts: dict[str, Any] = {"absolute": self.limit}
        for subject, outputs in ((self.right, found), (self.left, self.good)):
            changed = self._unrepeated(subject, outputs)
            if changed is not None:
                self.looked_at, named = subject, culprits.unrepeated(subject)
                return {**facts, **changed, "ok": False, "verdict": "not repeated", "culprits": named}
        different = compared(self.work, self.good, found, self.limit)
        if different is None:
            return {**facts, "ok": True, "verdict": "agree"}
        run, worst = different
        facts |= {"ok": False, "verdict": "mismatch", "worst": worst, "run": run, "entry": self.work[run].entry}
        named, self.first = culprits.found()
        if self.first is not None:
            facts |= {"run": self.first[0], "entry": self.work[self.first[0]].entry, "first_step": self.first[1]}
        return {**facts, "culprits": named}

    def _unrepeated(self, subject: Subject, outputs: Outputs) -> dict[str, Any] | None:
        if subject.mode == "reference" or subject.answers is not None:
            return None
        for _ in range(self.runs - 1):
            again = compared(self.work, outputs, outputs_of(subject.executable, self.work), 0.0)
            if again is not None:
                return {"run": again[0], "worst": again[1], "entry": self.work[again[0]].entry}
        return None

    def reduce(
        self,
        culprits: Sequence[Culprit],
        output: str | os.PathLike[str] | None,
        model: str,
        seed: int,
        extension: str,
    ) -> dict[str, Any]:
        """What the report says of the reduction of the first culprit that can be reduced."""
        reasons: list[str] = []
        for culprit in culprits:
            if not culprit.entry or not culprit.node:
                reasons.append(f"a fault of kind {culprit.kind} has no node that could be cut out")
                continue
            try:
                values, saved = self._values(culprit)
                made = reduced(
                    self.looked_at,
                    culprit,
                    values,
                    saved=saved,
                    limit=self.limit,
                    seed=seed,
                    model=model,
                    extension=extension,
                    told=self.told,
                )
            except OstinatoError as error:
                reasons.append(error.message)
                continue
            nodes = made.bundle.about.nodes
            if output is None:
                return {"reduced": nodes}
            write_bundle(made.bundle, Path(output), made.plan)
            needed = extension if made.bundle.about.needs.any else ""
            return {"reduced": nodes, "bundle": str(output), "extension": needed}
        return {"unreduced": "; ".join(dict.fromkeys(reasons))}

    def _values(self, culprit: Culprit) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """All values of the run in which the culprit's entry goes wrong: as the side that is looked at made them, and those of the left."""
        number = 0 if self.first is None else self.first[0]
        if self.work[number].entry != culprit.entry:
            number = next(index for index, step in enumerate(self.work) if step.entry == culprit.entry)
        seen = walked(self.looked_at.executable, self.work[: number + 1], whole=True)
        mode = "planned" if self.left.mode == "captured" else self.left.mode
        probe = Probe(self.left.executable, mode)
        saved: dict[str, Array] = {}
        for step in self.work[: number + 1]:
            saved = probe.run(step.entry, step.inputs)
        return seen.values, {name: np.ascontiguousarray(array) for name, array in saved.items()}


class _Opening:
    """Opens sides of a target: the same `Sides` for both, made when the first is asked for, since two executables need none."""

    def __init__(
        self,
        target: _Target,
        base: Side,
        buckets: Mapping[str, Sequence[int]] | None,
        context: int | None,
        tokens: int | None,
        saved: Mapping[str, Any],
    ) -> None:
        self._target, self._base, self._buckets, self._context = target, base, buckets, context
        self._length, self._saved = tokens, saved
        self._sides: Sides | None = None

    def subject(self, given: Any, what: str) -> Subject:
        """A side that is a program. Raises `ConfigError` for anything else."""
        if isinstance(given, Executable):
            return Subject(f"{what} ({given.mode})", given)
        side = parse_side(given, self._base) if isinstance(given, str) else given
        if callable(side) or (isinstance(side, Side) and side.function is not None):
            hint = "give it as the left side"
            raise ConfigError(f"{what} is a function, in which nothing can be looked for", hint=hint)
        if not isinstance(side, Side):
            raise ConfigError(f"{what} is {given!r}", hint='give a side, like "eager" or "levels.linear=readable"')
        return Subject(side.name, self._opened().open(side), side, self._opened())

    def left(self, given: Any, right: Subject, work: Sequence[WorkStep], case: Case | None) -> Subject:
        """The side that is right, which may be a function. Raises `ConfigError` for one whose work was given, which has no token ids for it."""
        side = parse_side(given, self._base) if isinstance(given, str) else given
        function = side.function if isinstance(side, Side) else None if isinstance(side, Executable) else side
        if function is None:
            return self.subject(given, "left")
        if case is None:
            raise ConfigError("left is a function, which is asked for token ids", hint="leave work= out")
        called = named_function(function)
        name = side.name if isinstance(side, Side) else getattr(called, "__name__", "left")
        wanted = next(iter(right.program.plan.entries.values()))
        answers = []
        for step in work:
            width = next(item.type.static_shape[-1] for item in wanted.outputs if item.name == step.output)
            answers.append(answers_of(called, case, step.places, width, name))
        return Subject(name, right.executable.clone("reference"), answers=tuple(answers))

    def _opened(self) -> Sides:
        if self._sides is None:
            if isinstance(self._target, Executable):
                self._sides = Sides(self._target, saved=self._saved)
            else:
                model = open_model(self._target)
                encoder = model.family.encoder is not None
                length = self._length or min(DEFAULT_TOKENS, model.config.context_limit)
                shapes, context = self._buckets, self._context
                if shapes is None:
                    shapes = {"B": [TEXTS if encoder else 1], "T": [length]}
                    context = context if encoder or context is not None else length
                self._sides = Sides(model, buckets=shapes, context=context, saved=self._saved)
        return self._sides


def _work(executable: Executable, tokens: int | None, seed: int) -> tuple[tuple[WorkStep, ...], Case]:
    run = packed(executable)
    longest = min(DEFAULT_TOKENS, longest_sequence(run)) if tokens is None else tokens
    (case,) = make_cases(room_of(run), tokens=longest, seed=seed, edges=False)
    return steps_of(run, case), case


def _given(work: Sequence[WorkStep]) -> tuple[WorkStep, ...]:
    """Work of the caller's. Raises `ConfigError` for what is none, and for work of which nothing is looked at: any sides would agree."""
    steps = several(work, WorkStep, "WorkStep")
    if not sum(integer(step.valid_rows, "valid_rows", low=0) for step in steps):
        raise ConfigError("work has no rows that are looked at", hint="give steps with valid_rows of 1 or more")
    return steps


def _require_alike(left: Subject, right: Subject, work: Sequence[WorkStep]) -> None:
    """Raises `ConfigError` where the left side cannot be given the work, which is that of the right one."""
    for name in dict.fromkeys(step.entry for step in work):
        given, wanted = (
            None if plan is None else {item.name: (item.type.static_shape, item.type.dtype) for item in plan.inputs}
            for plan in (side.program.plan.entries.get(name) for side in (left, right))
        )
        if wanted is not None and given != wanted:
            raise ConfigError(
                f"{left.name} has no entry {name} with the inputs that it has in {right.name}",
                hint="give sides of the same buckets, context and logits",
            )


def _name(target: Model | str | os.PathLike[str]) -> str:
    if isinstance(target, Model):
        return str(target.checkpoint.path)
    if not isinstance(target, str | os.PathLike):
        raise ConfigError(
            f"{target!r} of type {type(target).__name__} has no sides",
            hint="give a model, its path or name, an artifact or an executable; of an LLM its .executable",
        )
    return os.fspath(target)
