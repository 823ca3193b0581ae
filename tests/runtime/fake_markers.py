"""A library of markers of our own: a C file with NVTX's two functions, which notes what is pushed and popped."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["FakeMarkers", "build"]

_SOURCE = """
#include <string.h>
static char noted[1 << 16];
static void note(const char* text) {
    if (strlen(noted) + strlen(text) + 2 < sizeof noted) strcat(strcat(noted, text), "\\n");
}
int nvtxRangePushA(const char* name) { note(name); return 0; }
int nvtxRangePop(void) { note("-"); return 0; }
const char* taken(void) { return noted; }
void forget(void) { noted[0] = 0; }
"""


def build(folder: Path) -> Path:
    """The library in a folder, under the name that NVIDIA's has. Leaves the test out where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "markers.c", folder / "libnvToolsExt.so.1"
    source.write_text(_SOURCE, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library


class FakeMarkers:
    """What the library has noted in this process."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.taken.restype = ctypes.c_char_p

    def take(self) -> list[str]:
        """Names of ranges in the order in which they began, and "-" for each end; forgotten then."""
        found = str(self._library.taken().decode()).splitlines()
        self._library.forget()
        return found
