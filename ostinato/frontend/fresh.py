"""Models that nobody has trained yet: an ordinary Hugging Face directory of random weights, to train from the start.

Which tensors a model has is asked of its family's own function, traced over a checkpoint that has whatever it is asked for. Matrices are normal with a
deviation of 0.02, those that add to the residual stream divided by sqrt(2 * layers) (Radford et al.: "Language models are unsupervised multitask learners",
2019); gains are 1 and biases 0. Each tensor has a generator of its own, from the seed and its name, so that a weight depends on nothing else.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.checkpoints.base import TensorSource
from ostinato.frontend.checkpoints.huggingface_config import config_from_huggingface, spelling_of
from ostinato.frontend.export import CONFIG, WEIGHTS, new_directory
from ostinato.frontend.family import Family, HuggingFaceSpelling, ModelConfig
from ostinato.frontend.layers import ModelInputs, Weights
from ostinato.frontend.model import Model, load
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.tokenizer.train import END_OF_TEXT, byte_tokenizer, trained_tokenizer
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.checks import integer, shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import write_text
from ostinato.ir.safetensors import TensorSpec, file_blocks, header_of
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["new_model", "random_weights", "tensor_shapes"]

_DEVIATION = 0.02
_RESIDUAL = ("o_proj.weight", "down_proj.weight")
"""Matrices whose results are added to the residual stream."""
_METADATA = {"format": "pt"}
"""What transformers wants to be told of whose tensors these are."""
_DTYPES = {"f32": (DType.F32, "float32"), "bf16": (DType.BF16, "bfloat16"), "f16": (DType.F16, "float16")}


def new_model(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    tokenizer: str | Iterable[str] | tokenizers.Tokenizer = "bytes",
    vocab_size: int | None = None,
    seed: int = 0,
    dtype: str = "f32",
    blank: bool = False,
) -> Model:
    """Writes a model with random weights into `folder`, which must be new or empty, and opens it.

    `config` is a `config.json` as the family spells it: `model_type` (llama, qwen2, ...) and the sizes; `vocab_size` in it defaults to the tokenizer's.
    `tokenizer`: "bytes"; texts, from which byte-level BPE of `vocab_size` tokens is learned; or one of the `tokenizers` library, whose end token `config`
    names. `dtype` of the stored weights is "f32", "bf16" or "f16".

    Raises `ConfigError` for a configuration that its family refuses, a vocabulary smaller than the tokenizer's, an encoder, and a folder that is not empty or
    cannot be written.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype is {dtype!r}", hint=f"use one of {', '.join(_DTYPES)}")
    seed = integer(seed, "seed", low=0, high=2**63 - 1)
    given: object = config  # callers are not type-checked
    if not isinstance(given, Mapping):
        raise ConfigError(f"config is {shown(given)}, expected what a config.json says", hint="a mapping of its keys")
    path = Path(folder)
    backend, own = _tokenizer(tokenizer, vocab_size)
    raw = _completed(config, backend, _DTYPES[dtype][1], own)
    spelling = spelling_of(raw, path / CONFIG, FAMILIES)
    raw.setdefault("architectures", [spelling.classes[0]])
    settled = config_from_huggingface(raw, path / CONFIG, FAMILIES)
    family = next(family for family in FAMILIES if family.name == settled.architecture)
    with new_directory(path) as made:
        write_text(made / CONFIG, json.dumps(raw, indent=2) + "\n")
        write_text(made / "tokenizer.json", backend.to_str())
        if own:
            said = {
                "eos_token": END_OF_TEXT,
                "tokenizer_class": "PreTrainedTokenizerFast",
                "clean_up_tokenization_spaces": False,
            }
            write_text(made / "tokenizer_config.json", json.dumps(said, indent=2) + "\n")
        with (made / WEIGHTS).open("xb") as file:
            if blank:
                specs = {
                    name: TensorSpec(_DTYPES[dtype][0], shape) for name, shape in tensor_shapes(family, settled).items()
                }
                file.write(header_of(specs, _METADATA))
                file.truncate(file.tell() + sum(spec.nbytes for spec in specs.values()))
            else:
                weights = random_weights(family, spelling, settled, seed, _DTYPES[dtype][0])
                file.writelines(file_blocks(weights, _METADATA))
    return load(path)


def tensor_shapes(family: Family, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a decoder of this configuration has, by name, in the order in which its function asks for them. Raises `ConfigError` for an encoder."""
    if family.function is None:
        raise ConfigError(f"{family.name} is a family of encoders", hint="new models are decoders")
    builder = GraphBuilder("shapes")
    asked = _Asked(builder, {}, None)
    tokens = TensorType((1, 1), DType.I32, ("B", "T"))
    ids, position = builder.input("input_ids", tokens), builder.input("position", tokens)
    length = builder.input("rotary_length", tokens) if config.depends_on_length else None

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        del layer
        return F.attention_causal(q, k, v, scale=config.score_scale, window=window, soft_cap=soft_cap)

    family.function(ModelInputs(builder, config, asked, ids, position, attend, lambda x: x, length))
    return asked.shapes


class _Asked(Weights):
    """Has every tensor that it is asked for, and remembers it."""

    def __init__(self, builder: GraphBuilder, tensors: Mapping[str, TensorSource], dtype: DType | None) -> None:
        super().__init__(builder, tensors, dtype)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def _find(self, name: str, shape: tuple[int, ...]) -> TensorSource:
        self.shapes[name] = shape
        return TensorSource(name, name, shape, DType.F32, Path(), 0, 0)


def random_weights(
    family: Family, spelling: HuggingFaceSpelling, config: ModelConfig, seed: int, dtype: DType
) -> dict[str, Array]:
    """The tensors of a model as its files store them, all of `dtype`. The same seed gives the same weights."""
    return {
        name: _random(name, shape, spelling, config, seed).astype(dtype.numpy)
        for name, shape in tensor_shapes(family, config).items()
    }


def _random(name: str, shape: tuple[int, ...], spelling: HuggingFaceSpelling, config: ModelConfig, seed: int) -> Array:
    if len(shape) == 1:
        shift = sum(number for end, number in spelling.shifts.items() if name.endswith(end))
        return np.full(shape, 0.0 if name.endswith(".bias") else 1.0 - shift, dtype=np.float32)
    deviation = _DEVIATION / np.sqrt(2.0 * config.num_layers) if name.endswith(_RESIDUAL) else _DEVIATION
    generator = np.random.Generator(np.random.Philox(seed=np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
    made: Array = generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
    return made


def _tokenizer(
    given: str | Iterable[str] | tokenizers.Tokenizer, vocab_size: int | None
) -> tuple[tokenizers.Tokenizer, bool]:
    """The tokenizer, and whether it is one of ours, with our end token."""
    if isinstance(given, tokenizers.Tokenizer):
        return given, False
    if given == "bytes":
        if vocab_size is not None:
            raise ConfigError(f"vocab_size is {shown(vocab_size)} of a tokenizer that learns none", hint="leave it out")
        return byte_tokenizer(), True
    if isinstance(given, str):
        raise ConfigError(
            f"tokenizer is {given[:40]!r}", hint='use "bytes", a list of texts to learn from, or a tokenizer'
        )
    if vocab_size is None:
        raise ConfigError("a tokenizer that is learned needs vocab_size", hint="1024 suits a small model")
    return trained_tokenizer(given, vocab_size), True


def _completed(config: Mapping[str, Any], backend: tokenizers.Tokenizer, dtype: str, own: bool) -> dict[str, Any]:
    tokens = backend.get_vocab_size(with_added_tokens=True)
    raw = {"vocab_size": tokens, "torch_dtype": dtype, **config}
    if not isinstance(raw["vocab_size"], int) or raw["vocab_size"] < tokens:
        raise ConfigError(
            f"vocab_size is {raw['vocab_size']!r}, the tokenizer has {tokens} tokens",
            hint="leave it out of the configuration",
        )
    if own:
        raw.setdefault("eos_token_id", 0)
        raw.setdefault("bos_token_id", None)
    return raw
