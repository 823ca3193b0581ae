"""What `mkdocs.yml` asks for beyond what mkdocs does: pages of the repository's top folder, and fences whose second word only the tests read.

README.md becomes the home page, CONTRIBUTING.md and CHANGELOG.md pages beside it. Links into `docs/` lead there; a link to anything else of the repository
stays as its text, since that is no part of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "building.md", "CHANGELOG.md": "changelog.md"}
FOLDERS = {"docs/adr": "adr/0001-names-and-folders.md"}
"""Folders that pages link to, and the page that stands for each."""

_FENCE = re.compile(r"^```(python|output)(?: (?:no-run|card|built|patched))? *$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the top folder."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace('src="docs/', 'src="')
        text = re.sub(r"\]\(docs/images/", "](images/", text)
        files.append(File.generated(config, page, content=_LINK.sub(_relinked, text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's text as the site shows it: the languages of fences alone, and links to pages of the top folder."""
    for source, page in PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}")
    return _FENCE.sub(lambda found: "```text" if found[1] == "output" else f"```{found[1]}", markdown)


def _relinked(found: re.Match[str]) -> str:
    text, path, anchor = found.groups()
    target = FOLDERS.get(path.rstrip("/")) or PAGES.get(path)
    if target is None and path.startswith("docs/"):
        target = path.removeprefix("docs/")
    return text if target is None else f"[{text}]({target}{anchor or ''})"
