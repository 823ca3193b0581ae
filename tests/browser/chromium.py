"""A real browser for the reports: found on the machine, started once, and watched for everything that a page may not do."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Watched", "browser_program", "open_browser", "open_report"]

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(slots=True)
class Watched:
    """What pages have done that a report must not: messages in the console, errors, and requests for anything but the file itself."""

    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def nothing(self) -> bool:
        """Whether all is well."""
        return not (self.console or self.errors or self.requests)


@functools.cache
def browser_program() -> str | None:
    """The program of an installed browser that starts; None where there is none on the PATH."""
    found = [place for name in PROGRAMS if (place := shutil.which(name))]
    return next((place for place in found if _starts(place)), None)


def _starts(program: str) -> bool:
    """Whether it is the browser itself: some distributions have a script of that name which only says where to get one."""
    return subprocess.run([program, "--version"], capture_output=True, timeout=60, check=False).returncode == 0


def missing() -> str | None:
    """What is missing for a browser test, by its name; None where all is there."""
    if importlib.util.find_spec("playwright") is None:
        return "the Python package playwright"
    if browser_program() is None and not _own_browser():
        return "chromium"
    return None


def _own_browser() -> bool:
    """Whether playwright has a browser of its own, from `playwright install chromium`."""
    with _playwright() as driver:
        return Path(driver.chromium.executable_path).exists()


@contextmanager
def _playwright() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        yield driver


@contextmanager
def open_browser() -> Iterator[Any]:
    """A headless Chromium, closed at the end."""
    with _playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_program())
        try:
            yield browser
        finally:
            browser.close()


def open_report(
    browser: Any,
    file: Path,
    *,
    watched: Watched,
    address: str = "",
    dark: bool = False,
    size: tuple[int, int] = (1500, 950),
    scale: float = 1.0,
) -> Any:
    """A page of the browser that shows a report, once its graph is drawn. `address` is the part behind the hash sign."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        color_scheme="dark" if dark else "light",
    )
    page = context.new_page()
    own = file.resolve().as_uri()
    page.on("console", lambda message: watched.console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("request", lambda request: watched.requests.extend({request.url.split("#")[0]} - {own}))
    page.goto(f"{own}#{address}" if address else own)
    page.wait_for_selector("canvas[data-ready]", state="attached", timeout=20_000)
    return page
