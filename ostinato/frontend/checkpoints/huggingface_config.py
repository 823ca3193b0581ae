"""`config.json` of a Hugging Face directory, in the spellings of transformers 4 and 5, to `ModelConfig`.

Shapes must be written in the file; the other keys fall back to the defaults that the public configuration classes document, since those files may omit
them. A key that changes the mathematics and is not implemented (rotary scaling, sliding window, another activation, quantisation) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.config import ModelConfig, refuse_architecture, refuse_rope_kind
from ostinato.ir.errors import ConfigError, DTypeError, NotYetAvailable
from ostinato.ir.types import DType

__all__ = ["config_from_huggingface"]

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "mistral": "llama"}
_CLASSES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "MistralForCausalLM": "mistral"}
_DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "float": DType.F32, "half": DType.F16}
_DEFAULT_POSITIONS = {"llama": 2048, "qwen2": 32768, "mistral": 131072}


class _Reader:
    """Typed access to the keys of one configuration object; every error names the file and the key."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def refuse(self, message: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"{self.where}: {message}", hint=hint)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise self.refuse(f"{key} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(f"{key} is {value!r}, expected an integer")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.raw.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(f"{key} is {value!r}, expected a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(f"{key} is {value!r}, expected true or false")
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(f"{key} is {value!r}, expected an object")
        return value

    def token(self, key: str) -> int | None:
        """A token id, or None: some files write -1 for "none"."""
        value = self.raw.get(key)
        return None if value is None or value == -1 else self.integer(key)

    def tokens(self, key: str) -> tuple[int, ...]:
        value = self.raw.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int):
                raise self.refuse(f"{key} is {value!r}, expected an integer or a list of them")
        return tuple(dict.fromkeys(items))


def config_from_huggingface(
    raw: Mapping[str, Any], path: Path, generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The configuration in the parsed `config.json` at `path`; end tokens of `generation` (generation_config.json) win, as they do there.

    Raises `ConfigError` (unknown architecture, missing or malformed key, unusable value) and `NotYetAvailable` (a rotary kind of a later version).
    """
    read = _Reader(raw, str(path))
    model_type = _model_type(read)
    family = _FAMILIES[model_type]
    _refuse_unsupported(read, model_type)
    heads = read.integer("num_attention_heads")
    hidden = read.integer("hidden_size")
    if model_type != "llama" and "num_key_value_heads" not in raw:
        raise read.refuse(
            "num_key_value_heads is missing"
        )  # the public defaults of these classes are not the number of heads
    kv_heads = read.integer("num_key_value_heads", default=heads)
    generated = _Reader(generation or {}, str(path.with_name("generation_config.json")))
    biased = model_type == "llama" and read.flag("attention_bias")
    return ModelConfig(
        architecture=family,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=read.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(read, hidden, heads),
        rms_norm_eps=read.number("rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(read),
        max_position_embeddings=read.integer("max_position_embeddings", default=_DEFAULT_POSITIONS[model_type]),
        tie_word_embeddings=read.flag("tie_word_embeddings"),
        attention_bias=biased or model_type == "qwen2",
        attention_output_bias=biased,
        mlp_bias=model_type == "llama" and read.flag("mlp_bias"),
        bos_token_id=read.token("bos_token_id"),
        eos_token_ids=generated.tokens("eos_token_id") or read.tokens("eos_token_id"),
        pad_token_id=read.token("pad_token_id"),
        dtype=_declared_dtype(read),
    )


def _model_type(read: _Reader) -> str:
    found = read.raw.get("model_type")
    if found is None:
        classes = read.raw.get("architectures")
        names = classes if isinstance(classes, list) else []
        known = [_CLASSES[name] for name in names if name in _CLASSES]
        if not known:
            raise read.refuse(
                f"neither model_type nor a known class in architectures ({names})", hint='add "model_type"'
            )
        return known[0]
    if not isinstance(found, str) or found not in _FAMILIES:
        raise refuse_architecture(str(found), f"{read.where}: ")
    return str(found)


def _head_dim(read: _Reader, hidden: int, heads: int) -> int:
    if read.raw.get("head_dim") is not None:
        return read.integer("head_dim")
    if heads <= 0 or hidden % heads:
        raise read.refuse(
            f"hidden_size {hidden} is not a multiple of {heads} heads and head_dim is not given", hint='add "head_dim"'
        )
    return hidden // heads


def _rope_theta(read: _Reader) -> float:
    """The rotary base; both the flat spelling (rope_theta, rope_scaling) and rope_parameters are checked, and must agree where both are present."""
    bases = {read.number("rope_theta", default=10000.0)} if read.raw.get("rope_theta") is not None else set()
    for key in ("rope_parameters", "rope_scaling"):
        value = read.mapping(key)
        if value is None:
            continue
        nested = _Reader(value, f"{read.where}: {key}")
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


def _refuse_unsupported(read: _Reader, model_type: str) -> None:
    activation = read.raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise read.refuse(f"hidden_act {activation!r} is not supported", hint="this family computes silu")
    if read.number("partial_rotary_factor", 1.0) != 1.0:
        raise read.refuse("partial rotary embeddings are not supported for this family")
    if read.raw.get("quantization_config") is not None:
        method = (read.mapping("quantization_config") or {}).get("quant_method", "unknown")
        raise read.refuse(
            f"weights quantised by {method!r} are not supported", hint="use the float checkpoint, or a GGUF file"
        )
    layers = read.integer("num_hidden_layers")
    if _window_is_active(read, model_type, layers):
        raise NotYetAvailable(
            f"{read.where}: sliding-window attention (sliding_window {read.raw.get('sliding_window', 'default')}) is not yet available",
            hint='a checkpoint trained without it says "sliding_window": null or "use_sliding_window": false',
        )


def _window_is_active(read: _Reader, model_type: str, layers: int) -> bool:
    """True when some layer would mask keys by a window. Mistral's default window, used where the key is absent, is an active one."""
    kinds = read.raw.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise read.refuse(f"layer_types is {kinds!r}, expected a list")
    if any(kind != "full_attention" for kind in kinds or ()):
        return True
    if model_type == "mistral":
        return read.raw.get("sliding_window", 4096) not in (None, 0)
    if not read.flag("use_sliding_window"):
        return False
    window = read.raw.get("sliding_window", 4096)
    return window not in (None, 0) and read.integer("max_window_layers", default=28) < layers


def _declared_dtype(read: _Reader) -> DType | None:
    found = read.raw.get("dtype", read.raw.get("torch_dtype"))
    if found is None or found == "auto":
        return None
    name = str(found).removeprefix("torch.")
    if name not in _DTYPES:
        raise DTypeError(
            f"{read.where}: dtype {found!r} is not supported", hint=f"supported: {', '.join(sorted(set(_DTYPES)))}"
        )
    return _DTYPES[name]
