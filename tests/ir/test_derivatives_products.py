"""Rules of products, attention, rotations and movements: against central differences in float64, and what they must do with halves and absent gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.ir.derivative import NotDifferentiable
from ostinato.ir.errors import ConfigError, DTypeError
from ostinato.ir.graph import Graph
from ostinato.ir.interp import interpret
from ostinato.ir.ops import OP
from ostinato.ir.ops.attention import ATTENTION_OPS
from ostinato.ir.ops.attention_backward import ATTENTION_BACKWARD_OPS
from ostinato.ir.ops.attention_parts import ATTENTION_PART_OPS
from ostinato.ir.ops.cache import CACHE_OPS
from ostinato.ir.ops.embed import EMBED_OPS
from ostinato.ir.ops.linear import LINEAR_OPS
from ostinato.ir.ops.linear_group import LINEAR_GROUP_OPS
from ostinato.ir.ops.matmul import MATMUL_OPS
from ostinato.ir.ops.movement import MOVEMENT_OPS
from ostinato.ir.ops.rope import ROPE_OPS
from ostinato.ir.ops.rope_bias import ROPE_BIAS_OPS
from ostinato.ir.ops.rope_store import ROPE_STORE_OPS
from ostinato.ir.ops.view import VIEW_OPS
from ostinato.ir.types import Array, DType
from ostinato.ir.verify import verify
from ostinato.passes.differentiate import differentiate
from tests.ir.derivative_calls import check_differences, gradients, weights
from tests.ir.product_cases import CASES, Case
from tests.passes.graphs import Builder

FAMILY = (
    *(op for ops in (LINEAR_OPS, LINEAR_GROUP_OPS, MATMUL_OPS, EMBED_OPS, MOVEMENT_OPS, VIEW_OPS) for op in ops),
    *(op for ops in (ROPE_OPS, ROPE_BIAS_OPS, ATTENTION_OPS, ATTENTION_BACKWARD_OPS, ATTENTION_PART_OPS) for op in ops),
    OP["gather_rows"],
    OP["contiguous"],
)
by_case = pytest.mark.parametrize("case", CASES, ids=[f"{case.op}-{place}" for place, case in enumerate(CASES)])


def wanted(case: Case, operands: tuple[Array | None, ...]) -> list[int]:
    """All floats but the tables of rotations."""
    floats = [index for index, array in enumerate(operands) if array is not None and array.dtype.kind == "f"]
    return [index for index in floats if OP[case.op].operands[index].name not in ("cos", "sin")]


def upstream_of(case: Case, operands: tuple[Array | None, ...], rng: np.random.Generator) -> dict[int, Array]:
    """Of every result but the sums of exponentials, which are no part of a loss."""
    found = weights(case.op, operands, case.attrs, rng)
    return {index: array for index, array in found.items() if OP[case.op].result_name(index) != "log_sum"}


def test_every_rule_of_the_family_has_a_case() -> None:
    ruled = {op.name for op in FAMILY if op.derivative is not None and not isinstance(op.derivative, NotDifferentiable)}
    assert ruled - {"broadcast_scalar"} == {case.op for case in CASES}


@by_case
def test_gradients_are_slopes(case: Case, rng: np.random.Generator) -> None:
    operands = case.values(rng)
    upstream = upstream_of(case, operands, rng)
    check_differences(case.op, operands, case.attrs, rng, upstream, wanted(case, operands))


@by_case
def test_gradients_of_one_operand_alone_are_those_of_all(case: Case, rng: np.random.Generator) -> None:
    operands = case.values(rng)
    upstream = upstream_of(case, operands, rng)
    together = gradients(case.op, operands, case.attrs, upstream, wanted(case, operands))
    for index, gradient in together.items():
        (alone,) = gradients(case.op, operands, case.attrs, upstream, [index]).values()
        np.testing.assert_array_equal(alone, gradient)


@by_case
def test_gradients_are_those_of_torch(case: Case, rng: np.random.Generator) -> None:
    torch: Any = pytest.importorskip("torch")
    from tests.ir.product_torch import FORWARD

    operands = case.values(rng)
    upstream, floats = upstream_of(case, operands, rng), wanted(case, operands)
    found = gradients(case.op, operands, case.attrs, upstream, floats)
    given: list[Any] = [None if array is None else torch.from_numpy(array.copy()) for array in operands]
    given = [tensor.double() if tensor is not None and tensor.is_floating_point() else tensor for tensor in given]
    for index in floats:
        given[index].requires_grad_(True)
    results = FORWARD[case.op](OP[case.op].attributes(case.attrs), *given)
    results = results if isinstance(results, tuple | list) else [results]
    loss = sum((results[index] * torch.from_numpy(array)).sum() for index, array in upstream.items())
    loss.backward()
    for index in floats:
        np.testing.assert_allclose(found[index], given[index].grad.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", ["linear_split", "linear_group", "repeat_gqa_kv_bthd"])
def test_results_that_nobody_reads_have_no_gradient(op: str, rng: np.random.Generator) -> None:
    for case in (case for case in CASES if case.op == op):
        operands = case.values(rng)
        for index, array in upstream_of(case, operands, rng).items():
            check_differences(case.op, operands, case.attrs, rng, {index: array})


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_gradients_of_halves_are_float32(dtype: DType, rng: np.random.Generator) -> None:
    """Those of the same numbers in float32, up to what is rounded on the way into a product."""
    for case in CASES:
        wide = case.values(rng)
        floats = wanted(case, wide)
        narrow = tuple(
            array.astype(dtype.numpy)
            if array is not None and index in floats and dtype in OP[case.op].operands[index].dtypes
            else array
            for index, array in enumerate(wide)
        )
        wide = tuple(
            array if array is None or array.dtype == np.int32 else array.astype(np.float32) for array in narrow
        )
        upstream = upstream_of(case, wide, rng)
        found, expected = (gradients(case.op, each, case.attrs, upstream, floats) for each in (narrow, wide))
        for index, gradient in found.items():
            assert gradient.dtype == np.float32
            np.testing.assert_allclose(gradient, expected[index], rtol=6e-2, atol=6e-2, err_msg=case.op)


def test_a_float32_input_meets_a_bf16_weight(rng: np.random.Generator) -> None:
    """Both products are computed in the dtype of the weight, from rounded operands."""
    x, dy = (rng.standard_normal((3, n)).astype(np.float32) for n in (7, 5))
    weight = rng.standard_normal((5, 7)).astype(DType.BF16.numpy)
    found = gradients("linear", (x, weight), {}, {0: dy})
    rounded_x, rounded_dy = (a.astype(DType.BF16.numpy).astype(np.float64) for a in (x, dy))
    np.testing.assert_allclose(found[0], rounded_dy @ weight.astype(np.float64), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], rounded_dy.T @ rounded_x, rtol=1e-6, atol=1e-6)


def test_blocks_and_tables_and_caches_are_refused(rng: np.random.Generator) -> None:
    b = Builder("blocks")
    x, weight = b.value("x", (3, 32)), b.weight("weight", (4, 32), dtype=DType.Q8_0)
    b.add("linear", (x, weight), "y")
    b.add("reduce_sum", ("y",), "loss")
    with pytest.raises(DTypeError, match="float weight"):
        differentiate(b.graph(("loss",)), "loss", ["x"])
    case = next(case for case in CASES if case.op == "rope_split_half")
    operands = case.values(rng)
    with pytest.raises(ConfigError, match="tables of angles"):
        gradients(case.op, operands, case.attrs, upstream_of(case, operands, rng))
    for op in (OP["attention_packed"], *CACHE_OPS, *ROPE_STORE_OPS):
        assert isinstance(op.derivative, NotDifferentiable)
        assert "trace" in op.derivative.reason
    case = next(case for case in CASES if case.op == "attention_causal_saved")
    operands = case.values(rng)
    with pytest.raises(ConfigError, match="sums of exponentials"):
        gradients(case.op, operands, case.attrs, weights(case.op, operands, case.attrs, rng))


def test_gradients_that_lie_in_strides_are_reshaped_by_a_copy(rng: np.random.Generator) -> None:
    """What is behind a transpose comes back transposed: a reshape of it is no view, neither is one of a forward value that is."""
    b = Builder("turned")
    x, weight = b.weight("x", (2, 3, 4)), b.weight("weight", (5, 6))
    b.add("transpose", (x,), "turned", order=(2, 0, 1))
    b.add("contiguous", ("turned",), "whole")
    b.add("reshape", ("whole",), "flat", shape=(4, 6))
    b.add("linear", ("flat", weight), "y")
    b.add("transpose", ("y",), "yt", order=(1, 0))
    b.add("contiguous", ("yt",), "rows")
    b.add("reshape", ("rows",), "line", shape=(20,))
    b.add("mul", ("line", "line"), "squares")
    b.add("reduce_sum", ("squares",), "loss")
    found = differentiate(b.graph(("loss",)), "loss", ["x", "weight"])
    graph = Graph("whole", found.graph.inputs, found.graph.nodes, tuple(found.gradients.values()))
    verify(graph)
    values = {name: rng.standard_normal(b.types[name].static_shape).astype(np.float32) for name in ("x", "weight")}
    run = interpret(graph, values)
    flat = values["x"].transpose(2, 0, 1).reshape(4, 6)
    dy = 2 * flat @ values["weight"].T
    of_x = (dy @ values["weight"]).reshape(4, 2, 3).transpose(1, 2, 0)
    np.testing.assert_allclose(run.outputs[found.gradients["x"]], of_x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.outputs[found.gradients["weight"]], dy.T @ flat, rtol=1e-4, atol=1e-5)
