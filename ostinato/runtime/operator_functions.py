"""Operators of the table as Python functions: signature and documentation from the entry and the rows, so that `help()` says what a call takes.

Nothing is written by hand for an operator; adding one adds its function.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Protocol

from ostinato.ir.opdef import AttrSpec, OpDef
from ostinato.ir.ops.rules import DTYPE_ATTR
from ostinato.ir.target import Level, Target
from ostinato.ir.types import DType
from ostinato.runtime.operators import Operators
from ostinato.runtime.stream import Stream

__all__ = ["OperatorFunction", "operator_function"]

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class OperatorFunction(Protocol):
    """An operator as a caller-owned call; see `Operators.call` for what it raises."""

    @property
    def __name__(self) -> str: ...
    def __call__(
        self,
        *operands: Any,
        out: Any = None,
        workspace: Any = None,
        stream: Stream | None = None,
        level: Level | str | None = None,
        in_place: bool = False,
        **named: Any,
    ) -> Any: ...


def operator_function(opdef: OpDef, target: Target, operators: Operators) -> OperatorFunction:
    """The function of one operator; its documentation lists the rows of `target`."""
    name = opdef.name

    def function(
        *operands: Any,
        out: Any = None,
        workspace: Any = None,
        stream: Stream | None = None,
        level: Level | str | None = None,
        in_place: bool = False,
        **named: Any,
    ) -> Any:
        return operators.call(
            name, operands, named, out=out, workspace=workspace, stream=stream, level=level, in_place=in_place
        )

    function.__name__ = function.__qualname__ = name
    function.__module__ = "ostinato.ops"
    function.__doc__ = _documentation(opdef, target)
    function.__signature__ = inspect.Signature(list(_parameters(opdef)))  # type: ignore[attr-defined]
    return function


def _parameters(opdef: OpDef) -> Iterator[inspect.Parameter]:
    for spec in opdef.operands:
        absent = None if spec.optional else inspect.Parameter.empty
        yield inspect.Parameter(spec.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=absent)
    for attr in opdef.attrs:
        default = inspect.Parameter.empty if attr.default is None else attr.default
        yield inspect.Parameter(attr.name, _KEYWORD, default=default, annotation=attr.type.__name__)
    if opdef.is_view:
        return
    if not opdef.only_updates:
        yield inspect.Parameter("out", _KEYWORD)
    for option in ("workspace", "stream", "level"):
        yield inspect.Parameter(option, _KEYWORD, default=None)
    yield inspect.Parameter("in_place", _KEYWORD, default=False)


def _documentation(opdef: OpDef, target: Target) -> str:
    lines = [opdef.summary, "", "Operands (arrays or TensorViews):"]
    for spec in opdef.operands:
        kinds = ", ".join(dtype.value for dtype in DType if dtype in spec.dtypes)
        lines.append(f"  {spec.name}: {kinds}{' (may be left out)' if spec.optional else ''}")
    if opdef.attrs:
        lines += ["", "Attributes:", *(f"  {_attribute(attr)}" for attr in opdef.attrs)]
    lines += ["", *_results(opdef)]
    rows = target.ranked(opdef.name)
    if rows:
        lines += ["", f"Rows of the {target.name} (level= forces one by name or by level; GPUs have their own):"]
        lines += [f"  {row.name} ({row.level.name.lower()})" for row in rows]
    pairs = dict.fromkeys(f"{result} on {operand}" for row in rows for result, operand in row.in_place)
    if pairs:
        lines += ["", f"With in_place=True the output may be an operand's memory: {', '.join(pairs)}."]
    tolerance = opdef.tolerance
    measure = "exact" if tolerance.is_exact else f"{tolerance.absolute:g} + {tolerance.relative:g} * |reference|"
    lines += ["", f"Tolerance: {measure} ({tolerance.reason})."]
    return "\n".join(lines)


def _results(opdef: OpDef) -> Iterator[str]:
    aliased = dict(opdef.must_alias)
    free = [name for index, name in enumerate(opdef.results) if index not in aliased]
    updated = ", ".join(opdef.operands[operand].name for operand in aliased.values())
    if opdef.is_view:
        yield "Returns a TensorView of the operand's own bytes; nothing is written."
    elif not free:
        yield f"Updates {updated}, and returns them; there is no out=."
    else:
        memory = "memory" if len(free) == 1 and not free[0].endswith("*") else "a tuple of memory"
        yield f"out: {memory} for {', '.join(free)}, contiguous, apart from the operands; returned as it is."
        if updated:
            yield f"Updates {updated}."
    if not opdef.is_view:
        yield f'ops.result_types("{opdef.name}", ...) and ops.workspace_bytes("{opdef.name}", ...) say what a call needs.'


def _attribute(attr: AttrSpec) -> str:
    kind = "integers" if attr.type is tuple else attr.type.__name__
    if attr.default is None:
        return f"{attr.name}: {kind}"
    note = "; the result's dtype by name" + ('; "" keeps the first operand\'s' if attr == DTYPE_ATTR else "")
    return f"{attr.name}: {kind} = {attr.default!r}{note if attr.name == 'dtype' else ''}"
