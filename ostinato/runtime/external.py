"""The caller's memory: where a buffer lay when it was bound, and whether it is still there.

A step table and a captured graph have the address, not the buffer. So before each run the buffer is asked again, and whatever has become of it is one error
that says where it was, where it is now, and the call that would have kept it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from ostinato.ir.errors import AddressChanged, BoundsError, ConfigError, LayoutError, LifecycleError, OstinatoError
from ostinato.runtime.dlpack import GPU_KINDS
from ostinato.runtime.forms import CPU_MEMORY, Form
from ostinato.runtime.tensor_view import TensorView, memory_for

__all__ = ["ExternalMemory"]

_HINTS = {
    "moved": "write into the bound buffer (buffer[...] = values), do not replace it; or bind again",
    "too small": "do not resize a bound buffer; or bind again",
    "freed": "keep the buffer until the last run, and free it after; or bind one that is there",
    "wrong device": "do not move a bound tensor to another device: copy into it; or bind again",
    "changed": "do not change shape, strides, dtype or access of a bound buffer in place; or bind again",
}


@dataclass(frozen=True, slots=True)
class ExternalMemory:
    """The caller's buffer: address and size when it was bound, how its elements lay there, and the object that owns it (kept alive, never freed)."""

    name: str
    owner: Any
    address: int
    nbytes: int
    device: str
    form: Form

    @staticmethod
    def of(name: str, owner: Any, device: str) -> ExternalMemory:
        """Memory of anything that `TensorView.of` reads.

        Raises what `memory_for` raises, `ConfigError` for memory of another device, `LayoutError` unless contiguous.
        """
        found = memory_for(owner, name)
        if found.device != device:
            raise ConfigError(f"the buffer is on {found.device}, the executable runs on {device}", node=name)
        form = found.form
        if not form.is_contiguous:
            raise LayoutError(
                f"strides {list(form.strides or ())} of shape {list(form.shape)} are not contiguous",
                node=name,
                hint="bind a contiguous buffer",
            )
        return ExternalMemory(name, owner, found.address, found.span, device, form)

    def check(self) -> None:
        """Raises `AddressChanged`, whose `kind` says what happened, when the memory is not as it was bound."""
        if isinstance(self.owner, TensorView) and getattr(self.owner.owner, "freed", False) is True:
            self._refuse("freed", "the owner of the memory freed it")
        try:
            now = ExternalMemory.of(self.name, self.owner, self.device)
        except OstinatoError as error:
            self._refuse(self._kind(error), error.message)
        if (now.address, now.nbytes) != (self.address, self.nbytes):
            kind = "too small" if now.nbytes < self.nbytes else "moved"
            self._refuse(kind, f"now at {now.address:#x} ({now.nbytes} bytes)", now.address)
        if now.form != self.form:
            self._refuse("changed", f"now {now.form.type}, bound as {self.form.type}", now.address)

    def _kind(self, error: OstinatoError) -> str:
        """What has become of a buffer that can no longer be read."""
        if isinstance(error, LifecycleError) or _storage_bytes(self.owner) == 0:
            return "freed"
        if isinstance(error, BoundsError):
            return "too small"
        elsewhere = self.device == CPU_MEMORY and _dlpack_kind(self.owner) in GPU_KINDS
        return "wrong device" if elsewhere or isinstance(error, ConfigError) else "changed"

    def _refuse(self, kind: str, found: str, now: int | None = None) -> NoReturn:
        raise AddressChanged(
            f"bound at {self.address:#x} ({self.nbytes} bytes), {found}",
            node=self.name,
            hint=_HINTS[kind],
            kind=kind,
            old=self.address,
            new=now,
        )


def _storage_bytes(owner: Any) -> int | None:
    """Bytes of a torch tensor's storage, 0 where it was given back; None of anything else."""
    storage = getattr(owner, "untyped_storage", None)
    return None if storage is None else int(storage().nbytes())


def _dlpack_kind(owner: Any) -> int | None:
    """The kind of device that an object says it is on, by DLPack's numbers."""
    asked = getattr(owner, "__dlpack_device__", None)
    return None if asked is None else int(asked()[0])
