"""`ostinato bench`: the time of a prefill and of a decode step, beside the read bandwidth measured in the same run.

Whole calls are timed, inputs and outputs included, and medians reported. Before anything is timed the planned mode is compared with eager, bit for
bit: no figure is printed for a program that was not just checked. Decode at one row reads every weight once, so its limit is weight bytes / read
bandwidth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from ostinato.ir.checks import integer
from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Role
from ostinato.ir.ops import OP
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.sampling_inputs import sampling_inputs
from ostinato.runtime.traced import refuse_traced
from ostinato.tools.compare.differences import bits_equal
from ostinato.tools.console import many, size, table
from ostinato.tools.profile.bandwidth import read_bandwidth
from ostinato.tools.programs import precision_of
from ostinato.tools.schemas import BenchReport

__all__ = ["bench", "show_bench"]


@dataclass(frozen=True, slots=True)
class _Call:
    """One prepared call of an entry; its inputs do not change, so that it can be repeated."""

    entry: str
    inputs: dict[str, Array]


def bench(
    executable: TextExecutable, model: str, *, tokens: int, runs: int, seed: int, begin: Callable[[str], None]
) -> BenchReport:
    """Times `runs` prefills of `tokens` tokens and as many decode steps after them, on one row.

    `begin` hears what is being done. The executable needs entries for `tokens` tokens and for one. Raises `PlanError` when planned and eager differ,
    `ConfigError` for a negative seed, `LifecycleError` for an executable that is being traced.
    """
    refuse_traced(executable.diversion, "every figure")
    ids = np.random.default_rng(integer(seed, "seed", low=0)).integers(
        0, executable.vocab_size, tokens + 1, dtype=np.int32
    )
    prefill = _call(executable, Piece(0, ids[:tokens], 0, True))
    decode = _call(executable, Piece(0, ids[tokens:], tokens, True))
    begin("checking against eager")
    _check(executable, (prefill, decode))
    begin("measuring read bandwidth")
    bandwidth = read_bandwidth(executable.device)
    begin("timing prefill")
    prefill_seconds = _median(executable, prefill, runs)
    begin("timing decode")
    decode_seconds = _median(executable, decode, runs)
    weights = _bytes_read(executable, decode.entry)
    return BenchReport(
        model=model,
        precision=precision_of(executable.program),
        isa=executable.device.isa,
        threads=executable.device.threads,
        runs=runs,
        prompt_tokens=tokens,
        prefill_ms=prefill_seconds * 1e3,
        prefill_tokens_per_second=tokens / prefill_seconds,
        decode_ms=decode_seconds * 1e3,
        decode_tokens_per_second=1 / decode_seconds,
        weight_bytes=weights,
        read_bandwidth_bytes_per_second=bandwidth,
        bandwidth_fraction=weights / decode_seconds / bandwidth,
    )


def show_bench(report: BenchReport, console: Console) -> None:
    """The report for people."""
    rows = [
        (
            f"prefill of {report.prompt_tokens}",
            f"{report.prefill_ms:.2f} ms",
            f"{report.prefill_tokens_per_second:.1f}",
        ),
        ("decode", f"{report.decode_ms:.2f} ms", f"{report.decode_tokens_per_second:.1f}"),
    ]
    title = (
        f"{report.model}: {report.precision}, {report.isa}, {many(report.threads, 'thread')}, median of {report.runs}"
    )
    console.print(table(title, ("", "time", "tokens/s"), rows))
    console.print(
        f"decode reads {size(report.weight_bytes)} of weights at {report.bandwidth_fraction:.0%} of the "
        f"{report.read_bandwidth_bytes_per_second / 1e9:.1f} GB/s measured here"
    )


def _call(executable: TextExecutable, piece: Piece) -> _Call:
    plan = executable.bucket(len(piece.tokens), 1)
    inputs, _ = pack(plan, [piece], executable.block_table())
    return _Call(plan.name, {**inputs, **sampling_inputs(plan, ())})


def _check(executable: TextExecutable, calls: tuple[_Call, ...]) -> None:
    eager = executable.clone("eager")
    for call in calls:
        left, right = (e.run(call.entry, call.inputs, ("logits",))["logits"][:1] for e in (executable, eager))
        if not bits_equal(left, right):
            raise PlanError(
                "planned and eager differ; nothing was timed",
                node=call.entry,
                hint="`ostinato compare` names the first node that differs",
            )


def _median(executable: TextExecutable, call: _Call, runs: int) -> float:
    executable.run(call.entry, call.inputs, ("logits",))
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        executable.run(call.entry, call.inputs, ("logits",))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _bytes_read(executable: TextExecutable, entry: str) -> int:
    """Bytes of weights that one run must read: each weight once, and no more of it than its reader's cost says (an embedding reads rows)."""
    graph = executable.program.graphs[entry]
    weights = {item.value.name: item.value.type.nbytes for item in graph.with_role(Role.WEIGHT)}
    read = dict.fromkeys(weights, 0)
    for node in graph.nodes:
        cost = OP[node.op].cost(graph.operand_types(node), [value.type for value in node.results], node.attrs).bytes
        for operand in node.operands:
            if operand in weights:
                read[operand] = max(read[operand], min(weights[operand], cost))
    return sum(read.values())
