"""A decoder of the Qwen2 and Llama kind for training, in stock torch operators: Q/K/V and gate/up as one projection each, scaled dot product attention, cross
entropy in float32. What a careful user of torch writes; compiled, captured or with checkpointed layers it is the peer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.workloads import Shape

__all__ = ["Decoder", "read_checkpoint"]

Tensor = Any
_DTYPES = {"F32": (np.float32, torch.float32), "BF16": (np.int16, torch.bfloat16)}


def read_checkpoint(folder: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint of one file, as float32."""
    path = Path(folder, "model.safetensors")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "c", offset=8 + size)
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw, dtype = _DTYPES[entry["dtype"]]
            found[name] = torch.from_numpy(data[begin:end].view(raw)).view(dtype).reshape(entry["shape"]).float()
    return found


class _Layer(nn.Module):  # type: ignore[misc] # torch is not checked
    def __init__(self, shape: Shape, tensors: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.shape = shape

        def joined(*names: str) -> nn.Parameter:
            return nn.Parameter(torch.cat([tensors[prefix + name] for name in names]).clone())

        attention = [f"self_attn.{name}_proj" for name in "qkv"]
        self.attn_norm = joined("input_layernorm.weight")
        self.qkv = joined(*(f"{name}.weight" for name in attention))
        self.qkv_bias = joined(*(f"{name}.bias" for name in attention)) if shape.bias else None
        self.out = joined("self_attn.o_proj.weight")
        self.ffn_norm = joined("post_attention_layernorm.weight")
        self.gate_up = joined("mlp.gate_proj.weight", "mlp.up_proj.weight")
        self.down = joined("mlp.down_proj.weight")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = self.shape
        batch, time, _ = x.shape
        heads, kv, width = shape.heads, shape.kv, shape.width
        y = F.rms_norm(x, (shape.hidden,), self.attn_norm, shape.epsilon)
        qkv = F.linear(y, self.qkv, self.qkv_bias).view(batch, time, heads + 2 * kv, width).transpose(1, 2)
        turned = qkv[:, : heads + kv]
        turned = turned * cos + turned.roll(width // 2, -1) * sin
        q, k, v = turned[:, :heads], turned[:, heads:], qkv[:, heads + kv :]
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=heads != kv)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, time, heads * width), self.out)
        y = F.rms_norm(x, (shape.hidden,), self.ffn_norm, shape.epsilon)
        gate, up = F.linear(y, self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Decoder(nn.Module):  # type: ignore[misc] # torch is not checked
    """The loss of a batch: token ids and targets [B,T]. With `recomputed` layers their activations are computed again in the backward (checkpointing)."""

    def __init__(self, folder: str, sequence: int, *, recomputed: int = 0) -> None:
        super().__init__()
        shape = self.shape = Shape.read(folder)
        tensors = read_checkpoint(folder)
        self.recomputed = recomputed
        self.embedding = nn.Parameter(tensors["model.embed_tokens.weight"].clone())
        self.head = self.embedding if shape.tied else nn.Parameter(tensors["lm_head.weight"].clone())
        self.norm = nn.Parameter(tensors["model.norm.weight"].clone())
        self.layers = nn.ModuleList(_Layer(shape, tensors, f"model.layers.{n}.") for n in range(shape.layers))
        half = torch.arange(0, shape.width, 2, dtype=torch.float64) / shape.width
        angles = torch.outer(torch.arange(sequence, dtype=torch.float64), shape.theta**-half)
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1).float())
        self.register_buffer("sin", torch.cat([-angles.sin(), angles.sin()], -1).float())

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x = F.embedding(ids, self.embedding)
        for number, layer in enumerate(self.layers):
            given = (x, self.cos, self.sin)
            x = checkpoint(layer, *given, use_reentrant=False) if number < self.recomputed else layer(*given)
        x = F.rms_norm(x, (self.shape.hidden,), self.norm, self.shape.epsilon)
        logits = F.linear(x, self.head)
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=-100)
