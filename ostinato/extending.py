"""Operators and implementation rows of your own, beside those of the library, for as long as you want them.

    import ostinato as ost

    with ost.extend(operators=[SOFTEN], rows=[SOFTEN_GPU], kernels={"mine/soften": SOURCE}):
        ...

An operator is its schema with a rule and a numpy reference (`define`); that much runs, on the host by its reference. With a derivative it is trained through. A
row with a kernel makes it run on GPUs, where it is compiled, validated against the reference and planned like ours. docs/extend.md shows all of it. Nothing of
the library changes: what was added is known to this process until `remove()`, or the end of the `with` block. What was compiled meanwhile keeps what it needs,
and runs on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ostinato.backend_hip.impls.hip.common import by_dtypes, element_launch, readable, row_launch
from ostinato.backend_hip.kernel_source import add_kernel_file, kernel_name
from ostinato.backend_hip.user_rows import add_rows, remove_rows
from ostinato.ir.checks import shown
from ostinato.ir.derivative import Gradients, NotDifferentiable
from ostinato.ir.errors import ConfigError
from ostinato.ir.opdef import AttrSpec, OpDef, OperandSpec, Sample, SampleOperand, Tolerance
from ostinato.ir.ops import add_operators, remove_operators
from ostinato.ir.ops.rules import Arrays, Site, cost_per_element, define
from ostinato.ir.ops.samplers import invalid, normal, valid
from ostinato.ir.target import CallSite, Extents, Impl, Level
from ostinato.ir.types import DType, TensorType
from ostinato.ir.users import guarded

__all__ = [
    "Arrays",
    "AttrSpec",
    "CallSite",
    "DType",
    "Extension",
    "Extents",
    "Gradients",
    "Impl",
    "Level",
    "NotDifferentiable",
    "OpDef",
    "OperandSpec",
    "Sample",
    "SampleOperand",
    "Site",
    "TensorType",
    "Tolerance",
    "by_dtypes",
    "cost_per_element",
    "define",
    "element_launch",
    "extend",
    "invalid",
    "kernel_name",
    "normal",
    "readable",
    "row_launch",
    "valid",
]

_LOCK = threading.Lock()


class Extension:
    """What one call of `extend` added. A context manager that takes it out again at its end."""

    def __init__(self, operators: tuple[OpDef, ...], rows: tuple[Impl, ...]) -> None:
        """Adds them; raises `ConfigError`, with nothing added, where one of them is refused."""
        self.operators, self.rows = operators, rows
        self._operators, self._rows = tuple(map(guarded, operators)), tuple(map(guarded, rows))
        add_operators(self._operators)
        try:
            add_rows(self._rows)
        except ConfigError:
            remove_operators(self._operators)
            raise

    def remove(self) -> None:
        """Takes operators and rows out again; a second call does nothing."""
        with _LOCK:
            remove_rows(self._rows)
            remove_operators(self._operators)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def extend(
    *, operators: Iterable[OpDef] = (), rows: Iterable[Impl] = (), kernels: Mapping[str, str] | None = None
) -> Extension:
    """Adds operators, rows, and the sources of kernels that rows name ("mine/soften" -> text), all of it or, where anything is refused, nothing but sources.

    Raises `ConfigError` for an operator or row of a name that is taken, a row of an operator that there is not, and a kernel file that has a name of ours or
    was added with another text before.
    """
    ops, impls = _all(operators, OpDef, "operators"), _all(rows, Impl, "rows")
    sources = _sources(kernels)
    with _LOCK:
        for file, text in sources.items():
            add_kernel_file(file, text)
        return Extension(ops, impls)


def _all(given: Any, kind: type[Any], what: str) -> tuple[Any, ...]:
    items = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for item in items:
        if not isinstance(item, kind):
            raise ConfigError(f"{what} have {shown(item)}, expected each to be a value of {kind.__name__}")
    return items


def _sources(given: Any) -> dict[str, str]:
    found = {} if given is None else given
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ConfigError(f"kernels are {shown(given)}", hint='map names to sources: {"mine/soften": TEXT}')
    return dict(found)
