"""What the `tokenizers` library raises, as an error of ours.

It trusts its files: a vocabulary without the unknown token that its model names, or a template with a token that is not there, is found out when a text meets
it. What it refuses is a plain `Exception`; a panic of its native code does not even derive from that, and would pass every handler of a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ostinato.ir.errors import OstinatoError, WeightsError

__all__ = ["library_errors"]


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Raises `WeightsError` that begins with `what` for anything that the library raises inside; a decorator too."""
    try:
        yield
    except OstinatoError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # an interrupt
        raise WeightsError(f"{what}: {error}", hint="its files are damaged: download them again") from error
