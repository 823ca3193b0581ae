"""What `ostinato diff` is given on one side: a model with options, a training run, a saved plan, a graph as text, an artifact, or a dumped folder.

What is given decides by itself: a file by its name's end or its content, a folder by what lies in it. Everything else is the name of a model,
behind which options of its own may stand: "smollm2,policy=strict,disable=fuse_qkv,T=1,128". A model is planned; no weight is loaded and no device opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ostinato.frontend.model import load
from ostinato.ir.checks import byte_count
from ostinato.ir.decision import Decision
from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.ir.files import read_text
from ostinato.ir.graph import Graph
from ostinato.ir.parse import parse_graph
from ostinato.planner.plan import ProgramPlan
from ostinato.planner.saved import program_from_json
from ostinato.runtime.program import Program
from ostinato.saving.manifest import Manifest
from ostinato.saving.read import is_artifact, read_artifact
from ostinato.tools.options import parse_shapes
from ostinato.tools.programs import plan_buckets
from ostinato.tools.stages import file_stem
from ostinato.tools.train.job import is_run, plan_of_run

__all__ = ["KEYS", "Planning", "Subject", "open_subject"]

KEYS = ("policy", "dtype", "target", "context", "memory-limit", "reuse", "disable", "levels.NAME", "B", "T")
"""What may stand behind the name of a model."""
_PLAN, _GRAPH = "plan.json", ".graph"
_FILES = (".json", ".toml", _GRAPH)
"""Ends of names that no model has."""


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
class Subject:
    """One side: what there is of a plan, of graphs by entry (or by stage) and of the decisions of their nodes. `kind` says what it was read from,
    `made_with` what an artifact says of what it was made of and on."""

    name: str
    kind: str
    plan: ProgramPlan | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    decisions: Mapping[str, Mapping[str, Decision]] = field(default_factory=dict)
    made_with: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(name: str, kind: str, program: Program) -> Subject:
        """A program as a side; the graphs are those before recomputation, of which the decisions are."""
        graphs = {entry: program.original(entry) for entry in program.plan.entries if entry in program.graphs}
        return Subject(name, kind, program.plan, graphs, program.decisions)


def open_subject(text: str, planning: Planning) -> Subject:
    """Reads or plans one side. Raises `ConfigError` for what is none, and what reading a plan, a graph or a model raises."""
    path = Path(text)
    if is_artifact(text):
        return _artifact(path)
    if path.is_file() and is_run(text):
        return _training(path, planning)
    if path.is_file() and path.suffix.lower() != ".gguf":
        return _file(path)
    if path.is_dir() and not (path / "config.json").exists():
        return _folder(path)
    if path.suffix in _FILES and not path.exists():
        raise ConfigError(f"there is no file {path}", hint="saved plans are what `ostinato plan --output` writes")
    name, own = _options(text, planning)
    program = plan_buckets(
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
    return Subject.of(text, "model", program)


def _artifact(path: Path) -> Subject:
    found = read_artifact(path)
    return Subject(
        str(path), "artifact", found.plan, found.originals, found.decisions, dict(_made_with(found.manifest))
    )


def _made_with(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What an artifact was made of and on, fact by fact."""
    yield "library", manifest.package_version
    yield "native interface", str(manifest.abi_version)
    for what, value in manifest.request.model_dump(exclude_defaults=True).items():
        yield f"asked {what}", str(value)
    for what, value in manifest.environment.model_dump().items():
        yield f"made on {what}", str(value)
    for what, table in (("row", manifest.rows), ("kernel", manifest.kernels)):
        yield from ((f"{what} {name}", value) for name, value in table.items())
    for what in ("operators", "rows", "kernels"):
        yield from ((f"your {what} {name}", value) for name, value in getattr(manifest.extensions, what).items())
    yield "model", f"{manifest.model.architecture} ({manifest.model.format}), {len(manifest.model.tensors)} tensors"
    yield "weights", manifest.model.whole or manifest.model.sampled
    yield "weights inside", "yes" if manifest.standalone else "no"


def _training(path: Path, planning: Planning) -> Subject:
    planned = plan_of_run(path, planning.target).planned
    name = planned.lowered.name
    return Subject(
        str(path), "training", planned.program, {name: planned.lowered.graph}, {name: planned.lowered.decisions}
    )


def _file(path: Path) -> Subject:
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return Subject(str(path), "plan", program_from_json(text))
    graph = _graph(path, text)
    return Subject(str(path), "graph", graphs={graph.name: graph})


def _graph(path: Path, text: str) -> Graph:
    try:
        return parse_graph(text)
    except OstinatoError as error:
        raise ConfigError(
            f"{path} is neither a saved plan nor a graph as text: {error}",
            hint="plans are what `ostinato plan --output` writes, graphs what `ostinato trace` prints",
        ) from None


def _folder(path: Path) -> Subject:
    """What `compile --dump` or `passes --dump` wrote."""
    texts = {file.name.removesuffix(_GRAPH): file for file in sorted(path.glob(f"*{_GRAPH}"))}
    plan = program_from_json(read_text(path / _PLAN)) if (path / _PLAN).exists() else None
    if plan is None and not texts:
        raise ConfigError(
            f"{path} holds neither a model (config.json) nor a plan ({_PLAN}) nor a graph (*{_GRAPH})",
            hint="name a folder that `ostinato compile --dump` or `ostinato passes --dump` wrote",
        )
    if plan is None:
        return Subject(
            str(path), "stages", graphs={stem: _graph(file, read_text(file)) for stem, file in texts.items()}
        )
    graphs: dict[str, Graph] = {}
    for name in plan.entries:
        stem = file_stem(name)
        file = texts.get(f"{stem}.original", texts.get(stem))
        if file is not None:
            graphs[name] = _graph(file, read_text(file))
    return Subject(str(path), "dump", plan, graphs)


def _options(text: str, planning: Planning) -> tuple[str, Planning]:
    """The model that a text names, and how it is planned: as given for both sides but for what stands behind the name."""
    name, *parts = [text] if Path(text).exists() else text.split(",")
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
