"""The model families of the package: one readable file each, one line here."""

from __future__ import annotations

from ostinato.frontend.family import Family
from ostinato.frontend.models.llama import LLAMA
from ostinato.frontend.models.qwen2 import QWEN2

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN2)
