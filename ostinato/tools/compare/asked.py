"""What a comparison is asked for: the sides that a list stands for, and the executables that can be given work."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.ir.errors import ConfigError
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.executable import Executable
from ostinato.runtime.forward import TextExecutable
from ostinato.tools.compare.sides import Side, parse_side
from ostinato.tools.compare.variants import VARIANTS

__all__ = ["packed", "sides_of"]


def sides_of(modes: object, base: Side) -> tuple[Side, ...]:
    """The sides of a list of texts (`parse_side`), `Side`s, executables and functions. Raises `ConfigError` for none, a name twice and anything else."""
    hint = f"give a list with some of {', '.join(VARIANTS)}, or sides like policy=strict"
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise ConfigError(f"modes is {modes!r}, expected a list of modes", hint=hint)
    found: list[Side] = []
    for item in modes:
        if isinstance(item, Side):
            found.append(item)
        elif isinstance(item, str):
            found.append(parse_side(item, base))
        elif isinstance(item, Executable):
            found.append(Side(f"executable {len(found) + 1}", executable=packed(item)))
        elif callable(item):
            found.append(Side(getattr(item, "__name__", "") or type(item).__name__, function=item))
        else:
            raise ConfigError(f"modes have {item!r}, which is no side", hint=hint)
    if not found:
        raise ConfigError("modes is empty: nothing is compared", hint=hint)
    names = [side.name for side in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"modes {names} name {', '.join(twice)} twice", hint="name each side once")
    return tuple(found)


def packed(executable: Executable) -> TextExecutable | EmbedExecutable:
    """The executable as one over packed entries, which is what can be given work without knowing the model; raises `ConfigError` for another."""
    if isinstance(executable, TextExecutable | EmbedExecutable):
        return executable
    kinds: set[type[TextExecutable | EmbedExecutable]] = set()
    for name, plan in executable.entries.items():
        inputs = {binding.name for binding in plan.inputs}
        if "row_of_token" not in inputs:
            raise ConfigError(
                "the entry is not packed, and only such entries can be compared",
                node=name,
                hint='trace the entry "step" (of an encoder "embed"), or give the model; modes of a training step: ost.compare',
            )
        kinds.add(TextExecutable if "block_table" in inputs else EmbedExecutable)
    (kind,) = kinds
    return kind(executable.program, executable.device, executable.regions.shared, mode=executable.mode)
