"""`ostinato plan problem.csv`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.ir.errors import ConfigError
from ostinato.planner.problem import problem_from_csv
from ostinato.tools.placement import place_file

FIVE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "problem.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_problem_is_solved_and_written_back(tmp_path: Path) -> None:
    solved = tmp_path / "solved.csv"
    report = place_file(write(tmp_path, FIVE), capacity=12, solver="best_fit", write_to=solved)
    assert (report.height, report.lower_bound, report.gap, report.status, report.buffers) == (12, 12, 0.0, "optimal", 5)
    offsets = [buffer.offset for buffer in problem_from_csv(solved.read_text(encoding="utf-8")).buffers]
    assert None not in offsets


def test_a_capacity_below_the_bound_is_infeasible(tmp_path: Path) -> None:
    report = place_file(write(tmp_path, FIVE), capacity=11, solver="best_fit", write_to=None)
    assert report.status == "infeasible"
    assert report.capacity == 11


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("id,lower,upper\nb1,0,3\n", "missing"),
        ("id,lower,upper,size\nb1,0,x,4\n", "line 2, column 3"),
        ("id,lower,upper,size\nb1,3,3,4\n", "lifetime"),
        ("id,lower,upper,size\nb1,0,3,4\nb1,0,3,4\n", "already"),
    ],
)
def test_damaged_files_say_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        place_file(write(tmp_path, text), capacity=None, solver="best_fit", write_to=None)
    assert caught.value.node == str(tmp_path / "problem.csv")


def test_files_and_solvers_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        place_file(tmp_path / "none.csv", capacity=None, solver="best_fit", write_to=None)
    with pytest.raises(ConfigError, match="unknown"):
        place_file(write(tmp_path, FIVE), capacity=None, solver="oracle", write_to=None)
    with pytest.raises(ConfigError, match="cannot be written"):
        place_file(
            write(tmp_path, FIVE), capacity=None, solver="best_fit", write_to=tmp_path / "problem.csv" / "place.csv"
        )
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="UTF-8"):
        place_file(binary, capacity=None, solver="best_fit", write_to=None)
