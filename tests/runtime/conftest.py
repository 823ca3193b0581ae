"""A tiny compiled model that the runtime tests share."""

from __future__ import annotations

import pytest

import ostinato as ost
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    folder = tmp_path_factory.mktemp("tiny")
    config = small_config("llama")
    write_hf_checkpoint(folder, config, random_model(config, 5))
    return ost.load(str(folder))


@pytest.fixture
def tiny(tiny_model: ost.Model) -> ost.TextExecutable:
    return ost.compile(tiny_model, buckets={"B": [1, 2], "T": [4, 16]}, context=64, threads=1)
