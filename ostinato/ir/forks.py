"""What a forked child must make anew: it has one thread, and finds every lock as the others held it at that moment, for ever.

Objects that have locks or threads are remembered here, without being kept alive, and told in each child before anything else runs there. The locks
themselves stay plain ones: `with` takes and frees those in one step each, which an interrupt cannot come in between.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forked", "renew_after_fork"]


class Forked(Protocol):
    """Something with locks or threads."""

    def after_fork(self) -> None:
        """Makes them new. Runs in the child."""
        ...


_KNOWN: weakref.WeakSet[Forked] = weakref.WeakSet()


def renew_after_fork(owner: Forked) -> None:
    """Has `owner.after_fork()` called in every child of this process, as long as the owner lives."""
    _KNOWN.add(owner)


def _renew() -> None:
    for owner in list(_KNOWN):
        owner.after_fork()


if hasattr(os, "register_at_fork"):  # a system without it has no forks
    os.register_at_fork(after_in_child=_renew)
