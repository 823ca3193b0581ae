"""How the authors of a model sample from it: `generation_config.json`, or the `general.sampling.*` keys of a GGUF file.

Only what the file says is kept; None stands for a key that it does not have, and whoever samples puts its own default there. What one request asks for
wins over all of this. Types are checked here and ranges where sampling parameters are made, so that a value that one request replaces is no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.frontend.checkpoints.reader import ConfigReader, shortest_decimal

__all__ = ["GenerationDefaults", "generation_from_gguf", "generation_from_huggingface"]


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling defaults of a checkpoint. `do_sample` False asks for greedy decoding, whatever the other fields say; None says neither.

    `top_k` 0 keeps all tokens. `max_new_tokens` counts generated tokens. End tokens are in the model's configuration (`eos_token_ids`).
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def generation_from_huggingface(read: ConfigReader) -> GenerationDefaults:
    """The defaults in `generation_config.json`. Raises `ConfigError` for values of another type."""
    return GenerationDefaults(
        do_sample=read.optional("do_sample", read.flag),
        temperature=read.optional("temperature", read.number),
        top_k=read.optional("top_k", read.integer),
        top_p=read.optional("top_p", read.number),
        min_p=read.optional("min_p", read.number),
        repetition_penalty=read.optional("repetition_penalty", read.number),
        max_new_tokens=read.optional("max_new_tokens", read.integer),
    )


def generation_from_gguf(metadata: Mapping[str, Any], path: Path) -> GenerationDefaults:
    """The defaults in the `general.sampling.*` keys, which most files lack. Raises `ConfigError` for values of another type."""
    prefix = "general.sampling."
    found = {
        key.removeprefix(prefix): shortest_decimal(value) if isinstance(value, float) else value
        for key, value in metadata.items()
        if key.startswith(prefix)
    }
    read = ConfigReader(found, f"{path}: {prefix.removesuffix('.')}")
    return GenerationDefaults(
        temperature=read.optional("temp", read.number),
        top_k=read.optional("top_k", read.integer),
        top_p=read.optional("top_p", read.number),
        min_p=read.optional("min_p", read.number),
        repetition_penalty=read.optional("penalty_repeat", read.number),
    )
