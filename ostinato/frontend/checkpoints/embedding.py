"""How the states of an encoder's tokens become one vector, as the files beside a model say it.

A directory saved by sentence-transformers lists its modules in `modules.json`: the transformer, pooling over its tokens, perhaps normalisation, each with a
folder of its own. A directory without that list is read as sentence-transformers reads a plain model: mean pooling, no normalisation. Whatever changes the
vector and is not computed (other modules, other pooling, several poolings side by side) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ostinato.frontend.checkpoints.files import leaves_directory, optional_json, parse_json, read_json, require_file
from ostinato.frontend.checkpoints.reader import ConfigReader, MetadataReader
from ostinato.ir.errors import ConfigError

__all__ = ["POOLINGS", "EmbeddingRecipe", "recipe_from_directory", "recipe_from_gguf", "transformer_directory"]

POOLINGS = ("mean", "cls", "lasttoken")
"""Mean of the token states, the first token's, the last token's."""

_MODULES = "modules.json"
_NO_LIMIT = 1 << 31
"""Tokenizers without a limit say so by a number beyond all lengths."""
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The older spelling: one flag a mode, `mean` where none is set."""
_GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}


@dataclass(frozen=True, slots=True)
class EmbeddingRecipe:
    """From text to vector: what is done before and after the encoder.

    `pooling` is one of `POOLINGS`; `normalize` divides the pooled vector by its Euclidean length. Texts are cut to `max_length` tokens, special ones included
    (None: as many as the model has positions), and lower-cased first with `lower_case`. `prompts` are texts put in front by name, `default_prompt` the name
    used when none is asked for. Without `pools_prompt` the pooling leaves the tokens of a prompt out, so that prompts cannot be used.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    pools_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_prompt: str | None = None


def transformer_directory(directory: Path) -> Path:
    """The folder of `config.json` and the weights: `directory` itself, or the folder that `modules.json` gives the transformer. Raises `ConfigError`."""
    if (directory / "config.json").exists() or not (directory / _MODULES).exists():
        return directory
    return _folders(directory)[0][1]


def recipe_from_directory(directory: Path, hidden_size: int) -> EmbeddingRecipe:
    """The recipe of a Hugging Face directory whose states are `hidden_size` wide.

    Raises `ConfigError` for modules that are not computed, naming them, and for malformed files; `WeightsError` for files that cannot be read.
    """
    settings = _transformer_settings(transformer_directory(directory))
    if not (directory / _MODULES).exists():
        return settings
    _, *later = _folders(directory)
    kinds = [kind for kind, _ in later]
    if kinds[:1] != ["Pooling"] or any(kind != "Normalize" for kind in kinds[1:]):
        raise ConfigError(
            f"{directory / _MODULES}: the modules are {', '.join(('Transformer', *kinds))}",
            hint="supported: Transformer, Pooling and, if any, Normalize",
        )
    pooling, pools_prompt = _read_pooling(later[0][1] / "config.json", hidden_size)
    for _, folder in later[1:]:
        _check_normalize(folder)
    prompts, default = _read_prompts(directory / "config_sentence_transformers.json")
    return replace(
        settings,
        pooling=pooling,
        normalize=len(later) > 1,
        pools_prompt=pools_prompt,
        prompts=prompts,
        default_prompt=default,
    )


def recipe_from_gguf(read: MetadataReader) -> EmbeddingRecipe:
    """The recipe of a GGUF file: its pooling type (mean where it has none); the format does not say whether vectors are normalised.

    Raises `ConfigError` for a pooling that gives no vector or is not computed.
    """
    kind = read.integer("pooling_type", default=1)
    if kind not in _GGUF_POOLINGS:
        raise read.refuse(
            f"{read.prefix}.pooling_type {kind} is not supported", hint="supported: 1 (mean), 2 (cls), 3 (last)"
        )
    return EmbeddingRecipe(pooling=_GGUF_POOLINGS[kind])


def _folders(directory: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each module, in order; the first is the transformer."""
    path = directory / _MODULES
    require_file(path, "module list")
    try:
        listed = parse_json(path.read_bytes())
    except ValueError as reason:
        raise ConfigError(f"{path} is not valid JSON: {reason}", hint="download it again") from reason
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} is no list of modules", hint="download it again")
    found = [_module(directory, path, index, module) for index, module in enumerate(listed)]
    if found[0][0] != "Transformer":
        raise ConfigError(
            f"{path}: the first module is {found[0][0]}, expected Transformer",
            hint="supported: Transformer, Pooling and, if any, Normalize",
        )
    return found


def _module(directory: Path, path: Path, index: int, module: Any) -> tuple[str, Path]:
    name, folder = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(folder, str):
        raise ConfigError(f"{path}: module {index} has no type and path", hint="download it again")
    kind = name.rpartition(".")[2]
    if not name.startswith("sentence_transformers.") or kind not in ("Transformer", "Pooling", "Normalize"):
        raise ConfigError(
            f"{path}: module {index} is {name}, which is not supported",
            hint="supported: Transformer, Pooling and Normalize of sentence_transformers",
        )
    if leaves_directory(folder):
        raise ConfigError(
            f"{path}: the folder {folder!r} of module {index} leaves the directory",
            hint="folders are relative and have no '..'",
        )
    return kind, directory / folder


def _transformer_settings(folder: Path) -> EmbeddingRecipe:
    """Length and case as the transformer's own settings say them, the length else as the tokenizer's do."""
    longest = optional_json(folder / "tokenizer_config.json", "tokenizer configuration").get("model_max_length")
    if not isinstance(longest, int) or not 0 < longest < _NO_LIMIT:
        longest = None
    path = folder / "sentence_bert_config.json"
    read = ConfigReader(optional_json(path, "transformer settings"), str(path))
    for key, computed in (("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings")):
        if read.raw.get(key, computed) != computed:
            raise read.refuse(f"{key} {read.raw[key]!r} is not supported", hint=f"supported: {computed!r}")
    text = (read.mapping("modality_config") or {}).get("text")
    output = text.get("method_output_name") if isinstance(text, Mapping) else None
    if output not in (None, "last_hidden_state"):
        raise read.refuse(f"the output {output!r} is not supported", hint="supported: last_hidden_state")
    length = longest if read.raw.get("max_seq_length") is None else read.integer("max_seq_length")
    if length is not None and length < 1:
        raise read.refuse(
            f"max_seq_length is {length}, expected a positive number", hint="leave it out for the default"
        )
    return EmbeddingRecipe(max_length=length, lower_case=read.flag("do_lower_case"))


def _read_pooling(path: Path, hidden_size: int) -> tuple[str, bool]:
    """The pooling, and whether it covers the tokens of a prompt."""
    read = ConfigReader(read_json(path, "pooling configuration"), str(path))
    for key in ("word_embedding_dimension", "embedding_dimension"):
        if read.integer(key, default=hidden_size) != hidden_size:
            raise read.refuse(f"{key} is {read.integer(key)}, the model is {hidden_size} wide")
    flagged = [mode for key, mode in _FLAGS.items() if read.flag(key)] or ["mean"]
    given = read.raw.get("pooling_mode", flagged)
    modes = given if isinstance(given, list) else [given]
    if len(modes) != 1:
        raise read.refuse(f"the poolings {modes} side by side are not supported", hint="supported: one pooling")
    if modes[0] not in POOLINGS:
        raise read.refuse(f"pooling {modes[0]!r} is not supported", hint=f"supported: {', '.join(POOLINGS)}")
    return modes[0], read.flag("include_prompt", default=True)


def _check_normalize(folder: Path) -> None:
    path = folder / "config.json"  # older versions saved nothing, and many copies have lost the empty folder
    read = ConfigReader(optional_json(path, "normalisation"), str(path))
    for key in ("module_input_name", "module_output_name"):
        found = read.raw.get(key)
        if found not in (None, "sentence_embedding"):
            raise read.refuse(f"{key} {found!r} is not supported", hint="supported: 'sentence_embedding'")


def _read_prompts(path: Path) -> tuple[Mapping[str, str], str | None]:
    read = ConfigReader(optional_json(path, "sentence-transformers configuration"), str(path))
    prompts = read.mapping("prompts") or {}
    wrong = [name for name, prompt in prompts.items() if prompt is not None and not isinstance(prompt, str)]
    if wrong:
        raise read.refuse(f"the prompts {wrong} are no texts")
    default = read.raw.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise read.refuse(
            f"default_prompt_name {default!r} is none of the prompts {list(prompts)}", hint="name one of them, or null"
        )
    return MappingProxyType({name: prompt or "" for name, prompt in prompts.items()}), default
