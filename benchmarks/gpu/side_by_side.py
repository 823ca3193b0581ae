"""One table, same run, peers beside us, on a GPU of NVIDIA: Hugging Face eager, torch.compile, a CUDA graph captured by hand, and ours in three modes.

    python -m benchmarks.gpu.side_by_side --out DIR [--models Q,D] [--budget 540] [--site FOLDER] [--contenders ours,lean graph,...] [--device hip]

Q runs d1, d8, p512, p2048 and chains of 8 to 512 tiny operators, D runs d1 and p512 (`benchmarks/workloads.py` says what they are), all in bf16 with the
same seeded random weights, which are made here. Each contender is a process of its own with a limit of time. First torch in fp32 writes the exact logits of
every workload; a contender that is off by more than `records.GATE` is not timed. The contenders that compile do so side by side, then each is timed alone.
`--site` is a folder that holds transformers, where the interpreter has none.

DIR/records.jsonl gets a line a result as it is there; a second run adds what the file lacks. `--show` prints the table of a file and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.records import EXACT, Record, read_records, write_record
from benchmarks.gpu.report import show
from benchmarks.models import checkpoint
from benchmarks.workloads import Shape
from ostinato.backend_hip.gpu_libraries import PLATFORMS, examine

WORKLOADS = {"Q": "d1,p512,d8,p2048", "D": "d1,p512"}
LONG = "p2048"
"""What is not compiled: that takes minutes."""
CHAINS = "c8,c32,c128,c512"
PLAIN = ("ours", "lean graph", "lean eager", "hf eager")
COMPILED = ("lean compile", "hf compile")
_LIMITS = {EXACT: 80.0, "ours": 110.0}
_LIMIT = 75.0
"""Seconds that a contender may take, by name or any other."""
_CHILD_CORES = 4


@dataclass(frozen=True, slots=True)
class Job:
    """A contender on a model's workloads."""

    contender: str
    model: str
    workloads: str

    @property
    def name(self) -> str:
        return f"{self.contender} {self.model}".replace(" ", "-")

    @property
    def modes(self) -> tuple[str, ...]:
        """The contenders that its records name."""
        return ("ours captured", "ours planned", "ours eager") if self.contender == "ours" else (self.contender,)


class Run:
    """The processes of a run, within its budget of seconds."""

    def __init__(self, out: Path, site: str | None, device: str, budget: float, folder: Path) -> None:
        self.out, self._site, self._device, self._folder = out, site, device, folder
        self._end = time.monotonic() + budget
        self._begin = time.monotonic()

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin:6.1f} s] {text}", flush=True)

    def start(self, job: Job, *extra: str) -> subprocess.Popen[bytes]:
        """The process of a job, its messages in a file of their own and its caches empty and its own."""
        checkpoint_folder = checkpoint(job.model, "bf16", self._folder)
        common = [job.model, job.workloads, "--folder", checkpoint_folder, "--out", str(self.out)]
        if job.contender == "ours":
            command = ["benchmarks.gpu.ours", *common, "--device", self._device]
        else:
            command = ["benchmarks.gpu.torch_peer", job.contender, *common, *extra]
        caches = self._folder / "caches" / job.name
        environment = dict(
            os.environ,
            XDG_CACHE_HOME=str(caches),
            TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
            TRITON_CACHE_DIR=str(caches / "triton"),
            TORCHINDUCTOR_COMPILE_THREADS=str(_CHILD_CORES),
            HF_HUB_OFFLINE="1",
            PYTHONUNBUFFERED="1",
        )
        if self._site and job.contender.startswith("hf"):
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, (os.getcwd(), self._site, os.environ.get("PYTHONPATH")))
            )
        with (self.out / f"{job.name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command], env=environment, stdout=log, stderr=subprocess.STDOUT, process_group=0
            )

    def alone(self, job: Job) -> None:
        """Runs a job to its end, or to its limit."""
        limit = min(_LIMITS.get(job.contender, _LIMIT), self.left)
        if limit < 10:
            self.note(job, "out of time")
            return
        process = self.start(job)
        begin = time.monotonic()
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            self.stop(process)
            code = -1
        self.say(f"{job.name}: {time.monotonic() - begin:.1f} s, exit {code}")
        if code:
            self.note(job, f"ended with {code}, see {job.name}.log" if code > 0 else f"stopped after {limit:.0f} s")

    def compiled(self, jobs: Sequence[Job], cut: float) -> None:
        """Lets all of them compile at once for `cut` seconds, then has each timed alone; those that are late come last."""
        if not jobs:
            return
        cut = min(cut, self.left - 60)
        if cut < 30:
            for job in jobs:
                self.note(job, "out of time")
            return
        for stale in (self.out / "stop", *self.out.glob("*.ready"), *self.out.glob("*.go")):
            stale.unlink(missing_ok=True)
        processes = {job: self.start(job, "--hold", job.name) for job in jobs}
        self._wait(processes, time.monotonic() + cut)
        (self.out / "stop").touch()
        self._wait(processes, time.monotonic() + min(20, self.left - 40))
        late = [job for job, process in processes.items() if process.poll() is None and not self._is_ready(job)]
        for job in late:
            os.killpg(processes[job].pid, signal.SIGSTOP)
        self.say(f"compiled; late: {', '.join(job.name for job in late) or 'none'}")
        for job, process in sorted(processes.items(), key=lambda item: item[0] in late):
            if job in late:
                os.killpg(process.pid, signal.SIGCONT)
                self._wait({job: process}, time.monotonic() + max(0, self.left - 15))
            begin = time.monotonic()
            (self.out / f"{job.name}.go").touch()
            try:
                code = process.wait(max(1, min(45, self.left)))
            except subprocess.TimeoutExpired:
                self.stop(process)
                code = -1
            self.say(f"{job.name}: timed in {time.monotonic() - begin:.1f} s, exit {code}")
            if code:
                self.note(job, f"ended with {code}, see {job.name}.log" if code > 0 else "stopped: out of time")

    def note(self, job: Job, text: str) -> None:
        """Says of every workload of a job that has no record why there is none."""
        seen = {(record.contender, record.model, record.workload) for record in read_records(self.out)}
        for workload in job.workloads.split(","):
            for mode in job.modes:
                if not workload.startswith("c") and (mode, job.model, workload) not in seen:
                    write_record(Record(job.model, mode, workload, note=text), self.out / "records.jsonl")

    @staticmethod
    def stop(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _is_ready(self, job: Job) -> bool:
        return (self.out / f"{job.name}.ready").exists()

    def _wait(self, processes: dict[Job, subprocess.Popen[bytes]], end: float) -> None:
        while time.monotonic() < end and any(
            process.poll() is None and not self._is_ready(job) for job, process in processes.items()
        ):
            time.sleep(0.1)


def jobs_of(models: Sequence[str], contenders: Sequence[str], workloads: str | None) -> Iterator[Job]:
    """What is to be run, in the order in which it matters. Chains go with the first model."""
    for model in models:
        for contender in (EXACT, *contenders):
            asked = workloads or WORKLOADS.get(model, "d1,p512")
            if workloads is None and contender in COMPILED:
                asked = ",".join(workload for workload in asked.split(",") if workload != LONG)
            chains = model == models[0] and contender in ("ours", "lean graph", "lean eager") and workloads is None
            yield Job(contender, model, f"{asked},{CHAINS}" if chains else asked)


def lacking(job: Job, out: Path) -> Job | None:
    """The job without what an earlier run measured."""
    seen = {
        (record.contender, record.workload)
        for record in read_records(out)
        if record.model in (job.model, "") and record.ms > 0
    }

    def is_there(workload: str) -> bool:
        if job.contender == EXACT:
            return (out / f"exact-{job.model}-{workload}.npy").exists()
        torch = [job.contender.replace("lean", "torch")] if workload.startswith("c") and job.contender != "ours" else []
        return all((mode, workload) in seen for mode in (torch or job.modes))

    left = [workload for workload in job.workloads.split(",") if not is_there(workload)]
    return Job(job.contender, job.model, ",".join(left)) if left else None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.side_by_side", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the folder of results and logs; what it has is not run again"
    )
    parser.add_argument(
        "--models", default="Q,D", help="shapes of Qwen2.5-0.5B and DeepSeek-R1-Distill-Qwen-1.5B (default Q,D)"
    )
    parser.add_argument("--workloads", help="such as d1,p512,c32, instead of the model's own")
    parser.add_argument("--contenders", default=",".join((*PLAIN, *COMPILED)), help="default: all, %(default)s")
    parser.add_argument(
        "--device",
        default="hip",
        choices=("cpu", "hip", "emulated"),
        help="of ours; cpu and emulated show that it runs (default hip)",
    )
    parser.add_argument("--site", help="a folder with transformers and what it needs")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for everything (default 540)")
    parser.add_argument(
        "--compile-seconds",
        type=float,
        default=140.0,
        metavar="SECONDS",
        help="for the contenders that compile (default 140)",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/tmp/ostinato-benchmarks"), help="for checkpoints and caches"
    )
    parser.add_argument(
        "--show", action="store_true", help="print the table of the results that are there, run nothing"
    )
    options = parser.parse_args()
    if options.device == "hip" and not options.show and not any(examine(vendor).cards for vendor in PLATFORMS):
        parser.error("no GPU can be used: `ostinato doctor` says why; --device cpu shows that it runs")
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.show:
        run = Run(options.out, options.site, options.device, options.budget, options.folder)
        jobs = list(jobs_of(options.models.split(","), options.contenders.split(","), options.workloads))
        for model in dict.fromkeys(job.model for job in jobs):
            checkpoint(model, "bf16", options.folder)
            run.say(f"{model}: weights are there")
        asked = [job for job in (lacking(job, options.out) for job in jobs) if job is not None]
        for job in asked:
            if job.contender not in COMPILED:
                run.alone(job)
        run.compiled([job for job in asked if job.contender in COMPILED], options.compile_seconds)
        run.say("done")
    records = read_records(options.out)
    models = {record.model for record in records} - {""}
    show(records, {model: Shape.read(checkpoint(model, "bf16", options.folder)) for model in models})


if __name__ == "__main__":
    main()
