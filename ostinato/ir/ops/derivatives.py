"""What rules of derivatives share (`ir/derivative.py`): the reason that backward operators give instead of one, and how the schema of a backward operator reads
its upstream gradient: float32 of a value's shape, with axis names that go with that value's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.ir.derivative import Gradients, NotDifferentiable
from ostinato.ir.opdef import OperandSpec
from ostinato.ir.ops.rules import F32, Site, join_axes, make_type, require_shape
from ostinato.ir.types import TensorType

__all__ = ["GRADIENT", "SECOND", "UPDATE", "only_gradient", "passed_on", "upstream"]

SECOND = NotDifferentiable("second derivatives are not supported; differentiate a loss once")
"""Of every operator that stands in a backward graph."""

UPDATE = NotDifferentiable("it writes over what the step before left; differentiate the loss, not the update")
"""Of operators that keep parameters and what belongs to them up to date."""

GRADIENT = OperandSpec("gradient", F32)
"""The gradient of a result of the forward operator."""


def upstream(site: Site, gradient: int, value: int) -> TensorType:
    """Operand `gradient`, which belongs to operand `value`: of its shape. Returns it with the axis names that the two have together."""
    found, like = site.operand(gradient), site.operand(value)
    require_shape(site.op, "gradient", found, like.shape)
    return make_type(site.op, found.shape, found.dtype, join_axes(site.op, "gradient", like.axes, found.axes))


def only_gradient(at: Gradients) -> str:
    """The gradient of the first result, for operators that have no other."""
    gradient = at.gradient()
    assert gradient is not None, "a rule is called where the gradient of some result is there"
    return gradient


def passed_on(at: Gradients) -> Mapping[int, str]:
    """The rule of operators whose result changes as each of their first two operands does: sums, and copies."""
    return {index: only_gradient(at) for index in range(2) if at.wants(index)}
