"""`ost.view` as a clumsy user calls it: options of other types, names that no file can have, and graphs that `dot` does not come to an end with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph
from ostinato.ir.types import DType, TensorType
from ostinato.tools.stages import file_stem
from ostinato.tools.view import dot
from ostinato.tools.view.arena import Paper
from tests.tools.test_view import needs_dot

TYPE = TensorType((4,), DType.F32)


def one_node(name: str = "one") -> Graph:
    builder = GraphBuilder(name)
    x = builder.input("x", TYPE)
    return builder.finish((builder.apply("silu", (x,), {}, "y"),))


def far_reads(count: int) -> Graph:
    """Every node reads the one before and any earlier one."""
    builder, chance = GraphBuilder("far"), random.Random(5)
    values = [builder.input("x", TYPE)]
    for _ in range(count):
        values.append(builder.apply("add", (values[-1], values[chance.randrange(len(values))]), {}, None))
    return builder.finish((values[-1],))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("title", 5),
        ("title", b"title"),
        ("profile", 5),
        ("profile", "fast"),
        ("profile", {"one": 5}),
        ("ceilings", {"one": 5}),
        ("before", 5),
        ("before", ""),
        ("paper", "160x90"),
    ],
)
def test_options_of_another_type_are_refused(option: str, value: Any, tmp_path: Path) -> None:
    for place in (tmp_path / "report.html", tmp_path / "pictures"):
        settings: Any = {option: value}
        with pytest.raises(ost.ConfigError) as refused:
            ost.view(one_node(), place, **settings)
        assert refused.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [("160", 90), (None, None), (160, [90])])
def test_a_size_that_is_no_number_is_refused(size: Any) -> None:
    with pytest.raises(ost.ConfigError, match="the size of a picture is"):
        Paper(*size)


@pytest.mark.parametrize("place", [None, 5, b"report.html", ""])
def test_a_path_that_is_none_is_refused(place: Any) -> None:
    with pytest.raises(ost.ConfigError, match="the path is"):
        ost.view(one_node(), place)


@pytest.mark.parametrize("name", ["n" * 10_240, "\U00020000" * 500, "\t", "../..", "\ud800"])
def test_pictures_have_names_that_files_can_have(name: str, tmp_path: Path) -> None:
    (picture,) = ost.view(one_node(name), tmp_path / "pictures")
    assert picture.files
    for file in picture.files:
        path = Path(file)
        assert path.is_file()
        assert path.parent == tmp_path / "pictures"
        assert path.name.startswith(f"{file_stem(name)}.")
    assert 0 < len(file_stem(name).encode()) <= 120


@needs_dot
def test_dot_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot, "PATIENCE", 0.2)
    graph = far_reads(400)  # takes it more than minutes
    with pytest.raises(ost.BackendError, match=r"no svg within 0\.2 seconds") as refused:
        ost.view(graph, tmp_path)
    assert ".html" in (refused.value.hint or "")
    assert [file.name for file in tmp_path.iterdir()] == ["far.graph.dot"]
    (drawn,) = ost.view(graph, tmp_path / "report.html")
    assert drawn.nodes == 400
