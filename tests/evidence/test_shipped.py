"""The records that ship: every row that a program takes unasked on a CPU has one for each kernel unit, made of the sources as they are."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.environment import host_environment
from ostinato.backend_hip.evidence.known import Known, Optimist, stale_reason
from ostinato.backend_hip.evidence.ledger import SHIPPED, Ledger, shipped_file, shipped_records
from ostinato.backend_hip.evidence.records import ValidationRecord
from ostinato.backend_hip.evidence.sources import file_hash
from ostinato.backend_hip.target import host_rows_target
from ostinato.ir.evidence import Finding
from ostinato.ir.ops import OP
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.views import ViewTable, call_site
from tests.evidence.programs import BLOCKS, FLOATS, models, programs
from tests.evidence.ship import ship

NATIVE = Path(__file__).resolve().parents[2] / "ostinato" / "backend_hip" / "native"
UNITS = ("portable", "avx2", "avx512", "avx512_bf16")
HOW = "run `python -m tests.evidence.ship` on a machine with all of them"
SHOWN = 8


def known(unit: str) -> Known:
    environment = host_environment("any", unit)
    return Known(environment, shipped_records(environment.architecture))


def wanted(folder: Path, kinds: Sequence[str]) -> dict[tuple[str, str], tuple[Impl, CallSite]]:
    """The rows with a site of each class that programs with weights of these kinds have, by identity and class."""
    target = replace(host_rows_target(), evidence=Optimist(known(UNITS[-1])))
    found: dict[tuple[str, str], tuple[Impl, CallSite]] = {}
    for _, kind, model in models(folder, kinds):
        for entries in programs(model, kind):
            for name, (traced, dims) in entries.items():
                graph = traced.lower(target, dims=dims, name=name).graph
                views = ViewTable(graph)
                for node in graph.nodes:
                    row = None if OP[node.op].is_view else target.row(node.op, node.impl or "")
                    if row is not None and row.level is not Level.REFERENCE:
                        site = call_site(graph, node, views)
                        found.setdefault((row.identity, signature_class(site)), (row, site))
    return found


def require_records(found: dict[tuple[str, str], tuple[Impl, CallSite]]) -> None:
    assert len(found) > 30
    for unit in UNITS:
        records = known(unit)
        without = [
            f"{identity} on {signature}: {verdict.finding.value}: {verdict.reason}"
            for (identity, signature), (row, site) in found.items()
            if (verdict := records.verdict(row, site)).finding in (Finding.MISSING, Finding.STALE)
        ]
        assert not without, f"{len(without)} of {len(found)} have no record on {unit}; {HOW}\n" + "\n".join(
            without[:SHOWN]
        )


def test_the_default_route_of_every_family_has_records_for_every_unit(tmp_path: Path) -> None:
    require_records(wanted(tmp_path, ("f32", "q8_0", "q4_k")))


@pytest.mark.slow
def test_the_default_route_of_every_dtype_of_weights_has_records_for_every_unit(tmp_path: Path) -> None:
    require_records(wanted(tmp_path, (*FLOATS, *BLOCKS)))


@pytest.mark.parametrize("unit", UNITS)
def test_every_row_of_the_host_passes(unit: str) -> None:
    """Each row has a record, all of them passed, and none is of other sources or of a row that is gone."""
    environment = host_environment("any", unit)
    rows = {row.identity: row for row in host_rows_target().rows if row.level is not Level.REFERENCE}
    seen, wrong = set(), []
    for record in shipped_records(environment.architecture):
        if not isinstance(record, ValidationRecord):
            continue
        row = rows.get(f"{record.operator}@{record.row}")
        why = "there is no such row" if row is None else stale_reason(record, row, None, environment) or record.reason
        if why:
            wrong.append(f"{record.operator}@{record.row} on {record.signature}: {why}")
        seen.add(f"{record.operator}@{record.row}")
    assert not wrong, f"{len(wrong)} records do not hold on {unit}; {HOW}\n" + "\n".join(wrong[:SHOWN])
    assert seen == set(rows), f"{sorted(set(rows) - seen)} have no record on {unit}; {HOW}"


def test_shipped_files_are_those_of_architectures() -> None:
    for path in SHIPPED.glob("*"):
        found = {
            record.environment.architecture for record in shipped_records(folder=SHIPPED) if path.suffix == ".jsonl"
        }
        names = {shipped_file(architecture, kind) for architecture in found for kind in ("", "timing-")}
        assert path.name in names, f"{path.name} is of no architecture"


def test_what_ships_is_made_by_validating_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in small: the records that it writes are all that the same programs ask for."""
    monkeypatch.setattr("tests.evidence.ship.models", lambda *_: list(models(tmp_path / "models", ("f32",)))[:1])
    monkeypatch.setattr("tests.evidence.ship.sample_sites", lambda row: [])
    device = HostDevice(threads=1, ledger=Ledger(tmp_path))
    (path,) = ship([device], tmp_path)
    made = shipped_records(folder=tmp_path)
    assert path.name == shipped_file(device.records.environment.architecture) if device.records else False
    assert len(made) > 10
    assert all(isinstance(record, ValidationRecord) and record.passed for record in made)


def test_hashes_of_kernel_sources_are_those_of_the_files_here() -> None:
    """A native module that was built of other sources than those that lie here would make records that hold nowhere."""
    spec = importlib.util.spec_from_file_location("kernel_hashes", NATIVE / "kernel_hashes.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    sources = _native.kernel_sources()
    assert set(sources) == set(_native.kernel_names())
    built = dict(sources.values())
    here = {family: script.family_hash(family) for family in script.families()}
    assert built == here, "the native module was built of other sources: `make native`"


def test_comments_do_not_make_records_stale_and_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def hash_of(text: str) -> str:
        monkeypatch.setattr("ostinato.backend_hip.evidence.sources.expanded", lambda name: text)
        return file_hash("rotary/rotary")

    first = hash_of('#line 1 "a"\nint x = 1; // one\n\n/* two\nlines */ char* y = "//";\n')
    assert hash_of('#line 9 "a"\n  int x = 1;\nchar* y = "//"; // other words\n') == first
    assert hash_of('int x = 2;\nchar* y = "//";\n') != first
    assert hash_of('int x = 1;\nchar* y = "/";\n') != first
