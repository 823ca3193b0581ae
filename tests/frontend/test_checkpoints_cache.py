"""The cache of parsed GGUF headers: what it saves, when it is not trusted, and that it never gets in the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.frontend.checkpoints import GgufCheckpoint, gguf_cache
from ostinato.frontend.checkpoints.rotary import Rotary
from ostinato.frontend.models import FAMILIES
from ostinato.ir.errors import WeightsError
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.make_tokenizers import gguf_metadata, train


def make(path: Path, seed: int, metadata: dict[str, Any] | None = None, **changes: Any) -> None:
    config = small_config(**changes)
    write_gguf(path, config, random_model(config, seed), metadata=metadata)


def opened(path: Path) -> GgufCheckpoint:
    """Opens with a cache of its own beside the file."""
    return GgufCheckpoint(path, FAMILIES, path.parent / "cache")


def test_second_open_is_served_from_the_cache(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = train()
    make(tmp_path / "m.gguf", seed, metadata=gguf_metadata(backend, "smollm"))
    first = opened(tmp_path / "m.gguf")
    assert first.header_state == "parsed"

    def no_parsing(path: Path) -> None:
        raise AssertionError(f"{path} was parsed again")

    monkeypatch.setattr(gguf_cache, "parse_gguf", no_parsing)
    second = opened(tmp_path / "m.gguf")
    assert second.header_state == "cached"
    assert second.config == first.config
    assert second.metadata == first.metadata
    assert [vars_of(source) for source in second.tensors.values()] == [
        vars_of(source) for source in first.tensors.values()
    ]
    assert second.tokenizer().encode("The capital of France") == backend.encode("The capital of France").ids
    assert "tokenizer.ggml.tokens" not in second.metadata


def vars_of(source: Any) -> tuple[Any, ...]:
    order = None if source.row_order is None else source.row_order.tolist()
    return (
        source.name,
        source.source_name,
        source.shape,
        source.dtype,
        source.file,
        source.offset,
        source.nbytes,
        order,
    )


def test_a_changed_file_is_parsed_again(tmp_path: Path, seed: int) -> None:
    make(tmp_path / "m.gguf", seed)
    opened(tmp_path / "m.gguf")
    status = (tmp_path / "m.gguf").stat()
    make(tmp_path / "m.gguf", seed, rope_theta=777.0)
    os.utime(tmp_path / "m.gguf", ns=(status.st_atime_ns, status.st_mtime_ns))
    again = opened(tmp_path / "m.gguf")
    assert (again.header_state, again.config.rotary) == ("parsed", Rotary(theta=777.0, width=16))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_cache_entries_are_rebuilt(tmp_path: Path, position: float, value: int, cut: bool) -> None:
    file = tmp_path / "m.gguf"
    if not file.exists():
        make(file, 0, metadata=gguf_metadata(train(), "smollm"))
    reference = opened(file)
    (entry,) = (tmp_path / "cache").glob("*.header")
    content = bytearray(entry.read_bytes())
    index = int(position * len(content))
    content[index] = value
    entry.write_bytes(bytes(content[: index + 1]) if cut else bytes(content))
    again = opened(file)
    assert again.config == reference.config
    assert again.header_state in ("cached", "parsed")
    assert again.tokenizer().encode("Paris 12") == reference.tokenizer().encode("Paris 12")
    entry.unlink(missing_ok=True)


def test_a_cache_that_cannot_be_written_is_reported_and_not_an_error(tmp_path: Path, seed: int) -> None:
    make(tmp_path / "m.gguf", seed, metadata=gguf_metadata(train(), "smollm"))
    (tmp_path / "blocked").write_text("a file where the directory should be")
    checkpoint = GgufCheckpoint(tmp_path / "m.gguf", FAMILIES, tmp_path / "blocked")
    assert checkpoint.header_state.startswith("parsed, not cached: ")
    assert checkpoint.tokenizer().vocab_size == 420


def test_only_the_newest_cache_entries_are_kept(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_cache, "_KEPT_ENTRIES", 3)
    for index in range(5):
        make(tmp_path / f"m{index}.gguf", seed, num_hidden_layers=1)
        opened(tmp_path / f"m{index}.gguf")
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_cached_header_is_checked_against_the_size_of_the_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "m.gguf", seed)
    opened(tmp_path / "m.gguf")
    key = gguf_cache._key(tmp_path / "m.gguf")
    monkeypatch.setattr(gguf_cache, "_key", lambda path: key)
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[:-4096])
    with pytest.raises(WeightsError, match="is cut short: tensor"):
        opened(tmp_path / "m.gguf")
