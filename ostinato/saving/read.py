"""An artifact read: the file taken apart, every member held against its checksum, and the plan, graphs, decisions and records in it as values.

Reading checks that a file is whole and that its parts belong together; it opens no device, loads no weight and proves nothing. Whether the program may run here
is for `stale.py`, and whether its plan is right for the checker. Everything is bounded before it is read: the size of the file bounds every member, and texts
have limits of their own.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash
from pydantic import TypeAdapter, ValidationError

from ostinato.backend_hip.evidence.records import ValidationRecord, read_record
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ArtifactError, ConfigError, OstinatoError, StaleArtifact
from ostinato.ir.files import named_path
from ostinato.ir.graph import Graph
from ostinato.ir.text import parse_graph
from ostinato.ir.version import VERSION
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.saved import open_plan
from ostinato.saving.container import Stored, damaged, read_members
from ostinato.saving.manifest import (
    ARTIFACT_VERSION,
    CODE,
    DECISIONS,
    MANIFEST,
    PLAN,
    RECORDS,
    TOKENIZER,
    WEIGHTS,
    Head,
    Manifest,
    graph_member,
)

__all__ = [
    "AGAIN",
    "DECISION_TABLE",
    "ENDING",
    "Artifact",
    "ArtifactFile",
    "Decisions",
    "check_digest",
    "contents_of",
    "digest_in_place",
    "is_artifact",
    "open_file",
    "read_artifact",
]

ENDING = ".ost"
MOST_TEXT = 1 << 28
"""Bytes of a member that is text."""
MOST_MANIFEST = 1 << 25
MOST_VALUES = 1 << 21
"""Values of a text: what does not fit costs memory for each."""
MOST_LINES = 1 << 18
"""Statements of a graph, and records."""
_BLOCK = 1 << 22
AGAIN = "compile the model again and save that: `ostinato compile MODEL --output FILE`"

Decisions = Mapping[str, Mapping[str, Decision]]
DECISION_TABLE: TypeAdapter[dict[str, dict[str, Decision]]] = TypeAdapter(dict[str, dict[str, Decision]])


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """The file of an artifact: what it says of itself, and where its members lie."""

    path: Path
    manifest: Manifest
    places: Mapping[str, Stored]

    def data(self, member: str) -> bytes:
        """The bytes of a member, held against their checksum. Raises `ArtifactError` where they are not what they were, or where it cannot be read."""
        with _reading(self.path) as file:
            return _data(self.path, file, self.places[member], self.manifest)


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """A saved executable as it lies in its file.

    `plan` is the plan of all entries, `graphs` the graphs it is the plan of by entry, `originals` those before recomputation (the same where there was none),
    `decisions` why each node has its row, `records` the validations that they rest on.
    """

    file: ArtifactFile
    plan: ProgramPlan
    graphs: Mapping[str, Graph]
    originals: Mapping[str, Graph]
    decisions: Decisions
    records: tuple[ValidationRecord, ...]

    def __repr__(self) -> str:
        return f"<artifact {self.path}: {', '.join(self.plan.entries)} for {self.manifest.target}>"

    @property
    def every_graph(self) -> tuple[Graph, ...]:
        """Each of its graphs once: what entries recompute from, and what they were planned as."""
        planned = (graph for name, graph in self.graphs.items() if graph is not self.originals[name])
        return (*self.originals.values(), *planned)

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def manifest(self) -> Manifest:
        return self.file.manifest

    @property
    def target(self) -> str:
        """The name of the target that it was compiled for: "host", or the architecture of a GPU."""
        return self.manifest.target

    @property
    def device(self) -> str:
        """The name of the device that its plan is for, such as "host:0" or "hip:0"."""
        return self.manifest.device


def is_artifact(path: object) -> bool:
    """Whether a name is that of an artifact's file: it ends in ".ost", in whatever case."""
    return isinstance(path, str | os.PathLike) and str(os.fspath(path)).lower().endswith(ENDING)


def read_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Reads a file that `Executable.save` wrote. No device is opened, and no weight is loaded.

    Raises `ArtifactError` for a file that is none or is damaged, `StaleArtifact` for one of another version of the format, `ConfigError` for one that cannot be
    read.
    """
    return contents_of(open_file(path))


def open_file(path: str | os.PathLike[str]) -> ArtifactFile:
    """The file with its manifest; nothing else of it is read. Raises what `read_artifact` raises."""
    place = named_path(path)
    with _reading(place) as file:
        places = read_members(place, file)
        return ArtifactFile(place, _manifest(place, file, places), places)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        if path.is_fifo():  # to open one is to wait for who writes to it
            raise OSError("it is a pipe")
        with path.open("rb") as file:
            yield file
    except OstinatoError:
        raise
    except (OSError, ValueError) as error:  # a name that no system can hold is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}", hint="name a file that `save` wrote") from None


def contents_of(opened: ArtifactFile) -> Artifact:
    """Plan, graphs, decisions and records of a file. Raises what `read_artifact` raises."""
    with _reading(opened.path) as file:
        return _contents(opened, file)


def _contents(opened: ArtifactFile, file: BinaryIO) -> Artifact:
    path, manifest, places = opened.path, opened.manifest, opened.places

    def text(member: str) -> str:
        try:
            return _data(path, file, places[member], manifest).decode("utf-8")
        except UnicodeDecodeError as error:
            raise damaged(path, f"{member} is no text: {error}") from None

    for member in set(places) - {MANIFEST, WEIGHTS} - {item.member for item in manifest.code}:
        if places[member].size > MOST_TEXT:
            raise damaged(path, f"{member} has {places[member].size} bytes, more than a text has")
    try:
        saved = open_plan(_bounded(path, PLAN, text(PLAN)))
        originals = {
            entry.name: parse_graph(_bounded(path, entry.graph, text(entry.graph), lines=True))
            for entry in manifest.entries
        }
        decisions = DECISION_TABLE.validate_json(_bounded(path, DECISIONS, text(DECISIONS)))
        records = tuple(_records(_bounded(path, RECORDS, text(RECORDS), lines=True)))
    except ArtifactError:
        raise
    except StaleArtifact as error:
        raise StaleArtifact(f"{path}: {error.message}", differences=error.differences, hint=AGAIN) from None
    except ValidationError as error:
        raise damaged(path, f"{DECISIONS} has {error.error_count()} values that are not as they are written") from None
    except (OstinatoError, ValueError) as error:
        raise damaged(path, getattr(error, "message", str(error))) from None
    if set(saved.plan.entries) != set(originals) or not originals:
        raise damaged(path, f"the plan has entries {sorted(saved.plan.entries)}, the graphs are of {sorted(originals)}")
    for name, graph in originals.items():
        rows = {node.name: node.impl for node in graph.nodes}
        if other := next((node for node, made in decisions.get(name, {}).items() if rows.get(node) != made.row), None):
            raise damaged(path, f"{DECISIONS} says that %{other} of entry {name} runs another row than its graph does")
    graphs = {**originals, **saved.graphs}
    stated, planned = (
        (manifest.target, manifest.device),
        {(item.target, item.device) for item in saved.plan.entries.values()},
    )
    if planned != {stated}:
        raise damaged(path, f"its plan is for {sorted(planned)}, its manifest says {stated}")
    return Artifact(opened, saved.plan, graphs, originals, decisions, records)


def _manifest(path: Path, file: BinaryIO, places: Mapping[str, Stored]) -> Manifest:
    """The manifest, which names every member there is. Its own checksum is the file's."""
    place = places.get(MANIFEST)
    if place is None or place.offset != max(item.offset for item in places.values()):
        raise damaged(path, f"its last member is not {MANIFEST}")
    if place.size > MOST_MANIFEST:
        raise damaged(path, f"{MANIFEST} has {place.size} bytes")
    data = _at(file, place)
    if zlib.crc32(data) != place.crc:
        raise damaged(path, f"{MANIFEST} is not what it was when it was written")
    try:
        text = _bounded(path, MANIFEST, data.decode("utf-8"))
        head = Head.model_validate_json(text)
        if head.version != ARTIFACT_VERSION:
            differences = [f"version of artifacts: the file has {head.version}, this library reads {ARTIFACT_VERSION}"]
            if head.package_version != VERSION:
                differences.append(f"library: the file is of {head.package_version}, this is {VERSION}")
            raise StaleArtifact(f"{path} cannot be read:", differences=tuple(differences), hint=AGAIN)
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0] if error.error_count() < 1000 else {"loc": (), "msg": "it is none"}
        where = ".".join(map(str, first["loc"])) or "text"
        raise damaged(path, f"{MANIFEST}: {where}: {first['msg']}") from None
    except UnicodeDecodeError as error:
        raise damaged(path, f"{MANIFEST} is no text: {error}") from None
    listed, there = {MANIFEST, *manifest.members}, set(places)
    if listed != there:
        raise damaged(path, f"its manifest and its list of members differ: {', '.join(sorted(listed ^ there))}")
    needed = set(_members(manifest))
    if missing := sorted(needed - there):
        raise damaged(path, f"it has no {', '.join(missing)}")
    if more := sorted(there - needed):
        raise damaged(path, f"nothing says what {', '.join(more)} is")
    for name, member in manifest.members.items():
        if places[name].size != member.size:
            raise damaged(path, f"{name} has {places[name].size} bytes, its manifest says {member.size}")
    if len({entry.name for entry in manifest.entries}) != len(manifest.entries):
        raise damaged(path, "two entries have one name")
    graphs = ((entry.graph, graph_member(number)) for number, entry in enumerate(manifest.entries))
    code = ((item.member, f"{CODE}/{number}") for number, item in enumerate(manifest.code))
    for stated, expected in (*graphs, *code):
        if stated != expected:
            raise damaged(path, f"its manifest calls {expected} {stated!r}")
    return manifest


def _members(manifest: Manifest) -> Iterator[str]:
    """The members that a file with this manifest has: each is one thing, by its place in the file."""
    yield from (MANIFEST, PLAN, DECISIONS, RECORDS)
    yield from (graph_member(number) for number in range(len(manifest.entries)))
    yield from (f"{CODE}/{number}" for number in range(len(manifest.code)))
    if manifest.embedded is not None:
        yield WEIGHTS
        if manifest.embedded.has_tokenizer:
            yield TOKENIZER


def _records(text: str) -> Iterator[ValidationRecord]:
    for line in text.splitlines():
        record = read_record(line)
        if not isinstance(record, ValidationRecord):
            raise ValueError(f"{RECORDS} has a record of another kind")
        yield record


def _bounded(path: Path, member: str, text: str, *, lines: bool = False) -> str:
    """The text, if it has no more values (and, of one that is read line by line, no more lines) than such a text can have."""
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        raise damaged(path, f"{member} has more than {MOST_VALUES} values")
    if lines and text.count("\n") > MOST_LINES:
        raise damaged(path, f"{member} has more than {MOST_LINES} lines")
    return text


def _at(file: BinaryIO, place: Stored) -> bytes:
    file.seek(place.offset)
    return file.read(place.size)


def _data(path: Path, file: BinaryIO, place: Stored, manifest: Manifest) -> bytes:
    data = _at(file, place)
    check_digest(path, place.name, xxhash.xxh3_128_hexdigest(data), manifest)
    return data


def check_digest(path: Path, member: str, found: str, manifest: Manifest) -> None:
    """Raises `ArtifactError` for a member whose bytes are not what they were when they were written."""
    if found != manifest.members[member].digest:
        raise damaged(path, f"{member} is not what it was when it was written")


def digest_in_place(path: Path, file: BinaryIO, place: Stored) -> str:
    """The checksum of a large member, read block by block."""
    digest, left = xxhash.xxh3_128(), place.size
    file.seek(place.offset)
    while left:
        block = file.read(min(_BLOCK, left))
        if not block:
            raise damaged(path, f"it ends within {place.name}")
        digest.update(block)
        left -= len(block)
    return digest.hexdigest()
