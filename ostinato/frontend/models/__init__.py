"""The model families of the package: one readable file each, one line here."""

from __future__ import annotations

from ostinato.frontend.family import Family
from ostinato.frontend.models.bert import BERT
from ostinato.frontend.models.gemma import GEMMA
from ostinato.frontend.models.gemma2 import GEMMA2
from ostinato.frontend.models.gemma3 import GEMMA3
from ostinato.frontend.models.llama import LLAMA
from ostinato.frontend.models.mistral import MISTRAL
from ostinato.frontend.models.phi3 import PHI3
from ostinato.frontend.models.qwen2 import QWEN2
from ostinato.frontend.models.qwen3 import QWEN3

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (BERT, GEMMA, GEMMA2, GEMMA3, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3)
