"""Rules of norms, elements, reductions and losses: every one against central differences in float64, and what they must do with halves and absent gradients."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.ir.derivative import NotDifferentiable
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph
from ostinato.ir.interp import interpret
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP, OPS
from ostinato.ir.ops.accumulate import ACCUMULATE_OPS
from ostinato.ir.ops.activation import ACTIVATION_OPS
from ostinato.ir.ops.dropout import DROPOUT_OPS
from ostinato.ir.ops.elementwise import ELEMENTWISE_OPS
from ostinato.ir.ops.loss import LOSS_OPS
from ostinato.ir.ops.norm import NORM_OPS
from ostinato.ir.ops.reduce import REDUCE_OPS
from ostinato.ir.ops.softmax import SOFTMAX_OPS
from ostinato.ir.ops.token_loss import TOKEN_LOSS_OPS
from ostinato.ir.types import Array, Dim, DType, TensorType
from ostinato.ir.verify import verify
from ostinato.passes.differentiate import differentiate
from tests.ir.derivative_calls import check_differences, gradients, weights
from tests.ir.derivative_cases import CASES, Case, normal
from tests.passes.graphs import Builder

FAMILY = (
    *NORM_OPS,
    *ACTIVATION_OPS,
    *SOFTMAX_OPS,
    *ELEMENTWISE_OPS,
    *REDUCE_OPS,
    *ACCUMULATE_OPS,
    *DROPOUT_OPS,
    *LOSS_OPS,
    *TOKEN_LOSS_OPS,
    OP["broadcast_scalar"],
)


def call(name: str, *arrays: Array | None, **attrs: float | str) -> tuple[Array, ...]:
    types = [None if array is None else TensorType(array.shape, DType.of(array.dtype)) for array in arrays]
    return OP[name].reference(arrays, attrs, OP[name].infer(types, attrs))


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_every_operator_has_a_derivative_or_says_why_not(op: OpDef) -> None:
    floats = any(dtype.is_float for spec in op.operands for dtype in spec.dtypes)
    if isinstance(op.derivative, NotDifferentiable):
        assert op.derivative.reason
    assert op.derivative is not None or not floats


def test_every_rule_of_the_family_has_a_case() -> None:
    ruled = {op.name for op in FAMILY if op.derivative is not None and not isinstance(op.derivative, NotDifferentiable)}
    assert ruled == {case.op for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.op}-{place}" for place, case in enumerate(CASES)])
def test_gradients_are_slopes(case: Case, rng: np.random.Generator) -> None:
    for shape in case.shapes:
        operands = case.operands(rng, shape)
        upstream = weights(case.op, operands, case.attrs, rng)
        if case.op == "token_cross_entropy":
            del upstream[1]
        check_differences(case.op, operands, case.attrs, rng, upstream)


@pytest.mark.parametrize("name", ["add_rms_norm"])
def test_a_result_that_nobody_reads_has_no_gradient(name: str, rng: np.random.Generator) -> None:
    operands = normal(rng, (3, 33)), normal(rng, (3, 33)), normal(rng, (33,))
    for result in (0, 1):
        check_differences(name, operands, {"eps": 1e-5}, rng, {result: normal(rng, (3, 33))})


def test_gradients_of_one_operand_alone(rng: np.random.Generator) -> None:
    """The same as those of all."""
    x, gain, bias = normal(rng, (3, 33)), normal(rng, (33,)), normal(rng, (33,))
    for name, operands in (("layer_norm", (x, gain, bias)), ("rms_norm", (x, gain)), ("mul", (x, x[::-1].copy()))):
        attrs = {} if name == "mul" else {"eps": 1e-5}
        upstream = weights(name, operands, attrs, rng)
        together = gradients(name, operands, attrs, upstream)
        for index, gradient in together.items():
            (alone,) = gradients(name, operands, attrs, upstream, [index]).values()
            np.testing.assert_array_equal(alone, gradient)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_gradients_of_halves_are_float32(dtype: DType, rng: np.random.Generator) -> None:
    """Those of the same numbers in float32, up to what the forward result loses."""
    for case in CASES:
        operands = case.operands(rng, case.shapes[0])
        takes = [dtype in spec.dtypes for spec in OP[case.op].operands]
        narrow = [
            array.astype(dtype.numpy) if array is not None and array.dtype == np.float32 and takes[index] else array
            for index, array in enumerate(operands)
        ]
        if not any(takes) or case.op == "cast":
            continue
        wide = [
            array.astype(np.float32) if array is not None and array.dtype.kind in "fV" else array for array in narrow
        ]
        upstream = weights(case.op, wide, case.attrs, rng)
        found, expected = (gradients(case.op, given, case.attrs, upstream) for given in (narrow, wide))
        for index, gradient in found.items():
            assert gradient.dtype == np.float32
            np.testing.assert_allclose(gradient, expected[index], rtol=3e-2, atol=3e-2)


def test_casts_pass_gradients_on(rng: np.random.Generator) -> None:
    x, upstream = normal(rng, (3, 5)), {0: normal(rng, (3, 5))}
    (found,) = gradients("cast", (x,), {"dtype": "bf16"}, upstream).values()
    np.testing.assert_array_equal(found, upstream[0])


def test_the_sum_kept_of_a_token_has_no_derivative(rng: np.random.Generator) -> None:
    operands = normal(rng, (3, 5)), np.array([0, 4, -100], np.int32)
    with pytest.raises(ConfigError, match="log_sum has no derivative"):
        gradients("token_cross_entropy", operands, {}, weights("token_cross_entropy", operands, {}, rng))


def test_ignored_tokens_have_exact_zeros(rng: np.random.Generator) -> None:
    logits, target = normal(rng, (4, 9)), np.array([3, -100, 0, -100], np.int32)
    logits[1] = np.nan
    for name in ("cross_entropy", "token_cross_entropy"):
        upstream = {0: weights(name, (logits, target), {}, rng)[0]}
        (found,) = gradients(name, (logits, target), {}, upstream).values()
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found[[1, 3]], 0)
        assert (found[[0, 2]] != 0).all()


def test_a_loss_of_parts_is_the_loss(rng: np.random.Generator) -> None:
    """cross_entropy is target_mean of token_cross_entropy, forwards and backwards."""
    logits, target = normal(rng, (7, 33)) * 3, np.array([3, -100, 0, 32, 5, -100, 7], np.int32)
    y, log_sum = call("token_cross_entropy", logits, target)
    np.testing.assert_allclose(call("target_mean", y, target)[0], call("cross_entropy", logits, target)[0], rtol=1e-6)
    one = np.ones((), np.float32)
    (each,) = call("target_mean_backward", one, target)
    (parts,) = call("token_cross_entropy_backward", each, logits, target, log_sum)
    (whole,) = call("cross_entropy_backward", one, logits, target)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-8)


def test_norms_add_what_reaches_x_on_another_way(rng: np.random.Generator) -> None:
    gradient, x, addend, gain = (normal(rng, (3, 33)) for _ in range(4))
    for name in ("rms_norm_backward", "layer_norm_backward"):
        plain = call(name, gradient, x, gain[0], eps=1e-5)
        added = call(name, gradient, x, gain[0], addend, eps=1e-5)
        np.testing.assert_allclose(added[0], plain[0] + addend, rtol=1e-6, atol=1e-6)
        for one, other in zip(plain[1:], added[1:], strict=True):
            np.testing.assert_array_equal(one, other)


def _block() -> Builder:
    """A residual block with a loss, its rows a dimension of which some are valid, in bf16 in between."""
    rows = Dim("N", 1, 16)
    b = Builder("block")
    x, gain, bias = b.value("x", (rows, 24), "NC"), b.weight("gain", (24,), "C"), b.weight("bias", (24,), "C")
    b.value("target", (rows,), "N", DType.I32)
    b.value("rows", (1,), dtype=DType.I32)
    b.add("add_bias", (x, bias), "biased")
    b.add("gelu", ("biased",), "hidden", dtype="bf16")
    b.add("cast", ("hidden",), "wide", dtype="f32")
    b.add("add_rms_norm", (x, "wide", gain), ("sum", "normed"), eps=1e-5)
    b.add("mul", ("normed", "wide"), "gated")
    b.add("add", ("sum", "gated"), "logits")
    b.add("token_cross_entropy", ("logits", "target"), ("losses", "log_sum"))
    b.add("target_mean", ("losses", "target"), "loss")
    return b


def test_gradients_of_named_and_counted_rows(rng: np.random.Generator) -> None:
    """Axis names follow the gradients, so that rows past the valid ones count in no sum and have no gradient; in-place sums are well formed."""
    b = _block()
    found = differentiate(b.graph(("loss",), (("N", "rows"),)), "loss", ["x", "gain", "bias"])
    names = list(found.gradients.values())
    graph = Graph("whole", found.graph.inputs, found.graph.nodes, tuple(names), found.graph.extents)
    verify(graph)
    assert [str(graph.types[name]) for name in names] == ["f32[N:N,C:24]", "f32[C:24]", "f32[C:24]"]
    values = {name: normal(rng, (24,)) for name in ("gain", "bias")}
    x, target = normal(rng, (8, 24)), np.array([3, -100, 0, 23, 5, 99, 99, 99], np.int32)
    runs = [
        interpret(
            graph.bind({"N": extent}),
            {**values, "x": x[:extent], "target": target[:extent], "rows": np.array([5], np.int32)},
        ).outputs
        for extent in (5, 8)
    ]
    np.testing.assert_array_equal(runs[1][names[0]][:5], runs[0][names[0]])
    np.testing.assert_array_equal(runs[1][names[0]][5:], 0)
    for name in names[1:]:
        np.testing.assert_array_equal(runs[1][name], runs[0][name])
        assert runs[0][name].all()
