"""Patterns for names of nodes, as options and questions give them.

A pattern is matched part by part: "ffn" is every name with a part of that name, "layers.3" every name of that layer, "layers.*.attn" the attention of every
layer. Parts may have wildcards.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

__all__ = ["any_layer", "matches"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def any_layer(text: str) -> str:
    """A text in which names have a star for each number among their parts: equal for what is said alike of several layers."""
    return _NUMBER.sub("*", text)


def matches(pattern: str, name: str) -> bool:
    """Whether consecutive parts of a dotted name match all parts of the pattern."""
    wanted, parts = pattern.split("."), name.split(".")
    return any(
        all(fnmatchcase(part, glob) for part, glob in zip(parts[start:], wanted, strict=False))
        for start in range(len(parts) - len(wanted) + 1)
    )
