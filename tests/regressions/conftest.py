"""A tiny model on disk and compiled, for tests of what users did to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ostinato as ost
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a checkpoint that the test may damage."""
    config = small_config("llama")
    return write_hf_checkpoint(tmp_path / "model", config, random_model(config, 5))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    config = small_config("llama")
    return ost.load(write_hf_checkpoint(tmp_path_factory.mktemp("model"), config, random_model(config, 5)))


@pytest.fixture(scope="module")
def llm(model: ost.Model) -> ost.LLM:
    return ost.LLM(model, max_num_seqs=2, context=64, threads=1)


@pytest.fixture(scope="module")
def exe(model: ost.Model) -> ost.TextExecutable:
    return ost.compile(model, buckets={"B": [1, 2], "T": [4]}, context=64, threads=1)
