"""One trial in a process of its own: a model compiled with a candidate's options, run, and measured.

    python -m ostinato.tools.evidence.trial < REQUEST.json

A request is one JSON object on standard input, the result one on standard output; all other text goes to standard error. A fresh process meets the machine
as a user's does: with its own memory layout, its own caches and its own peak of memory. An error on purpose is a result too.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.vendor_choices import vendor_choices
from ostinato.compiler import plan_text_program
from ostinato.ir.errors import OstinatoError
from ostinato.runtime.device import Device
from ostinato.runtime.executable import load_program
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import settle_route
from ostinato.stages import open_device, open_model
from ostinato.tools.evidence.candidates import Options
from ostinato.tools.evidence.judge import FULL
from ostinato.tools.evidence.training import TrainingWork, workload_of
from ostinato.tools.evidence.workloads import DecoderWork, Work, Workload, entries_of, parse_workloads
from ostinato.tools.report import Report
from ostinato.tools.train.config import read_config

__all__ = ["Request", "Result", "Run", "run_trial"]


class Request(Report):
    """What to run where. `mode`: "auto", or "reference" for the oracle. `seconds` is what each workload is timed for, 0 for not at all; `outputs` names a
    file that takes what each workload gives (.npz), empty for none. `training`: the file of a training run, whose step trains `model`; empty where none is."""

    model: str
    training: str = ""
    device: str
    threads: int
    isa: str = "auto"
    precision: str
    workloads: str
    options: Options = Options()
    mode: str = "auto"
    seconds: float = 0.0
    outputs: str = ""


class Run(Report):
    """A workload as it was run: seconds a step, None where nothing was timed, and a hash of what the timed step gives."""

    workload: str
    seconds: float | None
    digest: str


class Result(Report):
    """What a process found; `error` is why it found nothing. `arena_bytes`: the plan's, `peak_bytes`: the most memory the process had, with a GPU's."""

    runs: tuple[Run, ...] = ()
    arena_bytes: int = 0
    peak_bytes: int = 0
    error: str = ""


def run_trial(request: Request, opened: Device | None = None) -> Result:
    """Compiles, runs and measures in this process, on the device that is named or on one that is open. Raises what compiling and running raise."""
    device = opened or open_device(request.device, request.threads, request.isa)
    if isinstance(device, HipDevice):
        vendor_choices(device.native, device.kernels.cache.folder).use_solutions = request.options.solutions
    workloads, work = _loaded(request, device)
    alone = not device.captures and device.threads == 1  # CPU time leaves out moments when others held the core
    clock = time.process_time if alone else time.perf_counter
    kept: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    runs = []
    for workload in workloads:
        digest, seconds = "", None
        if request.outputs:
            kept[str(workload)] = work.checked(workload)
        if request.mode != "reference":
            outputs = work.full(workload)
            digest = hashlib.sha256(np.ascontiguousarray(outputs).tobytes()).hexdigest()
            if request.outputs:
                kept[FULL.format(workload)] = outputs
        if request.seconds > 0:
            seconds = work.seconds(workload, request.seconds, clock)
        runs.append(Run(workload=str(workload), seconds=seconds, digest=digest))
    if request.outputs:
        np.savez(request.outputs, **kept)  # type: ignore[arg-type]
    if request.mode == "reference":  # nobody asks what it takes, and a whole training step would be loaded to say so
        return Result(runs=tuple(runs))
    memory = work.memory
    return Result(
        runs=tuple(runs),
        arena_bytes=memory.arena,
        peak_bytes=_peak_bytes() + (memory.total if device.captures else 0),
    )


def _loaded(request: Request, device: Device) -> tuple[tuple[Workload, ...], Work]:
    """The workloads of a request, and the program that runs them."""
    model = open_model(request.model)
    if request.training:
        config = read_config(Path(request.training))
        step = TrainingWork(config, model, device, request.precision, request.mode, request.options)
        return (workload_of(config),), step
    workloads = parse_workloads(request.workloads)
    entries = entries_of(model, workloads, request.precision)
    precision = model.precision(request.precision)
    program = plan_text_program(entries, device.target, request.options.pipeline(precision))
    executable = load_program(program, settle_route(device, request.mode), kind=TextExecutable)
    executable.prewarm()
    return workloads, DecoderWork(executable)


def _peak_bytes() -> int:
    """The most memory this process had; on Linux of its own image, which `ru_maxrss` may have from the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print do not disturb the answer
    try:
        result = run_trial(Request.model_validate_json(sys.stdin.read()))
    except OstinatoError as error:
        result = Result(error=f"[{error.code}] {error.message}")
    answers.write(result.model_dump_json())
    answers.close()


if __name__ == "__main__":
    main()
