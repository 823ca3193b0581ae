"""Checkpoints of a training run: a folder of folders, one a checkpoint, and a file `latest` that names the one to go on from.

    step-00000100/checkpoint.json              what it is: versions, shapes, optimizer, cursor of the data, seed, digests (`record.py`)
                  parameters.safetensors       parameters under the names of the model's checkpoint
                  state.safetensors            moments and step counter of the optimizer
    latest                                     step-00000100

A checkpoint is written under another name, synced, renamed, and only then named by `latest`, which is replaced in one go: whatever byte a crash falls on,
`latest` names a complete checkpoint. Older ones are removed afterwards, renamed first. One process at a time writes to a folder; the lock goes with the
process. Reading checks everything (record, sizes, digests, the header of each file, and that it is of this run) before it hands out a tensor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from ostinato.ir.checks import instance, integer, shown
from ostinato.ir.errors import ConfigError, LifecycleError, StaleArtifact, WeightsError
from ostinato.ir.safetensors import TensorSpec, file_blocks, header_of, specs_of
from ostinato.ir.types import Array
from ostinato.ir.version import VERSION as PACKAGE
from ostinato.runtime.training.disk import Disk, digest_of
from ostinato.runtime.training.record import (
    FORMAT,
    RECORD,
    VERSION,
    FileRecord,
    Record,
    TensorRecord,
    damaged,
    differences,
    json_hash,
    plain,
    read_record,
)

__all__ = ["LATEST", "Checkpoints", "Snapshot", "read_checkpoint"]

LATEST = "latest"
_PARAMETERS, _STATE = "parameters.safetensors", "state.safetensors"
_NAME = re.compile(r"step-([0-9]{8,})(?:\.([0-9]+))?")
_LEFTOVERS = (".writing-", ".old-")
_MOST_DIFFERENCES = 12


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Everything that a run goes on from, after `step` steps.

    `parameters` and `state` (moments, step counter) by name; `optimizer` as it describes itself, `data` as the dataset's `state()` gives it, None without data;
    `configs` are the settings that the results depend on, "model" among them, as plain JSON values. `computed_by` is the step's: what only the last bits
    depend on.
    """

    step: int
    parameters: Mapping[str, Array]
    state: Mapping[str, Array]
    optimizer: Mapping[str, Any]
    seed: int = 0
    data: Mapping[str, Any] | None = None
    configs: Mapping[str, Any] = field(default_factory=dict)
    computed_by: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a part that is no mapping of names."""
        for name in ("parameters", "state", "optimizer", "data", "configs", "computed_by"):
            part: Any = getattr(self, name)
            if part is None and name == "data":
                continue
            if not isinstance(part, Mapping) or not all(isinstance(key, str) for key in part):
                raise ConfigError(f"{name} of a checkpoint is a {type(part).__name__}, expected a mapping of names")

    def record(self, files: Mapping[str, FileRecord]) -> Record:
        """What is written beside the tensors. Raises `ConfigError` for settings that JSON cannot hold, `DTypeError` for tensors that files cannot."""
        try:
            said = plain({"optimizer": self.optimizer, "data": self.data, "configs": self.configs})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the settings of a checkpoint are not plain JSON values: {error}") from None
        content = {
            "format": FORMAT,
            "version": VERSION,
            "package": PACKAGE,
            "step": integer(self.step, "step", low=0),
            "seed": integer(self.seed, "seed"),
            "model": json_hash(said["configs"].get("model")),
            "parameters": _described(self.parameters),
            "state": _described(self.state),
            **said,
            "computed_by": dict(self.computed_by),
            "files": {name: file.model_dump() for name, file in files.items()},
        }
        return Record.model_validate({**content, "digest": json_hash(content)})


class Checkpoints:
    """The checkpoints in `folder`, of which the newest `keep` stay. Nothing is touched until the first `save` or `locked`."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3, disk: Disk | None = None) -> None:
        self.folder = _folder(folder)
        self.keep = integer(keep, "keep", low=1)
        self._disk = disk or Disk()
        self._lock: filelock.FileLock | None = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this process: it is made where it is not there, and is known to be writable afterwards.

        Raises `LifecycleError` where another process holds it, `ConfigError` where it cannot be written.
        """
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = filelock.FileLock(self.folder / ".lock", timeout=0)
            try:
                self._lock.acquire()
            except filelock.Timeout:
                raise LifecycleError(
                    f"another process writes checkpoints into {self.folder}", hint="let it end, or name another folder"
                ) from None
        try:
            yield
        finally:
            self._lock.release()

    def save(self, snapshot: Snapshot) -> Path:
        """Writes a checkpoint, makes it the latest and removes older ones; returns its folder.

        Raises `ConfigError` where the files cannot be written: the latest one then is what it was before.
        """
        with self.locked(), self._writing():
            self._sweep()
            made = self.folder / f"{_LEFTOVERS[0]}{os.getpid()}"
            self._disk.make_folder(made)
            files = {}
            for name, tensors in ((_PARAMETERS, snapshot.parameters), (_STATE, snapshot.state)):
                stored = self._disk.store(made / name, file_blocks(_sorted(tensors)))
                files[name] = FileRecord(size=stored.size, digest=stored.digest)
            self._disk.store(made / RECORD, [snapshot.record(files).to_json()])
            self._disk.sync_folder(made)
            final = self.folder / self._free_name(snapshot.step)
            self._disk.rename(made, final)
            self._disk.sync_folder(self.folder)
            pointer = self.folder / f"{_LEFTOVERS[0]}{LATEST}"
            self._disk.store(pointer, [final.name.encode() + b"\n"])
            self._disk.rename(pointer, self.folder / LATEST)
            self._disk.sync_folder(self.folder)
            for old in self.all()[: -self.keep]:
                if old != final:
                    self._discard(old)
            return final

    def latest(self) -> Path | None:
        """The checkpoint to go on from, None where there is none. Raises `WeightsError` for a damaged `latest`."""
        pointer = self.folder / LATEST
        try:
            name = pointer.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            found = self.all()  # a crash between the first checkpoint and its pointer
            return found[-1] if found else None
        except (OSError, UnicodeDecodeError) as error:
            raise WeightsError(f"{pointer} cannot be read: {error}", hint=self._others()) from None
        if _NAME.fullmatch(name) is None or not (self.folder / name).is_dir():
            raise WeightsError(
                f"{pointer} names {name[:80]!r}, expected a checkpoint of this folder", hint=self._others()
            )
        return self.folder / name

    def load(self, expected: Snapshot | None = None) -> Snapshot | None:
        """The latest checkpoint, None where there is none. Raises what `read_checkpoint` raises."""
        instance(expected, Snapshot, "expected")
        found = self.latest()
        return None if found is None else read_checkpoint(found, expected)

    def all(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        if not os.path.isdir(self.folder):
            return []
        found = [(path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir()]
        known = [(int(match[1]), int(match[2] or 0), path) for path, match in found if match and path.is_dir()]
        return [path for _, _, path in sorted(known)]

    def _free_name(self, step: int) -> str:
        """A name for a checkpoint of that step. One that is there and not the latest is what a crash left, and makes room."""
        current = self.latest()
        taken = 0
        while True:
            path = self.folder / (f"step-{step:08d}" + (f".{taken}" if taken else ""))
            if not path.exists():
                return path.name
            if path != current:
                self._discard(path)
                return path.name
            taken += 1

    def _discard(self, path: Path) -> None:
        """Removes a checkpoint, renamed first: what a crash leaves of it does not look like one."""
        aside = self.folder / f"{_LEFTOVERS[1]}{path.name}"
        self._disk.rename(path, aside)
        self._disk.remove(aside)

    def _sweep(self) -> None:
        """Removes what writers that were killed have left."""
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(_LEFTOVERS):
                self._disk.remove(path)

    def _others(self) -> str:
        names = ", ".join(path.name for path in self.all()) or "none"
        return f"write the name of a checkpoint into it; there are: {names}"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise ConfigError(
                f"checkpoints cannot be written to {error.filename or self.folder}: {error.strerror or error}",
                hint=f"{'make room' if full else 'name a writable folder'}; the checkpoints that are there are as they were",
            ) from error


def read_checkpoint(path: str | os.PathLike[str], expected: Snapshot | None = None) -> Snapshot:
    """The checkpoint in a folder, its tensors mapped and read-only.

    `expected` is what the run that wants to go on would save now: model, tensors, optimizer, data, seed and settings must be the same (the step and the place
    in the data are the checkpoint's). Where it would be computed by something else, a `RuntimeWarning` says that the last bits may differ. Raises
    `StaleArtifact` listing every difference, `WeightsError` for a file that is missing or damaged, naming what was expected and found. Nothing is changed
    before all of it was checked.
    """
    folder = _folder(path)
    record = read_record(folder / RECORD)
    if expected is not None:
        _need_same(folder, record, expected)
    if set(record.files) != {_PARAMETERS, _STATE}:
        raise WeightsError(
            f"{folder / RECORD} names the files {sorted(record.files)}, expected {[_PARAMETERS, _STATE]}"
        )
    specs = {_PARAMETERS: _specs(record.parameters), _STATE: _specs(record.state)}
    for name, stored in record.files.items():
        _check_file(folder / name, stored, specs[name])
    return Snapshot(
        step=record.step,
        parameters=_mapped(folder / _PARAMETERS, specs[_PARAMETERS]),
        state=_mapped(folder / _STATE, specs[_STATE]),
        optimizer=record.optimizer,
        seed=record.seed,
        data=record.data,
        configs=record.configs,
        computed_by=record.computed_by,
    )


def _folder(path: Any) -> Path:
    """A path that a system can have; raises `ConfigError` for anything else."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise ConfigError(f"{shown(path)} is no path of a folder", hint="name a folder")
    return Path(path)


def _need_same(folder: Path, record: Record, expected: Snapshot) -> None:
    wanted, found = expected.record({}).model_dump(), record.model_dump()
    if wanted["data"] and found["data"]:
        wanted["data"], found["data"] = ({"identity": said.get("identity")} for said in (wanted["data"], found["data"]))
    compared = ("seed", "optimizer", "data", "configs", "parameters", "state")
    lines = differences({key: wanted[key] for key in compared}, {key: found[key] for key in compared})
    if lines:
        more = [f"and {len(lines) - _MOST_DIFFERENCES} more"] if len(lines) > _MOST_DIFFERENCES else []
        raise StaleArtifact(
            f"{folder} was made by another run",
            differences=(*lines[:_MOST_DIFFERENCES], *more),
            hint="resume with the settings of that run, or begin a new one in another folder",
        )
    one, other = wanted["computed_by"], found["computed_by"]
    if one and other and one != other:
        warnings.warn(
            f"{folder} was computed by other kernels, so that the last bits of this run may differ from those of one that was never interrupted: "
            f"{'; '.join(differences(one, other))}",
            RuntimeWarning,
            stacklevel=4,
        )


def _check_file(path: Path, stored: FileRecord, specs: Mapping[str, TensorSpec]) -> None:
    try:
        size = path.stat().st_size
        if size != stored.size:
            raise damaged(path, f"expected {stored.size} bytes, found {size}")
        found = digest_of(path)
        header = header_of(specs)
        with path.open("rb") as file:
            start = file.read(len(header))
    except OSError as error:
        raise WeightsError(
            f"{path} cannot be read: {error.strerror or error}", hint="resume from an earlier checkpoint"
        ) from None
    if found.digest != stored.digest:
        raise damaged(path, f"expected the digest {stored.digest}, found {found.digest}")
    if start != header or size != len(header) + sum(spec.nbytes for spec in specs.values()):
        raise damaged(path, f"expected the tensors that {RECORD} lists, found another header")


def _mapped(path: Path, specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    place = len(header_of(specs))
    found: dict[str, Array] = {}
    for name, spec in specs.items():
        found[name] = mapped[place : place + spec.nbytes].view(np.ndarray).view(spec.dtype.numpy).reshape(spec.shape)
        place += spec.nbytes
    return found


def _sorted(tensors: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(tensors[name]) for name in sorted(tensors)}


def _described(tensors: Mapping[str, Array]) -> dict[str, Any]:
    specs = specs_of(_sorted(tensors))
    return {name: {"dtype": spec.dtype.value, "shape": list(spec.shape)} for name, spec in specs.items()}


def _specs(tensors: Mapping[str, TensorRecord]) -> dict[str, TensorSpec]:
    return {name: tensors[name].spec for name in sorted(tensors)}
