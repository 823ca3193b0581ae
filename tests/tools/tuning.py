"""A machine for tests of `ostinato evidence tune`: trials run in this process, and their times are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import Environment, TimingRecord
from ostinato.ir.evidence import Finding, Verdict
from ostinato.ir.selection_policy import Gated
from ostinato.ir.target import CallSite, Impl, Target
from ostinato.runtime.device import Device
from ostinato.stages import open_device, open_model
from ostinato.tools.evidence.candidates import Options
from ostinato.tools.evidence.measure import Setting
from ostinato.tools.evidence.report import TuneReport
from ostinato.tools.evidence.trial import Request, Result, run_trial
from ostinato.tools.evidence.tune import tune
from ostinato.tools.evidence.workloads import parse_workloads

ENVIRONMENT = Environment(device="A CPU", architecture="x86_64/test", kernel_hash="k", version="0")
PASS = "fuse_qkv=off"


class Distrust:
    """Evidence by which one row is not validated."""

    def __init__(self, row: str, finding: Finding) -> None:
        self.row, self.finding = row, finding

    def verdict(self, row: Impl, site: CallSite) -> Verdict:
        del site
        return Verdict(self.finding if row.identity == self.row else Finding.VALIDATED, (), "for this test")

    def gate(self, policy: Gated) -> Verdict:
        return Verdict(Finding.MISSING)


class Doubted:
    """A device with such evidence, and one row more: a copy of another."""

    def __init__(self, device: Device, evidence: Distrust) -> None:
        self._device, self._evidence = device, evidence

    @property
    def target(self) -> Target:
        found = self._device.target
        row = found.row("linear_swiglu", "host")
        assert row is not None
        planted = replace(row, name="planted", priority=-1)
        return replace(found, rows=(*found.rows, planted), evidence=self._evidence)

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)


def trusted() -> Doubted:
    """The CPU, with every row validated."""
    return Doubted(open_device("cpu", 1), Distrust("", Finding.FAILED))


class Machine:
    """Runs trials here. `speed`: how many times as fast as the baseline a candidate is; `hook` sees each result before it is told."""

    def __init__(self, speed: float = 1.5, hook: Callable[[Request, Result], Result] | None = None) -> None:
        self.speed, self.hook = speed, hook
        self.requests: list[Request] = []
        self._done: dict[str, Result] = {}

    def __call__(self, request: Request) -> Result:
        self.requests.append(request)
        key = request.model_copy(update={"seconds": 0.0, "outputs": ""}).model_dump_json()
        if request.outputs or key not in self._done:
            self._done[key] = run_trial(request.model_copy(update={"seconds": 0.0}), cast(Device, trusted()))
        result = self._done[key]
        if request.seconds:
            plain = request.options == Options()
            seconds = 1.0 if plain else 1.0 / self.speed
            runs = tuple(run.model_copy(update={"seconds": seconds}) for run in result.runs)
            result = result.model_copy(update={"runs": runs, "peak_bytes": 1000, "arena_bytes": 100})
        return result if self.hook is None else self.hook(request, result)

    @property
    def timed(self) -> list[Request]:
        return [request for request in self.requests if request.seconds]


def tuned(
    model: Path,
    ledger: Ledger,
    machine: Machine,
    *,
    only: tuple[str, ...] = (PASS,),
    workloads: str = "d1,p8",
    pairs: int = 3,
    device: Doubted | None = None,
) -> TuneReport:
    opened = device or trusted()
    setting = Setting(str(model), "cpu", 1, "auto", parse_workloads(workloads), pairs, 0.01)
    return tune(setting, open_model(str(model)), cast(Device, opened), ENVIRONMENT, ledger, only=only, runner=machine)


def timings(ledger: Ledger) -> list[TimingRecord]:
    return [record for record in ledger.records() if isinstance(record, TimingRecord)]
