"""Names of nodes: what is text at all, and the patterns for them that options and questions give.

A pattern is matched part by part: "ffn" is every name with a part of that name, "layers.3" every name of that layer, "layers.*.attn" the attention of every
layer. Parts may have wildcards.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

__all__ = ["NO_TEXT_HINT", "any_layer", "is_text", "matches"]

NO_TEXT_HINT = "it cannot be encoded: decode what it came from again, as UTF-8"

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_HALF = re.compile("[\ud800-\udfff]")


def is_text(name: str) -> bool:
    """Whether a name can be encoded, and so be hashed and written: half of a surrogate pair cannot."""
    return name.isascii() or _HALF.search(name) is None


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
