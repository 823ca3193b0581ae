"""What `--json` prints: one pydantic model a command, so that the schema is code and can be tested.

All sizes are bytes, all times seconds unless the name says otherwise; `kind` tells the reports apart. Fields are only ever added within a major
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ostinato.tools.audit.report import AddressAuditReport
from ostinato.tools.bisect.report import BisectReport
from ostinato.tools.compare.report import CompareReport
from ostinato.tools.conformance.report import ConformanceReport
from ostinato.tools.diff.report import DiffReport
from ostinato.tools.doctor_report import DoctorReport
from ostinato.tools.evidence.report import (
    EvidenceExportReport,
    EvidenceListReport,
    EvidencePruneReport,
    EvidenceScreenReport,
    EvidenceShowReport,
    EvidenceValidateReport,
    TuneReport,
)
from ostinato.tools.profile.report import BreakevenReport, ProfileReport
from ostinato.tools.report import ErrorReport, Report
from ostinato.tools.repro.report import ReproReport
from ostinato.tools.schemas_passes import ExplainReport, PassesReport
from ostinato.tools.train.report import TrainPlanReport, TrainReport

__all__ = [
    "REPORTS",
    "BenchReport",
    "BoundSource",
    "CompareReport",
    "CompileReport",
    "DoctorReport",
    "EmbedReport",
    "EntryStats",
    "ErrorReport",
    "ExplainReport",
    "PassesReport",
    "PlacementReport",
    "PlanReport",
    "Report",
    "RunReport",
    "TokenChoice",
    "TrainPlanReport",
    "TrainReport",
    "ViewReport",
]


class TokenChoice(Report):
    """A token that could stand at a place: its own text (null without a tokenizer), natural logarithm of its probability, and place among all tokens."""

    token: int
    text: str | None
    logprob: float
    rank: int


class RunReport(Report):
    """`ostinato run`: `stop_reason` is the stop string or token that ended it; `logprobs` are by token, the chosen one first.

    `first_token_seconds` counts from the prompt, `decode_tokens_per_second` from the first token to the last (null below two tokens).
    """

    kind: Literal["run"] = "run"
    model: str
    mode: str
    reason: str
    device: str
    precision: str
    threads: int
    prompt: str
    prompt_tokens: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None
    logprobs: tuple[tuple[TokenChoice, ...], ...] | None
    load_seconds: float
    first_token_seconds: float
    seconds: float
    decode_tokens_per_second: float | None


class EmbedReport(Report):
    """`ostinato run` of an encoder: `embeddings` and `tokens` (those read: a longer text lost its end at `max_seq_length`) by prompt, `similarity` the
    cosine of each pair, `ignored_tensors` what the checkpoint has and an embedding does not need."""

    kind: Literal["embed"] = "embed"
    model: str
    mode: str
    reason: str
    device: str
    precision: str
    threads: int
    pooling: str
    normalized: bool
    dimension: int
    max_seq_length: int
    ignored_tensors: tuple[str, ...]
    prompts: tuple[str, ...]
    tokens: tuple[int, ...]
    embeddings: tuple[tuple[float, ...], ...]
    similarity: tuple[tuple[float, ...], ...]
    load_seconds: float
    seconds: float


class EntryStats(Report):
    """One planned entry. `gap` is arena_bytes / lower_bound - 1; `checked` says that the independent checker proved the plan.

    `status` is what the solver knows of the placement. Fragmentation is the part of the bytes below the highest live one that is not live: at its worst, at
    `worst_step`, and on average. Of the `slots` (storage classes and workspaces) `reused` take a byte which another one had before. `peak_values` live at
    `peak_step`, the largest first, with `peak_sizes`. `recomputed` counts the steps that compute a value again to keep to a limit of memory, `extra_work` is
    what these cost as a part of all other work.
    """

    name: str
    dims: Mapping[str, int]
    steps: int
    launches: int
    copies: int
    strided_copies: int
    in_place: int
    arena_bytes: int
    lower_bound: int
    gap: float
    sum_bytes: int
    solver: str
    peak_step: int
    peak_values: tuple[str, ...]
    peak_sizes: tuple[int, ...]
    status: str
    worst_fragmentation: float
    worst_step: int
    mean_fragmentation: float
    slots: int
    reused: int
    recomputed: int
    extra_work: float
    checked: bool


class PlanReport(Report):
    """`ostinato plan MODEL`: the entries of the program, the bytes of its regions by name, such as "host:0/arena", and the files written."""

    kind: Literal["plan"] = "plan"
    model: str
    target: str
    memory_limit: int | None
    entries: tuple[EntryStats, ...]
    regions: Mapping[str, int]
    seconds: float
    files: tuple[str, ...]


class ViewReport(Report):
    """`ostinato view`: what was drawn of each entry and the files written; `missing` says what a picture would have needed.

    `repeats` says how often each stretch that is drawn once occurs.
    """

    class Entry(Report):
        """One entry: its nodes, and how many of them the picture shows."""

        name: str
        nodes: int
        nodes_drawn: int
        repeats: tuple[int, ...]
        files: tuple[str, ...]

    kind: Literal["view"] = "view"
    model: str
    entries: tuple[Entry, ...]
    missing: tuple[str, ...]


BoundSource = Literal["load", "fixed", "search"]


class PlacementReport(Report):
    """`ostinato plan problem.csv`: the placement found, which was held against the definition of a correct one (`checked`).

    `status`: optimal (height = lower_bound), feasible (the search ended without a proof), timeout, over_capacity (as feasible, and higher than the
    capacity), infeasible (the capacity is below lower_bound, by `missing_bytes`). `fits`: the height is within the capacity, if there is one.
    `bound_by` says where the bound is from: the bytes alive at one time, a fixed buffer's end, or a search that proved it. `peak` is a time at which the
    most bytes are alive, `peak_bytes` of `peak_buffers`, the largest first, with `peak_sizes`. `sum_bytes` is what all buffers take without reuse,
    `solver` the run that found the placement, `seconds` the time of the solve within `time_limit` and `node_limit` (null: none), `files` what was written.
    """

    kind: Literal["placement"] = "placement"
    problem: str
    buffers: int
    sum_bytes: int
    height: int
    lower_bound: int
    bound_by: BoundSource
    gap: float
    status: Literal["optimal", "feasible", "timeout", "over_capacity", "infeasible"]
    checked: bool
    capacity: int | None
    fits: bool
    missing_bytes: int
    peak: int
    peak_bytes: int
    peak_buffers: tuple[str, ...]
    peak_sizes: tuple[int, ...]
    solver: str
    seconds: float
    nodes: int
    time_limit: float | None
    node_limit: int | None
    threads: int
    seed: int
    files: tuple[str, ...]


class CompileReport(Report):
    """`ostinato compile`: what the compiled program is (`regions` as in `plan`) and which files `--dump` and `--output` wrote. `stale`
    is what was not as it was of an artifact that was compiled again."""

    kind: Literal["compile"] = "compile"
    model: str
    mode: str
    reason: str
    entries: tuple[EntryStats, ...]
    regions: Mapping[str, int]
    seconds: float
    files: tuple[str, ...]
    stale: tuple[str, ...] = ()


class BenchReport(Report):
    """`ostinato bench`: medians over `runs`. `bandwidth_fraction` is weight bytes a decode step / (time x read bandwidth measured in this run)."""

    kind: Literal["bench"] = "bench"
    model: str
    precision: str
    isa: str
    threads: int
    runs: int
    prompt_tokens: int
    prefill_ms: float
    prefill_tokens_per_second: float
    decode_ms: float
    decode_tokens_per_second: float
    weight_bytes: int
    read_bandwidth_bytes_per_second: float
    bandwidth_fraction: float


REPORTS: Mapping[str, type[Report]] = {
    "audit": AddressAuditReport,
    "bench": BenchReport,
    "bisect": BisectReport,
    "breakeven": BreakevenReport,
    "compare": CompareReport,
    "compile": CompileReport,
    "conformance": ConformanceReport,
    "diff": DiffReport,
    "doctor": DoctorReport,
    "embed": EmbedReport,
    "error": ErrorReport,
    "evidence": EvidenceListReport,
    "evidence_export": EvidenceExportReport,
    "evidence_prune": EvidencePruneReport,
    "evidence_record": EvidenceShowReport,
    "evidence_screen": EvidenceScreenReport,
    "evidence_validate": EvidenceValidateReport,
    "explain": ExplainReport,
    "passes": PassesReport,
    "placement": PlacementReport,
    "plan": PlanReport,
    "profile": ProfileReport,
    "repro": ReproReport,
    "run": RunReport,
    "train": TrainReport,
    "train_plan": TrainPlanReport,
    "tune": TuneReport,
    "view": ViewReport,
}
