"""Code of the user's for the length of a command: a function that adds operators and rows, called before and taken back after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ostinato.extending import Extension
from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.tools.compare.functions import named_function

__all__ = ["extended"]

_HINT = "name a function without arguments that returns what ostinato.extend gives it"


@contextmanager
def extended(name: str) -> Iterator[None]:
    """Calls the function of that name ("module:function" or "file.py:function"; "": none), and removes what it added at the end.

    Raises `ConfigError` for a function that cannot be found, that raises or that returns something else.
    """
    if not name:
        yield
        return
    function = named_function(name)
    try:
        added = function()
    except OstinatoError:
        raise
    except (Exception, SystemExit) as error:  # the function is the user's, and may raise anything
        raise ConfigError(f"it raised {shown(error)}", node=name, hint=_HINT) from error
    if not isinstance(added, Extension):
        raise ConfigError(f"it gave {type(added).__name__}", node=name, hint=_HINT)
    with added:
        yield
