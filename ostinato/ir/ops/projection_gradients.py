"""Gradients of projections y = norm(x) @ weight^T + bias + residual, made of products, column sums and the backward of the norm.

The upstream gradient dy and x are taken as matrices of rows, views both: x gets dy @ weight, the weight dy^T @ x. Products are computed in the dtype of the
weight, as in the forward pass, and summed in float32; their results are float32. What a projection has inside (a norm of x, gate and up before their
activation) is computed again: it was never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.ir.derivative import Gradients
from ostinato.ir.errors import DTypeError
from ostinato.ir.ops.derivatives import dtype_of_f32, gradient_or_zeros, in_dtype, only_gradient, reshaped, rows_of
from ostinato.ir.ops.movement import MAX_PARTS
from ostinato.ir.types import DType

__all__ = ["gradients_of_group", "gradients_of_linear", "gradients_of_split", "gradients_of_swiglu"]


def gradients_of_linear(at: Gradients) -> Mapping[int, str]:
    """Of `linear`: the residual's gradient is that of the result."""
    dy = only_gradient(at)
    found = _of_product(at, [dy], bias=2, gain=4)
    return {**found, 3: dy} if at.wants(3) else found


def gradients_of_split(at: Gradients) -> Mapping[int, str]:
    """Of `linear_split`: the results' gradients side by side; columns that nothing reads have zeros."""
    sizes = at.attrs["sizes"]
    assert isinstance(sizes, tuple)
    return _of_product(at, [gradient_or_zeros(at, index) for index in range(len(sizes))], bias=2, gain=3)


def gradients_of_swiglu(at: Gradients) -> Mapping[int, str]:
    """Of `linear_swiglu`: gate and up again, and their gradients side by side."""
    dy = only_gradient(at)
    half = at.type(dy).shape[-1]
    assert isinstance(half, int)
    x, weight, gain = at.operand(0), at.operand(1), at.operand(2) if at.has(2) else None
    attrs = {"sizes": (half, half), "dtype": dtype_of_f32(at, x), "eps": at.attrs["eps"]}
    gate, up = at.apply_many("linear_split", [x, weight, None, gain], attrs)
    return _of_product(at, at.apply_many("swiglu_backward", [dy, gate, up]), bias=None, gain=2)


def gradients_of_group(at: Gradients) -> Mapping[int, str]:
    """Of `linear_group`: each member's products; x gets their sum, each added to the one before in its bytes."""
    found: dict[int, str] = {}
    of_x: str | None = None
    for member in range(3 if at.has(3) else 2):
        dy = at.gradient(member)
        if dy is None:
            continue
        weight, bias = 1 + member, 4 + member
        left = _left(at, [dy], weight)
        if at.wants(bias):
            found[bias] = at.apply("bias_gradient", [dy])
        if at.wants(weight):
            found[weight] = _of_weight(at, left, at.operand(0), weight)
        if at.wants(0):
            of_x = _of_x(at, left, weight, of_x)
    if of_x is not None:
        x = at.type(at.operand(0))
        found[0] = reshaped(at, of_x, x.shape, x.axes)
    return found


def _of_product(at: Gradients, parts: Sequence[str], *, bias: int | None, gain: int | None) -> dict[int, str]:
    """The gradients of x (operand 0), weight (1), bias and gain where there are such; `parts` side by side are that of the product."""
    x, found = at.operand(0), {}
    factor = at.operand(gain) if gain is not None and at.has(gain) else None
    if at.type(at.operand(1)).dtype is DType.F32 or (bias is not None and at.wants(bias)):
        parts = [_joined(at, parts)]  # else each is rounded first, which its maker can do itself
    if bias is not None and at.wants(bias):
        found[bias] = at.apply("bias_gradient", parts)
    of_x, of_gain = at.wants(0), gain is not None and at.wants(gain)
    if not (of_x or of_gain or at.wants(1)):
        return found
    left, eps, like = _left(at, parts, 1), {"eps": at.attrs["eps"]}, at.type(x)
    if at.wants(1):
        read = x if factor is None else at.apply("rms_norm", [x, factor], {**eps, "dtype": dtype_of_f32(at, x)})
        found[1] = _of_weight(at, left, read, 1)
    if not (of_x or of_gain):
        return found
    dx = reshaped(at, _of_x(at, left, 1, None), like.shape, like.axes)
    if factor is None:
        return {**found, 0: dx}
    normed, inverse_rms = at.apply_many("rms_norm_backward", [dx, x, factor], eps)
    if of_gain and gain is not None:
        found[gain] = at.apply("rms_norm_gain_gradient", [dx, x, inverse_rms])
    return {**found, 0: normed} if of_x else found


def _left(at: Gradients, parts: Sequence[str], weight: int) -> str:
    """The parts side by side as a matrix of rows in the dtype of the weight: each is rounded first, by who makes it where a pass sees to that."""
    like = at.type(at.operand(weight))
    if not like.dtype.is_float:
        raise DTypeError(
            f"expected a float weight, found {like}: nothing multiplies by blocks transposed",
            hint="train on a checkpoint with float weights",
        )
    return rows_of(at, _joined(at, [in_dtype(at, part, like.dtype) for part in parts]), like.axes[0])


def _of_weight(at: Gradients, left: str, x: str, weight: int) -> str:
    like = at.type(at.operand(weight))
    right = rows_of(at, in_dtype(at, x, like.dtype), like.axes[1])
    return at.apply("matmul", [left, right], {"transpose_a": True, "dtype": dtype_of_f32(at, left)})


def _of_x(at: Gradients, left: str, weight: int, so_far: str | None) -> str:
    """The gradient [rows, K] of x, added to what there is of it."""
    if so_far is not None:
        return at.apply("matmul_add", [so_far, left, at.operand(weight)])
    return at.apply("matmul", [left, at.operand(weight)], {"dtype": dtype_of_f32(at, left)})


def _joined(at: Gradients, parts: Sequence[str]) -> str:
    """The parts one after another along their last axis."""
    left = list(parts)
    axis = at.type(left[0]).rank - 1
    while len(left) > 1:
        left = [at.apply("concat", left[:MAX_PARTS], {"axis": axis}), *left[MAX_PARTS:]]
    return left[0]
