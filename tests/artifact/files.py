"""Artifacts for tests: written small, taken apart, and put together again with other content and checksums that fit it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import xxhash

import ostinato as ost
from ostinato.ir.errors import OstinatoError
from ostinato.planner.plan import ProgramPlan
from ostinato.saving.container import Content, write_members
from ostinato.saving.manifest import MANIFEST
from ostinato.saving.read import open_file

BUCKETS = {"B": [1], "T": [4]}
IDS = [[5, 9, 2], [3, 1]]


def compiled(model: ost.Model, **options: Any) -> ost.TextExecutable:
    return ost.compile(model, **{"buckets": BUCKETS, "context": 16, "threads": 1, "device": "cpu", **options})


def members_of(path: Path) -> dict[str, bytes]:
    """The members by name, the manifest last."""
    opened = open_file(path)
    data = path.read_bytes()
    return {name: data[place.offset : place.offset + place.size] for name, place in opened.places.items()}


def manifest_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(members_of(path)[MANIFEST])
    return found


def forged(path: Path, members: Mapping[str, bytes], manifest: Mapping[str, Any] | bytes) -> Path:
    """A file of these members and that manifest, whose checksums are made to fit (those of bytes are left as they are)."""

    def closing(written: object) -> Content:
        if isinstance(manifest, bytes):
            return Content.of(MANIFEST, manifest)
        described = {
            name: {"size": len(data), "digest": xxhash.xxh3_128_hexdigest(data)} for name, data in others.items()
        }
        return Content.of(MANIFEST, json.dumps({"members": described, **manifest}).encode())

    others = {name: data for name, data in members.items() if name != MANIFEST}
    write_members(path, [Content.of(name, data) for name, data in others.items()], closing)
    return path


def changed(source: Path, path: Path, members: Mapping[str, bytes] | None = None, **manifest: Any) -> Path:
    """The artifact with other members and fields of the manifest, and checksums that fit."""
    said = {name: value for name, value in manifest_of(source).items() if name != "members"}
    return forged(path, {**members_of(source), **(members or {})}, {**said, **manifest})


def rehashed(text: str) -> str:
    """A saved plan with the hashes that it has now, where it is one."""
    said = json.loads(text)
    try:
        said["hashes"] = ProgramPlan.model_validate_json(json.dumps(said["plan"])).hashes.model_dump()
    except (ValueError, KeyError, TypeError):
        return text
    return json.dumps(said)


def refused(path: Path) -> OstinatoError:
    """The error that opening the file gives; anything else fails the test."""
    with pytest.raises(OstinatoError) as caught:
        ost.load_executable(path, "cpu")
    return caught.value
