"""What a family of encoders works with: packed tokens of several texts, attention in both directions within each text, no cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.layers import Weights
from ostinato.frontend.trace import GraphBuilder, Tensor

__all__ = ["EncoderFunction", "EncoderInputs"]


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """`ids`, `position` and `token_type` are int32 [N]: N tokens of all texts one after another, positions counted within each text.

    `attend(q [N,H,D], k [N,G,D], v [N,G,D]) -> [N,H,D]` lets every token see all tokens of its own text.
    """

    builder: GraphBuilder
    config: ModelConfig
    weights: Weights
    ids: Tensor
    position: Tensor
    token_type: Tensor
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]


EncoderFunction = Callable[[EncoderInputs], Tensor]
"""A family of encoders: EncoderInputs -> last hidden state float [N, C]."""
