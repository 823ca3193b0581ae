"""Compiled kernels on disk: what is found, made, made anew, and what a folder that cannot be used costs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from ostinato.backend_hip.code_cache import CodeCache, default_folder, read_entry, write_entry
from ostinato.ir.errors import BackendError
from tests.backend_hip.gpu.child import ROOT

KEY = "0123456789abcdef" * 4


def never() -> bytes:
    raise AssertionError("it is there already")


class Maker:
    """Makes code, and counts how often."""

    def __init__(self, code: bytes = b"code", seconds: float = 0.0) -> None:
        self.code, self.seconds, self.calls = code, seconds, 0

    def __call__(self) -> bytes:
        self.calls += 1
        time.sleep(self.seconds)
        return self.code


def parts(folder: Path) -> list[str]:
    """Files of a folder that are neither entries nor locks."""
    return [path.name for path in folder.iterdir() if path.suffix not in (".code", ".lock")]


def test_an_entry_is_made_once_and_found_by_whoever_comes_later(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    first, maker = CodeCache(folder), Maker(bytes(range(256)) * 100)
    assert first.code(KEY, maker) == maker.code
    assert first.code(KEY, never) == maker.code
    later = CodeCache(folder)
    assert later.code(KEY, never) == maker.code
    assert (first.counters.misses, first.counters.hits, first.counters.rebuilt) == (1, 1, 0)
    assert (later.counters.misses, later.counters.hits, later.counters.rebuilt) == (0, 1, 0)
    assert first.counters.compile_seconds > 0
    assert later.counters.compile_seconds == 0
    assert later.code(KEY[::-1], Maker(b"")) == b"", "code without a byte is code"
    assert later.code(KEY[::-1], never) == b""


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the header": lambda data: data[:8],
    "cut in the checksum": lambda data: data[:20],
    "cut in the code": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "a bit turned": lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
    "another format": lambda data: b"ostinato code 0\n" + data[16:],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_made_anew(name: str, tmp_path: Path) -> None:
    CodeCache(tmp_path).code(KEY, Maker(b"some code of a kernel"))
    path = tmp_path / f"{KEY}.code"
    path.write_bytes(DAMAGE[name](path.read_bytes()))
    cache, maker = CodeCache(tmp_path), Maker(b"made again")
    assert cache.code(KEY, maker) == b"made again"
    assert (cache.counters.hits, cache.counters.misses, cache.counters.rebuilt) == (0, 0, 1)
    assert CodeCache(tmp_path).code(KEY, never) == b"made again"


def test_an_entry_of_itself_says_whether_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    assert read_entry(path) == (None, False)
    write_entry(path, b"abc")
    assert read_entry(path) == (b"abc", False)
    path.write_bytes(b"no entry")
    assert read_entry(path) == (None, True)


def test_a_compiler_that_fails_leaves_nothing_and_may_be_asked_again(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)

    def fails() -> bytes:
        raise BackendError("line 3: no")

    for _ in range(2):
        with pytest.raises(BackendError, match="line 3"):
            cache.code(KEY, fails)
    assert not (tmp_path / f"{KEY}.code").exists()
    assert cache.counters.misses == 0
    assert cache.code(KEY, Maker()) == b"code"


def test_a_folder_that_cannot_be_written_is_warned_of_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache, maker = CodeCache(blocked / "kernels"), Maker()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [cache.code(KEY, maker) for _ in range(3)]
    assert found == [b"code"] * 3
    assert [str(item.message).partition(str(tmp_path))[0] for item in caught] == ["compiled kernels are not kept in "]
    assert maker.calls == 3
    assert cache.counters.misses == 3


def test_a_disk_that_is_full_costs_the_entry_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache = CodeCache(tmp_path)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert cache.code(KEY, Maker()) == b"code"
    assert parts(tmp_path) == []
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.code(KEY, Maker()) == b"code"
        assert cache.code(KEY, never) == b"code"


def test_threads_make_an_entry_once(tmp_path: Path) -> None:
    cache, maker, found = CodeCache(tmp_path), Maker(seconds=0.1), []
    threads = [threading.Thread(target=lambda: found.append(cache.code(KEY, maker))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"code"] * 4
    assert maker.calls == 1
    assert (cache.counters.misses, cache.counters.hits) == (1, 3)


_PROCESS = """
import sys, time
from pathlib import Path
from ostinato.backend_hip.code_cache import CodeCache
def make():
    time.sleep(0.3)
    with open(sys.argv[2], "a") as file:
        file.write("made\\n")
    return b"from a process"
print(CodeCache(Path(sys.argv[1])).code(sys.argv[3], make).decode())
"""


def test_processes_that_start_together_make_an_entry_once(tmp_path: Path) -> None:
    folder, log = tmp_path / "kernels", tmp_path / "log"
    command = [sys.executable, "-c", _PROCESS, str(folder), str(log), KEY]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["from a process"] * 3
    assert log.read_text() == "made\n"
    assert parts(folder) == []


def test_a_process_that_dies_while_it_makes_an_entry_stops_nobody(tmp_path: Path) -> None:
    program = _PROCESS.replace("time.sleep(0.3)", "import os; os.kill(os.getpid(), 9)")
    command = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "log"), KEY]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode == -9
    assert (tmp_path / f"{KEY}.lock").exists()
    assert CodeCache(tmp_path).code(KEY, Maker()) == b"code"


def test_the_folder_is_the_users_and_the_environment_stays_as_it_is() -> None:
    before = dict(os.environ)
    assert CodeCache().folder == default_folder() == Path(platformdirs.user_cache_dir("ostinato")) / "kernels"
    assert dict(os.environ) == before
