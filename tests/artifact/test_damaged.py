"""Files that are damaged, or of another writer: always an error on purpose that says which file, never a crash, and never an executable that was made of half.

Checksums and the one way to write a file find them; files whose checksums fit what somebody wrote into them are in `test_forged.py`.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.ir.errors import ArtifactError
from ostinato.saving.container import Content, write_members
from ostinato.saving.manifest import MANIFEST, PLAN
from ostinato.saving.read import open_file
from tests.artifact.files import members_of, refused

FAST = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@FAST
@given(data=st.data())
def test_a_byte_that_flipped_is_found(data: st.DataObject, standalone: Path, tmp_path: Path) -> None:
    content = bytearray(standalone.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "flipped.ost"
    path.write_bytes(content)
    assert isinstance(refused(path), ArtifactError)


@FAST
@given(data=st.data())
def test_a_file_that_was_cut_is_found(data: st.DataObject, saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    path = tmp_path / "cut.ost"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    assert isinstance(refused(path), ArtifactError)


def test_every_member_cut_at_every_place_that_matters(standalone: Path, tmp_path: Path) -> None:
    content = standalone.read_bytes()
    path = tmp_path / "cut.ost"
    for place in open_file(standalone).places.values():
        for end in (place.offset, place.offset + place.size // 2, place.offset + place.size - 1):
            path.write_bytes(content[:end])
            assert isinstance(refused(path), ArtifactError)
            path.write_bytes(content[:end] + bytes(len(content) - end))
            assert isinstance(refused(path), ArtifactError)


@FAST
@given(st.binary(max_size=400))
@example(b"")
@example(b"PK\x05\x06" + bytes(18))
def test_bytes_that_are_no_artifact(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "any.ost"
    path.write_bytes(content)
    assert isinstance(refused(path), ArtifactError)


def test_what_is_no_file_is_refused_by_name(saved: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.ost", tmp_path / "x\0y.ost"):
        with pytest.raises(ost.ConfigError, match="cannot be read"):
            ost.load_executable(path)
    with pytest.raises(ost.WeightsError, match="saved executable"):
        ost.load(saved)
    os.mkfifo(tmp_path / "pipe.ost")
    with pytest.raises(ost.ConfigError, match="it is a pipe"):
        ost.load_executable(tmp_path / "pipe.ost")
    nothing: Any
    for nothing in (None, 3, b"x.ost", ""):
        with pytest.raises(ost.ConfigError, match="the path is"):
            ost.load_executable(nothing)


# archives that somebody else wrote


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_of_another_writer_is_refused(compression: int, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.ost"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members_of(saved).items():
            archive.writestr(name, data)
    assert isinstance(refused(path), ArtifactError)


@pytest.mark.parametrize("name", ["../plan.json", "/etc/passwd", "a//b", "C:\\x", "Plan.json", "a/../b", "", "x" * 101])
def test_names_that_lead_elsewhere_are_refused(name: str, saved: Path, tmp_path: Path) -> None:
    members = [Content.of(*item) for item in members_of(saved).items() if item[0] != MANIFEST]
    path = tmp_path / "name.ost"
    write_members(path, [Content.of(name, b"x"), *members], _same(saved))
    assert isinstance(refused(path), ArtifactError)


def _same(saved: Path) -> Any:
    return lambda written: Content.of(MANIFEST, members_of(saved)[MANIFEST])


def test_a_member_twice_and_members_that_nobody_named(saved: Path, tmp_path: Path) -> None:
    members = [Content.of(name, data) for name, data in members_of(saved).items() if name != MANIFEST]
    path = tmp_path / "twice.ost"
    write_members(path, [*members, members[0]], _same(saved))
    assert "twice" in str(refused(path))
    write_members(path, [*members, Content.of("more.bin", b"x")], _same(saved))
    assert "more.bin" in str(refused(path))
    write_members(path, members[1:], _same(saved))
    assert PLAN in str(refused(path))


def test_sizes_and_places_that_cannot_be(saved: Path, tmp_path: Path) -> None:
    """Every 64-bit number of the archive's list replaced by numbers that lead elsewhere: nothing is allocated for them."""
    content = saved.read_bytes()
    directory = content.index(b"PK\x01\x02")
    path = tmp_path / "places.ost"
    for place in range(directory, len(content) - 8, 4):
        for number in (2**63 - 1, 2**40, 0):
            data = content[:place] + struct.pack("<Q", number) + content[place + 8 :]
            if data != content:
                path.write_bytes(data)
                assert isinstance(refused(path), ArtifactError)
