"""Steps as the runtime hands them to a device: structural, since a backend knows nothing of the runtime."""

from __future__ import annotations

from typing import Protocol

from ostinato.ir.step import Launch, StepKind

__all__ = ["HipStep", "LaunchCall", "NativeStep"]


class _Named(Protocol):
    """What is run, and the node whose work it is."""

    @property
    def node(self) -> str: ...
    @property
    def kind(self) -> StepKind: ...
    @property
    def kernel(self) -> str: ...
    @property
    def params(self) -> tuple[int | float, ...]: ...


class NativeStep(_Named, Protocol):
    """A step with addresses: operands are (address, bytes), (0, 0) where an optional one is absent."""

    @property
    def operands(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def lane(self) -> int: ...
    @property
    def waits(self) -> tuple[int, ...]: ...
    @property
    def signals(self) -> tuple[int, ...]: ...


class HipStep(NativeStep, Protocol):
    """A step of a GPU, where a launch has a shape."""

    @property
    def launch(self) -> Launch | None: ...


class LaunchCall(_Named, Protocol):
    """A step without addresses, whose `operands` it only counts. On the host its kernel and parameters are all there is to it."""

    @property
    def operands(self) -> int: ...
    @property
    def launch(self) -> Launch | None: ...
