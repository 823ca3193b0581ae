"""Torch as a contender in training: eager, compiled, or a graph captured by hand, with fused AdamW and float32 masters (bf16 through autocast)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.training.torch_model import Decoder
from ostinato.ir.types import Array

__all__ = ["TorchTraining"]

_COMPILED = {"compile": "default", "compile-ro": "reduce-overhead", "compile-ma": "max-autotune"}


class TorchTraining:
    """`variant`: eager, graph, compile, compile-ro or compile-ma, and "eager+N" with N checkpointed layers."""

    def __init__(
        self, variant: str, folder: str, sequence: int, *, precision: str, device: str, lr: float, threads: int
    ) -> None:
        if device == "cpu":
            torch.set_num_threads(threads)
        name, _, layers = variant.partition("+")
        self._device, self._bf16, self._graph = device, precision == "bf16", None
        self._captures, self._marks = name == "graph", name in ("compile-ro", "compile-ma")
        self._model = Decoder(folder, sequence, recomputed=int(layers or 0)).to(device).train()
        fused = {"fused": True, "capturable": True} if device == "cuda" else {"fused": True}
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=lr, weight_decay=0.0, **fused)
        self._forward: Any = self._model
        if name in _COMPILED:
            self._forward = torch.compile(self._model, mode=_COMPILED[name], dynamic=False)
        self._batch: tuple[Any, Any] | None = None
        self._loss: Any = None
        self.held_bytes = 0

    def give(self, ids: Array, target: Array) -> None:
        """The batch of the next steps."""
        new = tuple(torch.from_numpy(array.astype(np.int64)).to(self._device) for array in (ids, target))
        if self._batch is None:
            self._batch = new
        else:
            for held, array in zip(self._batch, new, strict=True):
                held.copy_(array)

    def step(self) -> None:
        """Submits a step."""
        if self._captures and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def loss(self) -> float:
        """The loss of the last step; waits for it."""
        return float(self._loss)

    def wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """Device bytes at the peak beyond parameters, gradients and moments; -1 on a CPU."""
        if self._device != "cuda":
            return -1
        parameters = sum(p.numel() * p.element_size() for p in self._model.parameters())
        return int(torch.cuda.max_memory_allocated() - 4 * parameters)

    def device_bytes(self) -> int:
        """All bytes of the device at the peak, as tensors have them; -1 on a CPU. Replays use what their capture took."""
        return int(torch.cuda.max_memory_allocated()) if self._device == "cuda" else -1

    def _step(self) -> None:
        assert self._batch is not None
        if self._marks:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            loss = self._forward(*self._batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._loss = loss.detach()

    def _capture(self) -> None:
        """A graph of one step, after warm-up on a side stream; the warm-up's updates are taken back."""
        before = [p.detach().cpu() for p in self._model.parameters()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()
        with torch.no_grad():
            for parameter, value in zip(self._model.parameters(), before, strict=True):
                parameter.copy_(value)
            for state in self._optimizer.state.values():
                for value in state.values():
                    value.zero_()
        del before
