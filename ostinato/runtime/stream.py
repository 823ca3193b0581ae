"""Streams: the order in which caller-owned operators run.

A call on the CPU is done when it returns, so CPU streams are legal and have nothing to wait for. A call on a GPU is submitted to a stream and may not be done
when it returns; what an operator finds in device memory that it cannot use (an index out of range) is told by whoever waits.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

from ostinato.ir.checks import boolean, integer
from ostinato.ir.errors import ConfigError, LifecycleError
from ostinato.runtime.device import OrderedDevice
from ostinato.runtime.forms import CPU_MEMORY
from ostinato.runtime.opened import OPENED, memory_name

__all__ = ["Stream", "check_stream", "ordered"]


class Stream:
    """A queue of work of one device, "cpu" or a GPU such as "hip:0". It belongs to whoever made it and can be neither copied nor pickled.

    `non_blocking`: beside the device's default stream, too, which other streams of one device wait for and make wait.

    Raises `DeviceUnavailable` for a GPU that is not here, `ConfigError` for a device that is none, `LifecycleError` while this thread captures.
    """

    __slots__ = ("__weakref__", "_on", "device", "native")

    device: str
    native: Any
    """The stream as `ostinato.hip` takes it; None for the default stream of a GPU, and on the CPU."""

    def __init__(self, device: str = CPU_MEMORY, *, non_blocking: bool = False) -> None:
        beside = boolean(non_blocking, "non_blocking")
        self._take(memory_name(device))
        self.native = None if self._on is None else self._on.launch_stream(non_blocking=beside)

    @staticmethod
    def external(device: str, handle: int) -> Stream:
        """A stream of a GPU that somebody else made and keeps, such as `torch.cuda.current_stream().cuda_stream`. Handle 0 is the default stream.

        Raises `ConfigError` for the CPU, whose streams have no handles, and what the constructor raises.
        """
        number = integer(handle, "handle", low=0)
        made = object.__new__(Stream)
        made._take(memory_name(device))
        if made._on is None:
            raise ConfigError("a stream of the CPU has no handle", hint='ost.Stream("cpu") makes one')
        made.native = made._on.external_stream(number)
        return made

    def _take(self, device: str) -> None:
        self.device = device
        self._on: OrderedDevice | None = None if device == CPU_MEMORY else ordered(device)

    @property
    def handle(self) -> int:
        """The stream as its driver knows it. 0 is a device's default stream, and a stream of the CPU."""
        return 0 if self.native is None else int(self.native.handle)

    def synchronize(self) -> None:
        """Returns when all work of the stream is done; at once for a CPU stream, which is synchronous.

        Raises `BoundsError`, naming the operator, when one on this stream met an index out of range since somebody last waited (`ostinato.ops.check`);
        `BackendError` for a device that failed; `LifecycleError` while this thread captures.
        """
        if self._on is not None:
            self._on.finish(self.native)

    def wait(self, other: Stream) -> None:
        """What is submitted from now on runs after what `other`, a stream of the same device, has now. Nothing waits here. Nothing on the CPU.

        Raises `ConfigError` for a stream of another device.
        """
        check_stream(other, self.device, "Stream.wait")
        self.follow(other.handle)

    def follow(self, handle: int) -> None:
        """As `wait`, for a stream that somebody else made and keeps."""
        if self._on is not None:
            self._on.order(handle, self.handle)

    def __reduce__(self) -> NoReturn:
        raise LifecycleError("a stream can be neither copied nor pickled", hint="hand over the one there is")

    def __repr__(self) -> str:
        return f"<Stream of {self.device}>" if self.native is None else f"<Stream {self.handle:#x} of {self.device}>"


def ordered(name: str) -> OrderedDevice:
    """The GPU of that name. Raises `DeviceUnavailable` for one that is not here."""
    return cast(OrderedDevice, OPENED.get(name))


def check_stream(stream: object, device: str, node: str) -> None:
    """Raises `ConfigError` unless `stream` is None or a `Stream` of that device."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise ConfigError(
            f"stream is a {type(stream).__module__}.{type(stream).__qualname__}, expected an ostinato Stream",
            node=node,
            hint=f'use ost.Stream("{device}"), or leave it out'
            + (
                ""
                if device == CPU_MEMORY
                else f'; ost.Stream.external("{device}", handle) takes one of another library'
            ),
        )
    if stream.device != device:
        raise ConfigError(f"the stream is of {stream.device}, the tensors are on {device}", node=node)
