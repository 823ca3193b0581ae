"""Operators as functions over symbolic tensors: the vocabulary that model files are written in.

Each function adds one node of the operator table. Shapes and rules are the operators'; see `docs/OPERATORS.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.frontend.trace import Tensor

__all__ = [
    "attention_causal",
    "attention_packed",
    "embedding",
    "gather_rows",
    "kv_store",
    "linear",
    "reshape",
    "rms_norm",
    "rope_split_half",
    "rotary_table",
    "sample",
    "swiglu",
]


def embedding(ids: Tensor, weight: Tensor, *, axis: str = "C", name: str | None = None) -> Tensor:
    """Rows of `weight` [V,C] at int32 `ids`: shape ids + [C], float32."""
    return ids.builder.apply("embedding", (ids, weight), {"axis": axis}, name)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, axis: str = "", name: str | None = None) -> Tensor:
    """x [..., K] times `weight` [M, K] transposed, plus `bias` [M]: [..., M]; `axis` names the new last axis."""
    return x.builder.apply("linear", (x, weight, bias), {"axis": axis}, name)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float, name: str | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019)."""
    return x.builder.apply("rms_norm", (x, gain), {"eps": eps}, name)


def swiglu(gate: Tensor, up: Tensor, *, name: str | None = None) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    return gate.builder.apply("swiglu", (gate, up), None, name)


def rotary_table(position: Tensor, inverse_frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * inverse_frequency: two tensors of shape position + [half]."""
    cos, sin = position.builder.apply_many("rotary_table", (position, inverse_frequency), None, ("cos", "sin"))
    return cos, sin


def rope_split_half(x: Tensor, cos: Tensor, sin: Tensor, *, name: str | None = None) -> Tensor:
    """Rotary embedding of x [..., H, D] with pairs (i, i + D/2) (Su et al. 2021, split-half form)."""
    return x.builder.apply("rope_split_half", (x, cos, sin), None, name)


def reshape(x: Tensor, shape: Sequence[int], axes: str, *, name: str | None = None) -> Tensor:
    """View with another shape: 0 keeps the extent at that index, -1 takes the rest; `axes` names them ("_" for none)."""
    return x.builder.apply("reshape", (x,), {"shape": tuple(shape), "axes": axes}, name)


def attention_causal(q: Tensor, k: Tensor, v: Tensor, *, scale: float, name: str | None = None) -> Tensor:
    """Causal grouped-query attention over whole sequences: q [B,T,H,D], k and v [B,T,G,D] -> [B,T,H,D]."""
    return q.builder.apply("attention_causal", (q, k, v), {"scale": scale}, name)


def attention_packed(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    row_of_token: Tensor,
    position: Tensor,
    block_table: Tensor,
    length: Tensor,
    *,
    scale: float,
    name: str | None = None,
) -> Tensor:
    """Attention of packed tokens q [N,H,D] over cached keys j <= position, j < length of each token's row -> [N,H,D]."""
    operands = (q, k_cache, v_cache, row_of_token, position, block_table, length)
    return q.builder.apply("attention_packed", operands, {"scale": scale}, name)


def kv_store(
    k: Tensor, v: Tensor, row_of_token: Tensor, position: Tensor, block_table: Tensor, k_cache: Tensor, v_cache: Tensor
) -> tuple[Tensor, Tensor]:
    """Stores k and v [N,G,D] into the caches at each token's row and position; returns the caches' new values."""
    operands = (k, v, row_of_token, position, block_table, k_cache, v_cache)
    new_k, new_v = k.builder.apply_many("kv_store", operands, None, ("k_stored", "v_stored"))
    return new_k, new_v


def gather_rows(x: Tensor, index: Tensor, *, name: str | None = None) -> Tensor:
    """Rows of x (leading axes flattened) [..., C] at int32 index [R] -> [R, C]."""
    return x.builder.apply("gather_rows", (x, index), None, name)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    *,
    name: str | None = None,
) -> Tensor:
    """One token a row of logits [R,V]: greedy at temperature 0, else temperature, top-k, top-p, min-p and Philox4x32-10 keyed by seed and index."""
    return logits.builder.apply("sample", (logits, temperature, top_k, top_p, min_p, seed, index), None, name)
