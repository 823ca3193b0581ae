"""A function of the caller's own as a side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.functions import answers_of, named_function
from ostinato.tools.compare.workload import Case
from tests.frontend.small_families import small_model


@pytest.fixture(scope="module")
def executable(tiny: Path) -> ost.TextExecutable:
    return ost.compile(str(tiny), buckets={"B": [2], "T": [8]}, context=16, threads=1)


@pytest.fixture(scope="module")
def positions(tiny: Path) -> Callable[[Array], Array]:
    """Logits of every position, by another executable."""
    oracle = ost.compile(str(tiny), buckets={"B": [1], "T": [16]}, context=16, logits="all", policy="strict")

    def every_position(ids: Array) -> Array:
        found: Array = oracle([ids.tolist()])["logits"][0]
        return found

    return every_position


def test_logits_of_every_position_or_of_the_last_are_compared(
    executable: ost.TextExecutable, positions: Callable[[Array], Array]
) -> None:
    def last(ids: Array) -> Array:
        found: Array = positions(ids)[-1]
        return found

    report = compare(executable, ["planned", positions, last], replays=2)
    assert report.ok, str(report)
    verdicts = {(pair.left, pair.right): pair for pair in report.pairs}
    assert verdicts["planned", "every_position"].verdict == "within contract"
    assert {pair.compared for pair in report.pairs} == {report.pairs[0].compared}
    assert [side.mode for side in report.sides] == ["planned", "function", "function"]


def test_a_function_that_differs_is_told_where(
    executable: ost.TextExecutable, positions: Callable[[Array], Array]
) -> None:
    def wrong(ids: Array) -> Array:
        found = positions(ids).copy()
        found[0, 7] += 3
        return found

    report = compare(executable, ["planned", wrong], replays=1, operators=False)
    (pair,) = report.pairs
    assert pair.verdict == "mismatch"
    assert pair.worst is not None
    assert (pair.worst.position, pair.worst.index[-1]) == (0, 7)
    assert "a function has no nodes" in str(report)


def test_a_torch_model_is_a_function(executable: ost.TextExecutable, positions: Callable[[Array], Array]) -> None:
    torch = pytest.importorskip("torch")

    def model(ids: Array) -> Any:
        return torch.tensor(positions(ids), dtype=torch.float32, requires_grad=True)

    assert compare(executable, ["planned", model], replays=1, operators=False).ok


def test_a_torch_tensor_of_another_dtype_is_widened_or_refused() -> None:
    torch = pytest.importorskip("torch")
    case = Case("random", (np.arange(3, dtype=np.int32),), (3,))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        found = answers_of(lambda ids, dtype=dtype: torch.full((3, 4), 1.5, dtype=dtype), case, [(0, 2)], 4, "mine")
        assert found.dtype == np.float32
        assert found.tolist() == [[1.5] * 4]
    with pytest.raises(ost.ConfigError, match="expected floats"):
        answers_of(lambda ids: torch.zeros(3, 4, dtype=torch.int64), case, [(0, 2)], 4, "mine")


def test_an_encoder_gives_one_embedding_a_text(tmp_path: Path) -> None:
    model = small_model("bert", tmp_path, 3)
    other = ost.compile_encoder(model, buckets={"B": [1], "T": [16]})

    def embed(ids: Array) -> Array:
        found: Array = other([ids.tolist()], normalize=True)["embedding"][0]
        return found

    report = compare(model, ["planned", "eager", embed], replays=1, tokens=12)
    assert report.ok, str(report)


class Untold(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError

    @staticmethod
    def raised(ids: Array) -> Array:
        raise Untold


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda ids: np.zeros((len(ids), 3), np.float32), "expected floats"),
        (lambda ids: np.zeros((len(ids), 4), np.int32), "expected floats"),
        (lambda ids: np.zeros((len(ids), 4), "V4"), "expected floats"),
        (lambda ids: np.zeros((len(ids), 4), np.complex64), "expected floats"),
        (lambda ids: "logits", "gave str"),
        (lambda ids: 1 // 0, "raised ZeroDivisionError"),
        (lambda ids: sys.exit(0), "raised SystemExit"),
        (Untold.raised, "raised Untold"),
    ],
)
def test_what_breaks_the_contract_is_refused(function: Callable[[Array], Any], said: str) -> None:
    case = Case("random", (np.arange(3, dtype=np.int32),), (3,))
    with pytest.raises(ost.ConfigError, match=said) as caught:
        answers_of(function, case, [(0, 2)], 4, "mine")
    assert caught.value.node == "mine"
    assert caught.value.hint is not None


def test_a_function_is_named_in_a_file_or_a_module(tmp_path: Path) -> None:
    file = tmp_path / "mine_of_compare.py"
    file.write_text("def forward(ids):\n    return ids\n", encoding="utf-8")
    assert named_function(f"{file}:forward")(3) == 3
    assert named_function("json:dumps")(3) == "3"
    ends = tmp_path / "ends_the_process.py"
    ends.write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    for text in (
        "json",
        "json:nothing",
        f"{file}:nothing",
        "no_such_module_here:f",
        str(tmp_path / "absent.py:f"),
        f"{ends}:forward",
        ":f",
    ):
        with pytest.raises(ost.ConfigError):
            named_function(text)


def test_a_function_is_compared_with_a_program(positions: Callable[[Array], Array], tiny: Path) -> None:
    with pytest.raises(ost.ConfigError, match="no side runs a program"):
        compare(str(tiny), [positions])
