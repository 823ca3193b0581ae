"""The exception families of the public API.

Every error says what was expected, what was found, where (`node`, with the user's file and line in the text) and how to fix it (`hint`).
Families also derive from the built-in exception a Python user would catch. Several problems found together are one error whose text lists them all.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AddressChanged",
    "ArtifactError",
    "BackendError",
    "BoundsError",
    "CapacityError",
    "ConfigError",
    "DTypeError",
    "DeviceUnavailable",
    "InputError",
    "LayoutError",
    "LifecycleError",
    "NonFiniteLoss",
    "NotYetAvailable",
    "OstinatoError",
    "PlanError",
    "ShapeError",
    "StaleArtifact",
    "TextError",
    "UnreadableCapture",
    "UserCodeError",
    "VerificationError",
    "Violation",
    "WeightsError",
]


class OstinatoError(Exception):
    """Base of all errors raised on purpose.

    `code` is stable and machine-readable; `node` names the graph node or tensor concerned, if any; `hint` says how to fix it.
    """

    code: str = "error"

    def __init__(self, message: str, *, node: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.node = node
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        fix = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{where}{self.message}{fix}"


class ShapeError(OstinatoError, ValueError):
    code = "shape"


class DTypeError(OstinatoError, ValueError):
    code = "dtype"


class LayoutError(OstinatoError, ValueError):
    code = "layout"


class ConfigError(OstinatoError, ValueError):
    """A model configuration or an option that cannot be used."""

    code = "config"


class InputError(OstinatoError, ValueError):
    """Arrays of a call that are missing, unknown, given twice, or not where the call can reach them."""

    code = "input"


class TextError(OstinatoError, ValueError):
    """Text that is no graph, at `line` and `column` (both from 1; the text shows the place), or a graph that no text can express (line 0)."""

    code = "text"

    def __init__(
        self, message: str, *, line: int = 0, column: int = 0, node: str | None = None, hint: str | None = None
    ) -> None:
        self.line = line
        self.column = column
        super().__init__(message, node=node, hint=hint)


class BoundsError(OstinatoError, IndexError):
    code = "bounds"


class LifecycleError(OstinatoError, RuntimeError):
    code = "lifecycle"


class BackendError(OstinatoError, RuntimeError):
    code = "backend"


class DeviceUnavailable(BackendError):
    """The device asked for is not on this machine (exit code 3 of the command line)."""

    code = "no_device"


class UnreadableCapture(BackendError):
    """A captured graph that cannot be proven to be its plan, because the driver does not show what it recorded; nothing speaks against its steps."""


class UserCodeError(OstinatoError, RuntimeError):
    """A function of an operator, row or pass of the user's own that raised, or gave what it must not; what it raised is the cause (`__cause__`)."""

    code = "user_code"


class NotYetAvailable(OstinatoError, RuntimeError):
    """A named feature of the design that this version does not have."""

    code = "not_yet_available"


class CapacityError(OstinatoError, OverflowError):
    """More than there is room for; `missing_bytes` says how much more, where it is memory and that is known."""

    code = "capacity"

    def __init__(
        self, message: str, *, missing_bytes: int | None = None, node: str | None = None, hint: str | None = None
    ) -> None:
        self.missing_bytes = missing_bytes
        super().__init__(message, node=node, hint=hint)


class WeightsError(OstinatoError, ValueError):
    """A checkpoint that is missing, damaged, inconsistent or does not fit the model."""

    code = "weights"


class ArtifactError(OstinatoError, ValueError):
    """A file that is no saved executable, or a damaged one; nothing in it was used."""

    code = "artifact"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of the verifier, in plain text.

    `statement` is the position of the offending input, extent, node or return in the text form of the graph, from 0. `node` is the value it is named
    after, None where it has none. `excerpt` shows the statement with its neighbours. `code` is the error family the rule stands for.
    """

    rule: str
    statement: int
    node: str | None
    message: str
    expected: str = ""
    found: str = ""
    hint: str = ""
    location: str = ""
    excerpt: str = ""
    code: str = "verification"

    def __str__(self) -> str:
        place = (f" %{self.node}" if self.node else "") + (f" ({self.location})" if self.location else "")
        lines = [f"{self.rule}{place}: {self.message}"]
        lines += [f"  {label}: {text}" for label, text in (("expected", self.expected), ("found", self.found)) if text]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join([*lines, self.excerpt]) if self.excerpt else "\n".join(lines)


class VerificationError(OstinatoError, ValueError):
    """A graph that breaks numbered rules of the verifier; the text lists every one, `violations` holds them."""

    code = "verification"

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        hint: str | None = None,
        violations: tuple[Violation, ...] = (),
    ) -> None:
        self.violations = violations
        super().__init__(message, node=node, hint=hint)


class NonFiniteLoss(OstinatoError, ArithmeticError):
    """A training step whose loss, or whose norm of gradients, is no finite number: nothing of it was applied. `step` is its number, from 1."""

    code = "non_finite_loss"

    def __init__(
        self, message: str, *, step: int = 0, loss: float = 0.0, node: str | None = None, hint: str | None = None
    ) -> None:
        self.step = step
        self.loss = loss
        super().__init__(message, node=node, hint=hint)


class PlanError(OstinatoError, ValueError):
    """A plan that is not proven, or that does not belong to its graph."""

    code = "plan"


class AddressChanged(OstinatoError, RuntimeError):
    """Memory that a step table or a captured graph has the address of is not there as it was.

    `kind` is "moved", "freed", "too small", "misaligned", "wrong device" or "changed" (in form), `old` the address that was bound and `new` the one of now,
    where it has one.
    """

    code = "address_changed"

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        hint: str | None = None,
        kind: str = "moved",
        old: int | None = None,
        new: int | None = None,
    ) -> None:
        self.kind, self.old, self.new = kind, old, new
        super().__init__(message, node=node, hint=hint)


class StaleArtifact(OstinatoError, RuntimeError):
    """Something saved that was made for another graph, target, library or other options; `differences` lists every one, and the text shows them."""

    code = "stale_artifact"

    def __init__(
        self, message: str, *, differences: tuple[str, ...] = (), node: str | None = None, hint: str | None = None
    ) -> None:
        self.differences = differences
        super().__init__("\n  ".join((message, *differences)), node=node, hint=hint)
