"""The graph of an encoder: packed tokens of several texts in, one vector a text out.

Texts lie one after another, without padding between them; what is not valid in a run is said by counts and lengths, never by a mask. So a text's vector
depends on the text alone, and not on what it is batched with.
"""

from __future__ import annotations

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.encoder import EncoderInputs
from ostinato.frontend.model import MAX_ROWS, MAX_TOKENS, Model
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.precision import PrecisionPolicy
from ostinato.ir.types import Dim, DType, TensorType

__all__ = ["trace_embed"]

_CHOSEN = {"cls": "first_token", "lasttoken": "last_token"}
"""The input that says which token stands for its text, by pooling."""


def trace_embed(model: Model, *, precision: str | PrecisionPolicy = "auto") -> Graph:
    """The packed graph over N tokens of up to R texts, with the pooling of the checkpoint's recipe.

    Inputs (int32): input_ids, position, token_type, row_of_token [N]; start, length [R] (a text's first token and how many it has); token_count, row_count
    [1] (how many of N and R are valid); where the pooling takes one token, `first_token` or `last_token` [R] (its index, -1: none). Outputs, float32
    [R, hidden]: `pooled`, and `normalized`, which is `pooled` divided by its Euclidean length.

    Raises `ConfigError` for a decoder and for a recipe that is not computed, `WeightsError` for tensors that are missing or left over.
    """
    if model.family.encoder is None:
        raise ConfigError(
            f"{model.family.name} is a family of decoders: it gives logits, not embeddings",
            node=str(model.checkpoint.path),
            hint='use ostinato.LLM, ostinato.compile, or the entry "step"',
        )
    recipe = model.checkpoint.embedding_recipe()
    builder = GraphBuilder("embed")
    tokens, rows = Dim("N", 1, MAX_TOKENS), Dim("R", 1, MAX_ROWS)

    def declare(name: str, extent: int | Dim, axis: str) -> Tensor:
        return builder.input(name, TensorType((extent,), DType.I32, (axis,)))

    ids, position, token_type, row_of_token = (
        declare(name, tokens, "N") for name in ("input_ids", "position", "token_type", "row_of_token")
    )
    start, length = declare("start", rows, "R"), declare("length", rows, "R")
    builder.extent("N", declare("token_count", 1, ""))
    builder.extent("R", declare("row_count", 1, ""))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = model.config.score_scale
        return F.attention_bidirectional(q, k, v, row_of_token, start, length, scale=scale, name="attention")

    weights = model.weights(builder, precision)
    inputs = EncoderInputs(builder, model.config, weights, ids, position, token_type, attend)
    states = model.family.encoder(inputs)
    model.check_all_used(weights)
    if recipe.pooling == "mean":
        pooled = F.masked_mean(states, start, length, name="pooled")
    else:
        chosen = declare(_CHOSEN[recipe.pooling], rows, "R")
        pooled = F.gather_rows(states, chosen, name="pooled")
    return builder.finish((pooled, F.l2_normalize(pooled, name="normalized")))
