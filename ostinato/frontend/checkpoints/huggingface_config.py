"""`config.json` of a Hugging Face directory, in the spellings of transformers 4 and 5, to `ModelConfig`.

What decoder families spell alike is read here, once, so that a family sees neither version and states only what is its own. Shapes must be written in the
file; the other keys fall back to the defaults that the public configuration classes document, since those files may omit them. A key that changes the
mathematics and is not implemented (another activation, quantisation) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.config import MAX_LAYERS, ModelConfig
from ostinato.frontend.checkpoints.huggingface_rotary import rotaries_from_huggingface
from ostinato.frontend.checkpoints.reader import ConfigReader
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.checkpoints.spelling import FamilyFiles, HuggingFaceSpelling, own_config, refuse_architecture
from ostinato.ir.errors import DTypeError
from ostinato.ir.types import DType

__all__ = [
    "config_from_huggingface",
    "declared_dtype",
    "decoder_from_huggingface",
    "refuse_quantised",
    "spelling_of",
    "windows_from_huggingface",
]

_DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "float": DType.F32, "half": DType.F16}
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def config_from_huggingface(
    raw: Mapping[str, Any], path: Path, families: Sequence[FamilyFiles], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The configuration in the parsed `config.json` at `path`, read by the family that claims its model_type or else its class.

    End tokens of `generation` (generation_config.json) win, as they do there. Raises `ConfigError` (unknown architecture, missing or malformed key,
    unusable value) and `DTypeError`.
    """
    generated = ConfigReader(generation or {}, str(path.with_name("generation_config.json")))
    family, spelling = _claimed(ConfigReader(raw, str(path)), families)
    return own_config(family, spelling.config(ConfigReader(raw, str(path), family.name, generated)))


def spelling_of(raw: Mapping[str, Any], path: Path, families: Sequence[FamilyFiles]) -> HuggingFaceSpelling:
    """The spelling that claims the `config.json` at `path`; raises `ConfigError` for an unknown architecture."""
    return _claimed(ConfigReader(raw, str(path)), families)[1]


def decoder_from_huggingface(
    read: ConfigReader,
    *,
    positions: int,
    windows: tuple[int, ...] = (),
    head_dim: int | None = None,
    kv_heads_required: bool = True,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    tied: bool = False,
    theta: float = 10000.0,
    local_theta: float | None = None,
    partial_rotary: bool = False,
    renamed_rotary: Mapping[str, str] | None = None,
) -> ModelConfig:
    """What decoder families spell alike: shapes, rotary embedding, norms, tied head, special tokens, dtype. A family replaces what it reads otherwise.

    Defaults of the family for keys that a file may omit: `positions` (max_position_embeddings), `head_dim` (None: hidden_size / heads), `activation` (its key
    and the default), `tied`, `theta` (the rotary base), `local_theta` (the base of layers with a window, where the family has one of its own). Without
    `kv_heads_required`, absent key/value heads mean as many as there are heads. `windows` are read by the family, with `windows_from_huggingface` where it
    has the common keys. `partial_rotary` and `renamed_rotary`: see `rotaries_from_huggingface`. Raises `ConfigError` and `DTypeError`.
    """
    refuse_quantised(read)
    heads = read.integer("num_attention_heads")
    hidden = read.integer("hidden_size")
    if kv_heads_required and "num_key_value_heads" not in read.raw:
        raise read.refuse("num_key_value_heads is missing", hint='add "num_key_value_heads"')
    width = _head_dim(read, hidden, heads, head_dim)
    limit = read.integer("max_position_embeddings", default=positions)
    rotary, local_rotary = rotaries_from_huggingface(
        read,
        head_dim=width,
        positions=limit,
        theta=theta,
        local=None if local_theta is None else Rotary(theta=local_theta, width=width),
        partial=partial_rotary,
        renamed=renamed_rotary,
    )
    return ModelConfig(
        architecture=read.architecture,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=read.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=read.integer("num_key_value_heads", default=heads),
        head_dim=width,
        norm_eps=read.number("rms_norm_eps", default=1e-6),
        rotary=rotary,
        local_rotary=local_rotary if any(windows) else None,
        max_position_embeddings=limit,
        windows=windows,
        activation=_activation(read, *activation),
        tie_word_embeddings=read.flag("tie_word_embeddings", default=tied),
        bos_token_id=read.token("bos_token_id"),
        eos_token_ids=(read.generation.tokens("eos_token_id") if read.generation else ())
        or read.tokens("eos_token_id"),
        pad_token_id=read.token("pad_token_id"),
        dtype=declared_dtype(read),
    )


def windows_from_huggingface(
    read: ConfigReader,
    *,
    size: int | None,
    switched_on: bool = True,
    applies: Callable[[int], bool] = lambda layer: True,
    alike: bool = False,
) -> tuple[int, ...]:
    """The window of each layer by the keys sliding_window, use_sliding_window and layer_types; () where no layer has one.

    `size`, `switched_on` and `applies` (which layers have it) are what the family takes where the file does not say. A window of null or 0 is none. In a
    family whose layers are `alike` layer types do not count, and those that say otherwise are refused. Raises `ConfigError` for these, and for layer types
    that ask for a window that is not given.
    """
    layers = read.integer("num_hidden_layers", most=MAX_LAYERS)
    kinds = read.raw.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != layers):
        raise read.refuse(f"layer_types is {kinds!r}, expected a list of {layers}")
    if unknown := sorted({repr(kind) for kind in kinds or () if kind not in ("full_attention", "sliding_attention")}):
        raise read.refuse(f"layer_types has {', '.join(unknown)}", hint="known: full_attention, sliding_attention")
    window = size if "sliding_window" not in read.raw else read.integer("sliding_window", default=0)
    if not read.flag("use_sliding_window", default=switched_on):
        window = 0
    chosen = [applies(layer) for layer in range(layers)] if kinds is None else [k == "sliding_attention" for k in kinds]
    if not window:
        if kinds is not None and any(chosen):
            raise read.refuse(
                "layer_types asks for sliding_attention and sliding_window is off",
                hint='set "sliding_window" (and "use_sliding_window": true where the family has it)',
            )
        return ()
    if alike and not all(chosen):
        raise read.refuse(
            "layer_types leaves layers without the window, this family has one kind of layer",
            hint="leave layer_types out",
        )
    return tuple(window if one else 0 for one in chosen) if any(chosen) else ()


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


def _head_dim(read: ConfigReader, hidden: int, heads: int, default: int | None) -> int:
    if read.raw.get("head_dim") is not None or default is not None:
        return read.integer("head_dim", default)
    if heads <= 0 or hidden % heads:
        raise read.refuse(
            f"hidden_size {hidden} is not a multiple of {heads} heads and head_dim is not given", hint='add "head_dim"'
        )
    return hidden // heads


def _activation(read: ConfigReader, key: str, default: str) -> str:
    written = read.raw.get(key)
    name = default if written is None else written
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise read.refuse(f"{key} {name!r} is not supported", hint=f"supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def declared_dtype(read: ConfigReader) -> DType | None:
    """The dtype that the file declares for its weights, None where it declares none; raises `DTypeError` for one that is not supported."""
    found = read.raw.get("dtype", read.raw.get("torch_dtype"))
    if found is None or found == "auto":
        return None
    name = str(found).removeprefix("torch.")
    if name not in _DTYPES:
        raise DTypeError(
            f"{read.where}: dtype {found!r} is not supported", hint=f"supported: {', '.join(sorted(set(_DTYPES)))}"
        )
    return _DTYPES[name]


def refuse_quantised(read: ConfigReader) -> None:
    """Raises `ConfigError` for weights that another library has quantised."""
    if read.raw.get("quantization_config") is None:
        return
    method = (read.mapping("quantization_config") or {}).get("quant_method", "unknown")
    raise read.refuse(
        f"weights quantised by {method!r} are not supported", hint="use the float checkpoint, or a GGUF file"
    )
