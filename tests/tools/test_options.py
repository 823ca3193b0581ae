"""The small grammars of the command line, and how it writes numbers."""

from __future__ import annotations

import pytest
import typer

from ostinato.ir.errors import ConfigError
from ostinato.tools.console import count, milliseconds, size
from ostinato.tools.options import chosen_model, parse_dims, parse_shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B=1,T=128,512", {"B": [1], "T": [128, 512]}),
        ("T=1", {"T": [1]}),
        (" B = 1 , 2 , T = 3 ", {"B": [1, 2], "T": [3]}),
    ],
)
def test_shapes(text: str, expected: dict[str, list[int]]) -> None:
    assert parse_shapes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "128", "B=", "B=x", "B=0", "B=-1", "B=1.5", "=3", "1B=3", "B=1,B=2", "B=1,,T=2", "B=٣"]
)
def test_bad_shapes_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_shapes(text)
    assert caught.value.hint is not None


def test_dims_have_one_size_each() -> None:
    assert parse_dims("N=128,R=1") == {"N": 128, "R": 1}
    with pytest.raises(ConfigError, match="several sizes"):
        parse_dims("N=128,256")


def test_exactly_one_model_is_chosen() -> None:
    assert chosen_model("a", None) == chosen_model(None, "a") == chosen_model("a", "a") == "a"
    for pair in ((None, None), ("a", "b"), ("", None)):
        with pytest.raises(typer.BadParameter):
            chosen_model(*pair)


def test_numbers_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536 << 20, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
        "3072.0 TiB",
    ]
    assert count(1048576) == "1 048 576"
    assert [milliseconds(t) for t in (0.0123, 0.00000456, 0.9994, 0.9996, 2.5)] == [
        "12.3 ms",
        "0.00456 ms",
        "999 ms",
        "1.00 s",
        "2.50 s",
    ]
