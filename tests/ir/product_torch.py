"""The operators of products, attention, rotations and movements in torch, for its autograd. What imports this is skipped where torch is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ostinato.ir.opdef import Attr
from tests.ir.torch_calls import torch

__all__ = ["FORWARD"]

functional: Any = torch.nn.functional
Attrs = Mapping[str, Attr]


def _normed(x: Any, gain: Any, attrs: Attrs) -> Any:
    return x if gain is None else functional.rms_norm(x, x.shape[-1:], gain, attrs["eps"])


def _linear(attrs: Attrs, x: Any, weight: Any, bias: Any = None, residual: Any = None, gain: Any = None) -> Any:
    y = functional.linear(_normed(x, gain, attrs), weight, bias)
    return y if residual is None else y + residual


def _split(attrs: Attrs, x: Any, weight: Any, bias: Any = None, gain: Any = None) -> Any:
    return functional.linear(_normed(x, gain, attrs), weight, bias).split(attrs["sizes"], -1)


def _swiglu(attrs: Attrs, x: Any, weight: Any, gain: Any = None) -> Any:
    gate, up = functional.linear(_normed(x, gain, attrs), weight).chunk(2, -1)
    return functional.silu(gate) * up


def _group(attrs: Attrs, x: Any, *operands: Any) -> Any:
    padded = [*operands, *[None] * (6 - len(operands))]
    return [
        functional.linear(x, weight, bias)
        for weight, bias in zip(padded[:3], padded[3:], strict=True)
        if weight is not None
    ]


def _matmul(attrs: Attrs, a: Any, b: Any) -> Any:
    a = a.mT if attrs["transpose_a"] else a
    return a @ (b.mT if attrs["transpose_b"] else b) * attrs["scale"]


def _gathered(attrs: Attrs, x: Any, index: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    return torch.where(index[:, None] < 0, 0.0, rows[index.clamp(min=0)])


def _halves(attrs: Attrs, x: Any, cos: Any, sin: Any) -> Any:
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[..., None, :], sin[..., None, :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def _pairs(attrs: Attrs, x: Any, cos: Any, sin: Any) -> Any:
    half = cos.shape[-1]
    a, b, rest = x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2], x[..., 2 * half :]
    cos, sin = cos[..., None, :], sin[..., None, :]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


def _biased(attrs: Attrs, x: Any, bias: Any, cos: Any, sin: Any) -> Any:
    return _halves(attrs, x + bias.reshape(x.shape[2:]), cos, sin).transpose(1, 2)


def _softmax(q: Any, k: Any, v: Any, seen: Any, attrs: Attrs) -> tuple[Any, Any]:
    """q [B,H,T,D], k and v [B,G,S,D] -> [B,H,T,D], and the logarithm of the sums."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = q @ k.mT * attrs["scale"]
    if cap := attrs.get("soft_cap"):
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1) if scores.numel() else scores.sum(-1)


def _causal(attrs: Attrs, q: Any, k: Any, v: Any) -> Any:
    place = torch.arange(q.shape[1])
    ahead = place[:, None] - place
    seen = (ahead >= 0) & (ahead < (attrs.get("window") or q.shape[1] + 1))
    y, log_sum = _softmax(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), seen, attrs)
    return y.transpose(1, 2), log_sum


def _bidirectional(attrs: Attrs, q: Any, k: Any, v: Any, rows: Any, start: Any, length: Any) -> Any:
    token = torch.arange(len(rows))
    first = start[rows.clamp(min=0)]
    seen = (token >= first[:, None]) & (token < (first + length[rows.clamp(min=0)])[:, None])
    if not len(rows):
        return q * k.sum() * v.sum()
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    y, _ = _softmax(q, k, v, seen, attrs)
    return torch.where(rows[:, None, None] < 0, 0.0, y[0].transpose(0, 1))


def _scores(attrs: Attrs, q: Any, k: Any) -> Any:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * attrs["scale"]


def _context(attrs: Attrs, p: Any, v: Any) -> Any:
    return (p @ v.transpose(1, 2).repeat_interleave(p.shape[1] // v.shape[2], 1)).transpose(1, 2)


def _repeated(attrs: Attrs, k: Any, v: Any) -> Any:
    return k.repeat_interleave(attrs["repeats"], 1), v.repeat_interleave(attrs["repeats"], 2)


def _sliced(attrs: Attrs, x: Any) -> Any:
    places = torch.arange(attrs["start"], attrs["stop"], attrs.get("step", 1))
    return x.index_select(attrs["axis"], places)


FORWARD: Mapping[str, Callable[..., Any]] = {
    "linear": _linear,
    "linear_split": _split,
    "linear_swiglu": _swiglu,
    "linear_group": _group,
    "matmul": _matmul,
    "matmul_add": lambda attrs, c, a, b: c + _matmul(attrs, a, b),
    "embedding": lambda attrs, ids, weight: functional.embedding(ids, weight),
    "gather_rows": _gathered,
    "rope_split_half": _halves,
    "rope_interleaved": _pairs,
    "rope_split_half_bias_bthd": _biased,
    "attention_causal": lambda attrs, *operands: _causal(attrs, *operands)[0],
    "attention_causal_saved": _causal,
    "attention_bidirectional": _bidirectional,
    "attention_scores_gqa": _scores,
    "attention_probability_value_bthd": _context,
    "repeat_gqa_kv_bthd": _repeated,
    "concat": lambda attrs, *parts: torch.cat(parts, attrs["axis"]),
    "repeat_interleave": lambda attrs, x: x.repeat_interleave(attrs["repeats"], attrs["axis"]),
    "reshape": lambda attrs, x: x.reshape([-1 if n < 0 else n for n in attrs["shape"]]),
    "transpose": lambda attrs, x: x.permute(attrs["order"]),
    "slice": _sliced,
    "contiguous": lambda attrs, x: x.contiguous(),
}
"""By operator: attributes and operands in, a result or several out."""
