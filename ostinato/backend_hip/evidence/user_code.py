"""What functions and values of a user's are made of, as text: a record of a row of theirs counts while it is the same.

Functions of the library are told by their names, since a record is of one version of it. Those of a user have no version: of them what they do counts, which is
their code, their defaults, what they close over, and the functions and plain values of their own module that they name. What hashes differ for without a change
of meaning, a docstring or another Python, costs one more validation. What is imported from other modules of the user's is told by its name alone.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

__all__ = ["code_text"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, np.generic)
_LIBRARY = __name__.partition(".")[0]


def code_text(values: Iterable[Any]) -> str:
    """The text of these values: the same in every process for the same code."""
    found: list[str] = []
    held: list[Any] = []  # an id is an object's as long as that lives
    seen: set[int] = set()
    stack = list(values)[::-1]
    while stack:
        value = stack.pop()
        if isinstance(value, _PLAIN):
            found.append(repr(value))
            continue
        found.append(_name(value))
        if id(value) not in seen:
            seen.add(id(value))
            held.append(value)
            stack += list(_parts(value))[::-1]
    return "\n".join(found)


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    size = f"[{len(value)}]" if isinstance(value, tuple | list | frozenset | set | Mapping) else ""
    return f"{named.__module__}.{named.__qualname__}{size}"


def _parts(value: Any) -> Iterator[Any]:
    """What a value consists of, in an order that does not depend on the process."""
    if isinstance(value, FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, CodeType):
        yield from (value.co_code, value.co_names, value.co_varnames, value.co_consts)
    elif isinstance(value, np.ndarray):
        yield from (str(value.dtype), value.shape, value.tobytes())
    elif isinstance(value, Mapping):
        yield from sorted(value.items(), key=repr)
    elif isinstance(value, frozenset | set):
        yield from sorted(value, key=repr)
    elif isinstance(value, tuple | list):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((spec.name, getattr(value, spec.name)) for spec in fields(value))


def _function_parts(function: FunctionType) -> Iterator[Any]:
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
    if function.__module__.partition(".")[0] == _LIBRARY:
        return
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        own = isinstance(value, FunctionType) and value.__module__ == function.__module__
        if own or isinstance(value, (*_PLAIN, tuple, functools.partial)):
            yield from (name, value)


def _names(code: CodeType) -> list[str]:
    """The names that code asks for, that of the functions within it too."""
    found: dict[str, None] = {}
    stack = [code]
    while stack:
        item = stack.pop()
        found.update(dict.fromkeys(item.co_names))
        stack += [part for part in item.co_consts if isinstance(part, CodeType)]
    return sorted(found)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises for a name that is not bound yet
    except ValueError:
        return False
    return True
