"""How an operator is differentiated: a rule that is given a node and the gradients of its results, and adds the nodes of the gradients of its operands.

A rule is graph in, graph out: it never computes a number. What it reads of the forward graph (operands, results) is thereby kept alive for it, and since every
one of these is an ordinary value, the planner may keep it or compute it again. Gradients are float32, whatever the dtype of the value they belong to: a rule
that wants a product in bf16 casts what enters it. A rule gives an operand's gradient in the operand's shape, with its axis names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ostinato.ir.types import Attr, TensorType

__all__ = ["Derivative", "Gradients", "NotDifferentiable"]


class Gradients(Protocol):
    """What a rule works with: one node of the forward graph, seen from behind."""

    @property
    def op(self) -> str:
        """The operator of the node."""
        ...

    @property
    def attrs(self) -> Mapping[str, Attr]:
        """The node's attributes, all of them."""
        ...

    def has(self, operand: int) -> bool:
        """Whether that operand is there."""
        ...

    def wants(self, operand: int) -> bool:
        """Whether anybody needs the gradient of that operand: it is there, is a float, and something that is trained reaches it."""
        ...

    def gradient(self, result: int = 0) -> str | None:
        """The gradient of that result, float32 of its shape; None where nothing that counts reads the result."""
        ...

    def type(self, value: str) -> TensorType:
        """The type of any value, also of those that the rule made."""
        ...

    def operand(self, index: int) -> str:
        """The name of an operand that is there."""
        ...

    def result(self, index: int = 0) -> str:
        """The name of a result."""
        ...

    def apply(self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr] | None = None) -> str:
        """Adds a node with one result, and returns that result's name."""
        ...

    def apply_many(
        self, op: str, operands: Sequence[str | None], attrs: Mapping[str, Attr] | None = None
    ) -> tuple[str, ...]:
        """Adds a node, and returns the names of all its results."""
        ...


Rule = Callable[[Gradients], Mapping[int, str]]
"""The gradients of the operands by operand index: at least of those that are wanted; what is missing is zero everywhere. Called only where the gradient of
some result is there."""


class NotDifferentiable:
    """In the place of a rule: the operator has none, and why. `reason` completes "<operator> has no derivative: "."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


Derivative = Rule | NotDifferentiable
