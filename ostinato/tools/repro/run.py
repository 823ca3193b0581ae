"""Runs a repro bundle on a device of this machine, in the ways that it states, and says whether the outcome is the one that it states."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from ostinato.backend_hip.user_rows import user_rows
from ostinato.ir.errors import CapacityError, ConfigError
from ostinato.ir.files import named_path
from ostinato.ir.graph import Graph
from ostinato.ir.interp import interpret
from ostinato.ir.ops import OP, added_operators
from ostinato.ir.step import device_class
from ostinato.ir.types import Array
from ostinato.runtime.device import Device
from ostinato.stages import open_device
from ostinato.tools.compare.differences import bits_equal, difference_of, first_changed, place_of_largest
from ostinato.tools.repro.bundle import Bundle, read_bundle, require_code
from ostinato.tools.repro.cut import Cut
from ostinato.tools.repro.report import Needs, Outcome, ReproReport, Way, Worst

__all__ = ["judge", "needs_of", "repro", "run_way", "worst_of"]

Outputs = Mapping[str, Array]


def repro(
    path: str | os.PathLike[str] | Bundle, *, device: str | Device = "auto", own_rows: bool = False
) -> ReproReport:
    """Runs a bundle. `own_rows`: with the rows that this device chooses, not those that the bundle names.

    Raises what reading a bundle raises; `ConfigError` for operators, rows and modes that are not here (with what to do); what running raises.
    """
    bundle = path if isinstance(path, Bundle) else read_bundle(named_path(path))
    about, opened = bundle.about, open_device(device)
    cut = Cut(bundle.cut.graph, bundle.cut.values, {} if own_rows else bundle.cut.rows, bundle.cut.places)
    _require(about.needs, cut)
    made = about.environment
    if cut.rows and device_class(made.device) != device_class(opened.name):
        raise ConfigError(
            f"the rows of the bundle are those of {made.target}, and this is {opened.target.name}",
            hint="--own-rows (own_rows=True) takes the rows that this device chooses; --device runs it elsewhere",
        )
    outcome, worst = judge(
        cut, bundle.saved, opened, about.left, about.right, about.absolute, about.relative, about.runs
    )
    return ReproReport(
        ok=outcome == about.expected,
        path="" if isinstance(path, Bundle) else str(path),
        fault=about.fault,
        expected=about.expected,
        outcome=outcome,
        left=about.left,
        right=about.right,
        absolute=about.absolute,
        relative=about.relative,
        device=f"{opened.name} ({opened.isa})",
        nodes=about.nodes,
        rows=cut.rows,
        own_rows=own_rows,
        runs=about.runs,
        worst=worst,
        same_environment=(made.target, made.isa) == (opened.target.name, opened.isa),
    )


def judge(
    cut: Cut, saved: Outputs, device: Device, left: Way, right: Way, absolute: float, relative: float, runs: int
) -> tuple[Outcome, Worst | None]:
    """How `right` compares with `left`, each run `runs` times, and the largest difference where there is one.

    Raises `CapacityError` where there is no memory for the values, and what `run_way` and `worst_of` raise.
    """
    try:
        with np.errstate(all="ignore"):  # values of a fault may be anything, and are compared as what they are
            good, found = run_way(cut, saved, device, left, 1)[0], run_way(cut, saved, device, right, runs)
    except MemoryError:
        raise CapacityError("there is no memory for the values of this bundle", hint="free some") from None
    for again in found[1:]:
        if (worst := worst_of(found[0], again, 0.0, 0.0)) is not None:
            return "not repeated", worst
    worst = worst_of(good, found[0], absolute, relative)
    if worst is None:
        return "agreement", None
    return ("not repeated" if left == right else "mismatch"), worst


def run_way(cut: Cut, saved: Outputs, device: Device, way: Way, runs: int) -> list[dict[str, Array]]:
    """Valid rows of the outputs in one way, run by run. Raises what lowering, loading and running raise."""
    if way == "saved":
        return [dict(saved)]
    if way == "reference":
        return [cut.valid(interpret(cut.graph, cut.values).outputs)]
    executable = cut.load(device, way)
    found = []
    for _ in range(runs):
        for buffer in (executable.regions.arena, executable.regions.io):  # nothing may depend on what was there
            buffer.fill(0xFF)
        found.append(cut.run(executable))
    return found


def worst_of(left: Outputs, right: Outputs, absolute: float, relative: float) -> Worst | None:
    """The element that is furthest beyond the limits, None where all keep them (with limits of 0: where all bits are equal).

    Raises `ConfigError` where the two do not have the same values in the same shapes.
    """
    worst: Worst | None = None
    furthest = 0.0
    for name, a in left.items():
        b = right.get(name)
        if b is None or a.shape != b.shape:
            raise ConfigError(
                f"left has {name} of shape {a.shape}, right {None if b is None else b.shape}",
                hint="both ways must put out the same values",
            )
        if bits_equal(a, b) or not a.size:
            continue
        difference = difference_of(a, b)
        with np.errstate(over="ignore", invalid="ignore"):
            beyond = difference - absolute - relative * np.nan_to_num(np.abs(a.astype(np.float64)), posinf=0.0)
        exact = absolute == relative == 0
        other_bits = exact and a.dtype == b.dtype and not difference.any()  # 0.0 and -0.0, or NaN of another kind
        place = first_changed(a, b) if other_bits else place_of_largest(beyond)
        if (exact and worst is None) or float(beyond[place]) > furthest:
            furthest = max(furthest, float(beyond[place]))
            worst = Worst(
                output=name,
                index=place,
                left=float(a[place]),
                right=float(b[place]),
                difference=float(difference[place]),
            )
    return worst


def needs_of(graph: Graph, rows: Mapping[str, str], extension: str = "") -> Needs:
    """What of a cut is the user's: operators and rows that were added. `extension` is what adds them, if known."""
    added, operators = {row.identity for row in user_rows()}, {opdef.name for opdef in added_operators()}
    used = {f"{node.op}@{rows[node.name]}" for node in graph.nodes if node.name in rows}
    own = tuple(sorted({node.op for node in graph.nodes} & operators))
    return Needs(operators=own, rows=tuple(sorted(used & added)), extension=extension)


def _require(needs: Needs, cut: Cut) -> None:
    """Raises `ConfigError` for code of the user's that is not there."""
    added = {row.identity for row in user_rows()}
    missing = [f"operator {name}" for name in needs.operators if name not in OP]
    missing += [
        f"row {name}" for name in needs.rows if name not in added and name.partition("@")[2] in cut.rows.values()
    ]
    require_code(needs, missing)
