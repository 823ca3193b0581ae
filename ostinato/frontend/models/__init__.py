"""Model families by architecture name: one readable file each."""

from __future__ import annotations

from ostinato.frontend.layers import ModelFunction
from ostinato.frontend.models.llama import llama
from ostinato.frontend.models.qwen2 import qwen2

__all__ = ["FAMILIES"]

FAMILIES: dict[str, ModelFunction] = {"llama": llama, "qwen2": qwen2}
