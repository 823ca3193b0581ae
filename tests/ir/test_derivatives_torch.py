"""Rules of norms, elements, reductions and losses against torch's autograd of the same forward operator, in float64, within the contract of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ostinato.ir.ops import OP
from ostinato.ir.types import Array
from tests.ir.derivative_calls import gradients, weights
from tests.ir.derivative_cases import CASES, Case
from tests.ir.torch_calls import call, torch

pytestmark = pytest.mark.parity
functional: Any = torch.nn.functional


def _norm(case: Case, x: Any, gain: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], gain, case.attrs["eps"])


def _masked_mean(x: Any, start: Any, length: Any) -> Any:
    rows = zip(start.tolist(), length.tolist(), strict=True)
    return torch.stack([x[first : first + count].sum(0) / max(count, 1) for first, count in rows])


def _causal(x: Any) -> Any:
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(x.masked_fill(hidden, -torch.inf), -1)


def _cross_entropy(logits: Any, target: Any, reduction: str) -> Any:
    return functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), target.reshape(-1).long(), ignore_index=-100, reduction=reduction
    )


def _token_losses(logits: Any, target: Any) -> Any:
    return _cross_entropy(logits, target, "none").reshape(target.shape)


def _target_mean(x: Any, target: Any) -> Any:
    counts = target != -100
    return torch.where(counts, x, 0.0).sum() / counts.sum()


def _dropout(case: Case, x: Any, seed: Any, step: Any) -> Any:
    """By the mask of the forward operator, seen in ones."""
    ones = np.ones(tuple(x.shape), np.float32)
    return x * torch.from_numpy(call("dropout", ones, seed.numpy(), step.numpy(), **case.attrs)[0]).double()


FORWARD: dict[str, Callable[..., Any]] = {
    "rms_norm": _norm,
    "add_rms_norm": lambda case, a, b, gain: (a + b, _norm(case, a + b, gain)),
    "layer_norm": lambda case, x, gain, bias=None: functional.layer_norm(
        x, x.shape[-1:], gain, bias, case.attrs["eps"]
    ),
    "l2_normalize": lambda case, x: functional.normalize(x, dim=-1, eps=case.attrs.get("eps", 1e-12)),
    "silu": lambda case, x: functional.silu(x),
    "swiglu": lambda case, gate, up: functional.silu(gate) * up,
    "gelu": lambda case, x: functional.gelu(x, approximate=case.attrs.get("approximate", "none")),
    "tanh": lambda case, x: torch.tanh(x),
    "softmax": lambda case, x: torch.softmax(x, -1),
    "causal_softmax": lambda case, x: _causal(x),
    "add": lambda case, a, b: a + b,
    "accumulate": lambda case, a, x: a + x,
    "add_bias": lambda case, x, bias: x + bias,
    "mul": lambda case, a, b: a * b,
    "scale": lambda case, x: x * case.attrs["factor"],
    "fill": lambda case, x: x * 0.0 + case.attrs["value"],
    "cast": lambda case, x: x * 1.0,
    "contiguous": lambda case, x: x.clone(),
    "dropout": _dropout,
    "reduce_sum": lambda case, x: x.sum(),
    "broadcast_scalar": lambda case, x: x.reshape(()).expand(case.attrs["shape"]),
    "masked_mean": lambda case, x, start, length: _masked_mean(x, start, length),
    "cross_entropy": lambda case, logits, target: _cross_entropy(logits, target, "mean"),
    "token_cross_entropy": lambda case, logits, target: _token_losses(logits, target),
    "target_mean": lambda case, x, target: _target_mean(x, target),
}


def _by_torch(case: Case, operands: Sequence[Array | None], upstream: dict[int, Array]) -> dict[int, Array]:
    tensors = [torch.from_numpy(array.copy()) for array in operands if array is not None]
    tensors = [tensor.double().requires_grad_() if tensor.is_floating_point() else tensor for tensor in tensors]
    results = FORWARD[case.op](case, *tensors)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((results[index] * torch.from_numpy(weight)).sum() for index, weight in upstream.items())
    total.backward()
    return {index: tensor.grad.numpy() for index, tensor in enumerate(tensors) if tensor.requires_grad}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.op}-{place}" for place, case in enumerate(CASES)])
def test_gradients_are_those_of_torch(case: Case, rng: np.random.Generator) -> None:
    for shape in case.shapes:
        operands = case.operands(rng, shape)
        upstream = weights(case.op, operands, case.attrs, rng)
        if case.op == "token_cross_entropy":
            del upstream[1]
        expected = _by_torch(case, operands, upstream)
        found = gradients(case.op, operands, case.attrs, upstream)
        assert set(found) == set(expected)
        for index, gradient in found.items():
            np.testing.assert_allclose(
                gradient, expected[index], rtol=case.tolerance, atol=case.tolerance, err_msg=f"{case.op} {shape}"
            )


def test_saturated_activations(rng: np.random.Generator) -> None:
    """Far from zero, where a slope is 0 or 1 and its terms cancel or vanish."""
    x = np.concatenate([np.linspace(-40, 40, 801), [-1e4, 1e4, -300.0, 300.0]]).astype(np.float32)
    for case in CASES:
        if case.op in ("silu", "gelu", "tanh", "swiglu"):
            operands = [x, rng.standard_normal(x.shape).astype(np.float32)][: len(OP[case.op].operands)]
            upstream = weights(case.op, operands, case.attrs, rng)
            expected = _by_torch(case, operands, upstream)
            for index, gradient in gradients(case.op, operands, case.attrs, upstream).items():
                np.testing.assert_allclose(gradient, expected[index], rtol=2e-5, atol=2e-5)


def test_vectors_of_no_length(rng: np.random.Generator) -> None:
    """Rows at and below eps, a row of zeros among them."""
    x = rng.standard_normal((4, 33)).astype(np.float32)
    x[1], x[2] = 0.0, x[2] * 1e-15
    upstream = {0: rng.standard_normal(x.shape).astype(np.float32)}
    case = Case("l2_normalize", lambda rng, shape: (x,), 2e-5)
    expected = _by_torch(case, (x,), upstream)[0]
    np.testing.assert_allclose(gradients("l2_normalize", (x,), {}, upstream)[0], expected, rtol=2e-5, atol=2e-5)


def test_rows_that_see_nothing(rng: np.random.Generator) -> None:
    """A row of -inf has a softmax of zeros and a gradient of zeros; torch has NaN there, and the same elsewhere."""
    x = rng.standard_normal((3, 9)).astype(np.float32)
    x[1], x[2, 3:] = -np.inf, -np.inf
    upstream = {0: rng.standard_normal(x.shape).astype(np.float32)}
    found = gradients("softmax", (x,), {}, upstream)[0]
    case = Case("softmax", lambda rng, shape: (x,), 2e-5)
    np.testing.assert_array_equal(found[1], 0)
    np.testing.assert_allclose(found[[0, 2]], _by_torch(case, (x,), upstream)[0][[0, 2]], rtol=2e-5, atol=2e-5)
