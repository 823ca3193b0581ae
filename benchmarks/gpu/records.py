"""What a contender's process says of a workload, one JSON line each, and the check that comes before any timing."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Timed, burst, count_for, median
from benchmarks.workloads import Workload

__all__ = ["EXACT", "GATE", "Record", "exact_path", "logits_error", "read_records", "time_record", "write_record"]

GATE = 0.1
"""Largest root of the mean squared error of logits, over their standard deviation. In bf16 contenders have some hundredths, a wrong model more than one."""

EXACT = "exact"
_ROUNDS = 7
_SECONDS = 0.1


@dataclass(slots=True)
class Record:
    """Times in milliseconds but for `first_s`; -1 and "" for what a contender does not have.

    `ms`: a step among many in a row, `waiting_ms`: each waited for; medians. `first_s`: the first step with all that it needs, compilation among it.
    `capture_ms` and `instantiate_ms` of a graph; where the library does not tell them apart the former is both. `table_ms`: loading the table and proving the
    graph, kernels being there. `launches`: kernels, vendor's products, copies and fills of a step; `submissions`: what the host hands to the driver.

    Bytes of device memory: `beyond_bytes` beyond weights and state, as counted, `planned_bytes` the same as the plan has it; `table_bytes`: what loading the
    steps took (status words, inputs of an eager run); `pool_bytes`: what a graph's own pool holds; `driver_bytes`: what the driver took besides. `error`: of
    the logits, as `GATE` has it.
    """

    model: str
    contender: str
    workload: str
    note: str = ""
    ms: float = -1
    waiting_ms: float = -1
    first_s: float = -1
    capture_ms: float = -1
    instantiate_ms: float = -1
    table_ms: float = -1
    first_replay_ms: float = -1
    launches: int = -1
    submissions: int = -1
    nodes: int = -1
    dependencies: int = -1
    beyond_bytes: int = -1
    pool_bytes: int = -1
    planned_bytes: int = -1
    table_bytes: int = -1
    driver_bytes: int = -1
    error: float = -1
    same_tokens: bool | None = None
    detail: str = ""


def write_record(record: Record, path: Path) -> None:
    """Adds the line and prints it. Several processes may write, a line at a time."""
    line = json.dumps(asdict(record)) + "\n"
    with path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    shown = {name: value for name, value in asdict(record).items() if value not in (-1, "", None)}
    print(json.dumps(shown), flush=True)


def read_records(out: Path) -> list[Record]:
    """Of each contender, model and workload the last line, those that ran before those that say why not."""
    path = out / "records.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[tuple[str, str, str], Record] = {}
    for record in (Record(**json.loads(line)) for line in lines):
        key = (record.model, record.contender, record.workload)
        if key not in found or record.ms > 0 or found[key].ms < 0:
            found[key] = record
    return list(found.values())


def exact_path(folder: Path, model: str, workload: Workload) -> Path:
    """Where the exact logits of a workload's first step lie."""
    return folder / f"exact-{model}-{workload}.npy"


def logits_error(folder: Path, record: Record, workload: Workload, logits: np.ndarray[Any, Any]) -> None:
    """Compares [rows, vocabulary] with the exact ones and notes the error. Raises `ValueError` above the gate, or where nothing exact is there."""
    path = exact_path(folder, record.model, workload)
    if not path.exists():
        raise ValueError(f"{path.name} is missing: the contender {EXACT!r} did not get that far")
    exact = np.load(path)
    found = logits.astype(np.float64).reshape(exact.shape)
    record.error = float(np.sqrt(np.mean((found - exact) ** 2)) / exact.std())
    record.same_tokens = bool(np.array_equal(found.argmax(-1), exact.argmax(-1)))
    if not record.error <= GATE:
        raise ValueError(
            f"logits are off by {record.error:.3g} standard deviations, at most {GATE} are let pass: nothing timed"
        )


def time_record(record: Record, timed: Timed) -> None:
    """Fills in the steady times."""
    count = count_for(timed, _SECONDS, 100 if record.workload[0] == "d" else 1000)
    record.ms = median([burst(timed, count) for _ in range(_ROUNDS)])
    record.waiting_ms = median([burst(timed, count, waiting=True) for _ in range(_ROUNDS)])
