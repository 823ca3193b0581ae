"""Makes the records that ship with the library, on the machine that it runs on:

    python -m tests.evidence.ship                all kernel units of this CPU
    python -m tests.evidence.ship --device hip   the GPU of this machine
    python -m tests.evidence.ship --keep         what ships already and still counts is not made again

Every program of `programs.py` is lowered as on a machine that has no record of anything, so that each row that it would have is validated. A row that does not
pass is recorded too, and the next best is validated in its place. Then every other row is validated on one class for each choice of dtypes that its samples
have, for the tables of docs/OPERATORS.md. The records become `ostinato/backend_hip/evidence/shipped/<architecture>.jsonl`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.known import DeviceRecords, stale_reason
from ostinato.backend_hip.evidence.ledger import SHIPPED, Ledger, shipped_file, shipped_records
from ostinato.backend_hip.evidence.records import Environment, ValidationRecord, write_record
from ostinato.backend_hip.evidence.survey import sample_sites, survey
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.open import open_hip
from ostinato.ir.signature import signature_class
from tests.evidence.programs import BLOCKS, FLOATS, models, programs

__all__ = ["ship"]


Device = HostDevice | HipDevice


def ship(
    devices: Sequence[Device],
    folder: Path = SHIPPED,
    kinds: Sequence[str] = (*FLOATS, *BLOCKS),
    *,
    keep: bool = False,
) -> list[Path]:
    """Validates what the programs want, and one class of each choice of dtypes besides, on open devices of one kind that have records; the files it wrote.

    With `keep` the records in `folder` that still count are taken over, and only what they lack is validated.
    """
    with tempfile.TemporaryDirectory() as place:
        for number, device in enumerate(devices):
            records = _records(device)
            ledger = Ledger(Path(place, str(number)))
            device.records = DeviceRecords(records.environment, ledger, shipped=False)
            if keep:
                device.records.add(_kept(device, records.environment))
            _ship_programs(device, Path(place, "models"), kinds)
        _ship_rows(devices)
        return [_written(_records(device), folder) for device in devices]


def _records(device: Device) -> DeviceRecords:
    assert device.records is not None, "the device takes rows on trust"
    return device.records


def _kept(device: Device, environment: Environment) -> list[ValidationRecord]:
    """The records of this architecture that ship and count here."""
    found = []
    for record in shipped_records(environment.architecture):
        row = device.target.row(record.operator, record.row) if isinstance(record, ValidationRecord) else None
        if (
            isinstance(record, ValidationRecord)
            and row is not None
            and not stale_reason(record, row, None, environment)
        ):
            found.append(record)
    print(f"{environment.architecture}: {len(found)} records kept", flush=True)
    return found


def _ship_programs(device: Device, folder: Path, kinds: Sequence[str]) -> None:
    records = _records(device)
    for name, kind, model in models(folder, kinds):
        begin = time.perf_counter()
        for entries in programs(model, kind):
            for entry, (traced, dims) in entries.items():
                traced.lower(device.target, dims=dims, name=entry)
        count, seconds = len(records.ledger.records()), time.perf_counter() - begin
        print(f"{records.environment.architecture} {name} {kind}: {count} records, {seconds:.1f} s", flush=True)


def _ship_rows(devices: Sequence[Device]) -> None:
    """Every row of the devices' target on the choices of dtypes that no program gave it."""
    first = _records(devices[0])
    known = {
        (one.operator, one.row, one.signature) for one in first.ledger.records() if isinstance(one, ValidationRecord)
    }
    wanted = [
        (row, site)
        for row in devices[0].target.rows
        for site in sample_sites(row)
        if (row.op, row.name, signature_class(site)) not in known
    ]
    found: dict[str, list[ValidationRecord]] = {}

    def tell(done: int, total: int, what: str) -> None:
        if done % 50 == 0 or done == total:
            print(f"{done} of {total}: {what}", flush=True)

    for record in survey([(device, _records(device).environment) for device in devices], wanted, tell):
        found.setdefault(record.environment.architecture, []).append(record)
    for device in devices:
        records = _records(device)
        records.add(found.get(records.environment.architecture, ()))


def _written(records: DeviceRecords, folder: Path) -> Path:
    made = [one for one in records.ledger.records() if isinstance(one, ValidationRecord)]
    for record in made:
        if not record.passed:
            print(f"FAILED {record.operator}@{record.row} on {record.signature}: {record.reason}", flush=True)
    path = folder / shipped_file(records.environment.architecture)
    path.write_text("".join(map(write_record, sorted(made, key=lambda record: record.key))), encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.ship", description="Makes the records that ship.")
    parser.add_argument("--device", choices=("cpu", "hip"), default="cpu")
    parser.add_argument("--keep", action="store_true", help="take over what ships already and still counts")
    asked = parser.parse_args(arguments)
    ledger = Ledger(Path(tempfile.gettempdir()) / "ostinato-shipping")
    if asked.device == "hip":
        devices: list[Device] = [open_hip()]
    else:
        devices = [HostDevice(isa=unit, ledger=ledger) for unit in HostDevice().available]
    for path in ship(devices, keep=asked.keep):
        print(f"wrote {path}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
