"""`compare`: modes of one program side by side, with verdicts that follow from contracts and not from taste.

Eager, planned, captured, guarded and "no-reuse" (planned, but no byte serves twice) run the same decisions and must be bit-equal. The reference is the oracle
in numpy, whose sums run in another order: every pair with it must agree within a tolerance that scales with the spread of the outputs. Each mode but the
reference, which runs once, must repeat itself exactly. With `poison` all memory that a run may not depend on (arena, outputs, unused cache) is filled with NaN
before each replay. Where a pair fails, the program is run again with every node observed, and the first node that differs is named. Of an encoder the
normalised embeddings are compared.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from ostinato.compiler import open_model
from ostinato.frontend.model import Model
from ostinato.ir.checks import instance, integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from ostinato.passes.policy import Policy
from ostinato.runtime.device import Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.tools.compare.probe import Probe, bits_equal, first_difference
from ostinato.tools.compare.variants import VARIANTS, in_variant
from ostinato.tools.compare.workload import TEXTS, WorkStep, longest_sequence, make_workload
from ostinato.tools.console import milliseconds, table
from ostinato.tools.programs import compile_model, precision_of
from ostinato.tools.schemas import CompareReport, Mismatch, ModeTiming, PairVerdict, Verdict

__all__ = ["TOLERANCE", "compare", "show_comparison"]

TOLERANCE = {"f32": 2e-4, "bf16": 1e-1}
"""Largest difference from the reference, in standard deviations of the reference's outputs.

f32 sums of up to a few thousand terms in two orders, over tens of layers, stay an order of magnitude below; a wrong mask, position or weight
row is off by whole deviations. bf16 keeps 8 bits at every edge, and one rounding that falls the other way is carried on through all later layers.
"""
DEFAULT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class _ModeRun:
    """What a mode gave: outputs by step (valid rows only), whether each replay repeated them, and the time of each replay."""

    outputs: tuple[Array, ...]
    repeats: bool
    seconds: tuple[float, ...]


def compare(
    target: Model | str | os.PathLike[str] | Executable,
    modes: Sequence[str] = ("reference", "eager", "planned"),
    *,
    replays: int = 3,
    poison: bool = True,
    seed: int = 0,
    tokens: int | None = None,
    device: str | Device = "auto",
    precision: str = "auto",
    policy: Policy | str = "balanced",
    memory_limit: int | str | None = None,
    threads: int = 0,
    isa: str = "auto",
    report_progress: Callable[[str], None] | None = None,
) -> CompareReport:
    """Runs `modes` of a model, or of an executable over packed entries, on the same random token ids and says how they agree.

    Besides the modes of an executable there is "no-reuse": planned, with bytes of their own for all activations.
    `tokens` is the length of the longest sequence (16, or less where the context is shorter). `device`, `precision`, `policy`, `memory_limit`, `threads` and
    `isa` are for a model; an executable has its own. The report is `ok` when every pair keeps its contract and every mode repeated itself bit for bit `replays`
    times.

    Raises `ConfigError` for unknown modes, sizes, a seed or a target that cannot be used, and what `compile` raises for a model.
    """
    modes, replays, seed = _modes(modes), integer(replays, "replays", low=1), integer(seed, "seed", low=0)
    filled = instance(poison, bool, "poison")
    poison = True if filled is None else filled
    tokens = None if tokens is None else integer(tokens, "tokens", low=1)
    if isinstance(target, Executable):
        executable, name = _packed(target), "executable"
    elif not isinstance(target, Model | str | os.PathLike):
        raise ConfigError(
            f"{target!r} of type {type(target).__name__} cannot be compared",
            hint="give a model, its path or name, or an executable; of an LLM its .executable",
        )
    else:
        length = DEFAULT_TOKENS if tokens is None else tokens
        settings = {
            "device": device,
            "precision": precision,
            "policy": policy,
            "memory_limit": memory_limit,
            "threads": threads,
            "isa": isa,
        }
        executable = _compiled(target, length, settings)
        name = str(target.checkpoint.path) if isinstance(target, Model) else str(target)
    longest = min(DEFAULT_TOKENS, longest_sequence(executable)) if tokens is None else tokens
    work = make_workload(executable, tokens=longest, seed=seed)
    runs: dict[str, _ModeRun] = {}
    for mode in modes:
        if report_progress is not None:
            report_progress(mode)
        runs[mode] = _run_mode(executable, mode, work, 1 if mode == "reference" else replays, poison)
    pairs = [
        _judge(executable, work, left, right, runs) for index, left in enumerate(modes) for right in modes[index + 1 :]
    ]
    timings = tuple(
        ModeTiming(mode=mode, seconds=statistics.median(run.seconds), runs=len(run.seconds), repeats=run.repeats)
        for mode, run in runs.items()
    )
    return CompareReport(
        ok=all(pair.ok for pair in pairs) and all(timing.repeats for timing in timings),
        model=name,
        modes=tuple(modes),
        steps=len(work),
        replays=replays,
        poison=poison,
        seed=seed,
        pairs=tuple(pairs),
        timings=timings,
    )


def show_comparison(report: CompareReport, console: Console) -> None:
    """The report for people."""
    rows = []
    for pair in report.pairs:
        worst = "" if pair.worst is None else f"{pair.worst.difference:.3g}"
        limit = "0" if pair.tolerance == 0 else f"{pair.tolerance:.3g}"
        rows.append((f"{pair.left} / {pair.right}", pair.verdict, worst, limit))
    if rows:
        console.print(
            table(f"{report.model}, {report.steps} steps", ("modes", "verdict", "largest difference", "limit"), rows)
        )
    broken = [line for line, pair in zip(report.pair_lines(), report.pairs, strict=True) if not pair.ok]
    for line in broken:
        console.print(line, style="red", markup=False)
    times = ((t.mode, milliseconds(t.seconds), str(t.runs), "yes" if t.repeats else "NO") for t in report.timings)
    console.print(table("time of all steps", ("mode", "median", "replays", "repeats bit for bit"), times))
    console.print("[bold green]every contract holds[/]" if report.ok else "[bold red]a contract is broken[/]")


def _modes(modes: object) -> tuple[str, ...]:
    """The modes as a tuple; raises `ConfigError` for none, for one twice and for unknown ones."""
    hint = f"give a list with some of {', '.join(VARIANTS)}"
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise ConfigError(f"modes is {modes!r}, expected a list of modes", hint=hint)
    listed = tuple(modes)
    if unknown := [mode for mode in listed if mode not in VARIANTS]:
        raise ConfigError(f"modes {unknown} cannot be compared here", hint=hint)
    if not listed:
        raise ConfigError("no mode is named", hint=hint)
    if len(set(listed)) != len(listed):
        raise ConfigError(f"modes {list(listed)} name one twice", hint="name each mode once")
    return listed


def _compiled(
    target: Model | str | os.PathLike[str], length: int, settings: Mapping[str, Any]
) -> TextExecutable | EmbedExecutable:
    """A model for one sequence of `length` tokens, or an encoder for texts of that many in all."""
    model = open_model(target)
    batch, context = (1, length) if model.family.encoder is None else (TEXTS, None)
    return compile_model(model, context=context, buckets={"B": [batch], "T": [length]}, mode="planned", **settings)


def _packed(executable: Executable) -> TextExecutable | EmbedExecutable:
    """The executable as one over packed entries, which is what can be given work without knowing the model; raises `ConfigError` for another."""
    if isinstance(executable, TextExecutable | EmbedExecutable):
        return executable
    kinds: set[type[TextExecutable | EmbedExecutable]] = set()
    for name, plan in executable.entries.items():
        inputs = {binding.name for binding in plan.inputs}
        if "row_of_token" not in inputs:
            raise ConfigError(
                "the entry is not packed, and only such entries can be compared",
                node=name,
                hint='trace the entry "step" (of an encoder "embed"), or give the model',
            )
        kinds.add(TextExecutable if "block_table" in inputs else EmbedExecutable)
    (kind,) = kinds
    return kind(executable.program, executable.device, executable.regions.shared, mode=executable.mode)


def _run_mode(executable: Executable, mode: str, work: Sequence[WorkStep], replays: int, poison: bool) -> _ModeRun:
    clone = in_variant(executable, mode)
    _outputs(clone, work[0])  # what is built on the first run is not timed
    first: tuple[Array, ...] = ()
    repeats, seconds = True, []
    for replay in range(replays):
        clone.reset_state()
        if poison:
            _poison(clone)
        begin = time.perf_counter()
        found = tuple(_outputs(clone, step) for step in work)
        seconds.append(time.perf_counter() - begin)
        if replay == 0:
            first = found
        repeats = repeats and all(bits_equal(a, b) for a, b in zip(first, found, strict=True))
    return _ModeRun(first, repeats, tuple(seconds))


def _outputs(executable: Executable, step: WorkStep) -> Array:
    return executable.run(step.entry, step.inputs, (step.output,))[step.output][: step.valid_rows]


def _poison(executable: Executable) -> None:
    """Fills with NaN (every byte 0xFF) what a run may not depend on: the arena, old inputs and outputs, and cache that it has not written itself. The state of
    training (parameters, moments) is no cache: a step reads all of it."""
    regions = executable.regions
    training = bool(executable.program.plan.parameters)
    for buffer in (regions.arena, regions.io, *(() if training else (regions.state,))):
        buffer.fill(0xFF)


def _judge(
    executable: Executable, work: Sequence[WorkStep], left: str, right: str, runs: dict[str, _ModeRun]
) -> PairVerdict:
    a, b = runs[left].outputs, runs[right].outputs
    exact = "reference" not in (left, right)
    oracle = a if left == "reference" else b
    relative = 0.0 if exact else TOLERANCE[precision_of(executable.program)]
    tolerance = 0.0 if exact else relative * float(np.std(np.concatenate([values.ravel() for values in oracle])))
    worst = _worst(work, a, b)
    verdict: Verdict
    if all(bits_equal(x, y) for x, y in zip(a, b, strict=True)):
        verdict, worst = "bit-equal", None
    elif worst is not None and worst.difference <= tolerance:
        verdict = "within contract"
    else:
        verdict = "mismatch"
    pair = PairVerdict(
        left=left,
        right=right,
        required="bit-equal" if exact else "within contract",
        verdict=verdict,
        tolerance=tolerance,
        worst=worst,
        first_divergent_node=None,
    )
    if pair.ok:
        return pair
    return pair.model_copy(update={"first_divergent_node": _first_divergent(executable, work, left, right, relative)})


def _worst(work: Sequence[WorkStep], left: Sequence[Array], right: Sequence[Array]) -> Mismatch | None:
    """The largest difference over all steps; a NaN on one side counts as infinite."""
    found: Mismatch | None = None
    for step, (a, b) in enumerate(zip(left, right, strict=True)):
        if not a.size:
            continue
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
        difference = np.where(np.isnan(difference), np.where(np.isnan(a) & np.isnan(b), 0.0, np.inf), difference)
        place = np.unravel_index(int(np.argmax(difference)), difference.shape)
        if found is None or difference[place] > found.difference:
            index = tuple(int(i) for i in place)
            found = Mismatch(
                output=work[step].output,
                step=step,
                index=index,
                left=float(a[place]),
                right=float(b[place]),
                difference=float(difference[place]),
            )
    return found


def _first_divergent(
    executable: Executable, work: Sequence[WorkStep], left: str, right: str, tolerance: float
) -> str | None:
    """Runs both modes again with every node observed; None when the difference does not show in a node's result.

    Nothing can be seen within a replay: the same steps are observed one by one.
    """
    probes = [Probe(executable, "planned" if mode == "captured" else mode) for mode in (left, right)]
    for number, step in enumerate(work):
        seen = [probe.run(step.entry, step.inputs) for probe in probes]
        graph = executable.program.graphs[step.entry]
        counts = {axis: int(step.inputs[name][0]) for axis, name in graph.extents}
        found = first_difference(graph, seen[0], seen[1], counts, tolerance)
        if found is not None:
            return f"{found} (step {number}, {step.entry})"
    return None
