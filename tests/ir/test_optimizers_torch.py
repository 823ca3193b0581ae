"""Optimizers and clipping against torch.optim and torch.nn.utils, over several steps of their own state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.ir.ops.optimizer import FACTOR_NAMES
from ostinato.ir.types import Array
from tests.ir.test_optimizers import settings, stored
from tests.ir.torch_calls import torch

pytestmark = pytest.mark.parity
STEPS = 12
SHAPES = ((7, 33), (33,), (1,), (3, 0))


def _squares(gradients: list[Array]) -> Array:
    (total,) = stored("square_sum", gradients[0])
    for gradient in gradients[1:]:
        (total,) = stored("square_sum_add", total, gradient)
    return total


def _gradients(rng: np.random.Generator, step: int) -> list[Array]:
    """Of very different sizes, so that some steps are clipped and some are not."""
    size = 10.0 ** (step % 3 - 2)
    return [(rng.standard_normal(shape) * size).astype(np.float32) for shape in SHAPES]


def _check(
    name: str, states: int, given: Array, optimizer: Any, parameters: list[Any], rng: np.random.Generator, **attrs: bool
) -> None:
    """Runs both, with the clipping that the settings say, and compares parameters after every step."""
    ours = [parameter.detach().numpy().copy() for parameter in parameters]
    held = [[np.zeros_like(parameter) for _ in range(states)] for parameter in ours]
    step, clip = np.zeros(1, np.int32), float(given[5])
    for number in range(STEPS):
        gradients = _gradients(rng, number)
        loss = np.array(1.0, np.float32)
        step, factors = stored("optimizer_factors", step, given, loss, _squares(gradients), schedule="constant")
        for index, gradient in enumerate(gradients):
            ours[index], *held[index] = stored(name, ours[index], gradient, *held[index], factors, **attrs)
            parameters[index].grad = torch.from_numpy(gradient.copy())
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
            assert float(norm) == pytest.approx(float(factors[FACTOR_NAMES.index("norm")]), rel=1e-5)
        optimizer.step()
        for mine, theirs in zip(ours, parameters, strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=2e-6, atol=2e-6, err_msg=f"step {number}")
    assert step[0] == STEPS
    for index, parameter in enumerate(parameters):
        kept = optimizer.state[parameter]
        names = [key for key in ("exp_avg", "exp_avg_sq", "momentum_buffer") if key in kept]
        for mine, key in zip(held[index], names, strict=True):
            np.testing.assert_allclose(mine, kept[key].numpy(), rtol=2e-6, atol=2e-6)


def _parameters(rng: np.random.Generator) -> list[Any]:
    return [torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).requires_grad_() for shape in SHAPES]


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw(clip: float, decay: float, rng: np.random.Generator) -> None:
    given = settings(weight_decay=decay, clip_norm=clip)
    rate, beta1, beta2, eps, decay, *_ = given.tolist()  # as float32 holds them
    parameters = _parameters(rng)
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    _check("adamw", 2, given, optimizer, parameters, rng, decay=True)


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd(clip: float, decay: float, rng: np.random.Generator) -> None:
    given = settings(weight_decay=decay, clip_norm=clip)
    parameters = _parameters(rng)
    optimizer = torch.optim.SGD(parameters, lr=float(given[0]), weight_decay=float(given[4]))
    _check("sgd", 0, given, optimizer, parameters, rng, decay=True)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd_with_momentum(nesterov: bool, decay: float, rng: np.random.Generator) -> None:
    given = settings(weight_decay=decay, clip_norm=0.5)
    rate, momentum, *_ = given.tolist()
    parameters = _parameters(rng)
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=float(given[4]), nesterov=nesterov)
    _check("sgd_momentum", 1, given, optimizer, parameters, rng, decay=True, nesterov=nesterov)
