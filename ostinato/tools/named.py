"""What stands for a program on the command line: a model with options, a training run, a saved plan, a graph as text, an artifact, or a dumped folder.

What is given decides by itself: a file by its name's end or its content, a folder by what lies in it. Everything else is the name of a model,
behind which options of its own may stand: "smollm2,policy=strict,disable=fuse_qkv,T=1,128". A model is planned; no weight is loaded and no device opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ostinato.backend_hip.target import named_target
from ostinato.frontend.model import load
from ostinato.ir.checks import byte_count
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.files import read_text
from ostinato.ir.graph import Graph
from ostinato.ir.parse import parse_graph
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.saved import program_from_json
from ostinato.runtime.program import Program
from ostinato.saving.read import is_artifact
from ostinato.tools.options import parse_shapes
from ostinato.tools.programs import plan_buckets
from ostinato.tools.stages import file_stem
from ostinato.tools.train.job import is_run, plan_of_run
from ostinato.training import PlannedTraining

__all__ = ["KEYS", "Dump", "Kind", "Named", "Planning", "kind_of", "open_named"]

KEYS = ("policy", "dtype", "target", "context", "memory-limit", "reuse", "disable", "levels.NAME", "B", "T")
"""What may stand behind the name of a model."""
_PLAN, _GRAPH = "plan.json", ".graph"
_FILES = (".json", ".toml", _GRAPH)
"""Ends of names that no model has."""

Kind = Literal["artifact", "training run", "file", "folder", "model"]


@dataclass(frozen=True, slots=True)
class Planning:
    """How a model is planned: buckets, and the options of `ostinato plan` by their names there."""

    shapes: Mapping[str, Sequence[int]]
    policy: str = "balanced"
    dtype: str = "auto"
    target: str = "host"
    context: int | None = None
    memory_limit: int | None = None
    reuse: bool = True
    disable: tuple[str, ...] = ()
    levels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dump:
    """What `compile --dump` or `passes --dump` wrote: the plan and the graphs that it is of by entry, with those before recomputation; or graphs by stage."""

    plan: ProgramPlan | None
    graphs: Mapping[str, Graph]
    originals: Mapping[str, Graph]


Named = Path | Program | PlannedTraining | ProgramPlan | Graph | Dump
"""A path is that of an artifact."""


def kind_of(text: str) -> Kind:
    """What a name stands for, before it is read."""
    if is_artifact(text):
        return "artifact"
    if is_run(text):
        return "training run"
    # unlike those of a Path these are False where a name cannot be looked at: whoever opens it says why
    if os.path.isfile(text) and not text.lower().endswith(".gguf"):
        return "file"
    return "folder" if os.path.isdir(text) and not os.path.exists(os.path.join(text, "config.json")) else "model"


def open_named(text: str, planning: Planning) -> Named:
    """Reads or plans what a name stands for. Raises `ConfigError` for what is none, and what reading a plan, a graph or a model raises."""
    path, kind = Path(text), kind_of(text)
    if path.suffix.lower() in _FILES and not os.path.exists(text):
        raise ConfigError(f"there is no file {path}", hint="saved plans are what `ostinato plan --output` writes")
    if kind == "artifact":
        return path
    if kind == "training run":
        return plan_of_run(path, named_target(planning.target))
    if kind == "file":
        return _file(path)
    if kind == "folder":
        return _folder(path)
    name, own = _options(text, planning)
    return plan_buckets(
        load(name),
        own.shapes,
        context=own.context,
        precision=own.dtype,
        policy=own.policy,
        target=own.target,
        memory_limit=own.memory_limit,
        levels=own.levels,
        disable=own.disable,
        reuse=own.reuse,
    )


def _file(path: Path) -> ProgramPlan | Graph:
    text = read_text(path)
    return program_from_json(text) if text.lstrip().startswith("{") else _graph(path, text)


def _graph(path: Path, text: str) -> Graph:
    try:
        return parse_graph(text)
    except OstinatoError as error:
        raise ConfigError(
            f"{path} is neither a saved plan nor a graph as text: {error}",
            hint="plans are what `ostinato plan --output` writes, graphs what `ostinato trace` prints",
        ) from None


def _folder(path: Path) -> Dump:
    texts = {file.name.removesuffix(_GRAPH): file for file in sorted(path.glob(f"*{_GRAPH}"))}
    plan = program_from_json(read_text(path / _PLAN)) if os.path.exists(path / _PLAN) else None
    if plan is None and not texts:
        raise ConfigError(
            f"{path} holds neither a model (config.json) nor a plan ({_PLAN}) nor a graph (*{_GRAPH})",
            hint="name a folder that `ostinato compile --dump` or `ostinato passes --dump` wrote",
        )
    read = {stem: _graph(file, read_text(file)) for stem, file in texts.items()}
    if plan is None:
        return Dump(None, read, read)
    stems = {name: file_stem(name) for name in plan.entries}
    graphs = {name: read[stem] for name, stem in stems.items() if stem in read}
    before = {name: read[f"{stem}.original"] for name, stem in stems.items() if f"{stem}.original" in read}
    return Dump(plan, graphs, {**graphs, **before})


def _options(text: str, planning: Planning) -> tuple[str, Planning]:
    """The model that a text names, and how it is planned: as given for both sides but for what stands behind the name."""
    name, *parts = [text] if os.path.exists(text) else text.split(",")
    values: list[list[str]] = []
    for part in parts:
        key, equals, value = part.partition("=")
        if equals:
            values.append([key.strip(), value.strip()])
        elif values and values[-1][0] in planning.shapes:
            values[-1][1] += f",{part.strip()}"
        else:
            raise _unknown(text, part)
    own = planning
    for key, value in values:
        own = _set(own, key, value, text)
    return name, own


def _set(own: Planning, key: str, value: str, text: str) -> Planning:
    if not value:
        raise _unknown(text, f"{key}=")
    if key in own.shapes:
        return replace(own, shapes={**own.shapes, **parse_shapes(f"{key}={value}")})
    if key == "policy":
        return replace(own, policy=value)
    if key == "dtype":
        return replace(own, dtype=value)
    if key == "target":
        return replace(own, target=value)
    if key == "context" and value.isascii() and value.isdigit():
        return replace(own, context=int(value))
    if key == "memory-limit":
        return replace(own, memory_limit=byte_count(value, "memory-limit"))
    if key == "reuse" and value in ("yes", "no"):
        return replace(own, reuse=value == "yes")
    if key == "disable":
        return replace(own, disable=(*own.disable, value))
    if key.startswith("levels."):
        return replace(own, levels={**own.levels, key.removeprefix("levels."): value})
    raise _unknown(text, f"{key}={value}")


def _unknown(text: str, part: str) -> ConfigError:
    return ConfigError(
        f"{part!r} is no option of a model",
        node=text,
        hint=f"there is no file of that name; behind a model may stand {', '.join(f'{key}=...' for key in KEYS)} (reuse is yes or no)",
    )
