"""The file of `ostinato train`: what it may say, what is told of what it may not, and the data that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.frontend.fresh import new_model
from ostinato.frontend.model import Model, load
from ostinato.ir.errors import ConfigError, InputError
from ostinato.runtime.training.optimizer import SGD, AdamW
from ostinato.tools.train.config import TrainConfig, read_config
from ostinato.tools.train.curve import Point, curve_to_svg
from ostinato.tools.train.data import batches_of, standard_library, texts_of

WHOLE = """
[model]
path = "base"

[data]
stdlib = "64K"
sequence = 16
batch = 2

[optimizer]
lr = 1e-3
betas = [0.9, 0.95]
schedule = "cosine"
warmup_steps = 2

[train]
steps = 10
folder = "out"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, WHOLE))
    assert config.folder == tmp_path / "out"
    assert config.data.stdlib_bytes == 65536
    assert config.made_optimizer() == AdamW(
        lr=1e-3, betas=(0.9, 0.95), schedule="cosine", warmup_steps=2, total_steps=10
    )
    sgd = read_config(written(tmp_path, WHOLE.replace("betas = [0.9, 0.95]", 'kind = "sgd"\nmomentum = 0.5')))
    assert sgd.made_optimizer() == SGD(lr=1e-3, momentum=0.5, schedule="cosine", warmup_steps=2, total_steps=10)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "batch = 2",
            "btach = 2",
            ["data.btach: there is no such key, did you mean batch?", "data.batch: Field required"],
        ),
        ("steps = 10", "steps = 10\nmemory_limt = 5", ["did you mean memory_limit?"]),
        ("[train]", "[trian]\na = 1\n[train]", ["trian: there is no such key, did you mean train?"]),
        ("lr = 1e-3", "learning_rate = 1e-3", ["optimizer.learning_rate: there is no such key"]),
        ("lr = 1e-3", "weight_decai = 1", ["did you mean weight_decay?"]),
        ("lr = 1e-3", 'kind = "lion"', ["optimizer.kind is 'lion'"]),
        ("lr = 1e-3", "lr = -1", ["optimizer: lr is -1"]),
        ("lr = 1e-3", 'kind = ["sgd"]', ["optimizer.kind is ['sgd']"]),
        ("steps = 10", "steps = 99999999999", ["train.steps: Input should be less than or equal to 16777216"]),
        ("steps = 10", 'steps = 10\nsample = { prompt = "" }', ["train.sample.prompt"]),
        ("steps = 10", 'steps = 10\nsample = { prompt = "a", temperature = inf }', ["train.sample.temperature"]),
        ('path = "base"', "[model.new]\nvocab_size = 300\nconfig = {}", ['vocab_size is of tokenizer = "train"']),
        ("warmup_steps = 2", "warmup_steps = 20", ["has no steps left"]),
        ("batch = 2", 'batch = "2"', ["data.batch: Input should be a valid integer"]),
        ("batch = 2", "batch = 0", ["data.batch: Input should be greater than or equal to 1"]),
        ("batch = 2", "batch = true", ["data.batch: Input should be a valid integer"]),
        ('stdlib = "64K"', 'stdlib = "64 apples"', ["data.stdlib is '64 apples'"]),
        ('stdlib = "64K"', "", ["give one of files, text, tokens, stdlib, chat, found none"]),
        ('stdlib = "64K"', 'stdlib = 5\ntext = "a"', ["found text, stdlib"]),
        ('stdlib = "64K"', "stdlib = 5\npack = true", ["learn, pack and truncate are of chat"]),
        ('path = "base"', "", ["give path or new, one of them"]),
        ('path = "base"', "[model.new]\nconfg = {}", ["model.new.confg: there is no such key, did you mean config?"]),
        ("steps = 10", 'steps = 10\non_nan = "ignore"', ["train.on_nan: Input should be 'raise' or 'skip'"]),
        ("steps = 10", "steps = 10\ndropout = 1.0", ["train.dropout"]),
        ("steps = 10", 'steps = 10\nmemory_limit = "x"', ["train.memory_limit is 'x'"]),
        ("[model]", "place = 1\n[model]", ["place: there is no such section"]),
        ("[model]", "[model", ["is not TOML"]),
    ],
)
def test_what_a_file_may_not_say_is_told_by_name(old: str, new: str, told: list[str], tmp_path: Path) -> None:
    assert old in WHOLE
    with pytest.raises(ConfigError) as caught:
        read_config(written(tmp_path, WHOLE.replace(old, new)))
    for text in told:
        assert text in str(caught.value)


def test_all_problems_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(written(tmp_path, WHOLE.replace("batch = 2", "batch = 0").replace("steps = 10", "stps = 1")))
    assert all(text in str(caught.value) for text in ("data.batch", "train.stps", "train.steps"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "absent.toml")


def test_the_standard_library_is_the_same_text_every_time() -> None:
    texts, fewer = standard_library(300_000), standard_library(200_000)
    assert texts == standard_library(300_000)
    assert 299_990 <= sum(len(text.encode()) for text in texts) <= 300_000
    assert texts[: len(fewer) - 1] == fewer[:-1]
    assert texts[len(fewer) - 1].startswith(fewer[-1])
    assert any("def " in text for text in texts)
    with pytest.raises(InputError, match="bytes of text"):
        standard_library(10**12)


SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def data_config(folder: Path, section: str) -> TrainConfig:
    return read_config(written(folder, WHOLE.replace('stdlib = "64K"', section)))


def small(folder: Path) -> Model:
    model = new_model(folder / "base", SMALL)
    (folder / "base" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
    )
    model.checkpoint.close()
    return load(folder / "base")


def test_every_kind_of_data_becomes_batches(tmp_path: Path) -> None:
    model = small(tmp_path)
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"{name} " * 20)
    np.save(tmp_path / "t.npy", np.arange(200, dtype=np.uint16))
    np.arange(200).astype("<u2").tofile(tmp_path / "t.bin")
    talk = '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]'
    (tmp_path / "talks.jsonl").write_text(f'{talk}\n\n{{"messages": {talk}}}\n')
    config = data_config(tmp_path, 'files = ["*.txt"]')
    assert texts_of(config) == ["a.txt " * 20, "b.txt " * 20]
    for section, first in (
        ('files = ["*.txt"]', None),
        ('text = """' + "hello " * 20 + '"""', None),
        ('tokens = ["t.npy"]\nshuffle = false', 0),
        ('tokens = ["t.bin"]\ntokens_dtype = "uint16"\nshuffle = false', 0),
        ('chat = ["talks.jsonl"]', None),
        ("stdlib = 4000", None),
    ):
        batch = next(batches_of(data_config(tmp_path, section), model))
        assert batch.input_ids.shape == batch.target.shape == (2, 16)
        if first is not None:
            assert batch.input_ids[0, :3].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"data.files: there is no file .*none-\*"):
        batches_of(data_config(tmp_path, 'files = ["none-*"]'), model)
    (tmp_path / "bad.jsonl").write_text("{}\n{nonsense\n")
    with pytest.raises(ConfigError, match="line 2: not JSON"):
        batches_of(data_config(tmp_path, 'chat = ["bad.jsonl"]'), model)


def test_a_curve_is_a_picture_of_fixed_size_and_escapes_its_title() -> None:
    points = [Point(step, 5.0 / step, 1e-3) for step in range(1, 200)]
    picture = curve_to_svg("a <run>", points)
    assert picture == curve_to_svg("a <run>", points)
    assert picture.startswith("<svg ")
    assert "a &lt;run&gt;" in picture
    assert picture.count("<polyline") == 3
    for few in ([], [Point(1, float("nan"), 0.0)], [Point(1, 2.5, 0.0)], [Point(1, 2.5, 0.0), Point(2, 2.5, 0.0)]):
        assert curve_to_svg("few", few).endswith("</svg>\n")
    many = [Point(step, 1 + (step % 7), 1e-3) for step in range(100_000)]
    assert len(curve_to_svg("many", many)) < 2_000_000


def test_the_example_of_the_documentation_is_read_and_shown() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    example = docs / "examples" / "library.toml"
    config = read_config(example)
    assert config.made_optimizer().total_steps == config.train.steps
    assert f"```toml\n{example.read_text()}```\n" in (docs / "train.md").read_text()
