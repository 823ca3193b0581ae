"""One HTML file that stands alone: markup, data, scripts and styles, and nothing that is fetched.

The data is JSON in an inert element, with every character that HTML could read as syntax written as an escape, so that a name like `</script>` stays a name.
A content policy in the head lets the browser run the scripts of the page by their hashes and nothing else, and load nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from ostinato.ir.errors import ConfigError

__all__ = ["asset", "embedded_json", "render_page"]

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
_ENDS = {"script": re.compile(r"</script|<!--", re.IGNORECASE), "style": re.compile(r"</style", re.IGNORECASE)}


def render_page(
    title: str, body: str, data: Any = None, scripts: Sequence[str] = (), styles: Sequence[str] = ()
) -> str:
    """The page. `body` is markup as it is; `data` is what JSON can say, found by scripts as the text of the element `data`; `scripts` run in order after both.

    Raises `ConfigError` for data that is not JSON (NaN and infinity are not), and for a script or style that would end its own element.
    """
    for kind, texts in (("script", scripts), ("style", styles)):
        for text in texts:
            if found := _ENDS[kind].search(text):
                raise ConfigError(f"a {kind} contains {found.group()!r}", hint="split the text, as in '<' + '/script'")
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    policy = f"default-src 'none'; script-src {hashes or chr(39) + 'none' + chr(39)}; style-src 'unsafe-inline'; img-src data: blob:"
    head = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(_printable(title))}</title>",
        *(f"<style>{text}</style>" for text in styles),
        "</head>",
        "<body>",
        body,
    ]
    if data is not None:
        head.append(f'<script type="application/json" id="data">{embedded_json(data)}</script>')
    return "\n".join([*head, *(f"<script>{text}</script>" for text in scripts), "</body>", "</html>", ""])


def embedded_json(data: Any) -> str:
    """JSON that can stand in a script element: plain ASCII without <, > and &. Raises `ConfigError` for what JSON cannot say."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the data of a page is not JSON: {error}", hint="give plain numbers, texts and lists"
        ) from error
    return re.sub("[<>&]", lambda found: _ESCAPES[found.group()], text)


def asset(package: str, name: str) -> str:
    """The text of a script or style that is installed with a package, such as `asset("ostinato.tools.view", "core.js")` for `view/assets/core.js`."""
    return (resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _printable(text: str) -> str:
    """Without what UTF-8 or HTML have no place for."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
