"""Passes of the user's own between the compiler's: what is asked of them, and where they may stand.

A user pass is a `Pass` like ours: a frozen dataclass with `name`, `requires`, `ensures`, `optional` and `apply(graph, target)`. It is given as (stage, pass),
and runs behind that stage; several behind one stage run in the order given. After it, as after ours, dead nodes go and the verifier runs; inputs, state and
outputs must be those that the caller knows. It stands before `select_impl` at the latest: what is selected is decided for the graph as it is then.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.passes.base import Pass

__all__ = ["inserted", "user_passes"]

_LAST = "select_impl"
_HINT = 'give (stage, pass) pairs, like [("fuse_swiglu", MyPass())]; docs/extend.md shows one'


def user_passes(given: Any) -> tuple[tuple[str, Pass], ...]:
    """The (stage, pass) pairs as they are; raises `ConfigError` for anything else, saying what a pass lacks."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"passes are {shown(given)}", hint=_HINT)
    pairs: list[tuple[str, Any]] = []
    for pair in given:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ConfigError(f"passes have {shown(pair)}", hint=_HINT)
        stage, item = pair
        kinds = {"name": str, "requires": tuple, "ensures": tuple, "optional": bool}
        lacks = [name for name, kind in kinds.items() if not isinstance(getattr(item, name, None), kind)]
        lacks += [] if callable(getattr(item, "apply", None)) else ["apply"]
        if lacks or isinstance(item, type) or not dataclasses.is_dataclass(item):
            wrong = f"lacks {', '.join(lacks)}" if lacks else "is no value of a dataclass"
            raise ConfigError(f"the pass behind {stage} {wrong}: {shown(item)}", hint=_HINT)
        name = str(pair[1].name)
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ConfigError(
                f"the pass behind {stage} is called {name!r}", hint="a name has letters, digits and underscores"
            )
        pairs.append((stage, item))
    return tuple(pairs)


def inserted(ours: Sequence[Pass], more: Sequence[tuple[str, Pass]]) -> tuple[Pass, ...]:
    """All passes in order. Raises `ConfigError` for a stage that does not exist or comes too late, and for a name that is given twice."""
    names = [item.name for item in ours]
    stages = ["input", *names[: names.index(_LAST)]]
    behind: dict[str, list[Pass]] = {}
    for stage, item in more:
        if stage not in stages:
            what = "is too late" if stage in names else "does not exist"
            raise ConfigError(
                f"pass {item.name} is to stand behind {stage!r}, which {what}", hint=f"stages: {', '.join(stages)}"
            )
        if item.name in names:
            raise ConfigError(f"there is a pass {item.name} already", hint="passes are told apart by their names")
        names.append(item.name)
        behind.setdefault(stage, []).append(item)
    found = list(behind.get("input", ()))
    for item in ours:
        found += [item, *behind.get(item.name, ())]
    return tuple(found)
