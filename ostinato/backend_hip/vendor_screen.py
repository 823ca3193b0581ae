"""Screening of the vendor's algorithms for a product: every proposal is held against the oracle, those that are right are timed, the winner is recorded.

Without a screening the first proposal that runs is taken (`vendor_choices.py`), which is the same on every machine of a kind. A screening asks for many more,
on one card, and what it finds is used on that card alone, with the same driver and library, for the same product: its record has the key of a choice and lies
with the user's evidence. An algorithm whose complete result is not right is not timed. Another one than the first that is right wins only where it is at least
`GAIN` times as fast, so that noise changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ostinato.backend_hip import _native
from ostinato.backend_hip.impls.hip.vendor import GEMM_OPERANDS, GemmParams
from ostinato.backend_hip.vendor_choices import Gemm, gemm_problem, vendor_environment
from ostinato.backend_hip.vendor_oracle import Oracle, oracle
from ostinato.backend_hip.vendor_record import solution_key, solutions
from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.step import Step, StepKind

__all__ = ["GAIN", "MOST_CANDIDATES", "Product", "Screening", "Solution", "products_of", "screen"]

MOST_CANDIDATES = 64
"""Proposals that a vendor is asked for: kMostProposals of native/gpu/gpu_api.h."""
GAIN = 1.01
_ROUNDS = 7
_SECONDS = 2e-3
"""Of runs in a row that are timed together."""
_MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class Product:
    """A product as steps have it, and the bytes of workspace that it is given."""

    params: GemmParams
    workspace: int

    def __str__(self) -> str:
        p = self.params
        batches = f" x{p.batches}" if p.batches > 1 else ""
        return f"{p.m}x{p.n}x{p.k}{batches}"


@dataclass(frozen=True, slots=True)
class Solution:
    """One proposal: its place in the vendor's list, the bytes it needs, the median time of a run, or why it is refused."""

    number: int
    workspace: int
    seconds: float | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Screening:
    """What came of a product. `first` is the first proposal that is right, which is taken without a screening, `winner` the one that is recorded; by their
    `number`. `unkept` says why nothing was recorded, where that is so."""

    product: Product
    solutions: tuple[Solution, ...]
    first: int
    winner: int
    unkept: str = ""

    @property
    def gain(self) -> float:
        """How many times as fast the winner is as the first."""
        times = {one.number: one.seconds for one in self.solutions}
        first, winner = times[self.first], times[self.winner]
        assert first is not None
        assert winner is not None
        return first / winner if winner else 1.0


def products_of(steps: Iterable[Step]) -> list[Product]:
    """The vendor's products of a plan, each once, in the order of the steps."""
    found: dict[Product, None] = {}
    for step in steps:
        if step.kind is StepKind.GEMM:
            work = step.operands[GEMM_OPERANDS.index("workspace")]
            found[Product(GemmParams(*step.params), 0 if work is None else work.range.size)] = None  # type: ignore[arg-type]
    return list(found)


def screen(
    device: _native.GpuDevice,
    product: Product,
    *,
    candidates: int = MOST_CANDIDATES,
    seed: int = 0,
    folder: Path | None = None,
) -> Screening:
    """Screens a product and records the winner in the user's folder of evidence (or `folder`).

    Raises `BackendError` where no proposal is right, `CapacityError` without memory for the operands, `ConfigError` for a number of candidates that is none.
    """
    if not 1 <= candidates <= MOST_CANDIDATES:
        raise ConfigError(f"expected 1 to {MOST_CANDIDATES} candidates, found {candidates}")
    params, workspace = product.params, product.workspace
    problem = gemm_problem(params)
    proposals = _native.gemm_choices(device, problem, workspace, candidates)
    tried = [Gemm(device, params, problem, choice, workspace, 0) for choice in proposals]
    with oracle(device, params, workspace, seed) as judge:
        refusals = [_refusal(judge, gemm) for gemm in tried]
        right = [number for number, reason in enumerate(refusals) if not reason]
        if not right:
            reasons = "; ".join(dict.fromkeys(refusals)) or "the vendor proposes none"
            raise BackendError(f"no algorithm of the vendor's is right for {product}: {reasons}")
        seconds = dict(zip(right, _timed(device, judge, [tried[number] for number in right]), strict=True))
        first = right[0]
        best = min(right, key=lambda number: seconds[number])
        winner = best if seconds[first] >= GAIN * seconds[best] else first
        nodes = tried[winner].counted(judge.turns[0]).node_count
    found = tuple(
        Solution(number, gemm.choice.workspace_bytes, seconds.get(number), refusals[number])
        for number, gemm in enumerate(tried)
    )
    chosen = tried[winner].choice
    record = {
        **solution_key(vendor_environment(device), params, workspace),
        "algorithm": chosen.algorithm,
        "needs": chosen.workspace_bytes,
        "nodes": nodes,
        "screened": {
            "candidates": len(tried),
            "right": len(right),
            "seconds": seconds[winner],
            "first_seconds": seconds[first],
            "seed": seed,
        },
    }
    file = solutions(folder)
    with file.locked() as unlocked:
        unkept = unlocked or file.append(record)
    return Screening(product, found, first, winner, unkept)


def _refusal(judge: Oracle, gemm: Gemm) -> str:
    try:
        return judge.refusal(gemm.run) or ""
    except BackendError as error:
        return error.message


def _timed(device: _native.GpuDevice, judge: Oracle, gemms: Sequence[Gemm]) -> list[float]:
    """Seconds of a run of each: the median of rounds in which all take their turns, in another order every time."""
    counts = [
        max(1, min(_MOST_RUNS, round(2 * _SECONDS / max(_elapsed(device, judge, gemm, 2), 1e-6)))) for gemm in gemms
    ]
    times: list[list[float]] = [[] for _ in gemms]
    for turn in range(_ROUNDS):
        for place in range(len(gemms)):
            number = (place + turn) % len(gemms)
            times[number].append(_elapsed(device, judge, gemms[number], counts[number]) / counts[number])
    return [median(found) for found in times]


def _elapsed(device: _native.GpuDevice, judge: Oracle, gemm: Gemm, count: int) -> float:
    """Seconds of so many runs on the device's default stream."""
    begin, end = _native.Event(device), _native.Event(device)
    begin.record()
    for number in range(count):
        gemm.run(judge.turns[number % len(judge.turns)])
    end.record()
    end.synchronize()
    return begin.milliseconds_to(end) * 1e-3
