"""The files of records: those that ship with the library, and the user's own, which processes share.

The user's file is replaced as a whole, under a lock: written aside, synchronised, renamed. Whoever reads sees the state before or after, and a process
that dies while it writes leaves the state before. A line that is no record is an error that names file and line; nothing is skipped, and nothing is written to
a file that does not check until `prune` has taken such lines out. The folder is the system's for user data, or the one that `OSTINATO_EVIDENCE` names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import filelock
import platformdirs
from pydantic import ValidationError

from ostinato.backend_hip.evidence.records import Record, read_record, write_record
from ostinato.ir.errors import ConfigError

__all__ = [
    "FOLDER_VARIABLE",
    "SHIPPED",
    "Ledger",
    "Lines",
    "Pruned",
    "read_file",
    "shipped_file",
    "shipped_records",
    "user_folder",
]

FOLDER_VARIABLE = "OSTINATO_EVIDENCE"
"""Of the environment: the folder of the user's own records, in place of the system's."""
SHIPPED = Path(__file__).resolve().parent / "shipped"
_FILE = "evidence.jsonl"
_SECONDS = 60
"""Of waiting for another process that writes."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What a file says: its records in order, and for each line that is none its number from 1 and why."""

    records: tuple[Record, ...]
    damaged: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` left and took out: records by whether they were kept, and lines that were none."""

    kept: int
    removed: tuple[Record, ...]
    damaged: tuple[tuple[int, str], ...]


def user_folder() -> Path:
    """Where the user's own records are."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_data_dir("ostinato")) / "evidence"


def shipped_file(architecture: str, kind: str = "") -> str:
    """The name of the file with the shipped records of an architecture; timings have one of their own, `kind` "timing-"."""
    return f"{kind}{architecture.replace('/', '-')}.jsonl"


def shipped_records(architecture: str | None = None, folder: Path = SHIPPED) -> tuple[Record, ...]:
    """The records that come with the library, of one architecture or of all. Raises `ConfigError` as `Ledger.records` does."""
    mine = [] if architecture is None else [folder / shipped_file(architecture, kind) for kind in ("", "timing-")]
    paths = mine or sorted(folder.glob("*.jsonl"))
    return tuple(record for path in paths for record in _records(path))


def read_file(path: Path) -> tuple[Record, ...]:
    """The records of a file that somebody wrote. Raises `ConfigError` as `Ledger.records` does, and where there is no such file."""
    if not os.path.isfile(path):
        raise ConfigError(f"{path} is no file of records", hint="`ostinato evidence export FILE` writes one")
    return _records(path)


class Ledger:
    """The user's own file in a folder (None: `user_folder`). A later record replaces an earlier one of the same key."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (user_folder() if folder is None else folder) / _FILE

    def stamp(self) -> tuple[object, ...]:
        """Changes whenever the file does."""
        return _stamp(self.path)

    def records(self) -> tuple[Record, ...]:
        """All records, the latest of each key. Raises `ConfigError`, naming file and line, for a line that is no record, and where it cannot be read."""
        return _records(self.path)

    def lines(self) -> Lines:
        """What the file says, lines that are no records among it. Raises `ConfigError` where it cannot be read."""
        found = _read(self.path, self.stamp())
        return Lines(_latest(found.records), found.damaged)

    def add(self, records: Iterable[Record]) -> None:
        """Adds records, each in place of what its key had. Raises what `records` raises, and `ConfigError` where nothing can be written; the file is then as
        it was."""
        added = tuple(records)
        if not added:
            return
        with self._locked():
            _replace(self.path, _latest((*_records(self.path), *added)))

    def need_writable(self) -> None:
        """Raises what `add` would, before the work whose records are to be added."""
        with self._locked():
            _records(self.path)

    def prune(self, keep: Callable[[Record], bool] = lambda record: True) -> Pruned:
        """Takes out what is not to be kept, and every line that is no record. Raises `ConfigError` where nothing can be read or written."""
        with self._locked():
            lines = _read(self.path, _stamp(self.path))
            kept = tuple(record for record in _latest(lines.records) if keep(record))
            names = {record.id for record in kept}
            if lines.damaged or len(kept) != len(lines.records):
                _replace(self.path, kept)
        return Pruned(len(kept), tuple(record for record in lines.records if record.id not in names), lines.damaged)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = filelock.FileLock(self.path.with_suffix(".lock"), timeout=_SECONDS)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except filelock.Timeout:
            hint = f"another process holds it; wait, or name another folder in {FOLDER_VARIABLE}"
            raise ConfigError(f"{self.path} is locked since {_SECONDS} s", hint=hint) from None
        except (OSError, NotImplementedError) as error:
            raise _unusable(self.path, error) from None
        try:
            yield
        finally:
            lock.release()


def _latest(records: Iterable[Record]) -> tuple[Record, ...]:
    """The last record of each key, in the order of those."""
    found: dict[tuple[str, ...], Record] = {}
    for record in records:
        found.pop(record.key, None)
        found[record.key] = record
    return tuple(found.values())


def _records(path: Path) -> tuple[Record, ...]:
    lines = _read(path, _stamp(path))
    if lines.damaged:
        shown = "\n".join(f"{path}:{number}: {reason}" for number, reason in lines.damaged[:3])
        raise ConfigError(
            f"the evidence ledger has lines that are no records: {len(lines.damaged)}\n{shown}",
            hint="`ostinato evidence prune` takes such lines out and keeps all others; what they said is validated again when it is needed",
        )
    return _latest(lines.records)


def _stamp(path: Path) -> tuple[object, ...]:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise _unusable(path, error) from None
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=16)
def _read(path: Path, stamp: tuple[object, ...]) -> Lines:
    """What a file says; `stamp` is that of the file, empty where there is none."""
    if not stamp:
        return Lines(())
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unusable(path, error) from None
    records: list[Record] = []
    damaged: list[tuple[int, str]] = []
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if not line.strip():
            continue
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it is cut off: its end is missing")
            records.append(read_record(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            damaged.append((number, f"{place}: {first['msg']}" if place else first["msg"]))
        except ValueError as error:
            damaged.append((number, str(error)))
    return Lines(tuple(records), tuple(damaged))


def _replace(path: Path, records: Iterable[Record]) -> None:
    """Puts a file of these records in its place, whole."""
    text = "".join(map(write_record, records))
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError | NotImplementedError) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(
        f"the evidence ledger {path} cannot be used: {reason}",
        hint=f"name another folder in the environment variable {FOLDER_VARIABLE}, or mend its rights",
    )
