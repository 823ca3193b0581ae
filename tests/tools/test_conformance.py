"""`ostinato doctor --conformance` on the CPU: the report and its schema, and that rows, replays and devices which do wrong are found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.device import HostDevice, HostLaunch
from ostinato.backend_hip.evidence.samples import random_samples, well_typed
from ostinato.backend_hip.reference_calls import ReferenceCall
from ostinato.backend_hip.steps import LaunchCall
from ostinato.backend_hip.target import hip_target
from ostinato.ir.errors import BackendError
from ostinato.ir.ops import OP
from ostinato.ir.target import Impl, Level, Target
from ostinato.ir.types import Array
from ostinato.runtime.executable import Executable
from ostinato.tools.conformance import command, operators, replay
from ostinato.tools.conformance.command import run_conformance
from ostinato.tools.conformance.operators import rows_of, run_rows
from ostinato.tools.conformance.report import ConformanceReport, RowVerdict
from tests.tools.conftest import Result

Run = Callable[..., Result]
OPS = ("add", "argmax", "rms_norm", "scale")


def arguments(*more: str) -> list[str]:
    return ["doctor", "--conformance", "--device", "cpu", *(part for op in OPS for part in ("--op", op)), *more]


def test_the_report_has_its_schema_and_is_what_the_file_holds(ostinato: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = ostinato(*arguments("--json", "--output", str(path), "--seed", "5"))
    assert (result.code, result.err) == (0, "")
    report = result.report()
    assert isinstance(report, ConformanceReport)
    assert ConformanceReport.model_validate_json(path.read_text(encoding="utf-8"), strict=True) == report
    assert json.loads(result.out)["kind"] == "conformance"
    assert (report.ok, report.seed) == (True, 5)
    assert {row.op for row in report.rows} == set(OPS)
    assert all((row.verdict, row.refused) == ("pass", 0) and row.calls > 10 for row in report.rows)
    norm = next(row for row in report.rows if row.op == "rms_norm")
    assert norm.worst is not None
    assert norm.worst.used is not None
    assert 0 < norm.worst.used <= 1
    assert (report.environment.device, report.environment.platform, report.environment.wave) == ("host:0", "host", 0)
    assert len(report.environment.kernel_hash) == len(report.environment.native_hash) == 64
    assert {check.verdict for check in report.runtime} == {"pass", "skipped"}
    names = [check.name for check in report.capture]
    assert "decoder in f32: eager = planned" in names
    assert "decoder in bf16: 100 replays on poisoned memory" in names
    assert (report.graphs, report.quirks) == ((), ())


def test_people_read_what_failed_and_how_much_passed(ostinato: Run) -> None:
    result = ostinato(*arguments())
    assert result.code == 0
    for words in ("conforms", "host:0", " pass; ", "capture and replay", "the same bits"):
        assert words in result.out
    assert "rows that did not pass" not in result.out


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["--conformance", "--op", "fuse_everything"], 2, "no operators .'fuse_everything'."),
        (["--conformance", "--device", "tpu"], 2, "device 'tpu' is unknown"),
        (["--device", "cpu"], 2, "without --conformance, which does not take --device"),
        (["--output", "x.json"], 2, "does not take --output"),
        (["--op", "add"], 2, "does not take --op"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: list[str], code: int, words: str, ostinato: Run) -> None:
    result = ostinato("doctor", *given)
    assert result.code == code
    assert re.search(words, result.err)


# devices that do wrong


class Tampered(HostDevice):
    """The host with one row changed."""

    def __init__(self, op: str, change: Callable[[Impl], Impl]) -> None:
        super().__init__(threads=1)
        found = super().target
        kernels = [row for row in found.rows if row.level is not Level.REFERENCE]
        self._target = replace(found, rows=tuple(change(row) if row.op == op else row for row in kernels))

    @property
    def target(self) -> Target:
        return self._target


def other_factor(row: Impl) -> Impl:
    return replace(row, params=lambda site: (*row.params(site)[:2], 3.5, *row.params(site)[3:]))


def small_workspace(row: Impl) -> Impl:
    return replace(row, workspace=lambda site: max(row.workspace(site) - 1, 0))


def nobody(row: Impl) -> Impl:
    return replace(row, accepts=lambda site: "not today")


def verdicts(device: HostDevice, *ops: str) -> list[RowVerdict]:
    def silent(done: int, total: int, what: str) -> None:
        assert 0 <= done <= total
        assert what

    return list(run_rows(device, 1, ops=ops, advance=silent))


@pytest.fixture
def rows_as_the_device_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tampered row is looked for in the tampered target."""
    monkeypatch.setattr(operators, "rows_of", lambda device: device.target.rows)


@pytest.mark.usefixtures("rows_as_the_device_has_them")
def test_a_wrong_value_is_told_with_its_place_and_distance() -> None:
    (found,) = verdicts(Tampered("scale", other_factor), "scale")
    assert found.verdict == "outside tolerance"
    assert "values of y off" in found.reason
    assert found.worst is not None
    assert found.worst.found != found.worst.expected
    assert found.worst.used is None or found.worst.used > 1
    assert found.worst.call.startswith("scale@host(")


@pytest.mark.usefixtures("rows_as_the_device_has_them")
def test_a_write_beside_a_workspace_is_a_failure() -> None:
    (found,) = verdicts(Tampered("sample", small_workspace), "sample")
    assert found.verdict == "failed"


@pytest.mark.usefixtures("rows_as_the_device_has_them")
def test_a_row_that_takes_nothing_says_why() -> None:
    (found,) = verdicts(Tampered("add", nobody), "add")
    assert (found.verdict, found.calls, found.reason) == ("not accepted", 0, "not today")
    assert found.refused > 5


def test_rows_for_other_cards_are_listed() -> None:
    class Card(HostDevice):
        name = "hip:0"

    kernels = {row for row in HostDevice(threads=1).target.rows if row.level is not Level.REFERENCE}
    assert set(rows_of(HostDevice(threads=1))) == kernels
    own, listed = set(hip_target("gfx942", 64).rows), set(rows_of(Card(threads=1)))
    assert own < listed
    assert {row.architectures for row in listed - own} == {("wave32",)}


class Lost(HostDevice):
    """The host, until its third launch takes it down."""

    launched = 0

    def make_launch(self, call: LaunchCall) -> HostLaunch | ReferenceCall:
        self.launched += 1
        if self.launched > 2:
            raise BackendError("an illegal address was met")
        return super().make_launch(call)

    def synchronize(self) -> None:
        if self.launched > 2:
            raise BackendError("the device is lost")


def test_a_lost_device_is_asked_for_nothing_more() -> None:
    found = verdicts(Lost(threads=1), *OPS)
    assert found[0].verdict == "failed"
    assert "illegal address" in found[0].reason
    assert {row.verdict for row in found[1:]} == {"not run"}
    assert "the device is lost" in found[1].reason


def test_a_failure_is_the_exit_code(ostinato: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(operators, "rows_of", lambda device: device.target.rows)
    monkeypatch.setattr(command, "open_device", lambda name: Tampered("scale", other_factor))
    path = tmp_path / "report.json"
    result = ostinato("doctor", "--conformance", "--op", "scale", "--output", str(path))
    assert result.code == 1
    assert "does not conform" in result.out
    assert "scale@host" in result.out
    assert not ConformanceReport.model_validate_json(path.read_text(encoding="utf-8"), strict=True).ok


def test_a_mode_that_gives_other_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = replay._Decoder.outcome

    def off(self: replay._Decoder, exe: Executable) -> dict[str, Array]:
        found = outcome(self, exe)
        if exe.mode == "eager":
            found["logits"] = np.nextafter(found["logits"], np.inf)
        return found

    monkeypatch.setattr(replay._Decoder, "outcome", off)
    report = run_conformance(HostDevice(threads=1), ops=("add",), replays=1)
    failed = [check for check in report.capture if check.verdict == "fail"]
    assert [check.name for check in failed] == ["decoder in f32: eager = planned", "decoder in bf16: eager = planned"]
    assert "values differ between eager and planned" in failed[0].detail
    assert not report.ok


# samples


def test_random_shapes_are_those_that_the_operator_takes(rng: np.random.Generator) -> None:
    made = {name: list(random_samples(op, rng, 3)) for name, op in OP.items()}
    assert sum(map(len, made.values())) > 100
    for name, samples in made.items():
        assert len(samples) <= 3
        known = {shapes(sample.operands) for sample in OP[name].samples(rng)}
        assert all(well_typed(OP[name], sample) for sample in samples)
        assert sum(shapes(sample.operands) not in known for sample in samples) >= len(samples) - 1


def shapes(operands: Sequence[object]) -> tuple[object, ...]:
    return tuple(None if operand is None else operand.type.static_shape for operand in operands)  # type: ignore[attr-defined]
