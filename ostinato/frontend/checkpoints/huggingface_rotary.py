"""Rotary embeddings out of `config.json`: every spelling of them becomes a `Rotary`, here and nowhere else.

Two spellings are in use. The flat one has `rope_theta` beside a `rope_scaling` object; the newer one has everything in `rope_parameters`, either flat or one
object for each type of layer. The kind is called `type` or `rope_type`. Where a file says the same thing twice it must say the same. A kind that is not
known is refused, and so is a partial rotary embedding in a family that does not define one: computing the plain kind instead would be silently wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostinato.frontend.checkpoints.reader import ConfigReader
from ostinato.frontend.checkpoints.rotary import ROTARY_KINDS, Rotary, yarn_growth

__all__ = ["rotaries_from_huggingface"]

_LAYER_TYPES = ("full_attention", "sliding_attention")


def rotaries_from_huggingface(
    read: ConfigReader,
    *,
    head_dim: int,
    positions: int,
    theta: float = 10000.0,
    local: Rotary | None = None,
    partial: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> tuple[Rotary, Rotary | None]:
    """The embedding of the layers with full attention, and that of the layers with a window where the file or the family (`local`) gives these another one.

    `positions` is the model's max_position_embeddings, `theta` the family's default base. `partial`: the family rotates a part of the head where the file
    asks for it. `renamed` maps kinds that the family's files write otherwise. Raises `ConfigError`.
    """
    groups = _groups(read)

    def rotary(own: ConfigReader, theta: float) -> Rotary:
        share = _agreed(own, read, "partial_rotary_factor", 1.0)
        if share != 1.0 and not partial:
            raise read.refuse("partial rotary embeddings are not supported for this family")
        return _rotary(
            own, read, _kind(own, renamed or {}), theta=theta, width=int(head_dim * share), positions=positions
        )

    own = groups.get("full_attention", groups.get(""))
    if own is None:
        raise read.refuse(
            "the rotary parameters name layer types and full_attention is not among them", hint='add "full_attention"'
        )
    general = rotary(own, _agreed(own, read, "rope_theta", theta))
    windowed = groups.get("sliding_attention")
    if windowed is not None:
        base = read.number("rope_theta", theta) if local is None else local.theta
        local = rotary(windowed, windowed.number("rope_theta", base))
    return general, None if local == general else local


def _groups(read: ConfigReader) -> dict[str, ConfigReader]:
    """The rotary parameters under "" or by layer type; those of `rope_parameters` and of `rope_scaling` together."""
    found: dict[str, dict[str, Any]] = {}
    for key in ("rope_parameters", "rope_scaling"):
        value = read.mapping(key)
        if value is None:
            continue
        by_layer = any(isinstance(item, Mapping) for item in value.values()) or bool(set(value) & set(_LAYER_TYPES))
        for name, group in value.items() if by_layer else [("", value)]:
            if by_layer and (name not in _LAYER_TYPES or not isinstance(group, Mapping)):
                raise read.refuse(
                    f"{key} per layer type has {name!r}: {group!r}",
                    hint=f"expected an object for {' and '.join(_LAYER_TYPES)}",
                )
            into = found.setdefault(name, {})
            for parameter, number in group.items():
                if parameter in into and into[parameter] != number:
                    raise read.refuse(
                        f"{parameter} is given twice with different values: {into[parameter]} and {number}",
                        hint="keep rope_parameters only",
                    )
                into[parameter] = number
    if "" in found and len(found) > 1:
        raise read.refuse(
            "rotary parameters are given for all layers and per layer type", hint="keep rope_parameters only"
        )
    return {
        name: ConfigReader(group, f"{read.where}: rotary parameters") for name, group in (found or {"": {}}).items()
    }


def _agreed(own: ConfigReader, read: ConfigReader, key: str, default: float) -> float:
    """A number that may stand in the rotary parameters and beside them."""
    inner, outer = own.number(key, default), read.number(key, default)
    if own.raw.get(key) is None:
        return outer
    if read.raw.get(key) is not None and inner != outer:
        raise read.refuse(
            f"{key} is given twice with different values: {sorted((inner, outer))}", hint="keep one of them"
        )
    return inner


def _rotary(own: ConfigReader, read: ConfigReader, kind: str, *, theta: float, width: int, positions: int) -> Rotary:
    plain = Rotary(kind=kind, theta=theta, width=width)
    if kind == "default":
        if own.number("factor", 1.0) != 1.0:
            raise own.refuse("a scaling factor without a rope_type", hint='add "rope_type"')
        return plain
    if kind == "linear":
        return replace(plain, factor=_needed(own, kind, "factor"))
    if kind == "dynamic":  # grows from the length in the configuration itself
        return replace(plain, factor=_needed(own, kind, "factor"), original_positions=positions)
    inside = own.integer("original_max_position_embeddings", positions)
    trained = read.integer("original_max_position_embeddings", inside)
    implied = positions / trained if kind in ("yarn", "longrope") and trained > 0 else None
    factor = _needed(own, kind, "factor", implied)
    scaled = replace(plain, factor=factor, original_positions=trained)
    if kind == "llama3":
        return replace(
            scaled,
            low_frequency_factor=_needed(own, kind, "low_freq_factor"),
            high_frequency_factor=_needed(own, kind, "high_freq_factor"),
        )
    if kind == "yarn":
        return replace(
            scaled,
            attention_factor=own.number("attention_factor", _yarn_attention(own, factor)),
            beta_fast=own.number("beta_fast", 32.0) or 32.0,
            beta_slow=own.number("beta_slow", 1.0) or 1.0,
            truncate=own.flag("truncate", default=True),
        )
    growth = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    return replace(
        scaled,
        attention_factor=own.number("attention_factor", growth),
        short_factor=own.numbers("short_factor"),
        long_factor=own.numbers("long_factor"),
    )


def _kind(own: ConfigReader, renamed: Mapping[str, str]) -> str:
    kinds = {str(own.raw[name]) for name in ("rope_type", "type") if own.raw.get(name) is not None}
    if len(kinds) > 1:
        raise own.refuse(f"rope_type and type disagree: {sorted(kinds)}", hint="keep rope_type")
    if "mrope_section" in own.raw or "mrope" in kinds:
        raise own.refuse("multi-axis rotary embeddings (MRoPE) are not supported", hint="use a text-only checkpoint")
    written = kinds.pop() if kinds else "default"
    kind = renamed.get(written, written)
    if kind not in ROTARY_KINDS:
        raise own.refuse(f"unknown rotary kind {kind!r}", hint=f"known: {', '.join(ROTARY_KINDS)}")
    return kind


def _needed(own: ConfigReader, kind: str, key: str, default: float | None = None) -> float:
    if own.raw.get(key) is None and default is None:
        raise own.refuse(f"rotary scaling of kind {kind!r} needs {key}", hint=f'add "{key}"')
    return own.number(key, default)


def _yarn_attention(own: ConfigReader, factor: float) -> float:
    """The growth that the paper fits, or the quotient of two where the file weights its logarithm by mscale and mscale_all_dim."""
    above, below = own.number("mscale", 0.0), own.number("mscale_all_dim", 0.0)
    if min(above, below) < 0:
        raise own.refuse(f"mscale {above} and mscale_all_dim {below} are weights, expected 0 or more")
    return yarn_growth(factor, above) / yarn_growth(factor, below) if above and below else yarn_growth(factor)
