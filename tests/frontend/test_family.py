"""A family is one record: a made-up one, defined here, is loaded from both formats, runs, and is refused where it should be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.checkpoints import open_checkpoint
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    ModelConfig,
    decoder_from_gguf,
    decoder_from_huggingface,
)
from ostinato.frontend.models import FAMILIES
from ostinato.frontend.models.llama import LLAMA, llama
from ostinato.ir.errors import ConfigError, WeightsError
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import (
    Tensors,
    gguf_name,
    interleave,
    random_model,
    small_config,
    write_gguf,
    write_hf_checkpoint,
)


def read_cantata(read: ConfigReader) -> ModelConfig:
    """Biases of attention by a key of its own, a window in every layer where `window` is a number."""
    window = read.integer("window", default=0)
    windows = (window,) * read.integer("num_hidden_layers") if window else ()
    common = decoder_from_huggingface(read, positions=77, windows=windows)
    biased = read.flag("voices_biased")
    return replace(common, attention_bias=biased, attention_output_bias=biased)


CANTATA = Family(
    name="cantata",
    function=llama,
    huggingface=(HuggingFaceSpelling(model_type="cantata", classes=("CantataForCausalLM",), config=read_cantata),),
    gguf=(
        GgufSpelling(
            architecture="chorale",
            config=decoder_from_gguf,
            names={
                "words": "model.embed_tokens",
                "part.*.soprano": "model.layers.*.self_attn.q_proj",
                "part.*.alto": "model.layers.*.self_attn.k_proj",
            },
            interleaved_rotary=True,
        ),
    ),
    also=("Motet",),
)
WITH_CANTATA = (*FAMILIES, CANTATA)
RENAMED = {"token_embd": "words", "attn_q": "soprano", "attn_k": "alto"}


def made_up_gguf(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """A GGUF file with the tensor names and the row order that `CANTATA` declares."""
    stored: Tensors = {}
    for name, array in tensors.items():
        *block, module, kind = gguf_name(name).split(".")
        if module in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if module == "attn_q" else "num_key_value_heads"]
            array, block = interleave(array, heads), ["part", block[1]]
        stored[".".join([*block, RENAMED.get(module, module), kind])] = array
    return write_gguf(path, config | {"model_type": "chorale"}, stored)


def logits_of(model: ost.Model) -> Array:
    executable = ost.compile(model, buckets={"B": [1], "T": [16]}, context=64, logits="all")
    logits: Array = executable(input_ids=[[5, 17, 3, 92, 41, 8]])["logits"]
    return logits


def test_a_made_up_family_loads_from_both_formats_and_equals_the_llama(tmp_path: Path, seed: int) -> None:
    config = small_config(attention_bias=True)
    tensors = random_model(config, seed)
    write_hf_checkpoint(tmp_path / "llama", config, tensors)
    made_up = small_config("cantata", voices_biased=True)
    write_hf_checkpoint(tmp_path / "cantata", made_up, tensors)
    by_class = small_config(model_type=..., architectures=["CantataForCausalLM"], voices_biased=True)
    write_hf_checkpoint(tmp_path / "by_class", by_class, tensors)
    made_up_gguf(tmp_path / "cantata.gguf", made_up, tensors)

    expected = logits_of(ost.load(tmp_path / "llama"))
    assert expected.std() > 0.1
    for name in ("cantata", "by_class", "cantata.gguf"):
        model = ost.load(tmp_path / name, WITH_CANTATA)
        assert model.family is CANTATA
        assert model.config.architecture == "cantata"
        assert (model.config.attention_bias, model.config.attention_output_bias) == (True, True)
        np.testing.assert_array_equal(logits_of(model), expected, err_msg=name)


def test_row_order_belongs_to_the_spelling(tmp_path: Path, seed: int) -> None:
    config = small_config("cantata")
    made_up_gguf(tmp_path / "m.gguf", config, random_model(config, seed))
    with ost.load(tmp_path / "m.gguf", WITH_CANTATA).checkpoint as checkpoint:
        reordered = {name for name, source in checkpoint.tensors.items() if source.row_order is not None}
        assert checkpoint.tensors["model.embed_tokens.weight"].source_name == "words.weight"
    assert reordered == {f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in (0, 1) for name in "qk"}


def test_the_other_families_are_read_as_before_beside_it(tmp_path: Path, seed: int) -> None:
    for family in ("llama", "qwen2"):
        config = small_config(family)
        write_hf_checkpoint(tmp_path / family, config, random_model(config, seed))
        write_gguf(tmp_path / f"{family}.gguf", config, random_model(config, seed))
        for name in (family, f"{family}.gguf"):
            assert ost.load(tmp_path / name, WITH_CANTATA).config == ost.load(tmp_path / name).config


def test_defaults_and_refusals_of_the_family_are_its_own(tmp_path: Path, seed: int) -> None:
    config = small_config("cantata", max_position_embeddings=...)
    directory = write_hf_checkpoint(tmp_path / "m", config, random_model(config, seed))
    assert ost.load(directory, WITH_CANTATA).config.max_position_embeddings == 77
    write_hf_checkpoint(directory, config | {"window": 8}, random_model(config, seed))
    assert ost.load(directory, WITH_CANTATA).config.windows == (8, 8)
    write_hf_checkpoint(directory, config | {"rope_scaling": {"type": "spiral"}}, {})
    with pytest.raises(ConfigError, match="unknown rotary kind 'spiral'"):
        ost.load(directory, WITH_CANTATA)


def test_an_unknown_architecture_lists_the_families_that_were_given(tmp_path: Path, seed: int) -> None:
    config = small_config("cantata")
    write_hf_checkpoint(tmp_path / "m", config, random_model(config, seed))
    made_up_gguf(tmp_path / "m.gguf", config, random_model(config, seed))
    for name, architecture in (("m", "cantata"), ("m.gguf", "chorale")):
        with pytest.raises(
            ConfigError, match=rf"'{architecture}' is not supported[\s\S]*llama\b[\s\S]*as llama also: SmolLM2"
        ):
            ost.load(tmp_path / name)
    config["model_type"] = "motet"
    write_hf_checkpoint(tmp_path / "m", config, random_model(config, seed))
    with pytest.raises(ConfigError, match=r"llama\b[\s\S]*, cantata \([\s\S]*as cantata also: Motet"):
        ost.load(tmp_path / "m", WITH_CANTATA)


def test_names_are_claimed_once() -> None:
    again = replace(CANTATA, name="other")
    for families, message in (
        ((CANTATA, CANTATA), "name 'cantata' is claimed twice"),
        ((CANTATA, again), "model_type 'cantata'"),
        ((CANTATA, replace(again, huggingface=())), "GGUF architecture 'chorale'"),
    ):
        with pytest.raises(ConfigError, match=message):
            ost.load("smollm2", families)


def test_malformed_families_are_refused() -> None:
    spelling = CANTATA.huggingface[0]
    wrong: Any = spelling
    with pytest.raises(ConfigError, match="expected a tuple"):
        replace(CANTATA, huggingface=wrong)
    text: Any = "CantataForCausalLM"
    with pytest.raises(ConfigError, match="expected a tuple of str"):
        replace(spelling, classes=text)
    malformed: list[Any] = [CANTATA, (*FAMILIES, llama), None]
    for families in malformed:
        with pytest.raises(ConfigError, match="expected Family records"):
            ost.load("smollm2", families)


def test_a_configuration_of_another_family_is_refused(tmp_path: Path, seed: int) -> None:
    def read(reader: ConfigReader) -> ModelConfig:
        return replace(read_cantata(reader), architecture="llama")

    config = small_config("cantata")
    write_hf_checkpoint(tmp_path, config, random_model(config, seed))
    family = replace(CANTATA, huggingface=(replace(CANTATA.huggingface[0], config=read),))
    with pytest.raises(ConfigError, match="'cantata' read a configuration of architecture 'llama'"):
        ost.load(tmp_path, (LLAMA, family))


def test_tensors_that_the_name_table_maps_together_are_refused(tmp_path: Path) -> None:
    words = np.ones((96, 64), dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", small_config("chorale"), {"words.weight": words, "token_embd.weight": words})
    with pytest.raises(
        WeightsError, match=r"words\.weight and token_embd\.weight are both model\.embed_tokens\.weight"
    ):
        open_checkpoint(tmp_path / "m.gguf", WITH_CANTATA, cache_directory=tmp_path)
