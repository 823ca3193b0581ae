"""The end of a packed step with sampling: logits to one token a row, all on the device.

In vLLM's order: bias (a request's own, and -inf for what it may not choose now), penalties, temperature, top-k, top-p, min-p. What a row does not use is
neutral: 0 pairs, penalties 1, 0 and 0, temperature 0 for greedy.
"""

from __future__ import annotations

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.types import Dim, DType, TensorType

__all__ = ["BIAS_WIDTH", "choose_token"]

BIAS_WIDTH = 256
"""Tokens of a row whose logits can be changed in one step."""


def choose_token(builder: GraphBuilder, logits: Tensor, rows: Dim, context: int) -> Tensor:
    """`token` int32 [R] from logits [R,V].

    Declares the inputs biased_tokens, bias (float32) [R,BIAS_WIDTH] and bias_pairs [R], how many of them count; history [R,context], the tokens of each row's
    prompt and text, with prompt_length and history_length [R]; repetition_penalty, presence_penalty, frequency_penalty, temperature, top_p, min_p (float32),
    top_k, sample_index and seed (int64) [R]. Those without a dtype are int32.
    """

    def declare(name: str, dtype: DType = DType.I32, *, width: int | None = None) -> Tensor:
        shape, axes = ((rows,), ("R",)) if width is None else ((rows, width), ("R", ""))
        return builder.input(name, TensorType(shape, dtype, axes))

    biased = F.add_at_tokens(
        logits,
        declare("biased_tokens", width=BIAS_WIDTH),
        declare("bias", DType.F32, width=BIAS_WIDTH),
        declare("bias_pairs"),
        name="biased",
    )
    penalized = F.penalize(
        biased,
        declare("history", width=context),
        declare("prompt_length"),
        declare("history_length"),
        declare("repetition_penalty", DType.F32),
        declare("presence_penalty", DType.F32),
        declare("frequency_penalty", DType.F32),
        name="penalized",
    )
    return F.sample(
        penalized,
        declare("temperature", DType.F32),
        declare("top_k"),
        declare("top_p", DType.F32),
        declare("min_p", DType.F32),
        declare("seed", DType.I64),
        declare("sample_index"),
        name="token",
    )
