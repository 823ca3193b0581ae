"""A checkpoint as the weight source of a program: tensors by original name."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.frontend.checkpoints.base import Checkpoint, TensorSource
from ostinato.ir.errors import WeightsError
from ostinato.ir.types import Array, DType

__all__ = ["CheckpointSource"]


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """Shapes, dtypes and mapped bytes of a checkpoint's tensors. All methods raise `WeightsError` for an unknown name."""

    checkpoint: Checkpoint

    def dtype(self, tensor: str) -> DType:
        return self._tensor(tensor).dtype

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self._tensor(tensor).shape

    def row_order(self, tensor: str) -> Array | None:
        return self._tensor(tensor).row_order

    def map(self, tensor: str) -> Array:
        return self.checkpoint.map(self._tensor(tensor))

    def release(self, tensor: str) -> None:
        self.checkpoint.release(self._tensor(tensor))

    def _tensor(self, name: str) -> TensorSource:
        found = self.checkpoint.tensors.get(name)
        if found is None:
            raise WeightsError("the checkpoint does not have this tensor", node=name)
        return found
