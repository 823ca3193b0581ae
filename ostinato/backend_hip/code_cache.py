"""Compiled kernels on disk: machine code filed under everything that shaped it, so that a program's kernels are compiled once on a machine.

An entry is one file: a line that names the format, the SHA-256 of the code, the code. Entries are written aside and renamed, and each is made under a lock of
its own, so that processes that start together compile a module once and nobody reads half of one. An entry that does not check is made anew. A folder that
cannot be written costs time and nothing else: it is warned of once, and code is compiled without being kept. Nothing is ever removed; the folder may be deleted
at any time.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import filelock
import platformdirs

from ostinato.ir.forks import renew_after_fork

__all__ = ["CacheCounters", "CodeCache", "default_folder", "read_entry", "write_entry"]

_FORMAT = b"ostinato code 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_SECONDS = 600
"""Of waiting for another process that makes the same entry; it compiles one module."""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """What a cache did: entries found, made because there were none, made anew because they did not check, and seconds of all compilers together."""

    hits: int = 0
    misses: int = 0
    rebuilt: int = 0
    compile_seconds: float = 0.0


def default_folder() -> Path:
    return Path(platformdirs.user_cache_dir("ostinato")) / "kernels"


class CodeCache:
    """A folder of compiled modules (None: the user's). Threads and processes may share it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder
        self._counters = CacheCounters()
        self._warned = False
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def counters(self) -> CacheCounters:
        return self._counters

    def code(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The code filed under `key`, a hexadecimal hash; `make` makes it where it is not there, and what it raises comes out."""
        path = self.folder / f"{key}.code"
        code, damaged = read_entry(path)
        if code is not None:
            self._count(hits=1)
            return code
        lock = self._locked(key)
        if lock is None:
            return self._made(make, damaged)
        with lock:
            code, damaged = read_entry(path)  # another process may have been faster
            if code is not None:
                self._count(hits=1)
                return code
            code = self._made(make, damaged)
            try:
                write_entry(path, code)
            except OSError as error:
                self._warn(error)
            return code

    def _locked(self, key: str) -> filelock.BaseFileLock | None:
        """The lock of an entry, acquired; None where the folder has no place for one."""
        lock = filelock.FileLock(self.folder / f"{key}.lock", timeout=_SECONDS)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            self._warn(error)
            return None
        return lock

    def _made(self, make: Callable[[], bytes], damaged: bool) -> bytes:
        start = time.perf_counter()
        code = make()
        seconds = time.perf_counter() - start
        self._count(misses=0 if damaged else 1, rebuilt=1 if damaged else 0, seconds=seconds)
        return code

    def _count(self, *, hits: int = 0, misses: int = 0, rebuilt: int = 0, seconds: float = 0.0) -> None:
        with self._lock:
            old = self._counters
            self._counters = replace(
                old,
                hits=old.hits + hits,
                misses=old.misses + misses,
                rebuilt=old.rebuilt + rebuilt,
                compile_seconds=old.compile_seconds + seconds,
            )

    def _warn(self, error: Exception) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            warnings.warn(
                f"compiled kernels are not kept in {self.folder}: {error}; they are compiled again in every process",
                RuntimeWarning,
                stacklevel=2,
            )


def read_entry(path: Path) -> tuple[bytes | None, bool]:
    """The code of an entry, None where there is none that checks; and whether there is one that does not."""
    try:
        data = path.read_bytes()
    except OSError:
        return None, False
    start = len(_FORMAT) + _DIGEST_BYTES
    code = data[start:]
    if data[: len(_FORMAT)] == _FORMAT and data[len(_FORMAT) : start] == hashlib.sha256(code).digest():
        return code, False
    return None, True


def write_entry(path: Path, code: bytes) -> None:
    """Puts an entry in its place, whole: written aside and renamed. Raises `OSError`."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_FORMAT + hashlib.sha256(code).digest() + code)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
