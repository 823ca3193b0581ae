"""How the authors of a model sample, from both formats, and the tokens at which its texts end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.frontend.checkpoints import Checkpoint, GenerationDefaults, open_checkpoint
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import ConfigError, WeightsError
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf, write_hf_checkpoint
from tests.frontend.make_tokenizers import gguf_metadata, train


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def directory(path: Path, seed: int, generation: dict[str, Any] | None, **config: Any) -> Checkpoint:
    keys = small_config(**config)
    write_hf_checkpoint(path, keys, random_model(keys, seed))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return open_checkpoint(path, FAMILIES)


def test_sampling_defaults_of_a_directory_are_read(tmp_path: Path, seed: int) -> None:
    written = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_new_tokens": 2048,
        "transformers_version": "4.51.0",
        "pad_token_id": 0,
    }
    with directory(tmp_path, seed, written) as checkpoint:
        found = checkpoint.generation
    assert found == GenerationDefaults(True, 0.6, 20, 0.95, 0.05, 1.1, 2048)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.top_k = 1  # type: ignore[misc]


def test_what_the_file_leaves_out_stays_unsaid(tmp_path: Path, seed: int) -> None:
    with directory(tmp_path / "none", seed, None) as checkpoint:
        assert checkpoint.generation == GenerationDefaults()
    with directory(tmp_path / "some", seed, {"temperature": 1, "top_k": None, "do_sample": False}) as checkpoint:
        assert checkpoint.generation == GenerationDefaults(do_sample=False, temperature=1.0)


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", "warm"), ("top_k", 1.5), ("do_sample", 1), ("max_new_tokens", True)]
)
def test_defaults_of_another_type_are_refused_with_their_key(tmp_path: Path, seed: int, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {key} is {value!r}"):
        directory(tmp_path, seed, {key: value})


def test_a_generation_configuration_that_is_no_json_is_refused(tmp_path: Path, seed: int) -> None:
    config = small_config()
    write_hf_checkpoint(tmp_path, config, random_model(config, seed))
    (tmp_path / "generation_config.json").write_text("version https://git-lfs.github.com/spec/v1\nsize 243\n")
    with pytest.raises(WeightsError, match="Git LFS pointer of a 243 byte file"):
        open_checkpoint(tmp_path, FAMILIES)


def test_sampling_defaults_of_a_gguf_file_are_read(tmp_path: Path, seed: int) -> None:
    keys = small_config()
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.sampling.min_p": 0.0,
        "general.sampling.penalty_repeat": 1.1,
    }
    path = write_gguf(tmp_path / "m.gguf", keys, random_model(keys, seed), metadata=metadata)
    with open_checkpoint(path, FAMILIES) as checkpoint:  # the numbers that were written, though the file holds float32
        assert checkpoint.generation == GenerationDefaults(None, 0.6, 20, 0.95, 0.0, 1.1)
    path = write_gguf(tmp_path / "n.gguf", keys, random_model(keys, seed))
    with open_checkpoint(path, FAMILIES) as checkpoint:
        assert checkpoint.generation == GenerationDefaults()
    path = write_gguf(tmp_path / "o.gguf", keys, random_model(keys, seed), metadata={"general.sampling.top_k": 1.5})
    with pytest.raises(ConfigError, match=r"general\.sampling: top_k is 1\.5"):
        open_checkpoint(path, FAMILIES)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, {}, (2,)),
        (2, {"eos_token_id": [7, 2, 7]}, (7, 2)),
        (None, {"eos_token_id": 9}, (9,)),
        (None, None, ()),
    ],
)
def test_several_end_tokens_of_a_directory(
    tmp_path: Path, seed: int, config: Any, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    """As in transformers, those of the generation configuration win."""
    with directory(tmp_path, seed, generation, eos_token_id=config) as checkpoint:
        assert checkpoint.config.eos_token_ids == expected


def test_several_end_tokens_of_a_gguf_file(tmp_path: Path, seed: int) -> None:
    keys = small_config()
    metadata = {f"tokenizer.ggml.{role}_token_id": token for role, token in (("eos", 2), ("eot", 7), ("eom", 9))}
    path = write_gguf(tmp_path / "m.gguf", keys, random_model(keys, seed), metadata=metadata)
    with open_checkpoint(path, FAMILIES) as checkpoint:
        assert checkpoint.config.eos_token_ids == (2, 7, 9)


def test_a_gguf_file_that_names_one_end_token_still_ends_at_the_others(tmp_path: Path, seed: int) -> None:
    keys = small_config(vocab_size=420)
    metadata = gguf_metadata(train(), "smollm", eos_token_id=7)
    path = write_gguf(tmp_path / "m.gguf", keys, random_model(keys, seed), metadata=metadata)
    with open_checkpoint(path, FAMILIES) as checkpoint:
        assert checkpoint.config.eos_token_ids == (7,)
        assert checkpoint.end_token_ids == (7, 0, 2)  # and <|endoftext|> and <|im_end|>
    with directory(tmp_path / "hf", seed, None, eos_token_id=[2, 5]) as checkpoint:
        assert checkpoint.end_token_ids == (2, 5)


def test_end_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, seed: int) -> None:
    with pytest.raises(ConfigError, match="eos_token_id 96 is outside the vocabulary of 96"):
        directory(tmp_path, seed, {"eos_token_id": [2, 96]})
