"""Programs that use operators, rows and families of the user's own: the file says which it needs, and is refused where they are missing or are others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import ostinato as ost
from ostinato.extending import Arrays, Site, Tolerance, cost_per_element, define, normal, valid
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.models.llama import LLAMA, llama
from ostinato.frontend.trace import Tensor
from ostinato.ir.graph import Graph
from ostinato.ir.opdef import OpDef, OperandSpec, Sample
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType, TensorType
from tests.artifact.files import IDS, changed, compiled, manifest_of

BOUND = Tolerance(1e-6, 1e-5, "one rounding")


def operator(factor: float) -> OpDef:
    """x * factor."""

    def infer(site: Site) -> tuple[TensorType, ...]:
        return (site.operand(0).with_layout(None),)

    def reference(call: Arrays) -> tuple[Array, ...]:
        return ((call.wide(0) * factor).astype(np.float32),)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        del rng
        yield valid(normal((5, 7)))

    operands, cost = (OperandSpec("x", frozenset({DType.F32})),), cost_per_element(1)
    return define("stretch", "factor x.", operands, ("y",), infer, reference, samples, BOUND, cost=cost)


def stretched(inputs: ModelInputs) -> Tensor:
    """A Llama that stretches what its head reads."""
    head = inputs.head
    return llama(replace(inputs, head=lambda x, logits: head(stretch(x), logits)))


def stretch(x: Tensor) -> Tensor:
    return x.builder.apply("stretch", (x,), {}, "stretched")


@dataclass(frozen=True)
class Nothing:
    """Leaves the graph as it is."""

    name: ClassVar[str] = "nothing"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = True

    def apply(self, graph: Graph, target: Target) -> Graph:
        del target
        return graph


@pytest.fixture
def mine(model: ost.Model) -> ost.Model:
    return ost.load(model.checkpoint.path, families=(replace(LLAMA, function=stretched),))


def test_a_program_with_an_operator_of_the_users(mine: ost.Model, model: ost.Model, tmp_path: Path) -> None:
    with ost.extend(operators=[operator(2.0)]):
        made = compiled(mine)
        path = made.save(tmp_path / "saved.ost")
        expected = made(IDS[:1])["logits"]
        loaded = ost.load_executable(path)
        assert isinstance(loaded, ost.TextExecutable)
        assert loaded(IDS[:1])["logits"].tobytes() == expected.tobytes()
    np.testing.assert_array_equal(expected, 2 * compiled(model)(IDS[:1])["logits"])
    assert set(manifest_of(path)["extensions"]["operators"]) == {"stretch"}
    assert set(ost.read_artifact(path).graphs) == set(made.entries)  # to be read it needs none of it
    with pytest.raises(ost.StaleArtifact) as missing:
        ost.load_executable(path)
    assert missing.value.differences == ("your operator stretch: the program needs it, and it is not here",)
    assert "ostinato.extend" in (missing.value.hint or "")
    with ost.extend(operators=[operator(3.0)]), pytest.raises(ost.StaleArtifact, match="it is not what it was"):
        ost.load_executable(path)


def test_a_family_and_passes_of_the_users_are_not_guessed_again(
    mine: ost.Model, model: ost.Model, tmp_path: Path
) -> None:
    with ost.extend(operators=[operator(2.0)]):
        path = compiled(mine).save(tmp_path / "saved.ost")
        old = changed(path, tmp_path / "old.ost", package_version="0.0.9")
        with pytest.raises(ost.ConfigError, match="a family of your own: llama"):
            ost.load_executable(old, recompile=True)
    path = compiled(model, passes=[("input", Nothing())]).save(tmp_path / "passes.ost")
    assert ost.load_executable(path).entries
    old = changed(path, tmp_path / "old.ost", package_version="0.0.9")
    with pytest.raises(ost.ConfigError, match="a pass of your own behind input: nothing"):
        ost.load_executable(old, recompile=True)


def test_extensions_that_the_program_does_not_use_are_none_of_its_own(
    saved: Path, model: ost.Model, tmp_path: Path
) -> None:
    with ost.extend(operators=[operator(2.0)]):
        assert ost.load_executable(saved).entries
        path = compiled(model).save(tmp_path / "saved.ost")
    assert not ost.read_artifact(path).manifest.extensions.any
    assert ost.load_executable(path).entries
