"""The few operations on files that a checkpoint is written with, each of which the system may cut short: tests replace them to try every one.

What is written is only relied on after it was synced, and a name only after its folder was: a crash, or a machine that loses power, then leaves either all of a
checkpoint or nothing that looks like one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

__all__ = ["Disk", "StoredFile", "digest_of"]

_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it was written: bytes, and their xxh3_128 in hexadecimal."""

    size: int
    digest: str


class Disk:
    """Files and folders. Every method raises `OSError` as the system does."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True)

    def write(self, file: BinaryIO, data: memoryview | bytes) -> None:
        left = memoryview(data)
        while left:  # an unbuffered file may take a part
            left = left[file.write(left) :]

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """Makes names in a folder durable, where the system has that."""
        if os.name == "nt":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """Gives a file or folder another name, at once; a file of that name is replaced."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Removes a file, a link or a folder and all in it; what a link leads to stays."""
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)

    def store(self, path: Path, blocks: Iterable[memoryview | bytes]) -> StoredFile:
        """A new file of these blocks, synced."""
        digest, size = xxhash.xxh3_128(), 0
        with path.open("xb", buffering=0) as file:
            for block in blocks:
                self.write(file, block)
                digest.update(block)
                size += len(block)
            self.sync(file)
        return StoredFile(size, digest.hexdigest())


def digest_of(path: Path) -> StoredFile:
    """Size and digest of a file as it lies there."""
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return StoredFile(size, digest.hexdigest())
