"""GGUF models in several files: opened together, or refused with the file that is missing or does not belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ostinato.frontend.checkpoints import GgufCheckpoint, open_checkpoint
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import WeightsError
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.make_tokenizers import gguf_metadata, train


def split(path: Path, whole: Path, tensors: int, **options: Any) -> list[Path]:
    """The file `whole` written again as parts of that many tensors under the name `path`, by the public writer."""
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors, **options)
    for field in reader.fields.values():
        if field.name.startswith(("llama.", "tokenizer.")):
            kind = field.types[0]
            sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


@pytest.fixture
def whole(tmp_path: Path, seed: int) -> Path:
    config = small_config(vocab_size=420)
    return write_gguf(
        tmp_path / "whole" / "m.gguf", config, random_model(config, seed), metadata=gguf_metadata(train(), "smollm")
    )


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("options", [{}, {"small_first_shard": True}])
def test_the_parts_of_a_model_are_one_checkpoint(tmp_path: Path, whole: Path, options: dict[str, Any]) -> None:
    parts = split(tmp_path / "parts" / "m.gguf", whole, 9, **options)
    assert len(parts) >= 3
    with open_checkpoint(whole, FAMILIES) as one:
        for path in (parts[0], tmp_path / "parts", parts[0]):  # the file, its directory, and both from the cache
            with open_checkpoint(path, FAMILIES) as several:
                assert several.config == one.config
                assert set(several.tensors) == set(one.tensors)
                assert {tensor.file for tensor in several.tensors.values()} >= set(parts[1:])
                for name in one.tensors:
                    np.testing.assert_array_equal(several.map(name), one.map(name))
                assert several.tokenizer().encode("Paris") == one.tokenizer().encode("Paris")
        assert isinstance(several, GgufCheckpoint)
        assert several.header_state == "cached"


def test_absent_parts_are_refused_by_name(tmp_path: Path, whole: Path) -> None:
    parts = split(tmp_path / "parts" / "m.gguf", whole, 5)
    for path in (parts[1], parts[3]):
        path.unlink()
    with pytest.raises(WeightsError, match=rf"2 of {len(parts)} parts .* {parts[1].name}, {parts[3].name}"):
        open_checkpoint(parts[0], FAMILIES)
    with pytest.raises(WeightsError, match=f"2 of {len(parts)} parts"):
        open_checkpoint(tmp_path / "parts", FAMILIES)


def test_a_part_that_is_not_the_first_names_the_first(tmp_path: Path, whole: Path) -> None:
    parts = split(tmp_path / "parts" / "m.gguf", whole, 9)
    with pytest.raises(WeightsError, match=rf"(?s)is part 00002 of {len(parts)}.*open the first: {parts[0].name}"):
        open_checkpoint(parts[1], FAMILIES)


def test_parts_under_other_names_are_refused(tmp_path: Path, whole: Path) -> None:
    parts = split(tmp_path / "parts" / "m.gguf", whole, 9)
    parts[0].rename(tmp_path / "parts" / "first.gguf")
    with pytest.raises(
        WeightsError, match=f"(?s)one of {len(parts)} parts, and its name.*NAME-00001-of-0000{len(parts)}"
    ):
        open_checkpoint(tmp_path / "parts" / "first.gguf", FAMILIES)


def test_parts_of_different_models_are_refused(tmp_path: Path, whole: Path) -> None:
    parts = split(tmp_path / "parts" / "m.gguf", whole, 9)
    content = parts[2].read_bytes()
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(WeightsError, match=rf"{parts[2].name} says that it is part 1 of {len(parts)}"):
        open_checkpoint(parts[0], FAMILIES)
    parts[2].write_bytes(content[:-100])
    with pytest.raises(WeightsError, match="is cut short"):
        open_checkpoint(parts[0], FAMILIES)
    (tmp_path / "other").mkdir()
    other = split(tmp_path / "other" / "m.gguf", whole, 8)
    assert len(other) == len(parts)
    parts[2].write_bytes(other[2].read_bytes())
    with pytest.raises(WeightsError, match=r"hold \d+ tensors, the first says 21|are both"):
        open_checkpoint(parts[0], FAMILIES)


def test_parts_beside_another_model_are_not_chosen_between(tmp_path: Path, whole: Path) -> None:
    parts = split(tmp_path / "parts" / "m.gguf", whole, 9)
    (tmp_path / "parts" / "n.gguf").write_bytes(whole.read_bytes())
    with pytest.raises(WeightsError, match=f"{len(parts) + 1} GGUF files"):
        open_checkpoint(tmp_path / "parts", FAMILIES)
