"""What a pass is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

from ostinato.ir.decision import Decision
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target

__all__ = ["DecidingPass", "Pass"]


class Pass(Protocol):
    """A frozen dataclass whose fields are its options.

    `requires` and `ensures` are facts by name: a pass runs only after what it requires. Facts named like a phase of the verifier raise the phase. Passes
    that are `optional` may be switched off by name; the result is right without them.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]]
    ensures: ClassVar[tuple[str, ...]]
    optional: ClassVar[bool]

    def apply(self, graph: Graph, target: Target) -> Graph: ...


@runtime_checkable
class DecidingPass(Protocol):
    """A pass that also says why it chose what it chose, by node name."""

    def decide(self, graph: Graph, target: Target) -> tuple[Graph, Mapping[str, Decision]]: ...
