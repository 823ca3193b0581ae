"""What commands share that take an artifact (.ost) where they take a model: the options that belong to one, and the one place where it is opened."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from ostinato.artifact import Opened, open_artifact
from ostinato.backend_hip.target import named_target
from ostinato.ir.errors import ConfigError
from ostinato.ir.verify import verify
from ostinato.planner.check import check_program
from ostinato.runtime.program import NoWeights, Program
from ostinato.runtime.weights import Progress
from ostinato.saving.manifest import Kind
from ostinato.saving.read import is_artifact, open_file, read_artifact
from ostinato.tools.options import refuse_unread

__all__ = [
    "ARTIFACT_OPTIONS",
    "HowToOpen",
    "RecompileOption",
    "TrustOption",
    "WeightsOption",
    "kind_of",
    "open_saved",
    "planned_program",
]

_PANEL = "For an artifact (.ost)"
ARTIFACT_OPTIONS = frozenset(("recompile", "trust", "weights"))
"""The parameters below by name."""
_ALWAYS = ARTIFACT_OPTIONS | {"model", "model_option", "device", "threads", "as_json"}
"""Parameters that an artifact reads wherever one is loaded."""

RecompileOption = Annotated[
    bool,
    typer.Option(
        "--recompile",
        rich_help_panel=_PANEL,
        help="Where it is stale, compile it again with the saved options; the file stays as it is.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust", rich_help_panel=_PANEL, help="Run the compiled kernels of a GPU that are in the file, as they are."
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="MODEL",
        rich_help_panel=_PANEL,
        show_default=False,
        help="The checkpoint that it is of; default: where it was, or beside the file.",
    ),
]


@dataclass(frozen=True, slots=True)
class HowToOpen:
    """The options of a command as they were given."""

    recompile: bool = False
    trust: bool = False
    weights: str | None = None

    def check(self, name: str) -> None:
        """Raises `ConfigError` where they stand beside a model, which would leave them unread."""
        given = {"--recompile": self.recompile, "--trust": self.trust, "--weights": self.weights is not None}
        named = [option for option, found in given.items() if found]
        if named and not is_artifact(name):
            raise ConfigError(f"{name} is no artifact, which {', '.join(named)} is for", hint="leave it out")

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of `ostinato.load_executable` that they stand for."""
        return {"trust": self.trust, "recompile": self.recompile, "weights": self.weights}

    def options(self, device: str, threads: int) -> dict[str, Any]:
        """The same with device and threads."""
        return {"device": device, "threads": threads, **self.given}


def open_saved(
    invocation: typer.Context,
    name: str,
    how: HowToOpen,
    read: Collection[str],
    *,
    device: str,
    mode: str,
    threads: int,
    progress: Progress | None = None,
) -> Opened:
    """The artifact of that name, loaded. `read` names the parameters of the command that are read beside those that every artifact has.

    Raises `ConfigError` for options that would be left unread, since the program is compiled already, and what `ostinato.load_executable` raises.
    """
    refuse_unread(invocation, f"{name} is an artifact", _ALWAYS.union(read))
    return open_artifact(name, mode=mode, progress=progress, **how.options(device, threads))


def kind_of(name: str) -> Kind:
    """What made the artifact of that name. Raises what `ostinato.read_artifact` raises."""
    return open_file(name).manifest.request.kind


def planned_program(name: str) -> Program:
    """The program of an artifact without weights, proven for the target that it names, which need not be here.

    Raises what `ostinato.read_artifact`, the verifier and the checker raise.
    """
    artifact = read_artifact(name)
    target = replace(named_target(artifact.target), device=artifact.device)
    for graph in artifact.every_graph:
        verify(graph, target=target, phase="selected")
    check_program(artifact.plan, artifact.graphs, target, sources=artifact.originals)
    return Program(artifact.plan, artifact.graphs, target, NoWeights(), artifact.originals, artifact.decisions)
