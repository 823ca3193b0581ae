"""A model family: one record that says everything about it. A family is one file, which imports what it needs from here, `layers` and `functional`.

The record has two halves. What files look like (`FamilyFiles`) is handed to the checkpoint readers as data, so that they know no family; the function is
what tracing runs. Nothing is registered: the families of the package are the literal tuple in `models/__init__.py`, and `load` takes others beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.gguf_config import decoder_from_gguf
from ostinato.frontend.checkpoints.huggingface_config import decoder_from_huggingface, window_is_switched_on
from ostinato.frontend.checkpoints.reader import ConfigReader, MetadataReader
from ostinato.frontend.checkpoints.spelling import FamilyFiles, GgufSpelling, HuggingFaceSpelling
from ostinato.frontend.layers import ModelFunction

__all__ = [
    "ConfigReader",
    "Family",
    "GgufSpelling",
    "HuggingFaceSpelling",
    "MetadataReader",
    "ModelConfig",
    "decoder_from_gguf",
    "decoder_from_huggingface",
    "window_is_switched_on",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family(FamilyFiles):
    """A family by its name (the `architecture` of its configurations), how its files are spelled, and the function that computes its logits."""

    function: ModelFunction
