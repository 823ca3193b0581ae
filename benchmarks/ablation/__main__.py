"""What planning, capture and fusion each buy: the same step run in every way from eager to a captured graph over the planned arena.

    python -m benchmarks.ablation [--device cpu|hip|emulated] [--model Q] [--dtype bf16] [--workloads d1,p512,chains] [--rounds 9] [--threads 1] [--json FILE]

Workloads are those of `benchmarks/workloads.py`; "chains" are chains of 8, 32, 128 and 512. All variants of a workload lie in memory side by side, over the
same weights where their plans allow, and take turns in every round. On one thread of a CPU times are CPU time of the process. Outputs and state are compared
bit for bit with the planned variant's. With `--json` (a file, to which lines are added; without one, standard output) each row is a line; workloads that the
file has are not measured again.

"The library's memory" is a capture with storage for every result of its own: what is freed within a capture may not be given out again before the graph is
gone (a `DeferredHipDeallocationScope` keeps it), so that a library's allocator under capture comes to a plan without reuse. Of "captured: regions" the graphs
are parts of a layer (`variants.REGIONS`), and the steps between them are submitted one by one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.ablation.measure import Row, measure
from benchmarks.models import CONFIGS, PACKAGED, checkpoint
from benchmarks.steps import WeightPool, open_benchmark_device
from benchmarks.workloads import Workload
from ostinato.stages import open_model

CHAINS = ("c8", "c32", "c128", "c512")
_COLUMNS = (
    "variant",
    "ms",
    "ms waited",
    "/ planned",
    "launches",
    "submitted",
    "graphs",
    "nodes",
    "edges",
    "copies",
    "allocations",
    "arena bytes",
    "bit-equal",
)


def workloads_of(text: str) -> Iterator[Workload]:
    for name in text.split(","):
        yield from map(Workload.parse, CHAINS if name == "chains" else (name,))


def rows_in(path: str | None) -> list[Row]:
    """What a file of an earlier run has."""
    if path in (None, "-") or not Path(str(path)).exists():
        return []
    return [Row(**json.loads(line)) for line in Path(str(path)).read_text().splitlines()]


def show(rows: Sequence[Row], console: Console) -> None:
    for workload in dict.fromkeys(row.workload for row in rows):
        table = Table(*(Column(name, no_wrap=True) for name in _COLUMNS), title=workload)
        for row in rows:
            if row.workload == workload:
                table.add_row(*_cells(row))
        console.print(table)


def _cells(row: Row) -> list[str]:
    if row.ms is None:
        return [row.variant, row.note]
    assert row.waiting_ms is not None
    assert row.over_planned is not None
    counts = (row.launches, row.submissions, row.graphs, row.nodes, row.dependencies, row.copies, row.allocations)
    times = (f"{row.ms:.4f}", f"{row.waiting_ms:.4f}", f"{row.over_planned:.3f}")
    return [row.variant, *times, *map(str, counts), f"{row.arena_bytes:,}", "yes" if row.equal else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablation",
        description=__doc__.partition("\n")[0],
        epilog="docs/benchmarks.md explains the table.",
    )
    shows = "emulated shows that it runs and says nothing about time (default cpu)"
    parser.add_argument("--device", default="cpu", choices=("cpu", "hip", "emulated"), help=shows)
    models = "Q and D: shapes of Qwen2.5-0.5B and DeepSeek-R1-Distill-Qwen-1.5B, L: of an 8B Llama, S: of a 15M one, random weights (default Q)"
    parser.add_argument("--model", default="Q", choices=(*CONFIGS, PACKAGED), help=models)
    parser.add_argument(
        "--dtype", default="bf16", choices=("f32", "bf16"), help="of weights and activations (default bf16)"
    )
    steps = "d1, d8: a decode step of so many rows; p512: a prefill of so many tokens; c32: a chain of so many operators; chains: c8 to c512"
    parser.add_argument("--workloads", default="d1,p512,chains", help=steps)
    parser.add_argument("--rounds", type=int, default=9, help="how often the variants take turns (default 9)")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (default 1)")
    parser.add_argument("--folder", type=Path, help="where a checkpoint is made or found (default: the user's cache)")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="a line a row, added to the file or on standard output"
    )
    options = parser.parse_args()
    try:
        wanted = list(workloads_of(options.workloads))
    except ValueError as error:
        parser.error(str(error))
    out = sys.stderr if options.json == "-" else sys.stdout

    def say(text: str) -> None:
        print(text, file=out, flush=True)

    device = open_benchmark_device(options.device, options.threads)
    rows = rows_in(options.json)
    done = {row.workload for row in rows}
    asked = [workload for workload in wanted if str(workload) not in done]
    model: Any = None
    if any(workload.kind != "c" for workload in asked):
        model = open_model(checkpoint(options.model, options.dtype, options.folder))
    pool = WeightPool(device)
    console = Console(width=170, file=out)
    for workload in asked:
        chain = workload.kind == "c"
        fresh = WeightPool(device) if chain else pool
        precision = "f32" if chain else options.dtype
        found = measure(workload, None if chain else model, device, fresh, precision, options.rounds, say)
        rows += found
        show(found, console)
        text = "".join(json.dumps(row.fields) + "\n" for row in found)
        if options.json == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        elif options.json:
            with Path(options.json).open("a") as file:
                file.write(text)
    if done:
        show(rows, console)


if __name__ == "__main__":
    main()
