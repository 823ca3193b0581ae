"""The Fugue family, which is made up: a decoder whose layers have two voices that enter together.

Attention and feed-forward part read the same normalised input, and both are added to it. The rest is a Llama decoder. `config.json` has a key of its own for
the biases of attention (`voices_biased`), and GGUF files call the embedding `subject`.
"""

from __future__ import annotations

from dataclasses import replace

from ostinato.frontend.decoder import Rotation, attention, decoder, feed_forward, project, rms_norm
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    ModelConfig,
    decoder_from_gguf,
    decoder_from_huggingface,
    windows_from_huggingface,
)
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.trace import Tensor

__all__ = ["FUGUE"]


def fugue(m: ModelInputs) -> Tensor:
    """Logits [..., V] of the tokens that `m.select` keeps."""
    return decoder(m, layer)


def layer(m: ModelInputs, number: int, x: Tensor, rotation: Rotation) -> Tensor:
    """Both voices of a layer: x + attention(y) + feed_forward(y), where y is x normalised."""
    y = rms_norm(m, f"model.layers.{number}.input_layernorm", x, name="norm")
    return x + attention(m, number, y, rotation, project) + feed_forward(m, number, y, project)


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys, no window unless the file has one, and biases of all four projections of attention by one key."""
    windows = windows_from_huggingface(read, size=None)
    biased = read.flag("voices_biased")
    common = decoder_from_huggingface(read, positions=4096, windows=windows)
    return replace(common, attention_bias=biased, attention_output_bias=biased)


FUGUE = Family(
    name="fugue",
    function=fugue,
    huggingface=(HuggingFaceSpelling(model_type="fugue", classes=("FugueForCausalLM",), config=from_huggingface),),
    gguf=(GgufSpelling(architecture="fugue", config=decoder_from_gguf, names={"subject": "model.embed_tokens"}),),
)
