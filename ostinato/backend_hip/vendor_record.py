"""The files of algorithms of the vendor's GEMM on this machine, as JSON lines: those that were chosen, beside the compiled kernels, and those that a screening
found, with the user's evidence.

A line holds a record and a hash of it. Its key is all that the choice depends on (`KEY`); a later line of a key replaces an earlier one. Lines are added by one
write each, under a lock that is held while an algorithm is chosen, so that processes which start together choose once. A line that does not check is counted
and ignored. A folder that cannot be written costs time and nothing else. The file may be deleted at any time.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import xxhash

from ostinato.backend_hip.code_cache import default_folder
from ostinato.backend_hip.evidence.ledger import user_folder

__all__ = [
    "KEY",
    "Lines",
    "Record",
    "VendorRecord",
    "Written",
    "differences",
    "is_record",
    "record_key",
    "solution_key",
    "solutions",
    "written",
]

KEY = ("environment", "params", "workspace", "mode")
"""Card, architecture, driver and library; all of the product: extents, batches and their strides, transposes, dtypes, alpha and beta to their last bit; the
bytes of workspace it is given; the precision of its sums."""
_MODE = "f32"
_FILE, _SOLUTIONS = "vendor_choices.jsonl", "vendor_solutions.jsonl"
_SECONDS = 600
"""Of waiting for another process that chooses."""
_WORDS, _LIMIT = 8, 1 << 64
"""Numbers of an algorithm, and what they stay below."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lines:
    """What a file says: records by their keys, and how many of its lines do not check. `trouble` says why it cannot be read."""

    records: Mapping[str, Record]
    damaged: int = 0
    lines: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A file for people: how many algorithms it has for each card with its driver and library, and lines that do not check."""

    path: str
    algorithms: Mapping[str, int]
    damaged: int


class VendorRecord:
    """The file of that name in a folder (None: the user's). Processes may share it."""

    def __init__(self, folder: Path | None = None, name: str = _FILE) -> None:
        self.path = (default_folder() if folder is None else folder) / name
        self._read = Lines({})
        self._end = 0

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Holds the file for this process; yields why that cannot be, empty where it is held."""
        lock = filelock.FileLock(self.path.with_suffix(".lock"), timeout=_SECONDS)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            yield str(error)
            return
        try:
            yield ""
        finally:
            lock.release()

    def read(self) -> Lines:
        """What the file says now; only what was added since the last call is read."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._end:  # deleted, or another file
                    self._read, self._end = Lines({}), 0
                file.seek(self._end)
                added = file.read()
        except (FileNotFoundError, NotADirectoryError):
            self._read, self._end = Lines({}), 0
            return self._read
        except OSError as error:
            return Lines({}, trouble=str(error))
        lines, old = [_record(line) for line in added.splitlines() if line.strip()], self._read
        records = {**old.records, **{record_key(record): record for record in lines if record is not None}}
        self._read = Lines(records, old.damaged + sum(record is None for record in lines), old.lines + len(lines))
        self._end += len(added)
        return self._read

    def append(self, record: Record) -> str:
        """Adds a line; returns why that cannot be, empty where it was done."""
        line = json.dumps({"record": record, "digest": _digest(record)}, separators=(",", ":")) + "\n"
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                end = os.fstat(descriptor).st_size
                torn = bool(end) and os.pread(descriptor, 1, end - 1) != b"\n"  # a process died while it wrote
                os.write(descriptor, (b"\n" if torn else b"") + line.encode("ascii"))
            finally:
                os.close(descriptor)
        except OSError as error:
            return str(error)
        return ""


def written(folder: Path | None = None) -> Written:
    """What the file in a folder (None: the user's) holds."""
    file = VendorRecord(folder)
    lines = file.read()
    cards = Counter(_card(record["environment"]) for record in lines.records.values())
    return Written(str(file.path), dict(sorted(cards.items())), lines.damaged)


def solutions(folder: Path | None = None) -> VendorRecord:
    """The file of screened algorithms in a folder (None: that of the user's evidence)."""
    return VendorRecord(user_folder() if folder is None else folder, _SOLUTIONS)


def solution_key(environment: Mapping[str, str | int], params: Sequence[int | float], workspace: int) -> dict[str, Any]:
    """What a record is found by."""
    return {"environment": dict(environment), "params": list(params), "workspace": workspace, "mode": _MODE}


def differences(record: Record, key: Record) -> str:
    """In what the environment of a record of the same product is another one."""
    theirs, mine = record["environment"], key["environment"]
    return ", ".join(
        f"{name} {theirs.get(name)!r}, here {mine[name]!r}" for name in mine if theirs.get(name) != mine[name]
    )


def record_key(record: Record) -> str:
    return _text({name: record[name] for name in KEY})


def _card(environment: Mapping[str, Any]) -> str:
    return "{device} ({architecture}), driver {runtime}, library {library}".format(**environment)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(record: Record) -> str:
    return xxhash.xxh3_128_hexdigest(_text(record).encode("ascii"))


def _record(line: bytes) -> Record | None:
    """The record of a line, None for a line that does not check."""
    try:
        value = json.loads(line)
        record = value["record"]
        whole = value["digest"] == _digest(record) and is_record(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if whole else None


def is_record(value: Any) -> bool:
    """Whether a JSON value says all that a record of an algorithm says."""
    try:
        return _has_all(value)
    except (KeyError, TypeError, AttributeError):
        return False


def _has_all(record: Record) -> bool:
    """Whether a record says everything that is asked of it; another version's may say it in other words."""
    environment, params, algorithm = (record[name] for name in ("environment", "params", "algorithm"))
    return (
        isinstance(environment, dict)
        and {"device", "architecture", "runtime", "library"} <= environment.keys()
        and isinstance(params, list)
        and isinstance(record["mode"], str)
        and isinstance(algorithm, list)
        and len(algorithm) == _WORDS
        and all(type(number) is int and 0 <= number < _LIMIT for number in (*algorithm, record["needs"]))
        and all(type(record[name]) is int and record[name] >= 0 for name in ("workspace", "nodes"))
    )
