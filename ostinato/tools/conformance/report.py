"""What `ostinato doctor --conformance --json` prints, and `--output` writes. All sizes are bytes, all times seconds."""

from __future__ import annotations

from typing import Literal

from ostinato.tools.report import Report

__all__ = [
    "CaptureNumbers",
    "CheckVerdict",
    "ConformanceReport",
    "EnvironmentInfo",
    "LibraryInfo",
    "QuirkVerdict",
    "RowVerdict",
    "WorstValue",
]


class LibraryInfo(Report):
    """A vendor's library as it was opened. Texts are empty where there is nothing to say."""

    role: Literal["runtime", "compiler", "blas", "collective"]
    name: str
    finding: Literal["found", "incomplete", "missing"]
    version: str
    path: str
    problem: str


class EnvironmentInfo(Report):
    """What the test ran on. `architecture` is the kernel unit of a CPU; `platform` is "amd", "nvidia", or "host" for a CPU, which has no waves (0).

    `kernel_hash` is over the sources of the GPU kernels, `native_hash` over the native module: two reports with the same ones ran the same code.
    """

    version: str
    kernel_hash: str
    native_hash: str
    python: str
    system: str
    device: str
    platform: str
    card: str
    architecture: str
    wave: int
    multiprocessors: int
    memory_bytes: int | None
    compiler: str
    libraries: tuple[LibraryInfo, ...]


class WorstValue(Report):
    """The value that is farthest from the reference; `used` is its distance as a part of what the operator allows there, null for an infinite one."""

    call: str
    result: str
    index: tuple[int, ...]
    found: float | None
    expected: float | None
    used: float | None


class RowVerdict(Report):
    """An implementation row: `calls` ran, of samples that it does not take `refused` were left out.

    "outside tolerance": `worst` is the value; "failed": `reason` is what went wrong; "not accepted": it took no sample, for the reason of the first, or is for
    other cards; "not run": the device was lost before. `worst` of a row that passed says how near it came.
    """

    op: str
    row: str
    level: str
    verdict: Literal["pass", "outside tolerance", "failed", "not accepted", "not run"]
    calls: int
    refused: int
    worst: WorstValue | None
    reason: str


class CheckVerdict(Report):
    """A check of the runtime's objects or of capture and replay; `detail` is what was seen, what went wrong, or why it was left out."""

    name: str
    verdict: Literal["pass", "fail", "skipped"]
    detail: str


class CaptureNumbers(Report):
    """What the graph of an entry was read back as; launches, nodes and dependencies are different numbers. `early` counts the dependencies that start a kernel
    while the one before it still runs, `opaque` the vendor's nodes whose arguments the driver does not show."""

    entry: str
    launches: int
    graph_nodes: int
    dependencies: int
    early: int
    copies: int
    fills: int
    vendor_nodes: int
    opaque: int


class QuirkVerdict(Report):
    """A known oddity of drivers and libraries: whether this one has it, how that was found out, and what follows. `detail` is what was seen."""

    name: str
    present: Literal["yes", "no", "unknown"]
    detection: str
    consequence: str
    detail: str


class ConformanceReport(Report):
    """`ostinato doctor --conformance`: `ok` says that nothing failed; what was refused, skipped or is a quirk is no failure."""

    kind: Literal["conformance"] = "conformance"
    ok: bool
    seed: int
    seconds: float
    environment: EnvironmentInfo
    rows: tuple[RowVerdict, ...]
    runtime: tuple[CheckVerdict, ...]
    capture: tuple[CheckVerdict, ...]
    graphs: tuple[CaptureNumbers, ...]
    quirks: tuple[QuirkVerdict, ...]
