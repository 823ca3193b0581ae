"""A model family: one record that says everything about it. A family is one file, which imports what it needs from here, `layers` and `functional`.

The record has two halves. What files look like (`FamilyFiles`) is handed to the checkpoint readers as data, so that they know no family; the function, which
gives a decoder's logits or an encoder's states, is what tracing runs. Nothing is registered: the families of the package are the literal tuple in
`models/__init__.py`, and `load` takes others beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.gguf_config import decoder_from_gguf
from ostinato.frontend.checkpoints.huggingface_config import (
    declared_dtype,
    decoder_from_huggingface,
    refuse_quantised,
    windows_from_huggingface,
)
from ostinato.frontend.checkpoints.reader import ConfigReader, MetadataReader, shortest_decimal
from ostinato.frontend.checkpoints.spelling import FamilyFiles, GgufSpelling, HuggingFaceSpelling
from ostinato.frontend.encoder import EncoderFunction
from ostinato.frontend.layers import ModelFunction
from ostinato.ir.errors import ConfigError

__all__ = [
    "ConfigReader",
    "Family",
    "GgufSpelling",
    "HuggingFaceSpelling",
    "MetadataReader",
    "ModelConfig",
    "declared_dtype",
    "decoder_from_gguf",
    "decoder_from_huggingface",
    "refuse_quantised",
    "shortest_decimal",
    "windows_from_huggingface",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family(FamilyFiles):
    """A family by its name (the `architecture` of its configurations), how its files are spelled, and what it computes.

    A family of decoders has a `function`, which gives logits; a family of encoders has an `encoder`, which gives the states of its tokens.
    Raises `ConfigError` for both or neither.
    """

    function: ModelFunction | None = None
    encoder: EncoderFunction | None = None

    def __post_init__(self) -> None:
        FamilyFiles.__post_init__(self)
        if (self.function is None) == (self.encoder is None):
            raise ConfigError(
                f"the family {self.name!r} has {'no' if self.function is None else 'a'} function and "
                f"{'no' if self.encoder is None else 'an'} encoder",
                hint="give decoders a function and encoders an encoder",
            )
