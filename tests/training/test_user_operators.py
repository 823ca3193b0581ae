"""An operator of the user's own in a model that is trained: by its rule, or refused with the line that asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.extending import (
    Arrays,
    AttrSpec,
    DType,
    Gradients,
    NotDifferentiable,
    OpDef,
    OperandSpec,
    Sample,
    Site,
    TensorType,
    Tolerance,
    cost_per_element,
    define,
    normal,
    valid,
)
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.models.llama import LLAMA, llama
from ostinato.frontend.trace import Tensor
from ostinato.ir.derivative import Derivative
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import Array
from tests.training.tiny import BATCH, LENGTH, batch, checkpoint

KNEE = 0.7
GRADIENT = Tolerance(1e-5, 1e-5, "a few float32 roundings")
F32 = frozenset({DType.F32})
HEAD = "lm_head.weight"


def infer(site: Site) -> tuple[TensorType, ...]:
    return (site.operand(0).with_layout(None),)


def bend(call: Arrays) -> tuple[Array, ...]:
    x = call.wide(0)
    return ((x / (1.0 + np.abs(x) / call.real("knee"))).astype(np.float32),)


def bend_backward(call: Arrays) -> tuple[Array, ...]:
    return ((call.wide(0) / np.square(1.0 + np.abs(call.wide(1)) / call.real("knee"))).astype(np.float32),)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((5, 7)), knee=1.0)


def samples_backward(rng: np.random.Generator) -> Iterator[Sample]:
    del rng
    yield valid(normal((5, 7)), normal((5, 7)), knee=1.0)


def rule(at: Gradients) -> Mapping[int, str]:
    gradient = at.gradient()
    assert gradient is not None
    return {0: at.apply("bend_backward", (gradient, at.operand(0)), {"knee": at.attrs["knee"]})}


def operator(derivative: Derivative | None) -> OpDef:
    return define(
        "bend",
        "x / (1 + |x| / knee)",
        (OperandSpec("x", F32),),
        ("y",),
        infer,
        bend,
        samples,
        GRADIENT,
        attrs=(AttrSpec("knee", float),),
        cost=cost_per_element(4),
        derivative=derivative,
    )


BACKWARD = define(
    "bend_backward",
    "gradient / (1 + |x| / knee)^2",
    (OperandSpec("gradient", F32), OperandSpec("x", F32)),
    ("y",),
    infer,
    bend_backward,
    samples_backward,
    GRADIENT,
    attrs=(AttrSpec("knee", float),),
    cost=cost_per_element(5),
)


def bent(m: ModelInputs) -> Tensor:
    """A Llama whose logits are bent."""
    head = m.head
    return llama(replace(m, head=lambda x, logits: head(x, lambda rows: apply(logits(rows)))))


def apply(logits: Tensor) -> Tensor:
    return logits.builder.apply("bend", (logits,), {"knee": KNEE}, "bent")


def model(folder: Path) -> ost.Model:
    return ost.load(checkpoint("llama", folder, tie_word_embeddings=False), families=(replace(LLAMA, function=bent),))


def test_a_model_is_trained_through_an_operator_of_the_users(tmp_path: Path) -> None:
    with ost.extend(operators=[operator(rule), BACKWARD]):
        step = ost.train_step(
            model(tmp_path), batch=(BATCH, LENGTH), optimizer=None, device="cpu", threads=1, mode="planned"
        )
        assert any(node.op == "bend_backward" for node in step.program.graphs["train"].nodes)
        parameters, start = step.parameters(), step(*batch(0)).loss
        gradient = step.gradient(HEAD).astype(np.float64)
        along = gradient / np.linalg.norm(gradient)
        losses = []
        for sign in (1, -1):
            moved = parameters[HEAD] + sign * 1e-2 * along
            step.load({**parameters, HEAD: moved.astype(np.float32)}, {})
            losses.append(step(*batch(0)).loss)
    assert losses[1] < start < losses[0]
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(float(np.sum(gradient * along)), rel=2e-3)


@pytest.mark.parametrize(
    ("derivative", "told"),
    [
        (None, "bend has no derivative: its entry has no rule"),
        (NotDifferentiable("it is for show"), "bend has no derivative: it is for show"),
    ],
    ids=["none", "said"],
)
def test_without_a_rule_the_line_that_asked_for_it_is_told(
    derivative: Derivative | None, told: str, tmp_path: Path
) -> None:
    with (
        ost.extend(operators=[operator(derivative)]),
        pytest.raises(ConfigError, match=rf"{told} \(\S*test_user_operators\.py:\d+\)"),
    ):
        ost.train_step(model(tmp_path), batch=(BATCH, LENGTH), device="cpu", threads=1)
