"""Files that are written: as a whole or not at all, with what was there kept on failure, and links and devices written through."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ostinato.ir.errors import ConfigError
from ostinato.ir.files import named_path, need_writable, write_bytes, write_text


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "report.html"
    assert write_text(file, "old") == str(file)
    file.chmod(0o640)
    other = tmp_path / "other"
    os.link(file, other)
    write_text(file, "new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert other.read_text() == "old", "it was written aside, not over what is there"
    assert os.listdir(file.parent) == [file.name]


def test_what_was_there_stays_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    write_text(file, "old")

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=r"cannot be written: No space left"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == [file.name], "nothing half-written is left"


@pytest.mark.parametrize("theirs", [True, False])
def test_what_another_process_does_meanwhile_is_left_as_it_is(
    theirs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other, opened = tmp_path / "file", tmp_path / "other", Path.open
    other.write_text("theirs")

    def and_then(self: Path, *mode: Any) -> Any:
        found = opened(self, *mode)
        if self == file and mode == ("ab",):
            other.replace(file)
            if not theirs:
                file.unlink()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", and_then)
        need_writable(file)
    assert [path.read_text() for path in tmp_path.iterdir()] == (["theirs"] if theirs else [])


def test_links_and_pipes_are_written_through(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert write_bytes(Path(os.devnull), b"gone") == os.devnull
    assert not Path(os.devnull).is_file()


def test_a_file_in_a_folder_that_takes_no_other_is_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("old")
    os.link(file, other)
    monkeypatch.setattr(os, "access", lambda place, kind: place != tmp_path)
    write_text(file, "new")
    assert file.read_text() == other.read_text() == "new"


@pytest.mark.parametrize("name", ["", "folder", "x" * 300, "a\0b"])
def test_places_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_text(tmp_path / name, "text")
    with pytest.raises(ConfigError, match="cannot be written"):
        need_writable(tmp_path / name)
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("given", [None, 5, b"x", "", ["x"]])
def test_what_is_no_path(given: object) -> None:
    with pytest.raises(ConfigError, match="the path is"):
        named_path(given)


def test_what_is_a_path() -> None:
    assert named_path("x") == named_path(Path("x")) == Path("x")
