"""A decoder of the Qwen2 and Llama kind in stock torch operators, with Q/K/V and gate/up as one projection each: what a careful user captures by hand.

In fp32 it is also the exact answer that every contender is held against. Keys and values lie as [rows, positions, kv heads, width]. On a GPU in bf16 attention
is torch's flash attention over a cache of which it is told the length; elsewhere it is written out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from benchmarks.workloads import CACHE, FILLED, Shape, Workload, cache_values, tokens_of

__all__ = ["Lean", "LeanState", "read_tensors"]

Tensor = Any


def read_tensors(folder: str, device: str) -> dict[str, Tensor]:
    """The bf16 tensors of a checkpoint of one file."""
    path = Path(folder, "model.safetensors")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "c", offset=8 + size)  # copy on write: torch wants an array that may be written
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            bits = torch.from_numpy(data[begin:end].view(np.int16))
            found[name] = bits.view(torch.bfloat16).reshape(entry["shape"]).to(device)
    return found


class LeanState:
    """Caches, the next tokens and the position, which is one for all rows."""

    def __init__(self, shape: Shape, rows: int, dtype: Any, device: str, *, filled: bool) -> None:
        size = (rows, CACHE, shape.kv, shape.width)
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.token = torch.zeros(rows, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.positions = torch.arange(CACHE, device=device)
        self.query_starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self.key_starts = self.query_starts * CACHE
        if filled:
            for layer in range(shape.layers):
                held = torch.from_numpy(cache_values(shape, rows, layer)).to(torch.bfloat16).to(dtype)
                self.keys[layer][:, :FILLED] = held[0].to(device)
                self.values[layer][:, :FILLED] = held[1].to(device)

    def begin(self, tokens: Tensor) -> None:
        """Back to the first step of a decode."""
        self.token.copy_(tokens)
        self.position.fill_(FILLED)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values, self.token, self.position]


class Lean:
    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor], dtype: Any) -> None:
        """The tensors of a checkpoint; those that are joined are taken out of a mapping that is a dict."""
        self.shape = shape
        held = dict(tensors)

        def take(*names: str) -> Tensor:
            parts = [held.pop(name).to(dtype) for name in names]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        self.embedding = take("model.embed_tokens.weight")
        self.head = self.embedding if shape.tied else take("lm_head.weight")
        self.norm = take("model.norm.weight")
        self.layers = []
        for layer in range(shape.layers):
            prefix = f"model.layers.{layer}."
            attention = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
            self.layers.append(
                {
                    "attn_norm": take(f"{prefix}input_layernorm.weight"),
                    "qkv": take(*(f"{name}.weight" for name in attention)),
                    "qkv_bias": take(*(f"{name}.bias" for name in attention)) if shape.bias else None,
                    "out": take(f"{prefix}self_attn.o_proj.weight"),
                    "ffn_norm": take(f"{prefix}post_attention_layernorm.weight"),
                    "gate_up": take(f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"),
                    "down": take(f"{prefix}mlp.down_proj.weight"),
                }
            )
        device = self.embedding.device
        half = torch.arange(0, shape.width, 2, device=device, dtype=torch.float64) / shape.width
        angles = torch.outer(torch.arange(CACHE, device=device, dtype=torch.float64), shape.theta**-half)
        self.cos = torch.cat([angles.cos(), angles.cos()], -1).to(dtype)
        self.sin = torch.cat([-angles.sin(), angles.sin()], -1).to(dtype)  # the sign of the turned half is in it
        self.flash = device.type == "cuda" and dtype == torch.bfloat16

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that stays where it is."""
        weights = [tensor for layer in self.layers for tensor in layer.values() if tensor is not None]
        return [*weights, self.embedding, self.head, self.norm, self.cos, self.sin]

    def decode(self, state: LeanState) -> Tensor:
        """One step: logits [rows, vocabulary]; the greedy tokens and the next position are in `state`."""
        rows, heads, kv, width = state.token.shape[0], self.shape.heads, self.shape.kv, self.shape.width
        x = F.embedding(state.token, self.embedding)
        cos, sin = self.cos.index_select(0, state.position), self.sin.index_select(0, state.position)
        lengths = (state.position + 1).to(torch.int32).expand(rows).contiguous()
        for weights, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            qkv = self._qkv(x, weights).view(rows, heads + 2 * kv, width)
            turned = self._rotated(qkv[:, : heads + kv], cos, sin)
            keys.index_copy_(1, state.position, turned[:, heads:].unsqueeze(1))
            values.index_copy_(1, state.position, qkv[:, heads + kv :].unsqueeze(1))
            attend = self._flash if self.flash else self._written_out
            mixed = attend(turned[:, :heads], keys, values, state, lengths)
            x = self._rest(x, mixed.reshape(rows, heads * width), weights)
        logits = F.linear(self._normed(x, self.norm), self.head)
        state.token.copy_(logits.argmax(-1))
        state.position.add_(1)
        return logits

    def prefill(self, ids: Tensor, state: LeanState) -> Tensor:
        """Logits [1, vocabulary] of the last of `ids` [tokens]; keys and values of all are in row 0 of `state`."""
        heads, kv, width, count = self.shape.heads, self.shape.kv, self.shape.width, ids.shape[0]
        x = F.embedding(ids, self.embedding)
        cos, sin = self.cos[:count].unsqueeze(1), self.sin[:count].unsqueeze(1)
        for weights, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            qkv = self._qkv(x, weights).view(count, heads + 2 * kv, width)
            turned, fresh = self._rotated(qkv[:, : heads + kv], cos, sin), qkv[:, heads + kv :]
            keys[0, :count].copy_(turned[:, heads:])
            values[0, :count].copy_(fresh)
            q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (turned[:, :heads], turned[:, heads:], fresh))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self._rest(x, mixed[0].transpose(0, 1).reshape(count, heads * width), weights)
        return F.linear(self._normed(x[-1:], self.norm), self.head)

    def first(self, workload: Workload, state: LeanState) -> Tensor:
        """The logits of a workload's first step."""
        tokens = torch.from_numpy(tokens_of(workload, self.shape.vocabulary)).long().to(self.embedding.device)
        if workload.kind == "p":
            return self.prefill(tokens, state)
        state.begin(tokens)
        return self.decode(state)

    def _normed(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.hidden,), gain, self.shape.epsilon)

    def _qkv(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        return F.linear(self._normed(x, weights["attn_norm"]), weights["qkv"], weights["qkv_bias"])

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.addcmul(x * cos, x.roll(self.shape.width // 2, -1), sin)

    def _rest(self, x: Tensor, mixed: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The layer behind its attention."""
        x = torch.addmm(x, mixed, weights["out"].t())
        gate, up = F.linear(self._normed(x, weights["ffn_norm"]), weights["gate_up"]).chunk(2, -1)
        return torch.addmm(x, F.silu(gate) * up, weights["down"].t())

    def _flash(self, q: Tensor, keys: Tensor, values: Tensor, state: LeanState, lengths: Tensor) -> Tensor:
        kv, width = self.shape.kv, self.shape.width
        return torch.ops.aten._flash_attention_forward(
            q,
            keys.view(-1, kv, width),
            values.view(-1, kv, width),
            state.query_starts,
            state.key_starts,
            1,
            CACHE,
            0.0,
            False,
            False,
            scale=width**-0.5,
            seqused_k=lengths,
        )[0]

    def _written_out(self, q: Tensor, keys: Tensor, values: Tensor, state: LeanState, lengths: Tensor) -> Tensor:
        del lengths
        rows, kv, width = q.shape[0], self.shape.kv, self.shape.width
        grouped = q.reshape(rows, kv, self.shape.heads // kv, width)
        scores = torch.matmul(grouped, keys.permute(0, 2, 3, 1)) * width**-0.5
        scores = scores.float().masked_fill(state.positions > state.position, float("-inf"))
        return torch.matmul(scores.softmax(-1).to(q.dtype), values.transpose(1, 2))
