"""Functions of a user's that the library calls: those of the operators and rows that `ost.extend` adds, and of passes.

They may raise anything, anywhere between tracing and planning, and whoever compiles must read whose mistake it is. So they are wrapped where they are added,
once for all callers: what is no error of ours becomes a `UserCodeError` that names the function, the node where the call tells it, and the user's line, with
the original behind it; so does a value of another kind than callers can use. Errors of ours pass as they are: that is how a rule refuses.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, TypeVar

from ostinato.ir.checks import shown
from ostinato.ir.errors import OstinatoError, UserCodeError
from ostinato.ir.graph import Node
from ostinato.ir.locations import is_ours, location
from ostinato.ir.opdef import Cost, OpDef, Sizes, View
from ostinato.ir.step import Launch
from ostinato.ir.target import Impl
from ostinato.ir.types import TensorType

__all__ = ["UserFunction", "guarded", "raised"]

_HINT = "mend the function; docs/extend.md says what each is for"


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, tuple) and all(isinstance(item, kind) for item in found)


def _one(*kinds: type) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, kinds)


_TEXT_OR_NONE = _one(str, type(None))
_GIVES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "infer": ("a tuple of types", _all(TensorType)),
    "samples": ("an iterator", _one(Iterator)),
    "view": ("a View", _one(View)),
    "sizes": ("Sizes", _one(Sizes)),
    "cost": ("a Cost", _one(Cost)),
    "derivative": ("a mapping from operands to gradients", _one(Mapping)),
    "kernel": ("the name of a kernel", _one(str)),
    "params": ("a tuple of numbers", _all(Real)),
    "accepts": ("None or the reason against it", _TEXT_OR_NONE),
    "result_layout": ("None or a layout", _TEXT_OR_NONE),
    "workspace": ("a number of bytes", _one(Integral)),
    "launch": ("a Launch", _one(Launch)),
}
"""What functions of operators and rows give; what a reference gives is judged where it is called (`evaluate.py`)."""

_Added = TypeVar("_Added", bound=OpDef | Impl)


def guarded(item: _Added) -> _Added:
    """The operator or row with every function of it wrapped."""
    whose = f"operator {item.name}" if isinstance(item, OpDef) else f"row {item.identity}"
    held = {spec.name: getattr(item, spec.name) for spec in fields(item)}
    wrapped: dict[str, Any] = {name: UserFunction(each, name, whose) for name, each in held.items() if callable(each)}
    return replace(item, **wrapped)


@dataclass(frozen=True)
class UserFunction:
    """A function of a user's: the field `name` of the operator or row `whose`.

    Raises `UserCodeError` for all that it raises but errors of ours, and where it gives what callers cannot use.
    """

    call: Callable[..., Any]
    name: str
    whose: str

    def __post_init__(self) -> None:
        # names of functions tell rows apart (`Target.rows_hash`): it goes by that of its function
        own = {name: getattr(self.call, name, None) for name in ("__module__", "__qualname__")}
        self.__dict__.update({name: text for name, text in own.items() if text is not None})

    def __call__(self, *arguments: Any) -> Any:
        node = getattr(arguments[0], "node", None) if arguments else None
        name = node.name if isinstance(node, Node) else None
        try:
            found = self.call(*arguments)
        except OstinatoError:
            raise
        except Exception as error:
            raise raised(error, f"{self.name} of {self.whose}", name) from error
        expected, is_fine = _GIVES.get(self.name, ("", _one(object)))
        if not is_fine(found):
            message = f"{self.name} of {self.whose} gave {shown(found)}, expected {expected}{self._defined()}"
            raise UserCodeError(message, node=name, hint=_HINT)
        return self._items(found) if self.name == "samples" else found

    def _items(self, found: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from found
        except OstinatoError:
            raise
        except Exception as error:
            raise raised(error, f"{self.name} of {self.whose}") from error

    def _defined(self) -> str:
        code = getattr(self.call, "__code__", None)
        return (
            ""
            if code is None or is_ours(code.co_filename)
            else f"\n  at {location(code.co_filename, code.co_firstlineno)}"
        )


def raised(error: Exception, what: str, node: str | None = None) -> UserCodeError:
    """What stands for an error that came out of a user's function: it tells the first line outside of the package on the way down to where it was raised."""
    lines = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    at = next((f"\n  at {location(file, line)}" for file, line in lines if not is_ours(file)), "")
    return UserCodeError(f"{what} raised {shown(error)}{at}", node=node, hint=_HINT)
