"""The programs whose rows have shipped records: every family and dtype of weights, both precisions; prefill, decode and training, as compiled unasked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

import ostinato as ost
from ostinato.frontend.model import CacheShape, Model
from ostinato.frontend.training import TrainingShape
from ostinato.ir.types import DType
from ostinato.runtime.training.optimizer import SGD, AdamW
from ostinato.served import encoder_entries
from ostinato.stages import Entries, Traced, trace
from ostinato.training import Recipe, trace_training_step
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf, write_hf_checkpoint
from tests.frontend.make_encoders import encoder_config, random_encoder
from tests.frontend.small_families import SMALL_DECODERS

__all__ = ["BLOCKS", "FLOATS", "models", "programs"]

FLOATS: dict[str, npt.DTypeLike] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q4_k", "q5_k", "q6_k")
_WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
"""Rows of whole blocks, of every block dtype."""
_TRAINED_IN_EVERY_WAY = ("mistral", "qwen2")
"""Families without and with biases that are trained in every way there is; the others have nothing to add but their layers."""


def models(folder: Path, kinds: Sequence[str]) -> Iterator[tuple[str, str, Model]]:
    """Family, kind and model: every family with weights of each of `kinds`, which are keys of `FLOATS` and names in `BLOCKS`."""
    for name, (family, changes) in SMALL_DECODERS.items():
        config = small_config(family, **{**changes, **_WIDE})
        if name != "phi3" and "head_dim" in config:
            config["head_dim"] = 64
        config |= {"num_hidden_layers": 2} if config.get("sliding_window") else {}
        tensors = random_model(config, 1)
        for kind in kinds:
            place = folder / f"{name}-{kind}"
            if kind in FLOATS:
                stored = {key: array.astype(FLOATS[kind]) for key, array in tensors.items()}
                yield name, kind, ost.load(write_hf_checkpoint(place, config, stored))
            elif name != "phi3":  # GGUF has no place for its rotary factors beside the weights
                yield name, kind, ost.load(write_gguf(place.with_suffix(".gguf"), config, tensors, DType.parse(kind)))
    for kind in kinds:
        if kind in FLOATS:
            config = encoder_config()
            stored = {key: array.astype(FLOATS[kind]) for key, array in random_encoder(config, 1).items()}
            yield "bert", kind, ost.load(write_hf_checkpoint(folder / f"bert-{kind}", config, stored))


def programs(model: Model, kind: str) -> Iterator[Entries]:
    """What `LLM`, `compile`, `Embedder` and `train_step` would plan of a model with weights of a kind, and its dense graph: as it is, and in the other
    precision too. Float weights are converted where a precision is named, so that those of one kind show what there is to see; those are trained."""
    for precision in ("f32", "bf16") if kind == "f32" else ("auto",) if kind in FLOATS else ("auto", "bf16"):
        if model.family.encoder is not None:
            yield encoder_entries(model, 64, precision)
            continue
        cache = CacheShape(4, 32, 1)
        step = trace(model, "step", cache=cache, precision=precision, sampling=True)
        every = trace(model, "step", cache=cache, precision=precision, logits="all")
        last = trace(model, "step", cache=cache, precision=precision)
        decode = trace(model, "decode", cache=cache, precision=precision)
        yield {
            **step.at({"prefill": {"N": 64, "R": 4}, "prefill one": {"N": 32, "R": 1}}),
            **_named("last", last, {"N": 64, "R": 4}, {"N": 32, "R": 1}),
            **_named("all", every, {"N": 64, "R": 4}, {"N": 32, "R": 1}),
            **_named("decode", decode, {"R": 1}, {"R": 4}),
            **_named("dense", trace(model, "forward", precision=precision), {"B": 1, "T": 32}, {"B": 2, "T": 32}),
        }
        if kind == "f32":
            yield {
                f"train {name}": (trace_training_step(model, recipe).traced, {})
                for name, recipe in _recipes(model.family.name, precision)
            }


def _recipes(family: str, precision: str) -> Iterator[tuple[str, Recipe]]:
    """Training by AdamW with clipping and dropout; for some families in pieces, by every other optimizer, of a part of the weights, and of gradients alone."""
    whole, clipped = TrainingShape(2, 32), AdamW(clip_norm=1.0)
    yield "adamw", Recipe(whole, clipped, precision, dropout=0.1)
    if family not in _TRAINED_IN_EVERY_WAY:
        return
    yield "micro", Recipe(TrainingShape(4, 32, micro_batches=4), AdamW(moments="bf16"), precision)
    yield "chunks", Recipe(TrainingShape(2, 32, chunks=2), SGD(momentum=0.9), precision)
    yield "sgd", Recipe(whole, SGD(clip_norm=1.0), precision)
    yield "part", Recipe(whole, clipped, precision, frozen=("model.embed*", "model.layers.0.*"))
    yield "gradients", Recipe(whole, None, precision, keep_gradients=True)


def _named(name: str, traced: Traced, *dims: dict[str, int]) -> Entries:
    return traced.at({f"{name} {one}": one for one in dims})
