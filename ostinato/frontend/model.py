"""A loaded model and the graphs it is traced into.

Three entries exist for a decoder (that of an encoder is in `embed.py`). `forward` is dense over whole sequences [B,T] and keeps no state: for study, export
and training. `step` is token-packed over a block-table cache: prefill, chunks, decode and mixed batches are one graph that differs only in its dimensions.
`decode` is a step of one token a row that chooses the next tokens and moves its own inputs on to them: run again as it is, it makes the tokens after those.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.checkpoints import Checkpoint, ModelConfig, open_checkpoint
from ostinato.frontend.choose import choose_token
from ostinato.frontend.family import Family
from ostinato.frontend.layers import Attend, ModelInputs, Weights
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError, WeightsError
from ostinato.ir.graph import Graph
from ostinato.ir.precision import POLICIES, PrecisionPolicy, precision_policy
from ostinato.ir.types import Dim, DType, TensorType

__all__ = [
    "MAX_ROWS",
    "MAX_TOKENS",
    "PRECISIONS",
    "CacheShape",
    "Model",
    "load",
    "trace_decode",
    "trace_forward",
    "trace_step",
]

PRECISIONS = ("auto", *POLICIES)
"""Policies of precision by name, and "auto", which the checkpoint decides."""
MAX_TOKENS = 1 << 20
MAX_ROWS = 1 << 16
_ROWS = Dim("R", 1, MAX_ROWS)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The KV cache: `blocks` blocks of `block_size` positions; a row uses up to `table_width` of them."""

    blocks: int
    block_size: int
    table_width: int

    def __post_init__(self) -> None:
        for name in ("blocks", "block_size", "table_width"):
            object.__setattr__(self, name, integer(getattr(self, name), f"CacheShape.{name}", low=1))

    @property
    def context(self) -> int:
        """Positions a row can hold."""
        return self.block_size * self.table_width


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint with its family. Weights stay in the mapped file until an executable loads them."""

    checkpoint: Checkpoint
    family: Family

    def __repr__(self) -> str:
        return f"<model of {self.checkpoint!r}>"

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def precision(self, requested: str | PrecisionPolicy) -> str:
        """The text of a policy of precision. "auto" is "bf16" for a checkpoint whose largest matrix is bfloat16 and "f32" for all others.

        Raises `ConfigError` for what is no policy.
        """
        if requested != "auto":
            return str(precision_policy(requested))
        matrices = [tensor for tensor in self.checkpoint.tensors.values() if len(tensor.shape) == 2]
        largest = max(matrices, key=lambda tensor: math.prod(tensor.shape), default=None)
        return "bf16" if largest is not None and largest.dtype is DType.BF16 else "f32"

    def matrices(self, precision: str | PrecisionPolicy) -> DType:
        """The dtype of float matrices and of caches under a policy of precision."""
        return precision_policy(self.precision(precision)).matrices

    def weights(self, builder: GraphBuilder, precision: str | PrecisionPolicy) -> Weights:
        """The checkpoint's tensors as weights of a graph. Float matrices get the dtype of an explicit precision; "auto" keeps the checkpoint's dtypes."""
        explicit = self.matrices(precision)
        return Weights(builder, self.checkpoint.tensors, None if precision == "auto" else explicit)

    def check_all_used(self, weights: Weights) -> None:
        """Strict loading: raises `WeightsError` for a tensor that the model does not use, which is never ignored."""
        unused = sorted(set(self.checkpoint.tensors) - weights.used)
        if unused:
            shown = ", ".join(unused[:8]) + (f" and {len(unused) - 8} more" if len(unused) > 8 else "")
            raise WeightsError(
                f"the checkpoint has {len(unused)} tensors that {self.config.architecture} does not use: {shown}",
                node=str(self.checkpoint.path),
                hint="the checkpoint is of another family or a variant (QK norm, adapters) that is not supported",
            )


def load(path: str | os.PathLike[str], families: Sequence[Family] = FAMILIES) -> Model:
    """Opens a Hugging Face directory, a `.gguf` file or an installed model package by name; reads headers only.

    `families` are those that the checkpoint may be of: `(*FAMILIES, MINE)` adds one. Raises `ConfigError` for an unsupported architecture and
    `WeightsError` for a missing or damaged checkpoint.
    """
    checkpoint = open_checkpoint(path, families)
    by_name = {family.name: family for family in families}
    return Model(checkpoint, by_name[checkpoint.config.architecture])


def _logits(
    model: Model,
    builder: GraphBuilder,
    precision: str | PrecisionPolicy,
    ids: Tensor,
    position: Tensor,
    attend: Attend,
    last: Tensor | None,
    rotary_length: Tensor | None,
) -> Tensor:
    """The family's logits over every token, or over the rows at `last`; raises `ConfigError` for an encoder."""
    function = model.family.function
    if function is None:
        raise ConfigError(
            f"{model.family.name} is a family of encoders: it gives embeddings, not logits",
            node=str(model.checkpoint.path),
            hint='use ostinato.Embedder, ostinato.compile_encoder, or the entry "embed"',
        )
    weights = model.weights(builder, precision)

    def select(x: Tensor) -> Tensor:
        return x if last is None else F.gather_rows(x, last, name="last_hidden")

    inputs = ModelInputs(builder, model.config, weights, ids, position, attend, select, rotary_length)
    logits = function(inputs)
    model.check_all_used(weights)
    return logits


def trace_forward(model: Model, *, logits: str = "last", precision: str | PrecisionPolicy = "auto") -> Graph:
    """The dense graph over whole sequences.

    Inputs (int32): input_ids, position [B,T]; for last-token logits `last` [B] (row of each sequence's last token in the flattened [B*T]); where the rotary
    embedding depends on a length, rotary_length [B,T] (how many tokens each token's sequence has). Output `logits`: float32 [B,V], or [B,T,V] for
    `logits="all"`.
    """
    builder = GraphBuilder("forward")
    batch, time = Dim("B", 1, MAX_ROWS), Dim("T", 1, model.config.context_limit)
    ids = builder.input("input_ids", TensorType((batch, time), DType.I32, ("B", "T")))
    position = builder.input("position", TensorType((batch, time), DType.I32, ("B", "T")))
    length = builder.input("rotary_length", position.type) if model.config.depends_on_length else None
    last = builder.input("last", TensorType((batch,), DType.I32, ("B",))) if _wants_last(logits) else None

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        del layer
        scale = model.config.score_scale
        return F.attention_causal(q, k, v, scale=scale, window=window, soft_cap=soft_cap, name="attention")

    return builder.finish((_logits(model, builder, precision, ids, position, attend, last, length),))


def trace_step(
    model: Model,
    cache: CacheShape,
    *,
    logits: str = "last",
    precision: str | PrecisionPolicy = "auto",
    sampling: bool = False,
) -> Graph:
    """The packed graph over N tokens of up to R rows.

    Inputs (int32): input_ids, row_of_token, position [N]; block_table [R,W]; length [R]; token_count, row_count [1] (how many of N and R are valid); for
    last-token logits `last` [R] (token index of each wanted row); where the rotary embedding depends on a length, rotary_length [N] (how many tokens each
    token's row has: the whole prompt for every chunk of it, position + 1 in decode). State: k_cache.<layer>, v_cache.<layer>. Outputs: `logits` float32 [R,V]
    or [N,V], and with `sampling` the next `token` int32 [R], from the inputs that `choose_token` declares.
    """
    builder = GraphBuilder("step")
    outputs = _packed(model, builder, cache, Dim("N", 1, MAX_TOKENS), logits, precision, sampling=sampling)
    return builder.finish(outputs)


def trace_decode(model: Model, cache: CacheShape, *, precision: str | PrecisionPolicy = "auto") -> Graph:
    """The packed graph over one token of each of up to R rows, with sampling: inputs, state and outputs are those of `trace_step` where N is R.

    At its end the inputs that say where each row is (input_ids, position, length, sample_index, history, history_length, rotary_length) are those of the next
    step, in place: run again without new inputs it makes the next token. A row without a token (-1) or at the end of the context stays where it is.
    """
    builder = GraphBuilder("decode")
    outputs = _packed(model, builder, cache, _ROWS, "last", precision, sampling=True)
    names = ["input_ids", "position", "length", "sample_index", "history", "history_length"]
    if model.config.depends_on_length:
        names.append("rotary_length")
    F.advance(outputs[-1], *(builder.carry(name) for name in names), context=cache.context)
    return builder.finish(outputs)


def _packed(
    model: Model,
    builder: GraphBuilder,
    cache: CacheShape,
    tokens: Dim,
    logits: str,
    precision: str | PrecisionPolicy,
    *,
    sampling: bool,
) -> list[Tensor]:
    """Logits, and with `sampling` tokens, of a step over so many tokens."""
    config, rows = model.config, _ROWS

    def declare(name: str, shape: tuple[int | Dim, ...], axes: tuple[str, ...], dtype: DType = DType.I32) -> Tensor:
        return builder.input(name, TensorType(shape, dtype, axes))

    ids = declare("input_ids", (tokens,), ("N",))
    row_of_token = declare("row_of_token", (tokens,), ("N",))
    position = declare("position", (tokens,), ("N",))
    block_table = declare("block_table", (rows, cache.table_width), ("R", "W"))
    length = declare("length", (rows,), ("R",))
    rotary_length = declare("rotary_length", (tokens,), ("N",)) if config.depends_on_length else None
    builder.extent("N", declare("token_count", (1,), ("",)))
    last = None
    if _wants_last(logits):
        last = declare("last", (rows,), ("R",))
        builder.extent("R", declare("row_count", (1,), ("",)))
    elif sampling:
        raise ConfigError("sampling needs last-token logits", hint='use logits="last"')

    cache_dtype = model.matrices(precision)
    cache_type = TensorType(
        (cache.blocks, config.num_kv_heads, cache.block_size, config.head_dim), cache_dtype, ("P", "G", "S", "D")
    )
    caches = [
        (builder.state(f"k_cache.{layer}", cache_type), builder.state(f"v_cache.{layer}", cache_type))
        for layer in range(config.num_layers)
    ]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        k_cache, v_cache = F.kv_store(k, v, row_of_token, position, block_table, *caches[layer])
        return F.attention_packed(
            q,
            k_cache,
            v_cache,
            row_of_token,
            position,
            block_table,
            length,
            scale=config.score_scale,
            window=window,
            soft_cap=soft_cap,
            name="attention",
        )

    outputs = [_logits(model, builder, precision, ids, position, attend, last, rotary_length)]
    if sampling:
        outputs.append(choose_token(builder, outputs[0], rows, cache.context))
    return outputs


def _wants_last(logits: str) -> bool:
    if logits not in ("last", "all"):
        raise ConfigError(f"logits={logits!r} is unknown", hint='use "last" or "all"')
    return logits == "last"
