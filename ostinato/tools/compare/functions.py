"""A function of the caller's own as a side: a model in torch or numpy that a program is compared with.

The contract: `function(input_ids)` is given one whole sequence, numpy int32 [T], and gives floats, as a numpy array, a torch tensor or by DLPack. Of a decoder
the logits of every position, [T, vocabulary], or of the last one alone, [vocabulary]: then it is called again for each position that is looked at, with the
ids up to there. Of an encoder the embedding of the text, [dimension], of Euclidean length 1. It is called for each sequence on its own, keeps no state that
changes what it gives, and what it gives is compared as float32. In a command it is written "module:name" or "file.py:name".
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.types import Array, DType
from ostinato.runtime.binding import as_array
from ostinato.tools.compare.workload import Case

__all__ = ["answers_of", "named_function"]

_CONTRACT = "it is given int32 [T] and gives [T, vocabulary] or [vocabulary] logits, of an encoder [dimension]"


def named_function(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function itself, or the one that "module:name" or "file.py:name" names. Raises `ConfigError` where it cannot be found."""
    if not isinstance(function, str):
        if not callable(function):
            raise ConfigError(f"{function!r} is no function", hint=_CONTRACT)
        return function
    place, colon, name = function.rpartition(":")
    if not colon or not name.isidentifier() or not place:
        raise ConfigError(f"{function!r} names no function", hint="write module:name, or file.py:name")
    try:
        found = getattr(_module(place), name, None)
    except (
        Exception,
        SystemExit,
    ) as error:  # the module is the caller's, and may raise anything; an exit would read as a verdict
        raise ConfigError(
            f"{place} cannot be imported: {shown(error)}",
            node=function,
            hint="name a module that Python finds, or a file.py that runs",
        ) from error
    if not callable(found):
        raise ConfigError(f"{place} has no function {name}", node=function, hint=_CONTRACT)
    chosen: Callable[..., Any] = found
    return chosen


def answers_of(
    function: Callable[..., Any], case: Case, places: Sequence[tuple[int, int]], width: int, name: str
) -> Array:
    """What a function gives at these (row, position) of a case: float32 [len(places), width].

    Raises `ConfigError`, naming the side, for what the function raises and for results of another shape or kind.
    """
    found = np.zeros((len(places), width), np.float32)
    whole: dict[int, Array] = {}
    for index, (row, position) in enumerate(places):
        ids = case.sequences[row]
        if row not in whole:
            whole[row] = _called(function, ids, width, name)
        last = position == len(ids) - 1
        if whole[row].ndim == 2:
            found[index] = whole[row][position]
        else:
            found[index] = whole[row] if last else _called(function, ids[: position + 1], width, name)[-width:]
    return found


def _called(function: Callable[..., Any], ids: Array, width: int, name: str) -> Array:
    try:
        given = function(ids.copy())
    except OstinatoError:
        raise
    except (Exception, SystemExit) as error:  # the function is the caller's, and may raise anything
        raise ConfigError(f"it raised {shown(error)}", node=name, hint=_CONTRACT) from error
    if hasattr(given, "detach"):  # a torch tensor that may have a gradient, of a float dtype that numpy lacks
        given = given.detach().to("cpu")
        given = given.float() if given.is_floating_point() else given
    try:
        array = as_array(name, given)
    except OstinatoError as error:
        raise ConfigError(f"it gave {type(given).__name__}: {error.message}", node=name, hint=_CONTRACT) from error
    floats = array.dtype.kind == "f" or array.dtype == DType.BF16.numpy
    if not floats or array.shape not in ((width,), (len(ids), width)):
        raise ConfigError(
            f"for {len(ids)} ids it gave {array.dtype}{list(array.shape)}, expected floats {[len(ids), width]} or {[width]}",
            node=name,
            hint=_CONTRACT,
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and told as such
        return array.astype(np.float32)


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(place)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles of the module look for it there
    spec.loader.exec_module(module)
    return module
