"""What selection makes of records: a row without one is validated once and never chosen before, a wrong one never, a stale one never, and both are named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence import first_use
from ostinato.backend_hip.evidence.first_use import VALIDATE_VARIABLE, VALIDATING, FirstUse, with_validation
from ostinato.backend_hip.evidence.known import DeviceRecords, Known, OnTrust
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import ValidationRecord
from ostinato.backend_hip.evidence.validate import validate
from ostinato.backend_hip.target import host_rows_target, host_target, named_target
from ostinato.ir.decision import Against
from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.evidence import Finding
from ostinato.ir.ops import OP
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Impl, Target
from ostinato.ir.views import ViewTable, call_site
from ostinato.stages import Lowered
from tests.frontend.small_families import small_model

DIMS = {"N": 16, "R": 1}
UNFUSED = ("fuse_norm", "fuse_add_norm", "fuse_qkv_rope_store")
"""Passes that would leave no norm by itself."""


class Planted(HostDevice):
    """The host with a row more, which comes before all others of its operator."""

    def __init__(self, ledger: Ledger, row: Impl) -> None:
        super().__init__(threads=1, ledger=ledger)
        self.row = row

    @property
    def target(self) -> Target:
        found = super().target
        return replace(found, rows=(self.row, *found.rows))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("model"), 3)


@pytest.fixture(scope="module")
def known_rows(model: ost.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in which all rows of the host have passed that the programs of this file want."""
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    device = HostDevice(threads=1, ledger=ledger)
    for disable in ((), UNFUSED):
        lower(model, device.target, disable=disable)
        ost.LLM(model, device=device, max_num_seqs=1, context=32, disable=disable)
    return ledger.path


@pytest.fixture
def ledger(tmp_path: Path, known_rows: Path) -> Ledger:
    """A ledger with the records of the host's own rows."""
    found = Ledger(tmp_path / "ledger")
    found.path.parent.mkdir()
    if known_rows.exists():  # what ships may be enough
        shutil.copy(known_rows, found.path)
    return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rows that are validated, as they are."""
    seen: list[str] = []

    def counting(device: Any, environment: Any, row: Impl, site: CallSite, seed: int) -> ValidationRecord:
        seen.append(row.identity)
        return validate(device, environment, row, site, seed)

    monkeypatch.setattr(first_use, "validate", counting)
    return seen


def faster(name: str = "faster", **changes: Any) -> Impl:
    """A row that is preferred to the host's own rms_norm."""
    found = host_rows_target().row("rms_norm", "host")
    assert found is not None
    return replace(found, name=name, priority=99, **changes)


def wrong() -> Impl:
    """It forgets eps, which the oracle does not."""
    right = faster()
    return replace(right, params=lambda site: (*right.params(site)[:2], 0.3, *right.params(site)[3:]))


def lower(model: ost.Model, target: Target, **options: Any) -> Lowered:
    return ost.trace(model, "step").lower(target, dims=DIMS, **options)


def norms(lowered: Lowered) -> list[str]:
    """The nodes that a planted row could have."""
    return [node.name for node in lowered.graph.nodes if node.op == "rms_norm"]


def site_of(lowered: Lowered, name: str) -> CallSite:
    node = next(node for node in lowered.graph.nodes if node.name == name)
    return call_site(lowered.graph, node, ViewTable(lowered.graph))


def test_a_faster_row_that_is_wrong_is_never_chosen_and_explain_names_it(
    model: ost.Model, ledger: Ledger, counted: list[str]
) -> None:
    device = Planted(ledger, wrong())
    lowered = lower(model, device.target, disable=UNFUSED)
    (name, *_) = norms(lowered)
    assert counted.count("rms_norm@faster") == 1
    decision = lowered.decisions[name]
    assert decision.row == "host"
    (rejection,) = (found for found in decision.rejected if found.row == "faster")
    assert (rejection.reason, len(rejection.evidence)) == (Against.FAILED, 1)
    assert "values of y off" in rejection.text
    (record,) = (each for each in ledger.records() if isinstance(each, ValidationRecord) and each.row == "faster")
    assert (record.passed, record.id) == (False, rejection.evidence[0])
    assert "faster" in str(lowered.explain(name))
    assert "failed" in str(lowered.explain(name))
    assert (lowered.validations.failed, lowered.validations.seconds > 0) == (
        (f"rms_norm@faster on {record.signature}",),
        True,
    )
    counted.clear()
    assert norms(lower(model, device.target, disable=UNFUSED))
    assert counted == []


def test_a_row_that_is_right_is_validated_once_and_chosen(model: ost.Model, ledger: Ledger, counted: list[str]) -> None:
    device = Planted(ledger, faster())
    told: list[tuple[str, int, int]] = []
    target = with_validation(device.target, "first-use", lambda *words: told.append(words))
    lowered = lower(model, target, disable=UNFUSED)
    (name, *_) = norms(lowered)
    assert counted.count("rms_norm@faster") == 1
    assert lowered.decisions[name].row == "faster"
    (identity,) = lowered.decisions[name].evidence
    assert identity in {record.id for record in ledger.records()}
    assert told[-1] == (VALIDATING, told[-1][2], told[-1][2])
    counted.clear()
    again = lower(model, Planted(Ledger(ledger.path.parent), faster()).target, disable=UNFUSED)
    assert (counted, again.validations.classes) == ([], 0)
    assert again.decisions[name].row == "faster"
    assert isinstance(again.target.evidence, Known)


@pytest.mark.parametrize("what", ["source", "declaration", "version", "unit"])
def test_a_stale_record_is_never_used_and_explain_names_it(
    model: ost.Model, ledger: Ledger, counted: list[str], what: str
) -> None:
    device = Planted(ledger, faster())
    lowered = lower(model, device.target, disable=UNFUSED)
    (name, *_) = norms(lowered)
    records = {record.id: record for record in ledger.records() if isinstance(record, ValidationRecord)}
    record = records[lowered.decisions[name].evidence[0]]
    fields = {key: getattr(record, key) for key in ValidationRecord.model_fields if key not in ("id", "kind")}
    if what in ("source", "declaration"):
        key = "norm" if what == "source" else "row"
        fields["sources"] = {**record.sources, key: "0123456789abcdef"}
    else:
        changed = {"version": "0.0.1"} if what == "version" else {"architecture": "x86_64/of-another-time"}
        fields["environment"] = record.environment.model_copy(update=changed)
    ledger.prune(lambda each: each.id != record.id)
    ledger.add([ValidationRecord.made(**fields)])

    counted.clear()
    plain = lower(model, with_validation(device.target, "never"), disable=UNFUSED)
    assert counted == []
    (rejection,) = (found for found in plain.decisions[name].rejected if found.row == "faster")
    assert plain.decisions[name].row == "host"
    assert rejection.reason is (Against.NOT_VALIDATED if what == "unit" else Against.STALE)
    assert "`ostinato evidence validate`" in rejection.text
    assert rejection.reason.value in str(plain.explain(name))

    assert lower(model, device.target, disable=UNFUSED).decisions[name].row == "faster"
    assert counted == ["rms_norm@faster"], "a stale record is made again where rows are validated on first use"


def test_never_takes_the_plainest_rows_and_validates_nothing(
    model: ost.Model, tmp_path: Path, counted: list[str]
) -> None:
    ledger = Ledger(tmp_path)
    device = HostDevice(threads=1, ledger=ledger)
    device.records = DeviceRecords(device.records.environment, ledger, shipped=False) if device.records else None
    lowered = lower(model, with_validation(device.target, "never"))
    assert counted == []
    assert not ledger.path.exists()
    lowest = device.target.lowest
    assert {decision.level for decision in lowered.decisions.values()} == {lowest}
    with pytest.raises(BackendError, match=r"no record of rms_norm@host on .*`ostinato evidence validate`"):
        lower(model, with_validation(device.target, "never"), levels={"rms_norm": "host"}, disable=UNFUSED)
    assert counted == []


def test_never_makes_what_first_use_made_where_that_has_records(model: ost.Model, tmp_path: Path) -> None:
    """Fusions pass through nodes that have none, and that nobody runs."""
    device = HostDevice(threads=1, ledger=Ledger(tmp_path))
    assert device.records is not None
    device.records = DeviceRecords(device.records.environment, device.records.ledger, shipped=False)
    first = lower(model, device.target)
    never = lower(model, with_validation(device.target, "never"))
    assert first.validations.classes > 0
    assert (never.validations.classes, never.graph, never.decisions) == (0, first.graph, first.decisions)


def test_first_use_is_switched_by_option_and_environment(
    model: ost.Model, monkeypatch: pytest.MonkeyPatch, ledger: Ledger, counted: list[str]
) -> None:
    target = Planted(ledger, faster()).target
    assert isinstance(with_validation(target, None).evidence, FirstUse)
    monkeypatch.setenv(VALIDATE_VARIABLE, "never")
    assert isinstance(with_validation(target, None).evidence, Known)
    assert isinstance(with_validation(target, "first-use").evidence, FirstUse)
    assert norms(lower(model, Planted(ledger, faster("faster_if_asked")).target, disable=UNFUSED))
    assert counted == [], "the environment speaks to whoever lowers a graph, too"
    asked = with_validation(Planted(ledger, faster("faster_if_asked")).target, "first-use")
    assert norms(lower(model, asked, disable=UNFUSED))
    assert counted == ["rms_norm@faster_if_asked"]
    monkeypatch.setenv(VALIDATE_VARIABLE, "always")
    with pytest.raises(ConfigError, match=rf"{VALIDATE_VARIABLE} in the environment is 'always'"):
        with_validation(target, None)
    with pytest.raises(ConfigError, match=r"validate is 'perhaps'[\s\S]*first-use"):
        ost.LLM(model, device="cpu", validate="perhaps")


def test_a_model_is_compiled_and_says_what_was_validated(model: ost.Model, ledger: Ledger, counted: list[str]) -> None:
    device = Planted(ledger, faster("faster_in_models"))
    llm = ost.LLM(model, device=device, max_num_seqs=1, context=32, disable=UNFUSED)
    assert llm.executable.validations.classes == len(counted) > 0
    assert llm.executable.validations.failed == ()
    counted.clear()
    again = ost.LLM(model, device=device, max_num_seqs=1, context=32, disable=UNFUSED)
    assert (again.executable.validations.classes, counted) == (0, [])


def test_targets_without_a_device_are_on_trust_and_say_so(model: ost.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (named_target("gfx942"), host_target()):
        assert isinstance(target.evidence, OnTrust)
        row = target.rows_for("tanh")[0]
        lowered = lower(model, target)
        site = site_of(lowered, next(node.name for node in lowered.graph.nodes if not OP[node.op].is_view))
        verdict = target.evidence.verdict(replace(row, name="nobody_s"), site)
        assert verdict.finding is Finding.VALIDATED
        assert "on trust" in verdict.reason
    assert named_target("sm_90").evidence is not None


def test_a_device_and_a_target_without_one_plan_alike(model: ost.Model, ledger: Ledger) -> None:
    """The order of preference and what the records say are the same; what failed is out of both."""
    device = HostDevice(threads=1, ledger=ledger)
    with_device, without = lower(model, device.target), lower(model, host_target())
    rows = [[(node.name, node.impl) for node in lowered.graph.nodes] for lowered in (with_device, without)]
    assert rows[0] == rows[1]


def test_the_user_s_own_record_goes_before_the_shipped_one(model: ost.Model, ledger: Ledger) -> None:
    device = HostDevice(threads=1, ledger=ledger)
    assert device.records is not None
    row = host_rows_target().row("rms_norm", "host")
    assert row is not None
    lowered = lower(model, device.target, disable=UNFUSED)
    site = site_of(lowered, norms(lowered)[0])
    shipped = validate(device, device.records.environment, row, site, 1)
    fields = {key: getattr(shipped, key) for key in ValidationRecord.model_fields if key not in ("id", "kind")}
    own = ValidationRecord.made(**{**fields, "passed": False, "reason": "not on my machine"})
    environment = device.records.environment
    assert Known(environment, [shipped, own]).verdict(row, site).finding is Finding.FAILED
    assert Known(environment, [own, shipped]).verdict(row, site).finding is Finding.VALIDATED
    assert Known(environment, []).verdict(row, site).finding is Finding.MISSING
    assert signature_class(site) in Known(environment, []).verdict(row, site).reason


@pytest.mark.parametrize("spoil", [lambda data: data[:-3], lambda data: data + b"?\n"])
def test_nothing_is_compiled_on_a_damaged_ledger(
    model: ost.Model, ledger: Ledger, spoil: Callable[[bytes], bytes]
) -> None:
    device = Planted(ledger, faster())
    lower(model, device.target)
    ledger.path.write_bytes(spoil(ledger.path.read_bytes()))
    before = ledger.path.read_bytes()
    with pytest.raises(ConfigError, match=r"evidence\.jsonl:[0-9]+: [\s\S]*`ostinato evidence prune`"):
        ost.LLM(model, device=device)
    assert ledger.path.read_bytes() == before
    ledger.prune()
    lower(model, device.target)


def test_a_device_that_is_lost_makes_no_record_of_the_rows_after_it(model: ost.Model, tmp_path: Path) -> None:
    class Mortal(Planted):
        dead = False

        def make_launch(self, call: Any) -> Any:
            self.dead = self.dead or call.kernel == "rms_norm"
            return super().make_launch(call)

        def synchronize(self) -> None:
            if self.dead:
                raise BackendError("an illegal address was met")

    ledger = Ledger(tmp_path)
    device = Mortal(ledger, faster())
    device.records = DeviceRecords(device.records.environment, ledger, shipped=False) if device.records else None
    with pytest.raises(BackendError, match=r"cannot be validated, host:0 does nothing any more: an illegal address"):
        lower(model, device.target, disable=UNFUSED)
    records = [record for record in ledger.records() if isinstance(record, ValidationRecord)]
    assert records[-1].row == "faster"
    assert "illegal address" in records[-1].reason
    assert all(record.passed for record in records[:-1])
