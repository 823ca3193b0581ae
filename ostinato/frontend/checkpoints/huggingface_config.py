"""`config.json` of a Hugging Face directory, in the spellings of transformers 4 and 5, to `ModelConfig`.

What decoder families spell alike is read here, once, so that a family sees neither version and states only what is its own. Shapes must be written in the
file; the other keys fall back to the defaults that the public configuration classes document, since those files may omit them. A key that changes the
mathematics and is not implemented (rotary scaling, sliding window, another activation, quantisation) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.config import ModelConfig, refuse_rope_kind
from ostinato.frontend.checkpoints.reader import ConfigReader
from ostinato.frontend.checkpoints.spelling import FamilyFiles, HuggingFaceSpelling, own_config, refuse_architecture
from ostinato.ir.errors import DTypeError, NotYetAvailable
from ostinato.ir.types import DType

__all__ = ["config_from_huggingface", "decoder_from_huggingface", "window_is_switched_on"]

_DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "float": DType.F32, "half": DType.F16}


def config_from_huggingface(
    raw: Mapping[str, Any], path: Path, families: Sequence[FamilyFiles], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The configuration in the parsed `config.json` at `path`, read by the family that claims its model_type or else its class.

    End tokens of `generation` (generation_config.json) win, as they do there. Raises `ConfigError` (unknown architecture, missing or malformed key,
    unusable value) and `NotYetAvailable` (a rotary kind of a later version).
    """
    generated = ConfigReader(generation or {}, str(path.with_name("generation_config.json")))
    family, spelling = _claimed(ConfigReader(raw, str(path)), families)
    return own_config(family, spelling.config(ConfigReader(raw, str(path), family.name, generated)))


def decoder_from_huggingface(
    read: ConfigReader,
    *,
    positions: int,
    windowed: bool,
    kv_heads_required: bool = True,
    activations: Sequence[str] = ("silu", "swish"),
) -> ModelConfig:
    """What decoder families spell alike: shapes, rotary base, norms, tied head, special tokens, dtype. A family replaces the fields that it reads otherwise.

    `positions` is max_position_embeddings where the file has none. `windowed` says whether the file asks for a sliding window, by the family's own keys;
    windows by layer_types are seen here, and both are refused. Without `kv_heads_required`, absent key/value heads mean as many as there are heads.
    `activations` are the spellings of the activation that the family computes. Raises `ConfigError`, `DTypeError` and `NotYetAvailable`.
    """
    _refuse_unsupported(read, windowed, activations)
    heads = read.integer("num_attention_heads")
    hidden = read.integer("hidden_size")
    if kv_heads_required and "num_key_value_heads" not in read.raw:
        raise read.refuse("num_key_value_heads is missing")
    return ModelConfig(
        architecture=read.architecture,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=read.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=read.integer("num_key_value_heads", default=heads),
        head_dim=_head_dim(read, hidden, heads),
        rms_norm_eps=read.number("rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(read),
        max_position_embeddings=read.integer("max_position_embeddings", default=positions),
        tie_word_embeddings=read.flag("tie_word_embeddings"),
        bos_token_id=read.token("bos_token_id"),
        eos_token_ids=(read.generation.tokens("eos_token_id") if read.generation else ())
        or read.tokens("eos_token_id"),
        pad_token_id=read.token("pad_token_id"),
        dtype=_declared_dtype(read),
    )


def window_is_switched_on(read: ConfigReader) -> bool:
    """Windows as `use_sliding_window` spells them: for the layers from `max_window_layers` on."""
    if not read.flag("use_sliding_window"):
        return False
    if read.raw.get("sliding_window", 4096) in (None, 0):
        return False
    return read.integer("max_window_layers", default=28) < read.integer("num_hidden_layers")


def _claimed(read: ConfigReader, families: Sequence[FamilyFiles]) -> tuple[FamilyFiles, HuggingFaceSpelling]:
    """The family and spelling of the file's model_type, or of a class that it names where it has no model_type."""
    spellings = [(family, spelling) for family in families for spelling in family.huggingface]
    found = read.raw.get("model_type")
    if found is not None:
        for family, spelling in spellings:
            if spelling.model_type == found:
                return family, spelling
        raise refuse_architecture(str(found), families, f"{read.where}: ")
    classes = read.raw.get("architectures")
    names = classes if isinstance(classes, list) else []
    for name in names:
        for family, spelling in spellings:
            if name in spelling.classes:
                return family, spelling
    raise read.refuse(f"neither model_type nor a known class in architectures ({names})", hint='add "model_type"')


def _head_dim(read: ConfigReader, hidden: int, heads: int) -> int:
    if read.raw.get("head_dim") is not None:
        return read.integer("head_dim")
    if heads <= 0 or hidden % heads:
        raise read.refuse(
            f"hidden_size {hidden} is not a multiple of {heads} heads and head_dim is not given", hint='add "head_dim"'
        )
    return hidden // heads


def _rope_theta(read: ConfigReader) -> float:
    """The rotary base; both the flat spelling (rope_theta, rope_scaling) and rope_parameters are checked, and must agree where both are present."""
    bases = {read.number("rope_theta", default=10000.0)} if read.raw.get("rope_theta") is not None else set()
    for key in ("rope_parameters", "rope_scaling"):
        value = read.mapping(key)
        if value is None:
            continue
        nested = ConfigReader(value, f"{read.where}: {key}")
        kinds = {str(value[name]) for name in ("rope_type", "type") if value.get(name) is not None}
        if len(kinds) > 1:
            raise nested.refuse(f"rope_type and type disagree: {sorted(kinds)}")
        if "mrope_section" in value or "mrope" in kinds:
            raise nested.refuse(
                "multi-axis rotary embeddings (MRoPE) are not supported", hint="use a text-only checkpoint"
            )
        if any(isinstance(item, Mapping) for item in value.values()):
            raise nested.refuse("rotary parameters per layer type are not supported for this family")
        kind = kinds.pop() if kinds else "default"
        if kind != "default":
            raise refuse_rope_kind(kind, f"{nested.where}: ")
        if "factor" in value and nested.number("factor", 1.0) != 1.0:
            raise nested.refuse("a scaling factor without a rope_type", hint='add "rope_type"')
        if nested.number("partial_rotary_factor", 1.0) != 1.0:
            raise nested.refuse("partial rotary embeddings are not supported for this family")
        if value.get("rope_theta") is not None:
            bases.add(nested.number("rope_theta", 10000.0))
    if len(bases) > 1:
        raise read.refuse(f"rope_theta is given twice with different values: {sorted(bases)}")
    return bases.pop() if bases else 10000.0


def _refuse_unsupported(read: ConfigReader, windowed: bool, activations: Sequence[str]) -> None:
    activation = read.raw.get("hidden_act", activations[0])
    if activation not in activations:
        raise read.refuse(f"hidden_act {activation!r} is not supported", hint=f"this family computes {activations[0]}")
    if read.number("partial_rotary_factor", 1.0) != 1.0:
        raise read.refuse("partial rotary embeddings are not supported for this family")
    if read.raw.get("quantization_config") is not None:
        method = (read.mapping("quantization_config") or {}).get("quant_method", "unknown")
        raise read.refuse(
            f"weights quantised by {method!r} are not supported", hint="use the float checkpoint, or a GGUF file"
        )
    kinds = read.raw.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise read.refuse(f"layer_types is {kinds!r}, expected a list")
    if windowed or any(kind != "full_attention" for kind in kinds or ()):
        raise NotYetAvailable(
            f"{read.where}: sliding-window attention (sliding_window {read.raw.get('sliding_window', 'default')}) is not yet available",
            hint='a checkpoint trained without it says "sliding_window": null or "use_sliding_window": false',
        )


def _declared_dtype(read: ConfigReader) -> DType | None:
    found = read.raw.get("dtype", read.raw.get("torch_dtype"))
    if found is None or found == "auto":
        return None
    name = str(found).removeprefix("torch.")
    if name not in _DTYPES:
        raise DTypeError(
            f"{read.where}: dtype {found!r} is not supported", hint=f"supported: {', '.join(sorted(set(_DTYPES)))}"
        )
    return _DTYPES[name]
