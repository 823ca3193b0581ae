"""Reports of real plans, and a browser to open them in; every test that opens one ends with the browser having nothing to complain about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.frontend.fresh import new_model
from ostinato.frontend.model import Model
from ostinato.frontend.training import TrainingShape
from ostinato.tools.programs import plan_buckets
from ostinato.training import Recipe, plan_training
from tests.browser.chromium import Watched, missing, open_browser, open_report

Open = Callable[..., Any]


def stacked(folder: Path, layers: int, *, blank: bool = True) -> Model:
    """A Qwen2 of so many layers with the structure of a large one and few numbers, none of them stored where it is `blank`."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": "qwen2", **sizes, "num_hidden_layers": layers, "max_position_embeddings": 128}
    return new_model(folder, {**config, "tie_word_embeddings": True}, blank=blank)


def until(page: Any, condition: str) -> None:
    """Waits for a condition from outside: the page's own policy lets nobody evaluate texts inside."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never: {condition}")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One browser for all tests of this folder; ended with them, since its driver keeps the thread's event loop."""
    if needed := missing():
        pytest.skip(f"needs {needed}")
    with open_browser() as found:
        yield found


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a report: `opened(file, address="", dark=False)`. Afterwards nothing was requested and nothing complained."""
    watched = Watched()
    pages = []

    def show(file: Path, **settings: Any) -> Any:
        pages.append(open_report(browser, file, watched=watched, **settings))
        return pages[-1]

    yield show
    for page in pages:
        page.context.close()
    assert watched.nothing(), watched


@pytest.fixture(scope="package")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return stacked(tmp_path_factory.mktemp("deep") / "model", 24)


@pytest.fixture(scope="package")
def forward_report(deep_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 layers, a token or 16 of them at a time."""
    file = tmp_path_factory.mktemp("reports") / "forward.html"
    ost.view(plan_buckets(deep_model, {"B": [1], "T": [1, 16]}, context=64, precision="auto"), file, title="forward")
    return file


@pytest.fixture(scope="package")
def training_report(deep_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 layers, a whole training step."""
    file = tmp_path_factory.mktemp("reports") / "training.html"
    ost.view(plan_training(deep_model, Recipe(TrainingShape(2, 16))), file, title="training")
    return file
