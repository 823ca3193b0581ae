"""The forward graph of a training step: whole sequences in, one loss out, over any decoder family.

The families are those of inference: only the attention (dense and causal), the head (a loss in place of logits) and the dropout of what is added to the
residual stream are handed in. Micro-batches are traced one after another over the same weights, each under a scope of its own (`micro1`), and so are the
pieces of the head where the logits of all tokens are too much at a time (`chunk1`): their gradients meet at the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.layers import ModelInputs, Project
from ostinato.frontend.model import Model
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.checks import integer, real
from ostinato.ir.errors import BoundsError, ConfigError, ShapeError
from ostinato.ir.graph import Graph
from ostinato.ir.precision import EVERY_PROJECTION, PrecisionPolicy, precision_policy
from ostinato.ir.training import CHUNK, COUNTER, LOSS, MICRO, SEED, TRAIN
from ostinato.ir.types import DType, TensorType

__all__ = ["TrainingShape", "trace_training"]

_MOST_TOKENS = 1 << 24
"""Tokens of one step: more have no activations that a memory holds, and their places alone would fill the host's."""
_MOST_MICRO_BATCHES = 512
"""Each stands in the program by itself: planning takes as long as there are steps."""
_JOINED = 8
"""Tensors that one concat takes."""


@dataclass(frozen=True, slots=True)
class TrainingShape:
    """How much one step takes: `batch` sequences of `sequence` tokens, in `micro_batches` of equal size, the head of each in `chunks` pieces of tokens; None
    leaves their number to whoever plans within a limit of memory, and is one piece here.

    Raises `ConfigError` for numbers below 1, `ShapeError` for micro-batches that do not share the batch out, `BoundsError` for more chunks than tokens and
    for more tokens or micro-batches than a step takes.
    """

    batch: int
    sequence: int
    micro_batches: int = 1
    chunks: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "micro_batches", *(() if self.chunks is None else ("chunks",))):
            object.__setattr__(self, name, integer(getattr(self, name), name, low=1))
        if self.batch * self.sequence > _MOST_TOKENS:
            raise BoundsError(
                f"a batch of {self.batch} sequences of {self.sequence} tokens, a step takes {_MOST_TOKENS} tokens at most",
                hint="take a smaller batch",
            )
        if self.micro_batches > _MOST_MICRO_BATCHES:
            raise BoundsError(
                f"{self.micro_batches} micro-batches, a step takes {_MOST_MICRO_BATCHES}: each stands in the program by itself",
                hint="take larger micro-batches, or more steps of smaller batches",
            )
        if self.batch % self.micro_batches:
            raise ShapeError(
                f"{self.micro_batches} micro-batches do not share out a batch of {self.batch} sequences",
                hint="take a number of micro-batches that divides the batch",
            )
        if self.pieces > self.tokens:
            raise BoundsError(
                f"a micro-batch has {self.tokens} tokens, found {self.chunks} chunks of its head",
                hint="take fewer chunks",
            )

    @property
    def pieces(self) -> int:
        """Pieces of the head of a micro-batch."""
        return self.chunks or 1

    @property
    def rows(self) -> int:
        """Sequences of a micro-batch."""
        return self.batch // self.micro_batches

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.rows * self.sequence


def trace_training(
    model: Model,
    shape: TrainingShape,
    *,
    precision: str | PrecisionPolicy = "auto",
    dropout: float = 0.0,
) -> Graph:
    """The forward graph, with the output `loss`: float32, the mean cross entropy over the targets of the whole batch that are not -100.

    Inputs: input_ids, target int32 [B,T] (the token that follows each); with dropout, whose `dropout` is the share of elements that become zero (Srivastava et
    al. 2014; of embeddings and of what attention and feed-forward add), seed int64 [1] and counter int32 [1], which must differ from step to step.

    Raises `ConfigError` for an encoder, weights in blocks and a dropout outside [0, 1), `BoundsError` for more tokens than the model has positions, and
    `WeightsError` for a checkpoint that does not fit its model.
    """
    function = model.family.function
    if function is None:
        raise ConfigError(f"{model.family.name} is a family of encoders: it gives no logits", hint="train a decoder")
    dropout = real(dropout, "dropout")
    if not (0.0 <= dropout < 1.0 and np.float32(dropout) < 1):
        raise ConfigError(
            f"dropout is {dropout}", hint="give the share of elements that become zero, from 0 to below 1"
        )
    if shape.sequence > model.config.context_limit:
        raise BoundsError(
            f"sequences of {shape.sequence} tokens, the model has {model.config.context_limit} positions",
            hint="take shorter sequences",
        )
    builder = GraphBuilder(TRAIN)
    whole = TensorType((shape.batch, shape.sequence), DType.I32, ("B", "T"))
    ids, target = builder.input("input_ids", whole), builder.input("target", whole)
    drop = _dropping(builder, dropout)
    losses = []
    for number in range(shape.micro_batches):
        if shape.micro_batches == 1:
            losses.append(_micro_batch(model, builder, function, shape, ids, target, precision, drop))
            continue
        with builder.scope(f"{MICRO}{number}"):
            first, behind = number * shape.rows, (number + 1) * shape.rows
            parts = (F.slice_(ids, 0, first, behind), F.slice_(target, 0, first, behind))
            losses.append(_micro_batch(model, builder, function, shape, *parts, precision, drop))
    every = _joined(losses)
    flat = F.reshape(target, [-1], "_", name="targets")
    return builder.finish((F.target_mean(every, flat, name=LOSS),))


def _dropping(builder: GraphBuilder, rate: float) -> Project:
    """Dropout at so many places as it is asked for, each with masks of its own."""
    if not rate:
        return lambda x: x
    seed = builder.input(SEED, TensorType((1,), DType.I64))
    counter = builder.input(COUNTER, TensorType((1,), DType.I32))
    places = iter(range(2**31))
    return lambda x: F.dropout(x, seed, counter, rate=rate, place=next(places), name="dropped")


def _micro_batch(
    model: Model,
    builder: GraphBuilder,
    function: Callable[[ModelInputs], Tensor],
    shape: TrainingShape,
    ids: Tensor,
    target: Tensor,
    precision: str | PrecisionPolicy,
    drop: Project,
) -> Tensor:
    """The loss of every token of a micro-batch [rows * T], zero where it has no target."""
    config = model.config
    counted = np.broadcast_to(np.arange(shape.sequence, dtype=np.int32), (shape.rows, shape.sequence))
    position = builder.constant("position", np.ascontiguousarray(counted), ("B", "T"))
    length = None
    if config.depends_on_length:
        length = builder.constant("rotary_length", np.full(counted.shape, shape.sequence, np.int32), ("B", "T"))
    weights = model.weights(builder, precision)
    narrow = _narrows_attention(precision_policy(model.precision(precision)))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        del layer
        heads = [F.cast(x, DType.BF16) for x in (q, k, v)] if narrow else [q, k, v]
        scale = config.score_scale
        y = F.attention_causal(*heads, scale=scale, window=window, soft_cap=soft_cap, name="attention")
        return F.cast(y, DType.F32) if narrow else y

    def head(x: Tensor, logits: Project) -> Tensor:
        x = F.reshape(x, [shape.tokens, config.hidden_size], "_C", name="hidden")
        wanted = F.reshape(target, [shape.tokens], "_", name="wanted")
        if shape.pieces == 1:
            return F.token_cross_entropy(logits(x), wanted)[0]
        found = []
        for number in range(shape.pieces):
            first, behind = (part * shape.tokens // shape.pieces for part in (number, number + 1))
            with builder.scope(f"{CHUNK}{number}"):
                rows = F.slice_(x, 0, first, behind, name="rows")
                found.append(F.token_cross_entropy(logits(rows), F.slice_(wanted, 0, first, behind, name="wanted"))[0])
        return _joined(found)

    inputs = ModelInputs(builder, config, weights, ids, position, attend, lambda x: x, length, head=head, dropout=drop)
    losses = function(inputs)
    model.check_all_used(weights)
    return losses


def _narrows_attention(policy: PrecisionPolicy) -> bool:
    """Whether attention multiplies in bf16, as torch's autocast has it: under a policy by which all projections do."""
    return policy.matrices is DType.BF16 and policy.scope == EVERY_PROJECTION


def _joined(parts: list[Tensor]) -> Tensor:
    """Vectors one after another, as many as there are."""
    while len(parts) > 1:
        groups = [parts[start : start + _JOINED] for start in range(0, len(parts), _JOINED)]
        parts = [F.concat(group, 0, name="losses") if len(group) > 1 else group[0] for group in groups]
    return parts[0]
