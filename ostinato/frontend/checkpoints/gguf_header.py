"""The header of a GGUF file: metadata and tensor table, parsed by the `gguf` package.

Its reader takes seconds on a large vocabulary, so callers go through the cache (`gguf_cache.py`); this file is what runs on a miss. The reader trusts the
file: counts and lengths of a damaged one would make it read past the end or loop for ever. It is therefore given bounds, and its result is checked again
before anything is mapped. Refuses big-endian files and every tensor type without kernels.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.frontend.checkpoints.files import describe_foreign, require_file
from ostinato.ir.errors import DTypeError, OstinatoError, WeightsError
from ostinato.ir.types import DType

__all__ = ["GgufEntry", "GgufHeader", "check_header", "parse_gguf"]

_DTYPES = {
    dtype.value.upper(): dtype for dtype in DType if dtype.is_block or dtype in (DType.F32, DType.F16, DType.BF16)
}
"""The tensor types that are read, by the name that the `gguf` package gives them."""
_MAX_ARRAY = 1 << 22
_LENGTH = struct.Struct("<Q")
_REGULAR = ("GGUF.", "general.alignment")


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """One tensor as `file` names it. `shape` is outermost first (the file stores it reversed); `offset` counts bytes from the start of the file."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    file: Path

    @property
    def dtype(self) -> DType:
        """Raises `DTypeError` naming tensor and type when the type is not supported."""
        found = _DTYPES.get(self.type_name)
        if found is None:
            raise DTypeError(
                f"tensor {self.name} has type {self.type_name}, which is not supported",
                hint=f"supported: {', '.join(_DTYPES)}",
            )
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blocks; raises `DTypeError` when rows do not fill whole blocks."""
        dtype = self.dtype
        if self.shape[-1] % dtype.block_elements:
            raise DTypeError(
                f"tensor {self.name}: rows of {self.shape[-1]} values do not fill whole {dtype.value} blocks"
            )
        return dtype.nbytes(math.prod(self.shape))


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are bool, int, float, str or lists of them. `alignment` in bytes holds for every tensor's offset."""

    metadata: Mapping[str, Any]
    tensors: tuple[GgufEntry, ...]
    alignment: int


def parse_gguf(path: Path) -> GgufHeader:
    """Reads the header of the file at `path`. Raises `WeightsError` for a file that is missing, damaged or of another kind."""
    require_file(path, "GGUF file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise describe_foreign(path, "a GGUF file") or WeightsError(
            f"{path} is not a GGUF file", hint="download it again"
        )
    try:
        with np.errstate(all="ignore"):
            return _header_of(_bounded_reader(path), path)
    except OstinatoError:
        raise
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise WeightsError(
            f"{path} is damaged or of an unknown version: {error}", hint="download it again, or convert the model again"
        ) from error


def _bounded_reader(path: Path) -> Any:
    """The package's reader of the file, kept within it."""
    # imported here: the package takes 0.1 s to import and is needed only when the cache misses
    from gguf import GGUFReader, GGUFValueType

    def cut_short(start: int, stop: int, size: int) -> WeightsError:
        return WeightsError(
            f"{path} is cut short or damaged: bytes [{start}, {stop}) are needed, the file has {size}",
            hint="download it again",
        )

    class BoundedReader(GGUFReader):
        """The package's reader, refusing ranges outside the file, and reading arrays without two array views for every element.

        Those views are what makes a large vocabulary take seconds and hundreds of MiB.
        """

        def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            start, size = int(offset), np.dtype(dtype).itemsize * int(count)
            if start + size > self.data.nbytes:
                raise cut_short(start, start + size, self.data.nbytes)
            return super()._get(start, dtype, int(count), override_order)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)
            item_type, length = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if int(length[0]) > _MAX_ARRAY:
                raise WeightsError(
                    f"{path} is damaged: a metadata array claims {int(length[0])} entries", hint="download it again"
                )
            if int(item_type[0]) == GGUFValueType.ARRAY:
                raise WeightsError(f"{path}: nested metadata arrays are not supported", hint="convert the model again")
            item_kind = GGUFValueType(int(item_type[0]))
            if item_kind == GGUFValueType.STRING:
                texts, size = self._texts(orig_offs + 12, int(length[0]))
                parts = [item_type, length, *texts]
                return 12 + size, parts, list(range(2, len(parts))), [GGUFValueType.ARRAY, item_kind]
            values = self._get(orig_offs + 12, self.gguf_scalar_to_np[item_kind], int(length[0]))
            return 12 + int(values.nbytes), [item_type, length, values], [2], [GGUFValueType.ARRAY, item_kind]

        def _texts(self, start: int, count: int) -> tuple[list[memoryview], int]:
            """The bytes of `count` strings, each after its length of eight bytes, and the bytes all of them take in the file."""
            content = self.data.data
            texts = []
            position = start
            for _ in range(count):
                stop = position + 8
                if stop <= len(content):
                    (size,) = _LENGTH.unpack_from(content, position)
                    position, stop = stop, stop + size
                if stop > len(content):
                    raise cut_short(position, stop, len(content))
                texts.append(content[position:stop])
                position = stop
            return texts, position - start

    return BoundedReader(path)


def _header_of(reader: Any, path: Path) -> GgufHeader:
    if reader.byte_order != "I":
        raise WeightsError(
            f"{path} is a GGUF file of the other byte order",
            hint="convert it with the gguf package's gguf-convert-endian",
        )
    metadata = {
        name: _plain(field.contents()) for name, field in reader.fields.items() if not name.startswith(_REGULAR)
    }
    tensors = tuple(
        GgufEntry(
            name=tensor.name,
            type_name=tensor.tensor_type.name,
            shape=tuple(reversed([int(extent) for extent in tensor.shape])),
            offset=int(tensor.data_offset),
            file=path,
        )
        for tensor in reader.tensors
    )
    return GgufHeader(metadata, tensors, int(reader.alignment))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def check_header(header: GgufHeader, path: Path, size: int) -> None:
    """Checks the tensor table against the file's size in bytes. Raises `WeightsError` or `DTypeError`; run on parsed and on cached headers alike."""
    problems = list(_unsupported(header.tensors))
    if problems:
        raise DTypeError(
            f"{path}: {'; '.join(problems[:5])}",
            hint=f"supported types: {', '.join(_DTYPES)}; convert the model to one of them",
        )
    ends: list[tuple[int, int, str]] = []
    for tensor in header.tensors:
        if not tensor.shape or min(tensor.shape) <= 0:
            raise WeightsError(
                f"{path}: tensor {tensor.name} has shape {list(tensor.shape)}, expected positive extents",
                hint="convert the model again",
            )
        if tensor.offset % header.alignment:
            raise WeightsError(
                f"{path}: tensor {tensor.name} at byte {tensor.offset} is not aligned to {header.alignment}",
                hint="convert the model again",
            )
        if tensor.offset < 0 or tensor.offset + tensor.nbytes > size:
            raise WeightsError(
                f"{path} is cut short: tensor {tensor.name} ends at byte {tensor.offset + tensor.nbytes}, the file has {size}",
                hint="download it again",
            )
        ends.append((tensor.offset, tensor.offset + tensor.nbytes, tensor.name))
    ends.sort()
    for (_, stop, first), (start, _, second) in itertools.pairwise(ends):
        if start < stop:
            raise WeightsError(
                f"{path} is damaged: tensors {first} and {second} overlap by {stop - start} bytes",
                hint="download it again",
            )


def _unsupported(tensors: Iterable[GgufEntry]) -> Iterable[str]:
    for tensor in tensors:
        if tensor.type_name not in _DTYPES:
            yield f"tensor {tensor.name} has type {tensor.type_name}, which is not supported"
