"""What the attention operators share: checks of operands, scale, window and cap, and the reference of softmax(scale q k) v over the keys that a token sees.

A window of W keys lets the token at position i see the keys i-W+1..i (0: no window); a soft cap c > 0 turns the scaled scores s into c * tanh(s / c) before
the mask (Gemma 2, 2024). What a token does not see never enters its result, not even times zero; a token that sees nothing gives zeros, never NaN.
"""

from __future__ import annotations

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, ShapeError
from ostinato.ir.opdef import AttrSpec, OperandTypes, Sizes, Tolerance
from ostinato.ir.ops.rules import Site, fail, require_axes, require_positive, require_rank, require_shape
from ostinato.ir.rounding import multiply, working
from ostinato.ir.types import Array, Extent

__all__ = [
    "ATTENTION_TOLERANCE",
    "SCALE",
    "SOFT_CAP",
    "WINDOW",
    "attend",
    "causal_pairs",
    "check_causal",
    "check_heads",
    "check_scale",
    "check_window",
    "sizes_of_sequences",
    "visible_keys",
]

ATTENTION_TOLERANCE = Tolerance(
    2e-5, 2e-5, "contract of cached attention: fp32 scores, exponentials and sums against float64, in any order of keys"
)
SCALE = AttrSpec("scale", float)
WINDOW = AttrSpec("window", int, 0)
SOFT_CAP = AttrSpec("soft_cap", float, 0.0)


def check_heads(op: str, query: Extent, shared: Extent) -> None:
    """Raises `ShapeError` unless the query heads are a multiple of the kv heads."""
    if not isinstance(query, int) or not isinstance(shared, int) or shared < 1 or query % shared:
        fail(
            ShapeError,
            op,
            "query heads that are a multiple of the kv heads",
            f"{query} and {shared}",
            "grouped queries share kv heads evenly",
        )


def check_scale(site: Site) -> None:
    """Raises `ConfigError` for a scale that is not finite and positive."""
    require_positive(site, "scale", "1 / sqrt(head width) unless the model says otherwise")


def check_window(site: Site) -> None:
    """Raises `ConfigError` for a negative window, and for a soft cap that is negative or not finite."""
    window, cap = site.integer("window"), site.real("soft_cap")
    if window < 0:
        fail(ConfigError, site.op, "a window of 1 key or more, or 0 for none", str(window), "0 switches the window off")
    if cap != 0:
        require_positive(site, "soft_cap", "0.0 switches the cap off")


def check_causal(site: Site, first: int = 0) -> None:
    """q [B,T,H,D] (operand `first`), k and, where there is one, v [B,T,G,D] of one dtype behind it, and a scale, a window and a soft cap that are such."""
    q, k = site.operand(first), site.operand(first + 1)
    v = site.operand(first + 2) if first + 2 < len(site.operands) else k
    require_rank(site.op, "q", q, exactly=4)
    require_axes(site.op, "q", q, "BTHD")
    require_rank(site.op, "k", k, exactly=4)
    require_axes(site.op, "k", k, "BTGD")
    require_shape(site.op, "k", k, (*q.shape[:2], k.shape[2], q.shape[3]))
    require_shape(site.op, "v", v, k.shape)
    require_axes(site.op, "v", v, "BTGD")
    check_heads(site.op, q.shape[2], k.shape[2])
    if not q.dtype is k.dtype is v.dtype:
        fail(DTypeError, site.op, f"k and v of dtype {q.dtype.value} like q", f"{k} and {v}", "cast explicitly")
    check_scale(site)
    check_window(site)


def causal_pairs(sequence: int, window: int) -> int:
    """Of the square of scores, what lies on and below the diagonal and within the window."""
    whole = min(window or sequence, sequence)
    return whole * (whole + 1) // 2 + (sequence - whole) * whole


def sizes_of_sequences(operands: OperandTypes) -> Sizes:
    """Tokens, of whole sequences, of a first operand [B,T,...]."""
    first = operands[0]
    assert first is not None
    return Sizes(first.static_shape[0] * first.static_shape[1], first.static_shape[0])


def visible_keys(position: Array, keys: int, window: int) -> Array:
    """Which of the first `keys` keys the tokens at these positions see: bool [tokens, keys]."""
    ahead = position.astype(np.int64)[:, None] - np.arange(keys)
    return (ahead >= 0) & (ahead < window) if window else ahead >= 0


def attend(q: Array, k: Array, v: Array, visible: Array, scale: float, soft_cap: float = 0.0) -> Array:
    """q [n,H,D] over k, v [keys,G,D] where visible [n,keys] -> [n,H,D]; one kv head at a time, float64 in and out."""
    if not (np.isfinite(k).all() and np.isfinite(v).all()):
        y = np.zeros(q.shape, dtype=working())
        for n, seen in enumerate(visible):
            y[n] = _attend(
                q[n : n + 1], k[seen], v[seen], np.ones((1, int(seen.sum())), dtype=np.bool_), scale, soft_cap
            )[0]
        return y
    return _attend(q, k, v, visible, scale, soft_cap)


def _attend(q: Array, k: Array, v: Array, visible: Array, scale: float, soft_cap: float) -> Array:
    groups = k.shape[1]
    y = np.zeros(q.shape, dtype=working())
    if not k.shape[0] or not q.size:
        return y
    per_group = q.shape[1] // groups
    mask = visible[:, None, :]
    for group in range(groups):
        heads = slice(group * per_group, (group + 1) * per_group)
        scores = multiply(q[:, heads], k[:, group].T) * scale
        if soft_cap:
            scores = soft_cap * np.tanh(scores / soft_cap)
        scores = np.where(mask, scores, -np.inf)
        largest = np.max(scores, axis=-1, keepdims=True)
        power = np.exp(scores - np.where(largest == -np.inf, 0.0, largest))
        total = np.sum(power, axis=-1, keepdims=True)
        y[:, heads] = multiply(power / np.where(total == 0, 1.0, total), v[:, group])
    return y
