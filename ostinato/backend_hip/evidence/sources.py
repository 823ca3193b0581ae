"""What a row's kernels are made of: hashes of their sources by file, of what the row declares, and the versions of a vendor's library.

A record counts while all of them are what they were. Kernels of the host have one hash a family (native/kernel_hashes.py makes it while building), those of
GPUs one a file, of the text with its headers in place; comments and blank lines do not count.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.user_code import code_text
from ostinato.backend_hip.kernel_source import KernelName, expanded, has_kernel_file, kernel_files
from ostinato.backend_hip.user_rows import user_rows
from ostinato.ir.errors import BackendError
from ostinato.ir.ops import added_operators
from ostinato.ir.step import StepKind
from ostinato.ir.target import CallSite, Impl, Level

__all__ = ["ROW", "current", "declared", "file_hash", "kernel_hash", "row_sources", "source_of"]

ROW = "row"
"""The name under which what the row declares is filed."""
_LETTERS = 16
_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/""", re.DOTALL)


def row_sources(row: Impl, sites: Iterable[CallSite]) -> dict[str, str]:
    """Name -> hash of everything that the row runs at these sites."""
    found = dict(source_of(row, site) for site in sites)
    return {ROW: declared(row), **dict(sorted(found.items()))}


def current(name: str, row: Impl) -> str:
    """The hash that a source of a row has now; empty where there is none of that name."""
    if name == ROW:
        return declared(row)
    if row.kind is not StepKind.LAUNCH:
        return ""
    return file_hash(name) if row.launch is not None else _family_hashes().get(name, "")


def source_of(row: Impl, site: CallSite) -> tuple[str, str]:
    """The file or family of the row's kernel at a site, and its hash; "vendor" and nothing for a product by a vendor's library, whose version is the
    environment's."""
    if row.kind is not StepKind.LAUNCH:
        return "vendor", ""
    return kernel_source_of(row.kernel(site), gpu=row.launch is not None)


def kernel_source_of(kernel: str, *, gpu: bool) -> tuple[str, str]:
    """The file or family of a kernel and the hash of its sources; that of a kernel which does not exist is empty."""
    if not gpu:
        return _host_sources().get(kernel, (kernel, ""))
    try:
        file = KernelName.parse(kernel).file
    except BackendError:
        return kernel, ""
    return file, file_hash(file)


def declared(row: Impl) -> str:
    """A hash of all that a row says as data; of a user's row or operator, of what their functions do too."""
    op = next((op for op in added_operators() if op.name == row.op), None)
    if op is None and row not in user_rows():
        return _declared(row)
    return hashlib.sha256(code_text((replace(row, priority=0), op)).encode()).hexdigest()[:_LETTERS]


@functools.cache
def _declared(row: Impl) -> str:
    texts = [f"{spec.name}={_text(getattr(row, spec.name))}" for spec in fields(row) if spec.name != "priority"]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_LETTERS]


def kernel_hash(*, gpu: bool) -> str:
    """Over the sources of all kernels of a kind of device."""
    found = {file: file_hash(file) for file in kernel_files()} if gpu else dict(_family_hashes())
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:_LETTERS]


@functools.cache
def _host_sources() -> Mapping[str, tuple[str, str]]:
    return _native.kernel_sources()


@functools.cache
def _family_hashes() -> Mapping[str, str]:
    return dict(_host_sources().values())


def file_hash(file: str) -> str:
    """The hash of a kernel file with its headers in place, ours or a user's; empty where there is no such file."""
    return _code_hash(expanded(f"{file}.hip")) if has_kernel_file(file) else ""


@functools.cache
def _code_hash(text: str) -> str:
    bare = _COMMENT.sub(lambda found: found[1] or " ", text)
    lines = (line.strip() for line in bare.splitlines() if not line.startswith("#line"))
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()[:_LETTERS]


def _text(value: object) -> str:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, frozenset):
        return repr(sorted(value))
    return value.name if isinstance(value, Level) else repr(value)
