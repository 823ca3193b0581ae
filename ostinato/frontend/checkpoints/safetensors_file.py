"""The header of one `.safetensors` file, checked strictly.

The published format is an eight byte little-endian header length, a JSON header and a contiguous payload. The library hands out arrays but not the file
offsets that a memory-mapped load needs, so the header is read here, and every rule of the format is checked before a byte of payload is used: a shard
that was cut short would otherwise map zeros. Refuses anything but F32, F16 and BF16 tensors, buffers that no model reads excepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.files import describe_foreign, parse_json, require_file
from ostinato.ir.errors import DTypeError, WeightsError
from ostinato.ir.types import DType

__all__ = ["SafetensorsEntry", "read_safetensors_header"]

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {"F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16}
_BUFFER_DTYPES = _DTYPES | {
    "F64": DType.F64,
    "I64": DType.I64,
    "I32": DType.I32,
    "I8": DType.I8,
    "U8": DType.U8,
    "BOOL": DType.BOOL,
}
_MAX_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """One tensor: `offset` counts bytes from the start of the file, `nbytes` equals dtype size times the product of `shape`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def _none_is(name: str) -> bool:
    del name
    return False


def read_safetensors_header(path: Path, is_buffer: Callable[[str], bool] = _none_is) -> tuple[SafetensorsEntry, ...]:
    """The tensors of the file in payload order. Those that `is_buffer` claims by name may also be f64, integers or booleans: no model reads them.

    Raises `WeightsError` for a missing or damaged file (with what it is, where that can be told; with both sizes, where sizes disagree), and `DTypeError`
    for element types that are not supported.
    """
    require_file(path, "weights file")
    size = path.stat().st_size
    raw, payload_start = _read_json_header(path, size)
    metadata = raw.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise WeightsError(f"{path}: __metadata__ is not an object of strings", hint="download it again")
    if not raw:
        raise WeightsError(f"{path} holds no tensors", hint="download it again")
    dtypes = {name: _BUFFER_DTYPES if is_buffer(name) else _DTYPES for name in raw}
    _refuse_dtypes(path, raw, dtypes)
    problems: list[str] = []
    entries = []
    for name, fields in raw.items():
        entry = _read_entry(name, fields, dtypes[name], payload_start, problems)
        if entry is not None:
            entries.append(entry)
    if problems:
        raise _damaged(path, problems)
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _check_payload(path, entries, payload_start, size)
    return tuple(entries)


def _read_json_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    foreign = describe_foreign(path, "a safetensors file")
    if foreign is not None:
        raise foreign
    if size < _LENGTH_BYTES + 2:
        raise WeightsError(f"{path} is too short for a safetensors file: {size} bytes", hint="download it again")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _MAX_HEADER_BYTES:
            raise WeightsError(
                f"{path}: header length {length} is beyond the format's limit of {_MAX_HEADER_BYTES}: not a safetensors file?",
                hint="download it again",
            )
        if length < 2 or _LENGTH_BYTES + length > size:
            raise WeightsError(
                f"{path}: bad header length: the header should take {length} bytes, the file has {size}",
                hint="download it again",
            )
        text = file.read(length)
    try:
        raw = parse_json(text)
    except ValueError as reason:
        raise WeightsError(f"{path}: the header is not valid JSON: {reason}", hint="download it again") from reason
    if not isinstance(raw, dict):
        raise WeightsError(
            f"{path}: the header is a JSON {type(raw).__name__}, expected an object", hint="download it again"
        )
    return raw, _LENGTH_BYTES + length


def _refuse_dtypes(path: Path, raw: Mapping[str, Any], dtypes: Mapping[str, Mapping[str, DType]]) -> None:
    found: dict[str, list[str]] = {}
    for name, fields in raw.items():
        dtype = fields.get("dtype") if isinstance(fields, dict) else None
        if isinstance(dtype, str) and dtype not in dtypes[name]:
            found.setdefault(dtype, []).append(name)
    if not found:
        return
    parts = []
    for dtype, names in found.items():
        parts.append(f"{dtype} in {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
    raise DTypeError(f"{path}: unsupported tensor dtype: {'; '.join(parts)}", hint="supported: F32, F16, BF16")


def _read_entry(
    name: str, fields: Any, dtypes: Mapping[str, DType], payload_start: int, problems: list[str]
) -> SafetensorsEntry | None:
    """One checked entry, or None after adding to `problems`."""
    if not name:
        problems.append("a tensor has an empty name")
        return None
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        problems.append(f"{name}: expected exactly dtype, shape and data_offsets")
        return None
    dtype = dtypes.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    shape, offsets = fields["shape"], fields["data_offsets"]
    if dtype is None:
        problems.append(f"{name}: dtype {fields['dtype']!r} is not one of {', '.join(dtypes)}")
    elif not _are_counts(shape):
        problems.append(f"{name}: shape {shape!r} is not a list of non-negative integers")
    elif not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        problems.append(f"{name}: data_offsets {offsets!r} are not two ascending byte offsets")
    elif offsets[1] - offsets[0] != (expected := dtype.nbytes(math.prod(shape))):
        problems.append(f"{name}: {offsets[1] - offsets[0]} bytes stored, {dtype.value}{shape} needs {expected}")
    else:
        return SafetensorsEntry(name, dtype, tuple(shape), payload_start + offsets[0], offsets[1] - offsets[0])
    return None


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


def _check_payload(path: Path, entries: list[SafetensorsEntry], payload_start: int, size: int) -> None:
    """Entries (in offset order) must tile the payload exactly; the file must end where they do."""
    problems = []
    position = payload_start
    for entry in entries:
        if entry.offset < position:
            problems.append(f"{entry.name} overlaps the tensor before it by {position - entry.offset} bytes")
        elif entry.offset > position:
            problems.append(f"{entry.offset - position} bytes before {entry.name} belong to no tensor")
        position = max(position, entry.offset + entry.nbytes)
    if problems:
        raise _damaged(path, problems)
    if position != size:
        state = "cut short" if position > size else "longer than its header says"
        raise WeightsError(
            f"{path} is {state}: payload size mismatch, the header describes a file of {position} bytes, the file has {size}",
            hint="download it again",
        )


def _damaged(path: Path, problems: list[str]) -> WeightsError:
    more = f"\n  and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    return WeightsError(
        f"{path} is damaged:\n  " + "\n  ".join(problems[:_MAX_PROBLEMS]) + more, hint="download it again"
    )
