"""`ost.view`: whatever stage a program has reached, as one HTML file or as pictures in a folder.

A path that ends in `.html` is the report (`report.py`), which needs no other program. Of pictures the DOT text of a graph is always written; its SVG and PNG
only where graphviz' `dot` is installed, which the result says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.files import named_path, write_bytes, write_text
from ostinato.runtime.profile import Profile
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.stages import file_stem
from ostinato.tools.view.arena import Paper, arena_to_svg, map_of_plan
from ostinato.tools.view.dot import graph_to_dot, render
from ostinato.tools.view.repeats import Repeat, find_repeats
from ostinato.tools.view.report import page_data, report_page
from ostinato.tools.view.subjects import Entry, Viewable, subject_of

__all__ = ["DOT_MISSING", "EntryPicture", "is_page", "view"]

DOT_MISSING = "graphviz' `dot` is not installed: the graph was written as DOT text only"


@dataclass(frozen=True, slots=True)
class EntryPicture:
    """What was drawn of one graph: its nodes, those that were not hidden behind a repeat, the repeats, and the files written."""

    name: str
    nodes: int
    nodes_drawn: int
    repeats: tuple[Repeat, ...]
    files: tuple[str, ...]


def is_page(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a report, by its ending, rather than that of a folder for pictures."""
    return Path(path).suffix.lower() in (".html", ".htm")


def view(
    subject: Viewable,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    profile: Profile | Mapping[str, Profile] | None = None,
    ceilings: Ceilings | None = None,
    before: Viewable | None = None,
    paper: Paper | None = None,
) -> tuple[EntryPicture, ...]:
    """Writes what there is to see of a graph, a traced, lowered or planned model or training step, an executable, an `LLM`, an `Embedder`, or an artifact by
    its path.

    `path` "report.html" is one file that opens in a browser and fetches nothing: the graph with repeated layers collapsed, every node's types, decision and
    source line, the arena over time, steps, addresses and statistics. `title` stands over it, `profile` adds measured times (`exe.profile()`, or one by entry),
    `ceilings` what their device can do at most (`measure_ceilings`), and `before` is a second subject: the report says what differs from it.

    Any other path is a folder (made if need be) for pictures: `<entry>.graph.dot`, `<entry>.graph.svg` and `.png` where graphviz' `dot` is installed, and
    `<entry>.arena.svg` where there is a plan: for the screen, or with `paper` in the size in which it is printed.

    Returns what was drawn of each entry. Raises `ConfigError` for a subject that is none of these, a place that cannot be written, a profile of another plan,
    and options of the report for a folder; `ArtifactError` for a damaged artifact; `BackendError` when `dot` fails.
    """
    place = named_path(path)
    profiles = _options(title, profile, ceilings, paper)
    found = subject_of(subject)
    if not is_page(path):
        options = (("title", title), ("profile", profile), ("ceilings", ceilings), ("before", before))
        if unread := [name for name, value in options if value is not None]:
            raise ConfigError(f"pictures have no {', '.join(unread)}", hint='name a file that ends in ".html"')
        return tuple(_write(entry, place, paper) for entry in found.entries)
    if paper is not None:
        raise ConfigError("a report has no size on paper", hint="name a folder for pictures")
    earlier = None if before is None else subject_of(before)
    data = page_data(found, title or found.title, profiles=profiles, ceilings=ceilings, before=earlier)
    file = write_text(place, report_page(data))
    return tuple(_picture(entry, (file,)) for entry in found.entries)


def _options(title: Any, profile: Any, ceilings: Any, paper: Any) -> Mapping[str, Profile] | None:
    """The profiles by entry. Raises `ConfigError` for options that are not what they are said to be: callers are not type-checked."""
    kinds = (("title", title, str), ("ceilings", ceilings, Ceilings), ("paper", paper, Paper))
    for name, value, kind in kinds:
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name} is {shown(value)}", hint=f"give a {kind.__name__}, or leave it out")
    profiles = {profile.entry: profile} if isinstance(profile, Profile) else profile
    if profiles is None:
        return None
    if not isinstance(profiles, Mapping) or not all(isinstance(value, Profile) for value in profiles.values()):
        raise ConfigError(f"profile is {shown(profile)}", hint="give what exe.profile() returns, or several by entry")
    return profiles


def _write(entry: Entry, folder: Path, paper: Paper | None) -> EntryPicture:
    dot = graph_to_dot(entry.graph, find_repeats(entry.graph))
    stem = file_stem(entry.name)
    files = [write_text(folder / f"{stem}.graph.dot", dot)]
    if shutil.which("dot") is not None:
        files += [write_bytes(folder / f"{stem}.graph.{form}", render(dot, form)) for form in ("svg", "png")]
    if entry.plan is not None:
        files.append(write_text(folder / f"{stem}.arena.svg", arena_to_svg(map_of_plan(entry.plan), paper)))
    return _picture(entry, tuple(files))


def _picture(entry: Entry, files: tuple[str, ...]) -> EntryPicture:
    repeats = find_repeats(entry.graph)
    drawn = len(entry.graph.nodes) - sum(repeat.hidden for repeat in repeats)
    return EntryPicture(entry.name, len(entry.graph.nodes), drawn, repeats, files)
