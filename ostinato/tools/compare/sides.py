"""Sides: the ways to run a program that are put side by side, as values that can be written in a command and opened.

A side is a mode ("eager", "captured", "no-reuse"), other settings of the compiler ("policy=strict", "levels.linear=reference", "disable=fuse_qkv",
"device=hip:0,mode=captured"), an artifact ("model.ost") or a function of the caller's own. Sides whose settings make the same program are clones of one
executable and share its weights, so that a difference between them is one of how it is run; each other program is compiled once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from ostinato.artifact import Weights, load_executable
from ostinato.frontend.model import Model
from ostinato.ir.checks import boolean, integer
from ostinato.ir.errors import ConfigError
from ostinato.ir.interp import Observer
from ostinato.ir.precision import PrecisionPolicy
from ostinato.passes.pipeline import pipeline
from ostinato.passes.policy import Policy, named_policy
from ostinato.runtime.device import Device
from ostinato.runtime.executable import Executable
from ostinato.saving.read import ENDING, is_artifact
from ostinato.stages import Passes, open_device, open_model
from ostinato.tools.compare.variants import VARIANTS, in_variant
from ostinato.tools.programs import compile_model

__all__ = ["DEFAULT_SIDE", "EVERY", "Side", "Sides", "how_saved", "load_artifact", "parse_side", "refuse_settings"]

EVERY = "*"
"""Instead of the name of a pass to leave out: all that are optional."""
_LEVELS = "levels."


@dataclass(frozen=True, slots=True)
class Side:
    """One way to run a program. `name` is what reports call it.

    `mode`: one of an executable, "no-reuse" (planned, with bytes of their own for all activations), or "auto". `levels` and `disable` force rows and leave
    passes out, as for `compile` ("*": every optional one); `passes` are more of them. `capture` says which steps a captured side captures. `artifact` is the
    path of a saved executable and `executable` an open one, which bring their program along, and `function` is the caller's own (see `functions.py`): these
    take no settings of the compiler.
    """

    name: str = "auto"
    mode: str = "auto"
    device: str | Device = "auto"
    precision: str | PrecisionPolicy = "auto"
    policy: Policy | str = "balanced"
    levels: tuple[tuple[str, str], ...] = ()
    disable: tuple[str, ...] = ()
    passes: Passes = ()
    memory_limit: int | str | None = None
    threads: int = 0
    isa: str = "auto"
    capture: tuple[str, ...] | None = None
    artifact: str | None = None
    function: Callable[..., Any] | str | None = None
    executable: Executable | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a mode that does not exist and for settings beside an artifact or a function, which would go unread."""
        if self.mode not in ("auto", *VARIANTS):
            raise ConfigError(
                f"mode {self.mode!r} cannot be compared",
                node=self.name,
                hint=f"use auto or one of {', '.join(VARIANTS)}",
            )
        if sum(given is not None for given in (self.artifact, self.function, self.executable)) > 1:
            raise ConfigError("a side is an artifact, a function or an executable", node=self.name, hint="give one")
        if not self.compiled and self.choices != _NO_CHOICES:
            what = "it brings its program along" if self.function is None else "a function is not compiled"
            raise ConfigError(f"{what}: there are no settings of the compiler", node=self.name, hint="leave them out")

    @property
    def compiled(self) -> bool:
        """Whether the compiler makes the program of this side."""
        return self.artifact is None and self.function is None and self.executable is None

    @property
    def anywhere(self) -> bool:
        """Whether nothing is said of the device: an artifact then runs on the one that it was compiled for."""
        return (self.device, self.threads, self.isa) == ("auto", 0, "auto")

    @property
    def choices(self) -> tuple[object, ...]:
        """What was chosen of the compiler, whatever the device."""
        rows = (str(self.precision), named_policy(self.policy), self.levels, self.disable, tuple(self.passes))
        return (*rows, self.memory_limit)

    @property
    def program_key(self) -> tuple[object, ...]:
        """What decides the program: sides with equal keys run the same one."""
        return (self.device, self.threads, self.isa, self.artifact, id(self.executable), *self.choices)

    def settings(self) -> dict[str, Any]:
        """The arguments of `compile` and `compile_encoder` that the program follows from, but for the device."""
        return {
            "precision": self.precision,
            "policy": self.policy,
            "levels": dict(self.levels),
            "disable": _every_optional() if EVERY in self.disable else self.disable,
            "passes": self.passes,
            "memory_limit": self.memory_limit,
        }


_NO_CHOICES = ("auto", named_policy("balanced"), (), (), (), None)
DEFAULT_SIDE = Side()
_SETTINGS: Mapping[str, str] = {
    "mode": "mode",
    "device": "device",
    "dtype": "precision",
    "precision": "precision",
    "policy": "policy",
    "memory_limit": "memory_limit",
    "isa": "isa",
    "artifact": "artifact",
    "python": "function",
}
"""Settings of one text by the word they are written with. `disable` and `capture` may be given several times, `threads` is a number, `levels.NAME` forces a
row."""


def parse_side(text: str, base: Side = DEFAULT_SIDE) -> Side:
    """The side that a text stands for: a mode, the path of an artifact, or settings "name=value" with commas between them, on top of those of `base`.

    Names: mode, device, dtype, policy, levels.OPERATOR_OR_NODE, disable and capture (each several times), memory_limit, threads, isa, artifact, and python for
    a function ("module:name" or "file.py:name"). Raises `ConfigError` for anything else.
    """
    given: object = text  # callers are not type-checked
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(
            f"a side is {text!r}", hint='write like "eager", "policy=strict", "device=hip:0,mode=captured"'
        )
    found: dict[str, Any] = {"name": text.strip()}
    for part in (item.strip() for item in text.split(",")):
        word, equals, value = part.partition("=")
        if not equals:
            word, value = ("artifact" if is_artifact(part) else "mode"), part
            if word == "mode" and part not in ("auto", *VARIANTS):
                raise ConfigError(f"{part!r} is no side", node=text, hint=_hint(part))
        if not value:
            raise ConfigError(f"{word} has no value", node=text, hint=f"write {word}=VALUE")
        if word.startswith(_LEVELS):
            found["levels"] = (*found.get("levels", base.levels), (word.removeprefix(_LEVELS), value))
        elif word in ("disable", "capture"):
            before: tuple[str, ...] = found.get(word) or getattr(base, word) or ()
            found[word] = (*before, value)
        elif word == "threads":
            if not value.isdecimal():
                raise ConfigError(f"threads is {value!r}", node=text, hint="give a number, 0 for one a physical core")
            found[word] = int(value)
        elif word not in _SETTINGS:
            raise ConfigError(f"{word!r} is no setting of a side", node=text, hint=_hint(word))
        elif _SETTINGS[word] in found:
            raise ConfigError(f"{word} is given twice", node=text, hint="give it once")
        else:
            found[_SETTINGS[word]] = value
    if "capture" in found:
        found.setdefault("mode", "captured")
    if "artifact" in found or "function" in found:  # what the base says of the compiler is not for these
        base = Side(device=base.device, threads=base.threads, isa=base.isa)
    return replace(base, **found)


def _every_optional() -> tuple[str, ...]:
    return tuple(item.name for item in pipeline() if item.optional)


def _hint(word: str) -> str:
    known = [*VARIANTS, *_SETTINGS, "levels.linear", "disable", "capture", "threads"]
    alike = get_close_matches(word, known)
    told = f"did you mean {' or '.join(alike)}? " if alike else ""
    return f"{told}Use one of {', '.join(VARIANTS)}, a file that ends in {ENDING}, or settings like policy=strict"


class Sides:
    """Opens the sides of a model, or of one executable, open or saved. Devices and programs are made once and shared by all that are opened here."""

    def __init__(
        self,
        target: Model | str | os.PathLike[str] | Executable,
        *,
        buckets: Mapping[str, Sequence[int]] | None = None,
        context: int | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`buckets` and `context` are those of `compile` and count for every side of a model; `saved` are arguments of `load_executable` for every artifact.
        Raises what opening a model raises."""
        self._saved = saved or {}
        if not isinstance(target, Executable | Model) and is_artifact(target):
            target = load_artifact(target, DEFAULT_SIDE, self._saved)
        self.model = None if isinstance(target, Executable) else open_model(target)
        self._options: dict[str, Any] = {"buckets": buckets, "context": context}
        self._devices: dict[tuple[object, ...], Device] = {}
        self._programs: dict[tuple[object, ...], Executable] = {}
        if isinstance(target, Executable):
            self._programs[DEFAULT_SIDE.program_key] = target

    def open(self, side: Side, observer: Observer | None = None) -> Executable:
        """A new executable that runs this way, with arena, io and (zeroed) state of its own; `observer` sees the result of every node.

        Raises `ConfigError` for a function, which is no executable, for settings beside an executable that is open already and for a mode that the device
        lacks, and what `compile` or `load_executable` raise.
        """
        if side.function is not None:
            raise ConfigError("a function is no executable", node=side.name, hint="call it, or compare it")
        base = self.program(side)
        mode = base.mode if side.mode == "auto" else side.mode
        if side.capture is not None:
            return _captured(base, side.capture, observer)
        return in_variant(base, mode, observer)

    def program(self, side: Side) -> Executable:
        """The executable whose program this side runs, whatever its mode: the same object for sides with equal settings."""
        if side.executable is not None:
            return side.executable
        key = side.program_key
        if key not in self._programs:
            self._programs[key] = self._made(side)
        return self._programs[key]

    def _made(self, side: Side) -> Executable:
        if side.artifact is not None:
            where = "auto" if side.anywhere else self._device(side)
            return load_executable(side.artifact, device=where, **self._saved)
        if self.model is None:
            raise ConfigError(
                "an executable has its settings already, this side wants others",
                node=side.name,
                hint="give the model, or a side that is a mode, an artifact or a function",
            )
        options = self._options
        if self.model.family.encoder is not None:
            options = {"buckets": options["buckets"]}
        return compile_model(self.model, device=self._device(side), mode="auto", **options, **side.settings())

    def _device(self, side: Side) -> Device:
        key = (side.device, integer(side.threads, "threads", low=0), side.isa)
        if key not in self._devices:
            self._devices[key] = open_device(side.device, side.threads, side.isa)
        return self._devices[key]


def load_artifact(path: str | os.PathLike[str], side: Side, saved: Mapping[str, Any]) -> Executable:
    """The saved executable, on the device that a side says, where it says one: otherwise on that which it was compiled for. `saved` are more arguments of
    `load_executable`, whose errors this raises."""
    where = "auto" if side.anywhere else open_device(side.device, side.threads, side.isa)
    return load_executable(path, device=where, **saved)


def how_saved(
    target: object, sides: object, *, weights: Weights | None, trust: bool, recompile: bool
) -> dict[str, Any]:
    """The arguments of `load_executable` for the artifacts among target and sides. Raises `ConfigError` where there are none, which would leave them unread."""
    given = {"weights": weights, "trust": boolean(trust, "trust"), "recompile": boolean(recompile, "recompile")}
    said = [name for name, value in given.items() if value is not None and value is not False]
    listed = sides if isinstance(sides, Sequence) and not isinstance(sides, str) else ()
    if said and not (is_artifact(target) or any(_is_saved(side) for side in listed)):
        raise ConfigError(f"no side is an artifact, which {', '.join(said)} is for", hint="leave it out")
    return given


def _is_saved(side: object) -> bool:
    if isinstance(side, str):
        side = parse_side(side)
    return isinstance(side, Side) and side.artifact is not None


def refuse_settings(base: Side, buckets: object, context: object, *, opened: bool) -> None:
    """Raises `ConfigError` for settings that would go unread beside a program that is compiled, and for a device too if it is `opened`."""
    if base.choices != _NO_CHOICES or buckets is not None or context is not None or (opened and not base.anywhere):
        raise ConfigError(
            "what is compiled has its precision, policy, memory limit, buckets and context"
            + (", and its device" if opened else ""),
            hint="leave them out, or give the model",
        )


def _captured(base: Executable, capture: Sequence[str], observer: Observer | None) -> Executable:
    program, shared = base.program, base.regions.shared
    return type(base)(
        program, base.device, shared, mode="captured", capture=tuple(capture), observer=observer, required=True
    )
