"""What the projections share: the checks of x, weight and what may be fused on either side, and the reference of their product.

With a gain the product is of RMSNorm(x) = x * rsqrt(mean(x^2) + eps) * gain (Zhang and Sennrich 2019), which is never rounded on its way into the product; bias
and residual are added in this order before the result is rounded once. Products of a block weight are those of its dequantised values: nothing is requantised.
"""

from __future__ import annotations

import numpy as np

from ostinato.ir.errors import ConfigError
from ostinato.ir.opdef import AttrSpec, OperandSpec, OperandTypes, Tolerance
from ostinato.ir.ops.rules import (
    F32,
    FLOATS,
    WEIGHTS,
    Arrays,
    Site,
    fail,
    join_axes,
    refuse_mixed_halves,
    require_positive,
    require_rank,
    require_same_extent,
    require_shape,
)
from ostinato.ir.rounding import multiply, working
from ostinato.ir.types import Array, TensorType

__all__ = [
    "BIAS",
    "EPS",
    "GAIN",
    "TOLERANCE",
    "WEIGHT",
    "X",
    "check_bias",
    "check_gain",
    "check_product",
    "product",
    "product_flops",
]

TOLERANCE = Tolerance(
    2e-4,
    2e-4,
    "contract of matmul: fp32 sums of K products in another order than the float64 reference; K up to some ten thousand",
)
X, WEIGHT = OperandSpec("x", FLOATS), OperandSpec("weight", WEIGHTS)
BIAS, GAIN = OperandSpec("bias", F32, optional=True), OperandSpec("gain", F32, optional=True)
EPS = AttrSpec("eps", float, 0.0)
"""What is added to the mean square where there is a gain, 0 where there is none."""
ROWS_AT_ONCE = 4096
"""Weight rows that the reference holds in float64 at a time, to keep its memory small on large heads."""


def check_product(site: Site, index: int = 1, name: str = "weight") -> tuple[TensorType, TensorType]:
    """x [..., K], operand 0, and weight [M, K], operand `index`, which errors call by `name`."""
    x, weight = site.operand(0), site.operand(index)
    require_rank(site.op, "x", x, at_least=1)
    require_rank(site.op, name, weight, exactly=2)
    require_same_extent(site.op, f"the extent K of {name} [M, K], equal to x's last,", x.shape[-1], weight.shape[1])
    join_axes(site.op, f"{name} columns", (x.axes[-1],), (weight.axes[1],))
    refuse_mixed_halves(site.op, x, weight)
    return x, weight


def check_bias(site: Site, index: int, of: int = 1, name: str = "bias") -> None:
    """A bias [M] of the weight that is operand `of`, where operand `index` is there."""
    weight, bias = site.operand(of), site.optional(index)
    if bias is not None:
        require_shape(site.op, name, bias, (weight.shape[0],))
        join_axes(site.op, name, (weight.axes[0],), bias.axes)


def check_gain(site: Site, index: int) -> None:
    """A gain [K] where operand `index` is there, with an eps exactly then."""
    x, gain = site.operand(0), site.optional(index)
    if gain is not None:
        require_shape(site.op, "gain", gain, (x.shape[-1],))
        join_axes(site.op, "gain", x.axes[-1:], gain.axes)
        require_positive(site, "eps", "take the one of the model's configuration")
    elif site.real("eps") != 0.0:
        fail(
            ConfigError, site.op, "eps of 0 without a gain", str(site.real("eps")), "eps belongs to the norm of a gain"
        )


def product(call: Arrays, *, weight: int = 1, bias: int | None, gain: int | None) -> Array:
    """(norm of x) @ weight^T + bias in float64, a few thousand weight rows at a time; all three are places of operands, None where there is none."""
    x, rows_of, factor = call.wide(0), call.operand(weight), None if gain is None else call.optional(gain)
    if factor is not None and x.size:
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + call.real("eps")) * factor.astype(working())
    y = np.empty((*x.shape[:-1], rows_of.shape[0]), dtype=working())
    for first in range(0, rows_of.shape[0], ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        y[..., rows] = multiply(x, rows_of[rows].astype(working()).T)
    added = None if bias is None else call.optional(bias)
    return y if added is None else y + added.astype(working())


def product_flops(operands: OperandTypes, gain: int | None, weights: range = range(1, 2)) -> int:
    """Two operations a product with each of the weights that are there; four an element of x for its norm."""
    x = operands[0]
    assert x is not None
    inner = x.static_shape[-1]
    rows = x.elements // inner if inner else 0
    products = sum(tensor.elements for tensor in operands[weights.start : weights.stop] if tensor is not None)
    normed = gain is not None and len(operands) > gain and operands[gain] is not None
    return 2 * rows * products + (4 * x.elements if normed else 0)
