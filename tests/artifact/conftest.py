"""A tiny model and an artifact of it that the tests of artifacts share."""

from __future__ import annotations

from pathlib import Path

import pytest

import ostinato as ost
from tests.artifact.files import compiled
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    folder = tmp_path_factory.mktemp("saved") / "model"
    folder.mkdir()
    config = small_config("llama")
    write_hf_checkpoint(folder, config, random_model(config, 5))
    return ost.load(str(folder))


@pytest.fixture(scope="session")
def saved(model: ost.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(model).save(tmp_path_factory.mktemp("artifact") / "model.ost")


@pytest.fixture(scope="session")
def standalone(model: ost.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(model).save(tmp_path_factory.mktemp("artifact") / "whole.ost", weights=True)
