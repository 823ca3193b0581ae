"""A checkpoint as the weight source of a program: tensors by original name."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.frontend.checkpoints.base import Checkpoint
from ostinato.ir.types import Array, DType

__all__ = ["CheckpointSource"]


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """Shapes, dtypes and mapped bytes of a checkpoint's tensors. All methods raise `WeightsError` for an unknown name."""

    checkpoint: Checkpoint

    def dtype(self, tensor: str) -> DType:
        return self.checkpoint.tensor(tensor).dtype

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.checkpoint.tensor(tensor).shape

    def row_order(self, tensor: str) -> Array | None:
        return self.checkpoint.tensor(tensor).row_order

    def shift(self, tensor: str) -> float:
        return self.checkpoint.tensor(tensor).shift

    def map(self, tensor: str) -> Array:
        return self.checkpoint.map(tensor)

    def release(self, tensor: str) -> None:
        self.checkpoint.release(tensor)
