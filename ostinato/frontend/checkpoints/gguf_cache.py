"""Parsed GGUF headers on disk, so that a file is parsed once and opened in milliseconds afterwards.

An entry is one text file: a line that names the format, then two lines of checksum and JSON, the header and the long arrays (a vocabulary is read only when
the tokenizer is asked for). The key covers path, size, modification time and the first MiB of the file. Entries are written aside and renamed, so a reader
never sees half of one; an entry that does not check is ignored and written anew. A cache that cannot be written is reported (`state`), never an error.
Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import xxhash

from ostinato.frontend.checkpoints.files import require_file
from ostinato.frontend.checkpoints.gguf_header import GgufEntry, GgufHeader, parse_gguf

__all__ = ["CachedHeader", "default_cache_directory", "read_gguf_header"]

_FORMAT = b"ostinato gguf header 1\n"
_KEY_BYTES = 1 << 20
_LONG_ARRAY = 256
_KEPT_ENTRIES = 32
_SUFFIX = ".header"


@dataclass(frozen=True, slots=True)
class CachedHeader:
    """A header without its long arrays, and where those are. `state` says how it was got: "cached", "parsed" or "parsed, not cached: reason"."""

    header: GgufHeader
    state: str
    entry: Path | None
    source: Path

    def long_arrays(self) -> dict[str, Any]:
        """The metadata arrays of more than 256 entries, by key (the vocabulary among them)."""
        if self.entry is not None:
            lines = _read_entry(self.entry)
            found = _decode(lines[1]) if lines is not None else None
            if isinstance(found, dict):
                return found
        return _split(parse_gguf(self.source))[1]


def default_cache_directory() -> Path:
    return Path(platformdirs.user_cache_dir("ostinato")) / "gguf"


def read_gguf_header(path: Path, directory: Path | None = None) -> CachedHeader:
    """The header of the GGUF file at `path`, from the cache in `directory` (the user's by default) or parsed and stored there.

    Raises what `parse_gguf` raises.
    """
    require_file(path, "GGUF file")  # reading a pipe would wait for ever
    place = default_cache_directory() if directory is None else directory
    key = _key(path)
    if key is None:
        return CachedHeader(_split(parse_gguf(path))[0], "parsed, not cached: the file cannot be examined", None, path)
    entry = place / (key + _SUFFIX)
    lines = _read_entry(entry)
    header = _header_from(lines[0], path) if lines is not None else None
    if header is not None:
        return CachedHeader(header, "cached", entry, path)
    short, long_arrays = _split(parse_gguf(path))
    try:
        _write_entry(entry, short, long_arrays)
    except OSError as error:
        return CachedHeader(short, f"parsed, not cached: {error.strerror or error}", None, path)
    return CachedHeader(short, "parsed", entry, path)


def _key(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest = xxhash.xxh3_128(file.read(_KEY_BYTES))
    except OSError:
        return None  # parse_gguf says what is wrong with the file
    digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _split(header: GgufHeader) -> tuple[GgufHeader, dict[str, Any]]:
    """The header without its long arrays, and those."""
    long_arrays = {
        key: value for key, value in header.metadata.items() if isinstance(value, list) and len(value) > _LONG_ARRAY
    }
    metadata = {key: value for key, value in header.metadata.items() if key not in long_arrays}
    return GgufHeader(metadata, header.tensors, header.alignment), long_arrays


def _read_entry(entry: Path) -> tuple[bytes, bytes] | None:
    """The two payload lines of an entry, None when it is absent or not of this format. Checksums are checked when a line is decoded."""
    try:
        with entry.open("rb") as file:
            if file.readline() != _FORMAT:
                return None
            return file.readline(), file.readline()
    except OSError:
        return None


def _encode(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode("ascii")
    return xxhash.xxh3_128_hexdigest(text).encode("ascii") + b" " + text + b"\n"


def _decode(line: bytes) -> Any:
    """The JSON value of a line, None when its checksum does not match."""
    digest, _, text = line.rstrip(b"\n").partition(b" ")
    if xxhash.xxh3_128_hexdigest(text).encode("ascii") != digest:
        return None
    return json.loads(text)


def _header_from(line: bytes, path: Path) -> GgufHeader | None:
    value = _decode(line)
    if not isinstance(value, dict):
        return None
    try:
        tensors = tuple(
            GgufEntry(name, kind, tuple(shape), offset, path) for name, kind, shape, offset in value["tensors"]
        )
        return GgufHeader(value["metadata"], tensors, value["alignment"])
    except (KeyError, TypeError, ValueError):
        return None


def _write_entry(entry: Path, header: GgufHeader, long_arrays: dict[str, Any]) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    table = [[tensor.name, tensor.type_name, list(tensor.shape), tensor.offset] for tensor in header.tensors]
    content = (
        _FORMAT
        + _encode({"metadata": header.metadata, "tensors": table, "alignment": header.alignment})
        + _encode(long_arrays)
    )
    handle, name = tempfile.mkstemp(dir=entry.parent, prefix=entry.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, entry)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    _prune(entry.parent)


def _prune(directory: Path) -> None:
    """Keeps the newest entries: changed files leave theirs behind."""
    by_age = []
    for path in directory.glob("*" + _SUFFIX):
        try:
            by_age.append((path.stat().st_mtime_ns, path))
        except OSError:
            continue  # another process removed it
    for _, path in sorted(by_age)[:-_KEPT_ENTRIES]:
        path.unlink(missing_ok=True)
