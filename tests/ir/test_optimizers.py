"""Optimizers over several steps: against the formulas written out, schedules and clipping, and steps that are not applied."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ostinato.ir.evaluate import evaluate
from ostinato.ir.graph import Attributes, Node, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.ops.optimizer import FACTOR_NAMES, SETTING_NAMES
from ostinato.ir.rounding import widen
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["factors_of", "settings", "stored"]


def stored(name: str, *operands: Array | None, **attrs: Attr) -> list[Array]:
    """The results as a run stores them, operands being stored values."""
    types = {
        f"x{index}": TensorType(array.shape, DType.of(array.dtype))
        for index, array in enumerate(operands)
        if array is not None
    }
    names = tuple(None if array is None else f"x{index}" for index, array in enumerate(operands))
    full = Attributes(OP[name].attributes(attrs))
    results = OP[name].infer([None if found is None else types[found] for found in names], full)
    node = Node(name, names, tuple(Value(f"y{index}", tensor) for index, tensor in enumerate(results)), full)
    wide = [None if array is None else widen(array, DType.of(array.dtype)) for array in operands]
    return evaluate(node, OP[name], types, wide, None)


def settings(**values: float) -> Array:
    plain = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "final_ratio": 1.0}
    assert set(values) <= set(SETTING_NAMES)
    return np.array([{**plain, **values}.get(name, 0.0) for name in SETTING_NAMES], np.float32)


def factors_of(
    step: int, given: Array, loss: float = 1.0, squares: float | None = None, schedule: str = "constant"
) -> tuple[int, dict[str, float]]:
    """The count of steps after this one, and the factors by name."""
    scalars = [None if value is None else np.array(value, np.float32) for value in (loss, squares)]
    after, factors = stored("optimizer_factors", np.array([step], np.int32), given, *scalars, schedule=schedule)
    return int(after[0]), dict(zip(FACTOR_NAMES, factors.tolist(), strict=True))


def packed(**values: float) -> Array:
    plain = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "first_correction": 10.0}
    plain |= {"second_correction": 100.0, "gradient_scale": 1.0, "apply": 1.0}
    return np.array([{**plain, **values}.get(name, 0.0) for name in FACTOR_NAMES], np.float32)


def test_factors_of_the_first_steps() -> None:
    for step in (0, 1, 9):
        after, factors = factors_of(step, settings(weight_decay=0.25))
        assert after == step + 1
        assert factors["learning_rate"] == pytest.approx(1e-2, rel=1e-6)
        assert factors["first_correction"] == pytest.approx(1 / (1 - 0.9**after), rel=1e-6)
        assert factors["second_correction"] == pytest.approx(1 / (1 - 0.999**after), rel=1e-4)
        assert (factors["gradient_scale"], factors["apply"], factors["norm"]) == (1, 1, 0)
        assert (factors["eps"], factors["weight_decay"]) == (float(np.float32(1e-8)), 0.25)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules(schedule: str) -> None:
    """A warm-up to the full rate, from there to the final one at the last step, and no further."""
    given = settings(learning_rate=1.0, warmup_steps=4, total_steps=20, final_ratio=0.1)
    rates = [factors_of(step, given, schedule=schedule)[1]["learning_rate"] for step in range(40)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    forms: dict[str, Callable[[float], float]] = {
        "constant": lambda part: 1.0,
        "linear": lambda part: 1 - 0.9 * part,
        "cosine": lambda part: 0.1 + 0.45 * (1 + math.cos(math.pi * part)),
    }
    for step in range(4, 40):
        assert rates[step] == pytest.approx(forms[schedule](min((step + 1 - 4) / 16, 1)), rel=1e-6)
    last = rates[19:]
    assert last == [last[0]] * len(last)


def test_schedules_without_steps_between() -> None:
    """A total within the warm-up leaves the final rate behind it."""
    given = settings(learning_rate=1.0, warmup_steps=4, total_steps=2, final_ratio=0.5)
    for schedule in ("linear", "cosine"):
        assert [factors_of(step, given, schedule=schedule)[1]["learning_rate"] for step in (3, 4, 9)] == [1, 0.5, 0.5]
    nothing = settings(learning_rate=1.0)
    assert factors_of(0, nothing)[1]["learning_rate"] == 1


def test_clipping() -> None:
    for squares, scale in ((4.0, 1 / (2 + 1e-6)), (0.25, 1.0), (0.0, 1.0), (1e30, 1e-15)):
        _, factors = factors_of(0, settings(clip_norm=1.0), squares=squares)
        assert factors["gradient_scale"] == pytest.approx(scale, rel=1e-6)
        assert factors["norm"] == pytest.approx(math.sqrt(squares), rel=1e-6)
        _, free = factors_of(0, settings(), squares=squares)
        assert (free["gradient_scale"], free["norm"]) == (1, factors["norm"])


@pytest.mark.parametrize("loss", [1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("squares", [None, 1.0, math.nan, math.inf])
def test_what_is_not_finite_is_not_applied(loss: float, squares: float | None) -> None:
    fine = math.isfinite(loss) and (squares is None or math.isfinite(squares))
    after, factors = factors_of(6, settings(clip_norm=1.0), loss, squares)
    assert after == (7 if fine else 6)
    assert factors["apply"] == (1 if fine else 0)
    assert math.isfinite(factors["gradient_scale"])


KINDS = {"adamw": 2, "sgd": 0, "sgd_momentum": 1}
"""Optimizers, and how many states a parameter has."""


def operands_of(name: str, rng: np.random.Generator, factors: Array, mirror: DType | None) -> list[Array]:
    parameter, gradient, *states = (rng.standard_normal((5, 7)).astype(np.float32) for _ in range(2 + KINDS[name]))
    found = [parameter, gradient, *(np.abs(state) for state in states), factors]
    return found if mirror is None else [*found, parameter.astype(mirror.numpy)]


@pytest.mark.parametrize("mirror", [None, DType.BF16, DType.F16])
@pytest.mark.parametrize("name", KINDS)
def test_nothing_changes_when_nothing_is_applied(name: str, mirror: DType | None, rng: np.random.Generator) -> None:
    """To the bit, whatever the gradient is; a mirror that is not the rounded parameter stays what it is, too."""
    operands = operands_of(name, rng, packed(apply=0.0, gradient_scale=0.0), mirror)
    operands[0][0, :3] = [-0.0, np.inf, 1e-40]
    operands[1][:] = np.nan
    results = stored(name, *operands, decay=True)
    updated = [operands[index] for _, index in OP[name].aliased(operands)]
    assert len(results) == len(updated)
    for after, before in zip(results, updated, strict=True):
        assert after.dtype == before.dtype
        assert after.tobytes() == before.tobytes()


@pytest.mark.parametrize("name", KINDS)
def test_mirrors_are_the_rounded_parameters(name: str, rng: np.random.Generator) -> None:
    for dtype in (DType.BF16, DType.F16):
        with_mirror = stored(name, *operands_of(name, np.random.default_rng(3), packed(), dtype), decay=True)
        without = stored(name, *operands_of(name, np.random.default_rng(3), packed(), None), decay=True)
        for one, other in zip(with_mirror, without, strict=False):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(with_mirror[-1], without[0].astype(dtype.numpy))
    del rng


def test_narrow_moments_are_rounded_once(rng: np.random.Generator) -> None:
    """The update takes them before they are."""
    wide = operands_of("adamw", rng, packed(), None)
    wide[2], wide[3] = (state.astype(DType.BF16.numpy).astype(np.float32) for state in wide[2:4])
    narrow = [state.astype(DType.BF16.numpy) if index in (2, 3) else state for index, state in enumerate(wide)]
    expected, found = (stored("adamw", *operands, decay=True) for operands in (wide, narrow))
    np.testing.assert_array_equal(found[0], expected[0])
    for index in (1, 2):
        np.testing.assert_array_equal(found[index], expected[index].astype(DType.BF16.numpy))


def test_decay_is_a_choice(rng: np.random.Generator) -> None:
    for name in KINDS:
        operands = operands_of(name, rng, packed(weight_decay=0.5), None)
        plain = operands_of(name, rng, packed(), None)[-1]
        without = stored(name, *operands, decay=False)
        for one, other in zip(without, stored(name, *operands[:-1], plain, decay=True), strict=True):
            np.testing.assert_array_equal(one, other)
        assert (stored(name, *operands, decay=True)[0] != without[0]).all()


def test_a_zero_gradient_decays_adamw_alone(rng: np.random.Generator) -> None:
    """Decoupled: the decay is no part of the gradient, so the moments stay zero."""
    parameter = rng.standard_normal(9).astype(np.float32)
    zeros = np.zeros_like(parameter)
    after, first, second = stored(
        "adamw", parameter, zeros, zeros, zeros, packed(weight_decay=0.5, learning_rate=0.1), decay=True
    )
    np.testing.assert_allclose(after, parameter * 0.95, rtol=1e-6)
    assert not first.any()
    assert not second.any()
