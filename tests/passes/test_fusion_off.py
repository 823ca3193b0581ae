"""Fusions are neutral: every family of models, with each of them off in turn and with all of them off, gives what the reference gives, with the same bits in
every mode.

Prompts go through in chunks and token by token, so that rows for few and for many tokens see them. The whole table takes minutes and is marked so; what runs
always is all families with everything on and everything off, and two families with each fusion off.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.passes.pipeline import pipeline
from tests.frontend.small_families import SMALL_DECODERS, SMALL_FAMILIES, small_model

FUSIONS = tuple(item.name for item in pipeline() if item.optional)
ALL_OFF = "+".join(FUSIONS)
VARIANTS = ("", *FUSIONS, ALL_OFF)
"""Which passes are off, with "+" between them."""
MODES = ("planned", "eager", "guarded")
IDS = np.array([[5, 9, 2, 77, 31, 8, 40], [12, 3, 3, 90, 41, 7, 22]], np.int32)
TOLERANCE = {"f32": 2e-4, "bf16": 0.1}
"""Of the spread of what the reference gives."""


def outputs(model: ost.Model, precision: str, disable: Iterable[str], mode: str) -> list[Array]:
    """Logits of two prompts in chunks of many tokens and of two, or embeddings of an encoder."""
    options: dict[str, Any] = {"device": "cpu", "threads": 2, "precision": precision, "disable": disable, "mode": mode}
    if model.family.encoder is not None:
        encoder = ost.compile_encoder(model, buckets={"B": [2], "T": [8]}, **options)
        return [encoder.clone(other).embed(list(IDS)) for other in _modes(mode)]
    found = []
    for length in (4, 1):
        executable = ost.compile(model, buckets={"B": [2], "T": [length]}, context=16, **options)
        found += [executable.clone(other)(IDS)["logits"] for other in _modes(mode)]
    return found


def _modes(mode: str) -> tuple[str, ...]:
    return (mode,) if mode == "reference" else MODES


def check(family: str, precision: str, variants: Iterable[str], folder: Path, seed: int) -> None:
    model = small_model(family, folder, seed)
    reference = outputs(model, precision, FUSIONS, "reference")
    limit = TOLERANCE[precision] * float(reference[0].std())
    assert limit > 0
    for off in variants:
        found = outputs(model, precision, [name for name in off.split("+") if name], "planned")
        for start, expected in zip(range(0, len(found), len(MODES)), reference, strict=True):
            same = found[start : start + len(MODES)]
            assert len({logits.tobytes() for logits in same}) == 1, f"{family} {precision} without {off}: modes differ"
            np.testing.assert_allclose(same[0], expected, rtol=0, atol=limit, err_msg=f"{family} without {off}")


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_all_on_and_all_off(family: str, precision: str, tmp_path: Path, seed: int) -> None:
    check(family, precision, ("", ALL_OFF), tmp_path, seed)


@pytest.mark.parametrize(("family", "precision"), [("qwen2", "bf16"), ("gemma2", "f32")])
def test_each_fusion_off(family: str, precision: str, tmp_path: Path, seed: int) -> None:
    check(family, precision, FUSIONS, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_each_fusion_off_in_every_family(family: str, precision: str, tmp_path: Path, seed: int) -> None:
    check(family, precision, VARIANTS, tmp_path, seed)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("family", ["qwen2", *(name for name in SMALL_DECODERS if name != "qwen2")][:3])
def test_whole_sequences(family: str, precision: str, tmp_path: Path, seed: int) -> None:
    """The dense graph, where heads change their order before attention."""
    traced = ost.trace(small_model(family, tmp_path, seed), "forward", precision=precision)
    values = {
        "input_ids": IDS,
        "position": np.tile(np.arange(IDS.shape[1], dtype=np.int32), (len(IDS), 1)),
        "last": np.arange(1, len(IDS) + 1, dtype=np.int32) * IDS.shape[1] - 1,
    }
    found = []
    for mode, off in (("reference", FUSIONS), ("planned", ()), ("eager", ()), ("planned", FUSIONS)):
        lowered = traced.lower(dims={"B": len(IDS), "T": IDS.shape[1]}, disable=off)
        found.append(lowered.plan().load("cpu", mode).run(lowered.name, values)["logits"])
    reference, planned, eager, unfused = found
    assert planned.tobytes() == eager.tobytes()
    for logits in (planned, unfused):
        np.testing.assert_allclose(logits, reference, rtol=0, atol=TOLERANCE[precision] * float(reference.std()))
