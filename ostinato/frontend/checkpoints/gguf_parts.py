"""A GGUF model in several files, `NAME-00001-of-00003.gguf` and so on: the first has the metadata, each has some of the tensors.

The parts are opened together, by the name of the first one; whether they belong together is checked by the numbers that each carries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ostinato.frontend.checkpoints.gguf_cache import CachedHeader, read_gguf_header
from ostinato.frontend.checkpoints.gguf_header import GgufEntry, check_header
from ostinato.ir.errors import WeightsError

__all__ = ["first_part", "read_parts"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def read_parts(path: Path, cache_directory: Path | None = None) -> tuple[CachedHeader, tuple[GgufEntry, ...]]:
    """The header of the file at `path`, and the tensors of it and of its other parts where it is the first of several.

    Every header is checked against the size of its file. Raises `WeightsError` for a part that is not the first, parts that are absent (all listed) or
    do not belong together, and what `read_gguf_header` and `check_header` raise.
    """
    first = _read_checked(path, cache_directory)
    count = first.header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first, _some(first.header.tensors, path)
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise WeightsError(
            f"{path} is one of {count} parts, and its name does not say of which files",
            hint=f"name the parts as they were published: NAME-00001-of-{count:05d}.gguf",
        )
    if first.header.metadata.get("split.no") != 0 or int(match["number"]) != 1:
        raise WeightsError(
            f"{path} is part {match['number']} of {count}", hint=f"open the first: {_part(match, 1, count)}"
        )
    paths = [path.with_name(_part(match, number, count)) for number in range(1, count + 1)]
    absent = [part.name for part in paths if not part.exists()]
    if absent:
        raise WeightsError(
            f"{len(absent)} of {count} parts of {path} are not there: {', '.join(absent)}", hint="download them too"
        )
    tensors = list(first.header.tensors)
    for number, part in enumerate(paths[1:], start=1):
        header = _read_checked(part, cache_directory).header
        numbers = (header.metadata.get("split.no"), header.metadata.get("split.count"))
        if numbers != (number, count):
            raise WeightsError(
                f"{part} says that it is part {numbers[0]} of {numbers[1]} (counted from 0), expected {number} of {count}",
                hint="the files are from different downloads: get them all again",
            )
        tensors += header.tensors
    expected = first.header.metadata.get("split.tensors.count", len(tensors))
    if len(tensors) != expected:
        raise WeightsError(
            f"the {count} parts of {path} hold {len(tensors)} tensors, the first says {expected}",
            hint="the files are from different downloads: get them all again",
        )
    return first, _some(tensors, path)


def first_part(paths: Sequence[Path]) -> Path | None:
    """The file to open where `paths` are the parts of one model and nothing else, None where they are not."""
    matches = [_PART.fullmatch(path.name) for path in paths]
    models = {(match["stem"], match["count"]) for match in matches if match is not None}
    if len(models) != 1 or None in matches:
        return None
    return min(paths)


def _some(tensors: Sequence[GgufEntry], path: Path) -> tuple[GgufEntry, ...]:
    if not tensors:
        raise WeightsError(f"{path} holds no tensors", hint="download it again")
    return tuple(tensors)


def _part(match: re.Match[str], number: int, count: int) -> str:
    return f"{match['stem']}-{number:05d}-of-{count:05d}.gguf"


def _read_checked(path: Path, cache_directory: Path | None) -> CachedHeader:
    found = read_gguf_header(path, cache_directory)
    check_header(found.header, path, path.stat().st_size)
    return found
