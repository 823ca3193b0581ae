"""What a compiled kernel takes of a GPU: registers, shared memory, and private memory, to which registers are spilled.

Read from the code object itself, an ELF file of either vendor: NVIDIA's `.nv.info` section, where the number after an attribute's code is that of a symbol and
the next one the value, and `.nv.shared.<kernel>` sections; AMD's metadata note, which is MessagePack (LLVM's "User Guide for AMDGPU Backend", code object V5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ostinato.ir.errors import BackendError

__all__ = ["Resources", "resources_of"]

_CUDA, _AMDGPU = 190, 224
"""Machines of an ELF header."""
_REGISTERS, _FRAME = 0x2F, 0x11
"""Attributes of `.nv.info` whose values are registers and private bytes of a thread."""
_PAIR = 4
"""The form of an attribute that has a size and then its bytes."""
_METADATA = 32
"""The type of AMD's note."""

Item: TypeAlias = "int | float | bool | str | bytes | list[Item] | dict[str, Item] | None"


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel: vector registers of a thread, scalar ones of a wave (0 on NVIDIA), bytes of a block's shared memory, private bytes of a thread."""

    registers: int
    scalar: int
    shared: int
    private: int


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int


def resources_of(code: bytes) -> dict[str, Resources]:
    """What each kernel of a code object takes, by entry point. Raises `BackendError` for bytes that are no code object of a GPU."""
    if code[:5] != b"\x7fELF\x02":
        raise BackendError("expected a code object, a 64-bit ELF file", hint="is it a bundle of several?")
    machine: int = struct.unpack_from("<H", code, 18)[0]
    if machine == _CUDA:
        return _of_nvidia(code)
    if machine == _AMDGPU:
        return _of_amd(code)
    raise BackendError(f"expected a code object of a GPU, found machine {machine}")


def _sections(code: bytes) -> list[_Section]:
    start = struct.unpack_from("<Q", code, 40)[0]
    count, names = struct.unpack_from("<HH", code, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i) for i in range(count)]
    return [_Section(_text(code, headers[names][4] + h[0]), h[1], h[4], h[5], h[6]) for h in headers]


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


def _of_nvidia(code: bytes) -> dict[str, Resources]:
    sections = _sections(code)
    symbols = next(section for section in sections if section.name == ".symtab")
    names = sections[symbols.link].offset
    kernels = {s.name.removeprefix(".text.") for s in sections if s.name.startswith(".text.")}
    shared = {s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")}
    found: dict[tuple[str, int], int] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, symbol, value in _attributes(code, section):
                found[
                    _text(code, names + struct.unpack_from("<I", code, symbols.offset + 24 * symbol)[0]), attribute
                ] = value
    return {
        name: Resources(found.get((name, _REGISTERS), 0), 0, shared.get(name, 0), found.get((name, _FRAME), 0))
        for name in sorted(kernels)
    }


def _attributes(code: bytes, section: _Section) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol, value) of those that are pairs."""
    at = section.offset
    while at < section.offset + section.size:
        form, attribute, size = struct.unpack_from("<BBH", code, at)
        at += 4
        if form == _PAIR:
            if size == 8:
                yield (attribute, *struct.unpack_from("<II", code, at))
            at += size


def _of_amd(code: bytes) -> dict[str, Resources]:
    for section in _sections(code):
        if section.name == ".note":
            owner, size, kind = struct.unpack_from("<III", code, section.offset)
            if kind == _METADATA:
                start = section.offset + 12 + (owner + 3) // 4 * 4
                metadata, _ = _unpacked(code[start : start + size], 0)
                return dict(sorted(_kernels(metadata)))
    raise BackendError("the code object has no metadata of its kernels")


def _kernels(metadata: Item) -> Iterator[tuple[str, Resources]]:
    assert isinstance(metadata, dict)
    kernels = metadata["amdhsa.kernels"]
    assert isinstance(kernels, list)
    for kernel in kernels:
        assert isinstance(kernel, dict)
        yield (
            str(kernel[".name"]),
            Resources(
                _number(kernel, ".vgpr_count"),
                _number(kernel, ".sgpr_count"),
                _number(kernel, ".group_segment_fixed_size"),
                _number(kernel, ".private_segment_fixed_size"),
            ),
        )


def _number(kernel: Mapping[str, Item], name: str) -> int:
    value = kernel[name]
    assert isinstance(value, int)
    return value


_SCALARS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS = {
    0xC4: ">B",
    0xC5: ">H",
    0xC6: ">I",
    0xD9: ">B",
    0xDA: ">H",
    0xDB: ">I",
    0xDC: ">H",
    0xDD: ">I",
    0xDE: ">H",
    0xDF: ">I",
}
_CONSTANTS: Mapping[int, Item] = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpacked(data: bytes, at: int) -> tuple[Item, int]:
    """A MessagePack item and where the next one begins. It nests as deeply as the metadata, which is four levels."""
    first = data[at]
    at += 1
    if first <= 0x7F:
        return first, at
    if first >= 0xE0:
        return first - 256, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _SCALARS:
        value: Item = struct.unpack_from(_SCALARS[first], data, at)[0]
        return value, at + struct.calcsize(_SCALARS[first])
    if first in _LENGTHS:
        length = struct.unpack_from(_LENGTHS[first], data, at)[0]
        at += struct.calcsize(_LENGTHS[first])
    else:
        length = first & (0x1F if first >= 0xA0 else 0x0F)
    if first in (0xC4, 0xC5, 0xC6):
        return data[at : at + length], at + length
    if first in (0xD9, 0xDA, 0xDB) or 0xA0 <= first <= 0xBF:
        return data[at : at + length].decode(), at + length
    items: list[Item] = []
    pairs = first in (0xDE, 0xDF) or first <= 0x8F
    for _ in range(2 * length if pairs else length):
        item, at = _unpacked(data, at)
        items.append(item)
    return ({str(key): item for key, item in zip(items[::2], items[1::2], strict=True)} if pairs else items), at
