"""Options that say how a program is run: mode and fallback, buckets, context, progress. Each is checked here, once, and comes back as a plain value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ir.checks import instance, integer, integers
from ostinato.ir.errors import ConfigError
from ostinato.runtime.device import Device
from ostinato.runtime.markers import markers_wanted

__all__ = [
    "DEFAULT_CONTEXT",
    "DEFAULT_TOKENS",
    "MODES",
    "Route",
    "bucket_entries",
    "bucket_sizes",
    "check_progress",
    "context_length",
    "settle_route",
]

MODES = ("reference", "eager", "planned", "guarded", "captured")
DEFAULT_TOKENS = (128, 512)
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Route:
    """Where and how a program will run, settled before it is lowered: the rows are the device's.

    `reason` says why the mode is not the one asked for, and is empty otherwise. `capture` are the patterns of what is captured in mode "captured" (see
    `captured.py`), None for every step. `markers`: steps and replays are ranges for the profilers of vendors (`markers.py`).
    `required`: a mode that turns out to be wrong on this device is an error, not a reason for another one. Raises `ConfigError` for a mode that it lacks.
    """

    device: Device
    mode: str
    reason: str = ""
    capture: tuple[str, ...] | None = None
    markers: bool = False
    required: bool = False

    def __post_init__(self) -> None:
        runnable = [known for known in MODES if known != "captured" or self.device.captures]
        if self.mode not in runnable:
            needs = ": it needs a GPU" if self.mode == "captured" else ""
            raise ConfigError(
                f"mode {self.mode!r} cannot run on {self.device.name}{needs}", hint=f"use one of {', '.join(runnable)}"
            )


def settle_route(
    device: Device,
    mode: str,
    on_fallback: str = "report",
    capture: Sequence[str] | None = None,
    markers: bool | None = None,
) -> Route:
    """The route for what was asked. `markers` None: what the environment says. "auto" is planned where replays are in doubt (`Device.replay_doubt`).

    Raises `ConfigError` for an unknown word, for patterns that are no texts or of no use to the mode, and where `on_fallback` is "raise" for a mode that the
    device lacks.
    """
    if on_fallback not in ("report", "raise"):
        raise ConfigError(f"on_fallback={on_fallback!r} is unknown", hint='use "report" or "raise"')
    if mode != "auto" and mode not in MODES:
        raise ConfigError(f"mode {mode!r} is unknown", hint=f"use auto or one of {', '.join(MODES)}")
    patterns = _patterns(capture)
    marked = markers_wanted() if markers is None else instance(markers, bool, "markers") is True
    if patterns is not None and mode not in ("auto", "captured"):
        raise ConfigError(
            f"capture={list(patterns)} names what is captured, the mode is {mode}", hint='use mode="captured"'
        )
    if mode == "auto" and patterns is not None:
        mode = "captured"  # who says what is captured asks for it
    if mode == "auto" and device.replay_doubt:
        reason = f"auto: planned, because replays are in doubt here: {device.replay_doubt}"
        return Route(device, "planned", reason, markers=marked)
    if mode == "auto":
        chosen = "captured" if device.captures else "planned"
        return Route(device, chosen, f"auto: {chosen} is the fastest mode of {device.name}", patterns, marked)
    if mode == "captured" and not device.captures:
        reason = f"captured needs a GPU; {device.name} replays a step table instead"
        if on_fallback == "raise":
            raise ConfigError(reason, hint='use mode="planned", or device="hip"')
        return Route(device, "planned", reason, markers=marked)
    return Route(device, mode, "", patterns, marked, required=on_fallback == "raise")


def _patterns(capture: Any) -> tuple[str, ...] | None:
    if capture is None:
        return None
    listed = isinstance(capture, Sequence) and not isinstance(capture, str)
    if not listed or not capture or not all(isinstance(item, str) and item for item in capture):
        raise ConfigError(
            f"capture is {capture!r}", hint='give a list of patterns like ["layers.0", "ffn"], or leave it out'
        )
    return tuple(capture)


def bucket_sizes(buckets: Any, limit: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of B and of T. None: one sequence of the default lengths, as far as `limit` positions allow. Raises `ConfigError` for anything else."""
    if buckets is None:
        return (1,), tuple(sorted({min(tokens, limit) for tokens in DEFAULT_TOKENS}))
    hint = 'give positive sizes for both, like {"B": [1], "T": [128, 512]}'
    if not isinstance(buckets, Mapping) or set(buckets) != {"B", "T"}:
        raise ConfigError(f"buckets {buckets!r} are not usable", hint=hint)
    batches, lengths = (integers(buckets[axis], f"buckets[{axis!r}]", low=1) for axis in ("B", "T"))
    if not batches or not lengths:
        raise ConfigError(f"buckets {dict(buckets)} are not usable", hint=hint)
    return batches, lengths


def bucket_entries(stem: str, batches: Sequence[int], lengths: Sequence[int]) -> dict[str, dict[str, int]]:
    """Packed entries by name, with their dimensions: B sequences (R) of T tokens each (N tokens in all)."""
    return {f"{stem}[N={b * t},R={b}]": {"N": b * t, "R": b} for b in batches for t in lengths}


def context_length(context: int | None, limit: int, *, lengths: Sequence[int] = (), node: str) -> int:
    """Positions a sequence can hold. None: the default or the longest of `lengths`, as far as the model's `limit` allows.

    Raises `ConfigError` for one outside [1, limit].
    """
    wanted = max(*lengths, min(DEFAULT_CONTEXT, limit), 1) if context is None else integer(context, "context")
    if not 1 <= wanted <= limit:
        hint = f"use 1 to {limit} positions, and no longer sequences (T)"
        raise ConfigError(f"context {wanted} is outside [1, {limit}], the positions of the model", node=node, hint=hint)
    return wanted


def check_progress(progress: object) -> None:
    """Raises `ConfigError` for a progress report that cannot be called."""
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress is {progress!r}", hint="give a function of (what, bytes done, bytes in all)")
