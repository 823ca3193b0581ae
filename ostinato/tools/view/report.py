"""The report: one HTML file with everything there is to see of a program, that opens anywhere and fetches nothing.

The data of the page is made here, by the modules that know each part; the assets draw it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostinato.ir.errors import ConfigError
from ostinato.ir.version import VERSION
from ostinato.runtime.profile import Profile
from ostinato.tools.page import asset, render_page
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.view.diff_data import diff_data
from ostinato.tools.view.graph_data import graph_data
from ostinato.tools.view.plan_data import memory_data, plan_data
from ostinato.tools.view.strings import Strings
from ostinato.tools.view.subjects import Viewed
from ostinato.tools.view.timeline_data import profile_data

__all__ = ["page_data", "report_page"]

PAGE_VERSION = 1
_PACKAGE = "ostinato.tools.view"
SCRIPTS = (
    *("core.js", "model.js", "layout.js", "scene.js", "pen.js", "graph.js", "inspector.js", "search.js"),
    *("plots.js", "slots.js", "paint.js", "space.js", "grid.js", "arena_pointer.js", "arena.js"),
    *("timeline_list.js", "timeline.js", "tables.js", "diff.js", "memory.js"),
)
"""In the order in which they run: what others use comes first."""
STYLES = ("page.css", "graph.css", "panels.css", "print.css")


def page_data(
    subject: Viewed,
    title: str,
    *,
    profiles: Mapping[str, Profile] | None = None,
    ceilings: Ceilings | None = None,
    before: Viewed | None = None,
    before_title: str = "before",
) -> dict[str, Any]:
    """The data of a page. `profiles` are measured times by entry, `ceilings` what their device was measured to reach; with `before` the page says what differs
    between it and the subject.

    Raises `ConfigError` for a profile of no entry with a plan, and for one of other steps than the plan's.
    """
    strings, measured = Strings(), dict(profiles or {})
    entries = []
    for entry in subject.entries:
        clones = {} if entry.plan is None else entry.plan.clones
        profile = None if entry.plan is None else measured.pop(entry.name, None)
        entries.append(
            {
                "name": entry.name,
                "graph": graph_data(entry.graph, strings, entry.decisions, clones),
                "plan": None if entry.plan is None else plan_data(entry.plan, strings, entry.graph),
                "profile": None
                if profile is None or entry.plan is None
                else profile_data(profile, entry.plan, ceilings),
            }
        )
    if measured:
        known = ", ".join(entry.name for entry in subject.entries if entry.plan is not None) or "none"
        raise ConfigError(f"profiles of {', '.join(measured)}, which are not planned here", hint=f"planned: {known}")
    diff = None
    if before is not None:
        diff = diff_data(replace(before, title=before_title), replace(subject, title=title), strings)
    return {
        "version": PAGE_VERSION,
        "ostinato": VERSION,
        "title": title,
        "subject": subject.stage,
        "entries": entries,
        "memory": None if subject.plan is None else memory_data(subject.plan, strings, subject.addresses),
        "diff": diff,
        "strings": strings.table(),
    }


def report_page(data: Mapping[str, Any]) -> str:
    """The page that shows `page_data`."""
    body = '<div id="app"></div>\n<noscript>This report is drawn by the scripts inside it: allow them to run. They fetch nothing.</noscript>'
    scripts, styles = ([asset(_PACKAGE, name) for name in names] for names in (SCRIPTS, STYLES))
    return render_page(str(data["title"]), body, data, scripts, styles)
