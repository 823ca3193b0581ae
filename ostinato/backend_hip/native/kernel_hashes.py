"""Writes the hash of each kernel family's sources, as a C++ file of the native module: `kernel_hashes.py OUTPUT`, which CMake runs when a source changes.

A validation record of a host row counts as long as the sources of its kernel are those that were validated. A family is what one table in kernels/registry.cpp
lists: the file with the table, every file that includes a header named after the family, the file beside each header that those include, and all headers
of ours that they include. Comments and blank lines do not count. Run by the build alone, so that hashes are those of the code that was compiled.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
KERNELS = NATIVE / "kernels"
_INCLUDE = re.compile(r'^#include "([a-z0-9_./]+)"', re.MULTILINE)
_FAMILIES = re.compile(r"families\[\] = \{(.*?)\}", re.DOTALL)
_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/""", re.DOTALL)


def families() -> list[str]:
    """Names of the families, in the order of the registry."""
    found = _FAMILIES.search((KERNELS / "registry.cpp").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("kernels/registry.cpp has no list `families[] = {...}`")
    return re.findall(r"(\w+)_kernels\b", found[1])


def includes(path: Path) -> list[Path]:
    """Headers of ours that a file includes."""
    named = _INCLUDE.findall(path.read_text(encoding="utf-8"))
    places = ((path.parent / name, NATIVE / name) for name in named)
    return [next(place for place in pair if place.exists()) for pair in places]


def sources(family: str) -> set[Path]:
    """Every file that shapes a kernel of the family."""
    waiting = [
        path
        for path in KERNELS.glob("*.cpp")
        if path.stem == family or any(header.stem.split("_")[0] == family for header in includes(path))
    ]
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            beside = path.with_suffix(".cpp")
            waiting += [*includes(path), *([beside] if path.parent == KERNELS and beside.exists() else [])]
    return found


def normal(text: str) -> str:
    """The text without comments, blank lines and spaces at the ends of lines."""
    bare = _COMMENT.sub(lambda found: found[1] or " ", text)
    return "\n".join(line.strip() for line in bare.splitlines() if line.strip())


def family_hash(family: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources(family)):
        text = normal(path.read_text(encoding="utf-8"))
        digest.update(f"{path.relative_to(NATIVE).as_posix()}:{len(text)}:{text}".encode())
    return digest.hexdigest()[:16]


def main(output: Path) -> None:
    names = families()
    homeless = (
        {path.stem for path in KERNELS.glob("*.cpp")}
        - {"registry"}
        - {path.stem for name in names for path in sources(name)}
    )
    if homeless:
        raise SystemExit(f"kernels/{sorted(homeless)}: of no family; include a header named after one of {names}")
    entries = "\n".join(f'    {{"{name}", "{family_hash(name)}"}},' for name in names)
    output.write_text(
        '// Written by native/kernel_hashes.py.\n#include "kernel.h"\n\nnamespace ost {\n\n'
        f"const KernelFamilyHash kernel_family_hashes[] = {{\n{entries}\n}};\n"
        f"const uint32_t kernel_family_hash_count = {len(names)};\n\n}}  // namespace ost\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
