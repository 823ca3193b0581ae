"""The file of an artifact: a zip archive whose members are stored as they are, written in one way only and read by that way alone.

Any tool that reads zip archives lists and extracts one. What is read here must be, byte for byte outside of the members' data, what `write_members` writes for
members of those names, sizes and checksums: nothing is compressed, encrypted, split, hidden between members, named twice, or outside of the file, and two
programs cannot read two things from it. Data begin at multiples of 64 bytes, so that they can be used where they lie when the file is mapped. Sizes and places
have 64 bits throughout.

Which members there must be, and what is in them, is for `manifest.py`.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from ostinato.ir.errors import ArtifactError, ConfigError, OstinatoError
from ostinato.ir.files import replacing

__all__ = ["MOST_MEMBERS", "Content", "Stored", "Written", "damaged", "read_members", "write_members"]

MOST_MEMBERS = 4096
_NAME = re.compile(r"[a-z0-9_]+(?:[./-][a-z0-9_]+)*")
_LONGEST_NAME = 100
_ALIGNMENT = 64
_MOST = 2**60
"""Bytes of a file; more is nobody's."""

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_SIZES, _PLACES = struct.Struct("<HHQQ"), struct.Struct("<HHQQQ")
_PADDING = struct.Struct("<HH")
_VERSION, _DATE, _FULL = 45, 0x0021, 0xFFFFFFFF
"""Of the format that has 64-bit sizes; the first day there is; "see the 64-bit field"."""
_TAIL = _END64.size + _LOCATOR.size + _END.size
_PAD_ID = 0x4F53
"""The id of the field that fills up to the alignment: "SO"."""


@dataclass(frozen=True, slots=True)
class Content:
    """A member to be written: its name, and its bytes in blocks."""

    name: str
    blocks: Iterable[bytes | memoryview]

    @staticmethod
    def of(name: str, data: bytes) -> Content:
        return Content(name, (data,))


@dataclass(frozen=True, slots=True)
class Written:
    """A member as it was written: bytes, and their xxh3_128 in hexadecimal."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A member of a file: its bytes are [offset, offset + size)."""

    name: str
    offset: int
    size: int
    crc: int


def damaged(path: Path, problem: str) -> ArtifactError:
    """The error for a file that is no whole artifact."""
    return ArtifactError(f"{path} is no artifact, or is damaged: {problem}", hint="save it again, or copy it again")


Closing = Callable[[Sequence[Written]], Content]
"""Makes the last member, which may say what the others are."""


def write_members(path: Path, contents: Iterable[Content], closing: Closing) -> None:
    """Writes a file of these members in this order and then the one that `closing` makes of what was written, in place of what was there: aside and renamed, so
    that it is there as a whole or as it was.

    The same members give the same bytes. Raises `ConfigError` for a place that cannot be written; what a member's blocks raise comes out.
    """
    try:
        place = Path(os.path.realpath(path))  # a link stays one
        if os.path.lexists(place) and not (place.is_file() or place.is_dir()):
            raise ConfigError(f"{path} is a pipe or a device", hint="name a file, which can be replaced as a whole")
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as file:
            _write(file, contents, closing)
            file.flush()
            os.fsync(file.fileno())
    except OstinatoError:  # what a block's source raises
        raise
    except (OSError, ValueError) as error:  # a name that no system can hold is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be written: {reason}", hint="name a writable place") from None


def read_members(path: Path, file: BinaryIO) -> dict[str, Stored]:
    """The members of an open file by name, in order. Raises `ArtifactError` for one that `write_members` would not have written; `OSError` comes out."""
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL:
        raise damaged(path, f"it has {size} bytes")
    tail = _at(file, size - _TAIL, _TAIL)
    magic, *_, count, _total, directory_size, directory = _END64.unpack_from(tail)
    if magic != 0x06064B50 or count > MOST_MEMBERS or directory + directory_size + _TAIL != size:
        raise damaged(path, "its end is not that of an artifact; the file may be cut short")
    if directory_size > count * (_CENTRAL.size + _LONGEST_NAME + _PLACES.size):
        raise damaged(path, f"its list of {count} members has {directory_size} bytes")
    listed = _at(file, directory, directory_size)
    members = _parsed(path, listed, count)
    if _directory(members) != listed or _end(len(members), directory, directory_size) != tail:
        raise damaged(path, "its list of members is not as it is written")
    position = 0
    for member in members:
        head = _head(member, position)
        if position + len(head) != member.offset or member.offset + member.size > directory:
            raise damaged(path, f"member {member.name} does not lie where it should")
        if _at(file, position, len(head)) != head:
            raise damaged(path, f"the header of member {member.name} is not as it is written")
        position = member.offset + member.size
    if position != directory:
        raise damaged(path, f"{directory - position} bytes belong to no member")
    return {member.name: member for member in members}


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _parsed(path: Path, listed: bytes, count: int) -> list[Stored]:
    """The members that a list names. What it says of them beside name, size and checksum is compared afterwards."""
    members: list[Stored] = []
    names: set[str] = set()
    position, start = 0, 0
    for _ in range(count):
        if position + _CENTRAL.size > len(listed):
            raise damaged(path, "its list of members ends early")
        fields = _CENTRAL.unpack_from(listed, position)
        crc, length = fields[7], fields[10]
        begin = position + _CENTRAL.size
        name, places = listed[begin : begin + length], listed[begin + length : begin + length + _PLACES.size]
        if length > _LONGEST_NAME or len(places) < _PLACES.size:
            raise damaged(path, "its list of members ends early")
        text = name.decode("latin-1")
        if _NAME.fullmatch(text) is None or text in names:
            raise damaged(path, f"a member is called {text!r}{', twice' if text in names else ''}")
        names.add(text)
        size = _PLACES.unpack(places)[2]
        start = _data_offset(text, start)
        if size > _MOST or start > _MOST:
            raise damaged(path, f"member {text} has {size} bytes")
        members.append(Stored(text, start, size, crc))
        start, position = start + size, begin + length + _PLACES.size
    return members


def _write(file: BinaryIO, contents: Iterable[Content], closing: Closing) -> None:
    members: list[Stored] = []
    written: list[Written] = []
    for content in contents:
        _add(file, content, members, written)
    _add(file, closing(written), members, written)
    directory, end = _directory(members), members[-1].offset + members[-1].size
    file.write(directory + _end(len(members), end, len(directory)))


def _add(file: BinaryIO, content: Content, members: list[Stored], written: list[Written]) -> None:
    """Writes a member where the file ends."""
    position = file.tell()
    offset = _data_offset(content.name, position)
    file.write(bytes(offset - position))  # the header comes when the checksum is known
    crc, size, digest = 0, 0, xxhash.xxh3_128()
    for block in content.blocks:
        crc, size = zlib.crc32(block, crc), size + len(block)
        digest.update(block)
        file.write(block)
    member = Stored(content.name, offset, size, crc)
    file.seek(position)
    file.write(_head(member, position))
    file.seek(offset + size)
    members.append(member)
    written.append(Written(content.name, size, digest.hexdigest()))


def _data_offset(name: str, position: int) -> int:
    """Where the data of a member begin whose header begins at `position`."""
    bare = position + _LOCAL.size + len(name) + _SIZES.size + _PADDING.size
    return -(-bare // _ALIGNMENT) * _ALIGNMENT


def _head(member: Stored, position: int) -> bytes:
    fill = _data_offset(member.name, position) - position - _LOCAL.size - len(member.name) - _SIZES.size - _PADDING.size
    extra = _SIZES.pack(1, 16, member.size, member.size) + _PADDING.pack(_PAD_ID, fill) + bytes(fill)
    fixed = _LOCAL.pack(0x04034B50, _VERSION, 0, 0, 0, _DATE, member.crc, _FULL, _FULL, len(member.name), len(extra))
    return fixed + member.name.encode("ascii") + extra


def _starts(members: Iterable[Stored]) -> Iterator[tuple[Stored, int]]:
    """Members, and where their headers begin: right behind the one before."""
    position = 0
    for member in members:
        yield member, position
        position = member.offset + member.size


def _directory(members: Sequence[Stored]) -> bytes:
    parts: list[bytes] = []
    for member, start in _starts(members):
        name, places = member.name.encode("ascii"), _PLACES.pack(1, 24, member.size, member.size, start)
        sizes = (_FULL, _FULL, len(name), len(places), 0, 0, 0, 0, _FULL)
        parts.append(_CENTRAL.pack(0x02014B50, _VERSION, _VERSION, 0, 0, 0, _DATE, member.crc, *sizes) + name + places)
    return b"".join(parts)


def _end(count: int, directory: int, size: int) -> bytes:
    end64 = _END64.pack(0x06064B50, _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, directory)
    locator = _LOCATOR.pack(0x07064B50, 0, directory + size, 1)
    return end64 + locator + _END.pack(0x06054B50, 0, 0, 0xFFFF, 0xFFFF, _FULL, _FULL, 0)
