"""Gradients that are kept: where they lie, whose memory that is, and who wants to know when one is complete.

A kept gradient is an output of the step that lies where its first producer writes it; what comes later is added there, so that the bytes need no zeros before.
`bind` puts it into memory of the caller's instead, whose address every later step uses. `watch` has a hook called, and `event` has an event recorded, once a
step, behind the last contribution; with neither, a step is submitted as if there were no such thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from ostinato.ir.errors import ConfigError, DTypeError, InputError, LayoutError, LifecycleError, ShapeError
from ostinato.ir.graph import Graph
from ostinato.ir.step import ByteRange
from ostinato.ir.training import GRADIENT_PREFIX
from ostinato.ir.types import Array
from ostinato.ir.weights import PackSource
from ostinato.planner.plan import Binding, EntryPlan
from ostinato.runtime.binding import refuse_overlaps
from ostinato.runtime.device import Device, DeviceEvent, DeviceStream, OrderedDevice
from ostinato.runtime.external import ExternalMemory
from ostinato.runtime.opened import memory_of_device
from ostinato.runtime.regions import Regions
from ostinato.runtime.tensor_view import TensorView

__all__ = ["GradientEvent", "GradientReady", "Gradients", "Hook"]

_ALIGNMENT = 16
"""Kernels write vectors of so many bytes."""


@dataclass(frozen=True, slots=True)
class GradientReady:
    """What a hook is told: the parameter, the number of the step, and where the gradient lies. `values` waits for the device and copies it."""

    name: str
    step: int
    address: int
    nbytes: int
    values: Callable[[], Array]


Hook = Callable[[GradientReady], None]


@dataclass(slots=True)
class GradientEvent:
    """A place in the order of the device's work behind the last contribution to a gradient, of the step submitted last. `recorded` counts steps."""

    name: str
    recorded: int = 0
    _event: DeviceEvent | None = None

    def wait(self) -> None:
        """Returns when the gradient of the last step submitted is complete. Raises `LifecycleError` before the first step."""
        self._require()
        if self._event is not None:
            self._event.synchronize()

    def wait_on(self, stream: DeviceStream) -> None:
        """What is submitted to a stream of the device (`open_stream`) from now on runs behind it. Nothing where the device works while it is called. Raises
        `LifecycleError` before the first step."""
        self._require()
        if self._event is not None:
            self._event.wait(stream)

    def _require(self) -> None:
        if not self.recorded:
            raise LifecycleError("no step has recorded this event", node=self.name, hint="run a step first")


@dataclass(slots=True)
class _Watch:
    hooks: list[Hook] = field(default_factory=list)
    event: GradientEvent | None = None


class Gradients:
    """The kept gradients of one executable. Nothing here holds a lock: whoever calls does."""

    def __init__(
        self, plan: EntryPlan, graph: Graph, device: Device, regions: Regions, stream: DeviceStream | None
    ) -> None:
        """`stream` is where the steps go, None for the default order of the device."""
        self._graph, self._device, self._regions, self._stream = graph, device, regions, stream
        self._bindings = {
            b.name.removeprefix(GRADIENT_PREFIX): b for b in plan.outputs if b.name.startswith(GRADIENT_PREFIX)
        }
        self._bound: dict[str, ExternalMemory] = {}
        self._watched: dict[str, _Watch] = {}
        self._failed: BaseException | None = None
        self.step = 0
        self.fired = 0
        """Hooks called and events recorded so far."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters whose gradients are kept."""
        return tuple(self._bindings)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the plan calls them."""
        return tuple(binding.name for binding in self._bindings.values())

    @property
    def regions(self) -> Regions:
        """The executable's memory, with what is bound in place of its own."""
        bound: list[tuple[ByteRange, int]] = [
            (self._bindings[name].range, memory.address) for name, memory in self._bound.items()
        ]
        return self._regions.bind(bound, None) if bound else self._regions

    @property
    def bound(self) -> tuple[ExternalMemory, ...]:
        """The caller's buffers."""
        return tuple(self._bound.values())

    def check_addresses(self) -> None:
        """Raises `AddressChanged` for a buffer that moved since it was bound."""
        for memory in self._bound.values():
            memory.check()

    # where they lie

    def bind(self, name: str, owner: Any, *, zero: bool) -> None:
        """`TrainExecutable.bind_grad_buffer`, which says what is raised."""
        binding = self.binding(name)
        if name in self._bound:
            raise LifecycleError(
                f"a buffer is bound already, at {self._bound[name].address:#x}",
                node=name,
                hint="unbind_grad_buffer() first: the address of a gradient does not change behind its back",
            )
        view, expected = TensorView.of(owner, name), binding.type
        if view.shape != expected.static_shape:
            raise ShapeError(f"expected shape {list(expected.static_shape)}, found {list(view.shape)}", node=name)
        if view.dtype is not expected.dtype:
            raise DTypeError(f"a gradient is {expected.dtype.value}, found {view.dtype.value}", node=name)
        if not view.writable:
            raise LayoutError("every step writes here: it needs writable memory", node=name)
        memory = ExternalMemory.of(name, owner, memory_of_device(self._device))
        if memory.address % _ALIGNMENT:
            raise LayoutError(f"{memory.address:#x} is no multiple of {_ALIGNMENT}", node=name, hint="bind a new array")
        refuse_overlaps([*self._bound.values(), memory], self._regions, memory.device)
        self._bound[name] = memory
        if zero:
            self.zero(name)

    def unbind(self, name: str) -> None:
        """`TrainExecutable.unbind_grad_buffer`."""
        self.binding(name)
        if name not in self._bound:
            raise LifecycleError("no buffer is bound", node=name, hint="bind_grad_buffer() binds one")
        del self._bound[name]
        self.zero(name)

    def zero(self, name: str) -> None:
        """Zeroes a gradient where it lies."""
        binding, memory = self.binding(name), self._bound.get(name)
        if memory is None:
            self._regions.io.fill(0, binding.range.offset, binding.range.size)
            return
        rows = binding.type.static_shape[0]
        row = np.zeros(binding.range.size // max(rows, 1), np.uint8)
        zeros = PackSource(row, binding.type.dtype, np.zeros(rows, np.int64))
        self._device.pack(binding.type, memory.address, zeros, 0)

    def read(self, name: str) -> Array:
        """A copy of a gradient, after what the device does now is done."""
        binding, memory = self.binding(name), self._bound.get(name)
        if memory is not None:
            return self._device.unpack(binding.type, memory.address)
        return self._regions.io.read(binding.type.dtype.numpy, binding.type.static_shape, binding.range.offset)

    def place(self, name: str) -> tuple[int, int]:
        """Address and bytes."""
        return self.regions.address(self.binding(name).range)

    def binding(self, name: str) -> Binding:
        """The output that a parameter's gradient is; raises `LifecycleError` for other values of the graph and gradients that are not kept, `InputError` for
        what is no value at all."""
        given: object = name  # callers are not type-checked
        found = self._bindings.get(name) if isinstance(given, str) else None
        if found is not None:
            return found
        if not isinstance(given, str) or name not in self._graph.types:
            raise InputError(
                f"no parameter is called {name!r}", hint=f"gradients are kept of {', '.join(self.names) or 'none'}"
            )
        if name in self._graph.inputs_by_name:
            raise LifecycleError(
                "its gradient is not kept: it lies in the arena until it is applied",
                node=name,
                hint="compile the step with keep_gradients=True; inputs and frozen weights have none",
            )
        raise LifecycleError(
            "it is no leaf: only parameters have gradients that outlive a step",
            node=name,
            hint=f"gradients are kept of {', '.join(self.names) or 'none'}",
        )

    # who wants to know

    def watch(self, name: str, hook: Hook) -> Callable[[], None]:
        """Has a hook called once a step; returns what takes it back."""
        self.binding(name)
        if not callable(hook):
            raise ConfigError(f"a hook is called, found {type(hook).__name__}", node=name)
        watched = self._watched.setdefault(name, _Watch())
        watched.hooks.append(hook)

        def remove() -> None:
            if hook in watched.hooks:
                watched.hooks.remove(hook)
            self._forget(name)

        return remove

    def event(self, name: str) -> GradientEvent:
        """The event of a gradient, recorded from the next step on."""
        self.binding(name)
        watched = self._watched.setdefault(name, _Watch())
        if watched.event is None:
            made = cast(OrderedDevice, self._device).make_event() if self._regions.stream is not None else None
            watched.event = GradientEvent(name, 0, made)
        return watched.event

    def drop_event(self, name: str) -> None:
        """Records none any more."""
        if (watched := self._watched.get(name)) is not None:
            watched.event = None
            self._forget(name)

    def _forget(self, name: str) -> None:
        watched = self._watched.get(name)
        if watched is not None and not watched.hooks and watched.event is None:
            del self._watched[name]

    @property
    def marks(self) -> Mapping[str, Callable[[], None]]:
        """What is done behind the last contribution to each output that somebody watches."""

        def mark(name: str) -> Callable[[], None]:
            return lambda: self._reached(name)

        return {self._bindings[name].name: mark(name) for name in self._watched}

    def _reached(self, name: str) -> None:
        watched = self._watched.get(name)
        if watched is None:
            return
        if watched.event is not None:
            if watched.event._event is not None:
                watched.event._event.record(self._stream)
            watched.event.recorded += 1
            self.fired += 1
        ready = GradientReady(name, self.step, *self.place(name), lambda: self.read(name))
        for hook in tuple(watched.hooks):
            self.fired += 1
            try:
                hook(ready)
            except BaseException as error:  # the step goes on: it is whole or it is not there
                self._failed = self._failed or error

    def raise_failed(self) -> None:
        """Raises what the first hook that failed in the last step raised."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
