"""Sides: what a text stands for, what is refused, and which of them share a program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.tools.compare.sides import DEFAULT_SIDE, Side, Sides, parse_side


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eager", {"mode": "eager"}),
        ("no-reuse", {"mode": "no-reuse"}),
        ("policy=strict", {"policy": "strict"}),
        ("levels.linear=reference", {"levels": (("linear", "reference"),)}),
        ("levels.layers.0.attn.q=host,levels.add=host", {"levels": (("layers.0.attn.q", "host"), ("add", "host"))}),
        ("disable=fuse_qkv, disable=cse", {"disable": ("fuse_qkv", "cse")}),
        ("device=hip:0,mode=captured", {"device": "hip:0", "mode": "captured"}),
        ("capture=layers.0", {"capture": ("layers.0",), "mode": "captured"}),
        ("dtype=bf16,threads=2,isa=avx2", {"precision": "bf16", "threads": 2, "isa": "avx2"}),
        ("saved/model.ost", {"artifact": "saved/model.ost"}),
        ("python=mine.py:forward", {"function": "mine.py:forward"}),
        ("memory_limit=64M", {"memory_limit": "64M"}),
    ],
)
def test_a_text_stands_for_a_side(text: str, expected: dict[str, Any]) -> None:
    assert parse_side(text) == replace(DEFAULT_SIDE, name=text, **expected)


def test_what_a_text_does_not_say_is_that_of_the_comparison() -> None:
    base = Side(policy="fast", disable=("cse",), threads=2)
    assert parse_side("disable=fuse_qkv", base) == replace(base, name="disable=fuse_qkv", disable=("cse", "fuse_qkv"))
    assert parse_side("model.ost", base).policy == "balanced", "an artifact brings its program along"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eagr", "did you mean eager"),
        ("polcy=strict", "did you mean policy"),
        ("policy=", "write policy=VALUE"),
        ("threads=two", "give a number"),
        ("mode=fast", "use auto or one of"),
        ("policy=fast,policy=strict", "give it once"),
        ("model.ost,policy=strict", "leave them out"),
        ("model.ost,python=a:b", "give one"),
        ("", "write like"),
    ],
)
def test_texts_that_are_no_side_are_refused_with_a_hint(text: str, said: str) -> None:
    with pytest.raises(ost.ConfigError) as caught:
        parse_side(text)
    assert said in (caught.value.hint or "")


def test_sides_of_one_program_share_its_weights(tiny: Path) -> None:
    sides = Sides(str(tiny), buckets={"B": [1], "T": [4]}, context=8)
    ids = [[1, 2, 3]]
    opened = {text: sides.open(parse_side(text)) for text in ("planned", "eager", "no-reuse", "disable=*")}
    shared = {text: executable.regions.shared for text, executable in opened.items()}
    assert shared["planned"] is shared["eager"] is shared["no-reuse"]
    assert shared["planned"] is not shared["disable=*"]
    assert opened["eager"].device is opened["disable=*"].device, "a device is opened once"
    fused, plain = (
        {node.op for node in opened[t].program.graphs["prefill[N=4,R=1]"].nodes} for t in ("planned", "disable=*")
    )
    assert "linear_swiglu" in fused
    assert "linear_swiglu" not in plain, "every optional pass is left out"
    results = [
        np.asarray(executable(ids)["logits"])
        for executable in opened.values()
        if isinstance(executable, ost.TextExecutable)
    ]
    assert len(results) == 4
    np.testing.assert_allclose(results, [results[0]] * 4, rtol=0, atol=1e-4)


def test_a_side_shows_the_values_of_its_nodes(tiny: Path) -> None:
    seen: list[str] = []
    sides = Sides(str(tiny), buckets={"B": [1], "T": [4]}, context=8)
    executable = sides.open(parse_side("eager"), lambda name, _: seen.append(name))
    assert executable.mode == "eager"
    assert isinstance(executable, ost.TextExecutable)
    executable([[1, 2]])
    assert "logits" in seen


def test_an_open_executable_has_its_settings(tiny: Path) -> None:
    sides = Sides(ost.compile(str(tiny), buckets={"B": [1], "T": [4]}, context=8))
    assert sides.open(parse_side("eager")).mode == "eager"
    with pytest.raises(ost.ConfigError, match="wants others") as caught:
        sides.open(parse_side("policy=strict"))
    assert "give the model" in (caught.value.hint or "")
    with pytest.raises(ost.ConfigError, match="no executable"):
        sides.open(Side("mine", function=len))
