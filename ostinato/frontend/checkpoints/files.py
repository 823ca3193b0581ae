"""Reading files that may be anything: missing, half a download, a Git LFS pointer, an error page.

Every reader of a checkpoint goes through here, so that a file that is not what its name says is described by what it is. Files are mapped read-only and
their pages given back on request: a model that is packed tensor by tensor never has the whole file resident. Nothing is executed or unpickled.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.ir.errors import BoundsError, ConfigError, LifecycleError, OstinatoError, WeightsError

__all__ = [
    "Bytes",
    "MappedFile",
    "describe_foreign",
    "file_identity",
    "leaves_directory",
    "optional_json",
    "parse_json",
    "read_json",
    "refuse_formats",
    "require_file",
    "system_errors",
]

Bytes = npt.NDArray[np.uint8]

_LFS_MAGIC = b"version https://git-lfs"
_FOREIGN = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive (as a PyTorch .bin checkpoint is)"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"<!DOCTYPE", "an HTML page (a failed download?)"),
    (b"<!doctype", "an HTML page (a failed download?)"),
    (b"<html", "an HTML page (a failed download?)"),
    (b"<?xml", "an XML document (a failed download?)"),
)

_PICKLE = "PyTorch pickles can run code when opened and are refused"
_FORMATS = {
    ".bin": _PICKLE,
    ".pt": _PICKLE,
    ".pth": _PICKLE,
    ".ckpt": _PICKLE,
    ".onnx": "ONNX graphs are programs and no checkpoints",
    ".h5": "TensorFlow's format is not supported",
    ".msgpack": "Flax's format is not supported",
    ".npz": "NumPy archives are not supported",
}
_CONVERT = (
    "convert them once with transformers: AutoModelForCausalLM (or AutoModel).from_pretrained(DIR).save_pretrained(OUT)"
)
_DOWNLOAD = "download the model's .safetensors files instead"


@contextlib.contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raises `WeightsError` for whatever the system refuses inside: no permission, a name too long, a disk that fails. `path` is what was asked for."""
    try:
        yield
    except OSError as error:
        raise WeightsError(
            f"{error.filename or path} cannot be read: {error.strerror or error}",
            hint="check the path, and who may read it",
        ) from error


def refuse_formats(paths: Iterable[Path]) -> None:
    """Raises `WeightsError` for weight files among `paths` in formats that are not read, with the way out."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        if path.suffix in _FORMATS:
            found.setdefault(_FORMATS[path.suffix], []).append(str(path))
    if not found:
        return
    reason = _PICKLE if _PICKLE in found else min(found)
    names = ", ".join(found[reason][:4]) + (", ..." if len(found[reason]) > 4 else "")
    raise WeightsError(f"{names}: {reason}", hint=_CONVERT if reason == _PICKLE else _DOWNLOAD)


def require_file(path: Path, what: str) -> None:
    """Raises `WeightsError` unless `path` is a readable, non-empty regular file; `what` names it in the message."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise WeightsError(f"{what} {path} cannot be read: {error.strerror or error}") from error
    if not path.is_file():
        raise WeightsError(f"{what} {path} is not a regular file", hint="name the file itself")
    if not os.access(path, os.R_OK):
        raise WeightsError(f"{what} {path} cannot be read: permission denied", hint="make it readable")
    if size == 0:
        raise WeightsError(f"{what} {path} is empty", hint="download it again")


def describe_foreign(path: Path, expected: str) -> WeightsError | None:
    """An error that says what the file is, when its first bytes are known not to be `expected`; None when they tell nothing."""
    with path.open("rb") as file:
        head = file.read(512)
    size = path.stat().st_size
    if head.startswith(_LFS_MAGIC):
        declared = ""
        for line in head.splitlines():
            if line.startswith(b"size ") and line[5:].strip().isdigit():
                declared = f" of a {int(line[5:])} byte file"
        return WeightsError(
            f"{path} is a Git LFS pointer{declared}, not {expected}: the file itself ({size} bytes here) was never downloaded",
            hint="run `git lfs pull` in the repository, or download the file again",
        )
    for magic, kind in _FOREIGN:
        if head.startswith(magic):
            return WeightsError(f"{path} is {kind}, not {expected}", hint="check the download and the file name")
    return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} appears twice")
        found[key] = value
    return found


def parse_json(text: bytes) -> Any:
    """JSON with unique keys; raises `ValueError` with the reason (also for text that is not UTF-8 or nested beyond reason)."""
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, what: str, error: type[OstinatoError] = ConfigError) -> dict[str, Any]:
    """The JSON object in `path`. Raises `WeightsError` when it cannot be read or is another kind of file, `error` when it is not a JSON object."""
    require_file(path, what)
    text = path.read_bytes()
    try:
        value = parse_json(text)
    except ValueError as reason:
        foreign = describe_foreign(path, "a JSON file")
        raise foreign or error(f"{what} {path} is not valid JSON: {reason}", hint="download it again") from reason
    if not isinstance(value, dict):
        raise error(f"{what} {path} holds a JSON {type(value).__name__}, expected an object")
    return value


def optional_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in `path`, an empty one where there is no such file. Raises what `read_json` raises."""
    return read_json(path, what) if path.exists() else {}


def leaves_directory(path: str) -> bool:
    """Whether a path that stands in a file, and so may be anyone's, leads out of that file's directory: absolute, on another drive, or through ".."."""
    windows = PureWindowsPath(path)
    return PurePosixPath(path).is_absolute() or bool(windows.drive or windows.root) or ".." in windows.parts


def file_identity(path: Path) -> tuple[int, ...]:
    """What tells this file, with this content, from one that took its place: device, number, size and time of the last write."""
    try:
        return _identity(path.stat())
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class MappedFile:
    """One read-only file mapping. Views stay valid while they live, also after `close`; `release` gives pages back to the system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise WeightsError(
                f"{path} cannot be read any more: {error.strerror or error}",
                hint="put the file back, or open the checkpoint again",
            ) from error
        try:
            status = os.fstat(self._file.fileno())
            self.size, self.identity = status.st_size, _identity(status)
            self._map: mmap.mmap | None = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            self._file.close()
            raise WeightsError(f"{path} cannot be mapped: {error}") from error

    def view(self, offset: int, nbytes: int) -> Bytes:
        """Bytes [offset, offset + nbytes) of the file, uint8, read-only, not copied.

        Raises `BoundsError` outside the file, `WeightsError` when the file changed its size since it was opened (reading it would kill the process),
        `LifecycleError` after `close`.
        """
        mapped = self._require_open()
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise BoundsError(f"bytes [{offset}, {offset + nbytes}) lie outside {self.path}, which has {self.size}")
        size = os.fstat(self._file.fileno()).st_size
        if size != self.size:
            raise WeightsError(
                f"{self.path} changed while it was open: {self.size} bytes before, {size} now",
                hint="open the checkpoint again",
            )
        if nbytes == 0:
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(mapped, dtype=np.uint8, count=nbytes, offset=offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Drops the resident pages that hold [offset, offset + nbytes). They are read again when touched again; neighbours on shared pages too."""
        mapped = self._require_open()
        if nbytes <= 0 or not hasattr(mapped, "madvise"):
            return  # a system without madvise decides by itself when to drop pages of a file
        start = offset - offset % mmap.PAGESIZE
        stop = min(offset + nbytes, self.size)
        mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Unmaps the file, or leaves that to the last living view. Closing twice is allowed."""
        mapped, self._map = self._map, None
        self._file.close()
        if mapped is None:
            return
        with contextlib.suppress(BufferError):  # views are alive: the mapping goes when the last of them does
            mapped.close()

    def _require_open(self) -> mmap.mmap:
        if self._map is None:
            raise LifecycleError(f"{self.path} was closed", hint="open the checkpoint again")
        return self._map
