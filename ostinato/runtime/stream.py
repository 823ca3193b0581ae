"""Streams: the order in which caller-owned operators run. A call on the CPU is done when it returns, so CPU streams are legal and have nothing to wait for."""

from __future__ import annotations

from typing import NoReturn

from ostinato.ir.errors import ConfigError, LifecycleError
from ostinato.runtime.tensor_view import check_memory

__all__ = ["Stream", "check_stream"]


class Stream:
    """A queue of work of one device. It belongs to whoever made it and can be neither copied nor pickled.

    Raises `DeviceUnavailable` for "hip", which this version does not have, `ConfigError` for a device that is none.
    """

    __slots__ = ("__weakref__", "device")

    def __init__(self, device: str = "cpu") -> None:
        self.device = check_memory(device)

    def synchronize(self) -> None:
        """Returns when all work of the stream is done: at once, since a CPU stream is synchronous."""

    def __reduce__(self) -> NoReturn:
        raise LifecycleError("a stream can be neither copied nor pickled", hint="hand over the one there is")

    def __repr__(self) -> str:
        return f"<Stream of {self.device}>"


def check_stream(stream: object, device: str, node: str) -> None:
    """Raises `ConfigError` unless `stream` is None or a `Stream` of that device."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise ConfigError(
            f"stream is a {type(stream).__module__}.{type(stream).__qualname__}, expected an ostinato Stream",
            node=node,
            hint='use ost.Stream("cpu"), or leave it out',
        )
    if stream.device != device:
        raise ConfigError(f"the stream is of {stream.device}, the tensors are on {device}", node=node)
