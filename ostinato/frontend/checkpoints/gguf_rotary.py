"""Rotary embeddings out of GGUF metadata, and out of the three small tensors in which the format keeps factors.

`rope_freqs.weight` has a divisor for every pair: llama3's scaling, already computed. `rope_factors_short.weight` and `rope_factors_long.weight` are longrope's
two lists; files that have them often leave the kind out. These tensors are read with the metadata and are no weights of the model.
"""

from __future__ import annotations

from dataclasses import replace

from ostinato.frontend.checkpoints.reader import MetadataReader, shortest_decimal
from ostinato.frontend.checkpoints.rotary import Rotary, yarn_growth

__all__ = ["ROTARY_TENSORS", "local_rotary_from_gguf", "rotary_from_gguf"]

_DIVISORS, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
ROTARY_TENSORS = frozenset((_DIVISORS, _SHORT, _LONG))
"""Tensors of a file that are part of its configuration."""


def rotary_from_gguf(read: MetadataReader, *, head_dim: int, positions: int, partial: bool = False) -> Rotary:
    """The rotary embedding of the file. `positions` is its context length; `partial`: the family rotates a part of the head where the file asks for it.

    Raises `ConfigError` for an unknown kind and for what the family does not compute.
    """
    width = read.integer("rope.dimension_count", default=head_dim)
    if width != head_dim and not partial:
        raise read.refuse(
            f"partial rotary embeddings (rope.dimension_count differs from head width {head_dim}) are not supported"
        )
    theta = _real(read, "rope.freq_base", 10000.0)
    trained = read.integer("rope.scaling.original_context_length", default=positions)
    kind, factor = _kind(read), _factor(read)
    plain = Rotary(kind=kind, theta=theta, width=width, factor=factor)
    if kind == "longrope":
        return replace(
            plain,
            original_positions=trained,
            attention_factor=read.number("rope.scaling.attn_factor", default=1.0),
            short_factor=read.values(_SHORT),
            long_factor=read.values(_LONG),
        )
    divisors = read.values(_DIVISORS) if _DIVISORS in read.tensors else ()
    if kind == "yarn":
        return replace(
            plain,
            original_positions=trained,
            attention_factor=_yarn_attention(read, factor),
            beta_fast=_real(read, "rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=_real(read, "rope.scaling.yarn_beta_slow", 1.0),
            divisors=divisors,
        )
    return replace(plain, divisors=divisors)


def local_rotary_from_gguf(read: MetadataReader, *, head_dim: int, theta: float) -> Rotary:
    """The plain embedding of the layers with a window; `theta` is the family's base where the file has none."""
    return Rotary(theta=_real(read, "rope.freq_base_swa", theta), width=head_dim)


def _kind(read: MetadataReader) -> str:
    written = read.raw.get(f"{read.prefix}.rope.scaling.type")
    factors = [name for name in (_SHORT, _LONG) if name in read.tensors]
    if factors and written not in ("longrope", "none", None):
        raise read.refuse(
            f"{factors[0]} belongs to longrope, rope.scaling.type is {written!r}", hint="convert the model again"
        )
    if factors or written == "longrope":
        return "longrope"
    if written is None:
        return "linear" if _factor(read) != 1.0 else "default"  # a factor without a kind means linear
    kind = "default" if written == "none" else str(written)
    if kind not in ("default", "linear", "yarn"):
        raise read.refuse(f"unknown rotary kind {kind!r}", hint="known: none, linear, yarn, longrope")
    return kind


def _factor(read: MetadataReader) -> float:
    """The scaling factor, 1.0 for none; `rope.scale_linear` is its older key and 0 its older spelling of none."""
    found = {_real(read, key, 1.0) or 1.0 for key in ("rope.scaling.factor", "rope.scale_linear")} - {1.0}
    if len(found) > 1:
        raise read.refuse(
            f"rope.scaling.factor and rope.scale_linear disagree: {sorted(found)}", hint="keep rope.scaling.factor"
        )
    return found.pop() if found else 1.0


def _yarn_attention(read: MetadataReader, factor: float) -> float:
    """The growth that the paper fits, times what the file asks for on top."""
    for key, plain in (("yarn_ext_factor", (1.0, -1.0)), ("yarn_log_multiplier", (0.0,))):
        if read.number(f"rope.scaling.{key}", default=plain[0]) not in plain:
            raise read.refuse(f"rope.scaling.{key} other than {plain[0]} is not supported")
    growth = yarn_growth(factor)
    for key in ("attn_factor", "yarn_attn_factor"):
        growth *= read.number(f"rope.scaling.{key}", default=1.0)
    return growth


def _real(read: MetadataReader, key: str, default: float) -> float:
    return shortest_decimal(read.number(key, default=default))
