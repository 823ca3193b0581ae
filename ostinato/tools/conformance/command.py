"""`ostinato doctor --conformance`: runs the self-test of a device, shows it and writes it.

The report holds no path of the user's but those of the vendor's libraries, so that it can be sent as it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from rich.console import Console

from ostinato.ir.errors import ConfigError
from ostinato.ir.files import need_writable, write_text
from ostinato.ir.ops import OP
from ostinato.runtime.device import Device
from ostinato.stages import open_device
from ostinato.tools.conformance.environment import environment_of
from ostinato.tools.conformance.objects import run_objects
from ostinato.tools.conformance.operators import run_rows
from ostinato.tools.conformance.quirks import find_quirks
from ostinato.tools.conformance.replay import run_replay
from ostinato.tools.conformance.report import CaptureNumbers, CheckVerdict, ConformanceReport, RowVerdict, WorstValue
from ostinato.tools.console import Steps, count, emit_json, facts, output, progress, size, table

__all__ = ["REPLAYS", "conformance", "run_conformance", "show_conformance"]

REPLAYS = 100
_FAILED = ("outside tolerance", "failed", "not run")


def conformance(device: str, ops: Collection[str], seed: int, path: Path | None, *, as_json: bool) -> bool:
    """Runs the self-test of a device by name, prints the report, and writes it to a file where one is given; whether nothing failed.

    `ops` are the operators whose rows are run, none for all. Raises what opening the device raises, and `ConfigError` for an unknown operator or a file that
    cannot be written.
    """
    if unknown := sorted(set(ops) - set(OP)):
        raise ConfigError(f"there are no operators {unknown}", hint="dir(ostinato.ops) lists them")
    opened = open_device(device)
    if path is not None:
        need_writable(path)
    with progress(quiet=as_json) as steps:
        report = run_conformance(opened, seed=seed, ops=set(ops) or None, steps=steps)
    if path is not None:
        write_text(path, report.model_dump_json(indent=2) + "\n")
    if as_json:
        emit_json(report)
    else:
        show_conformance(report, output())
        if path is not None:
            output().print(f"wrote {path}", markup=False)
    return report.ok


def run_conformance(
    device: Device,
    *,
    seed: int = 0,
    ops: Collection[str] | None = None,
    ways: int | None = None,
    replays: int = REPLAYS,
    steps: Steps | None = None,
) -> ConformanceReport:
    """The self-test of an open device. `ops` limits the operators, `ways` how many ways of laying out each sample are tried, `replays` how often the captured
    decoders are replayed; None is all."""
    begin = time.perf_counter()
    shown = steps or Steps(None)
    environment = environment_of(device)
    rows = tuple(run_rows(device, seed, ops=ops, ways=ways, advance=shown.advance))
    shown.begin("runtime objects")
    runtime = tuple(run_objects(device))
    graphs: list[CaptureNumbers] = []
    capture = tuple(run_replay(device, seed, replays=replays, numbers=graphs, advance=shown.begin))
    shown.begin("known quirks")
    quirks = tuple(find_quirks(device))
    failed = any(row.verdict in _FAILED for row in rows) or any(
        check.verdict == "fail" for check in (*runtime, *capture)
    )
    return ConformanceReport(
        ok=not failed,
        seed=seed,
        seconds=time.perf_counter() - begin,
        environment=environment,
        rows=rows,
        runtime=runtime,
        capture=capture,
        graphs=tuple(graphs),
        quirks=quirks,
    )


def show_conformance(report: ConformanceReport, console: Console) -> None:
    """The report for people: what failed in full, what passed in numbers."""
    environment = report.environment
    memory = "" if environment.memory_bytes is None else f", {size(environment.memory_bytes)}"
    wave = f", waves of {environment.wave}" if environment.wave else ""
    lines = [
        ("ostinato", environment.version),
        ("device", f"{environment.device} ({environment.platform}): {environment.card}"),
        ("architecture", f"{environment.architecture}{wave}{memory}"),
        ("kernels", f"sources with hash {environment.kernel_hash[:16]}"),
        ("system", f"{environment.system}, {environment.python}"),
        ("seed", str(report.seed)),
    ]
    lines += [(library.name, library.version or library.finding) for library in environment.libraries]
    console.print(facts(lines))
    _show_rows(report.rows, console)
    _show_checks("runtime objects", report.runtime, console)
    _show_checks("capture and replay", report.capture, console)
    if report.graphs:
        headings = ("entry", "launches", "nodes", "dependencies", "early", "copies", "fills", "vendor's", "opaque")
        numbers = (
            (
                g.entry,
                *map(
                    count,
                    (
                        g.launches,
                        g.graph_nodes,
                        g.dependencies,
                        g.early,
                        g.copies,
                        g.fills,
                        g.vendor_nodes,
                        g.opaque,
                    ),
                ),
            )
            for g in report.graphs
        )
        console.print(table("captured graphs, read back", headings, numbers))
    if present := [quirk for quirk in report.quirks if quirk.present != "no"]:
        cells = ((quirk.name, quirk.present, quirk.detail, quirk.consequence) for quirk in present)
        console.print(table("quirks", ("quirk", "present", "seen", "what follows"), cells, numbers=False))
    verdict = "[bold green]conforms[/]" if report.ok else "[bold red]does not conform[/]: see what failed above"
    console.print(f"{verdict} ({report.seconds:.1f} s)")


def _show_rows(rows: Iterable[RowVerdict], console: Console) -> None:
    found = list(rows)
    counted = Counter(row.verdict for row in found)
    passed = [row.worst.used for row in found if row.verdict == "pass" and row.worst is not None]
    nearest = max((used for used in passed if used is not None), default=0.0)
    summary = ", ".join(f"{number} {verdict}" for verdict, number in counted.most_common())
    calls = count(sum(row.calls for row in found))
    console.print(
        facts(
            [
                (
                    "rows",
                    f"{summary or 'none'}; {calls} calls; those that pass used at most {nearest:.2g} of their tolerance",
                )
            ]
        )
    )
    cells = (
        (f"{row.op}@{row.row}", row.level, row.verdict, _worst(row.worst), row.reason)
        for row in found
        if row.verdict != "pass"
    )
    if len(found) > counted["pass"]:
        headings = ("row", "level", "verdict", "worst value", "why")
        console.print(table("rows that did not pass", headings, cells, numbers=False))


def _worst(worst: WorstValue | None) -> str:
    if worst is None:
        return ""
    times = "out of all bounds" if worst.used is None else f"{worst.used:.3g} of the tolerance"
    return f"{worst.result}{list(worst.index)}: {worst.found} for {worst.expected}, {times}"


def _show_checks(title: str, checks: Iterable[CheckVerdict], console: Console) -> None:
    cells = ((check.name, check.verdict, check.detail) for check in checks)
    console.print(table(title, ("check", "verdict", "detail"), cells, numbers=False))
