"""Golden tests written in the text form of the IR: files `*.ir`, found by `conftest.py` wherever they lie under `tests/`.

    # run: cse,dead_code          passes by name, in order; nothing: the text is only normalised
    # phase: traced               the verifier's phase (this is the default); other headers: "# target: host"
    graph @before { ... }
    # expect
    graph @after { ... }

`pytest --bless` rewrites the expected part with what came out. A file without "# expect" is about errors: each offending statement ends with
`# error[V07]: text` (one comment, several findings separated by ` # `), or `# error[text]: text` where the parser must stop. Every finding must be announced on
its line and every announcement must come true; `text` is a part of the message. Lines of a file before the graph that are no headers are prose.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ostinato.ir.errors import TextError
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.text import parse_graph, print_graph
from ostinato.ir.verify import find_violations, verify

__all__ = ["FileTestFailure", "run_file"]

HEADER = re.compile(r"#\s*(run|phase|target):(.*)")
ERROR = re.compile(r"#\s*error\[(V[0-9]{2}|text)\]:\s*(.*?)\s*(?=#\s*error\[|$)")
EXPECT = "# expect"


class FileTestFailure(AssertionError):
    """What a test file promised and what came out instead."""


class Pass(Protocol):
    """The part of a pass that a test file needs."""

    def apply(self, graph: Graph, target: Target) -> Graph: ...


@dataclass(frozen=True, slots=True)
class TestFile:
    """A test file in parts; `before` and `expected` are text, `first_line` is the number of the first line of `before`."""

    __test__ = False

    head: str
    headers: Mapping[str, str]
    before: str
    first_line: int
    expected: str | None


def split_file(text: str) -> TestFile:
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith("graph")), None)
    if start is None:
        raise FileTestFailure("no line begins with 'graph'")
    headers = {match[1]: match[2].strip() for line in lines[:start] if (match := HEADER.match(line))}
    if "run" not in headers:
        raise FileTestFailure("no '# run:' header before the graph")
    stop = next((i for i, line in enumerate(lines) if line.strip() == EXPECT), None)
    expected = None if stop is None else "\n".join(lines[stop + 1 :]).lstrip("\n")
    before = "\n".join(lines[start:stop])
    return TestFile("\n".join(lines[:start]), headers, before, start + 1, expected)


def run_file(path: Path, *, bless: bool = False) -> None:
    """Runs one file; raises `FileTestFailure` with a difference, or what the library raises. `bless` rewrites the expected part in place."""
    test = split_file(path.read_text(encoding="utf-8"))
    phase = test.headers.get("phase", "traced")
    target = TARGETS[test.headers.get("target", "none")]()
    known = target if target.rows else None  # V23 needs a target that has rows
    if test.expected is None:
        _check_errors(test, phase, known)
        return
    graph = parse_graph(test.before)
    verify(graph, target=known, phase=phase)
    for name in (part.strip() for part in test.headers["run"].split(",")):
        if name:
            graph = find_pass(name).apply(graph, target)
            verify(graph, target=known, phase=phase)
    actual = print_graph(graph)
    if parse_graph(actual) != graph or print_graph(parse_graph(actual)) != actual:
        raise FileTestFailure("the result does not survive printing and parsing")
    if actual == test.expected:
        return
    if bless:
        before = test.before.rstrip("\n")
        path.write_text(f"{test.head}\n{before}\n\n{EXPECT}\n{actual}", encoding="utf-8")
        return
    difference = difflib.unified_diff(
        test.expected.splitlines(), actual.splitlines(), "expected", "actual", lineterm=""
    )
    raise FileTestFailure("\n".join([f"{path.name}: (pytest --bless accepts this)", *difference]))


def find_pass(name: str) -> Pass:
    """A pass of the pipeline by its name. Loaded on demand: the tests of `ir` need no passes."""
    passes: Mapping[str, Pass] = importlib.import_module("ostinato.passes.pipeline").PASSES
    if name not in passes:
        raise FileTestFailure(f"no pass is called {name!r}; known: {', '.join(passes)}")
    return passes[name]


def _target(function: str, *given: object) -> Target:
    """A target by the function that makes it, its rows on trust: what comes out must not depend on the records of a machine."""
    made: Target = getattr(importlib.import_module("ostinato.backend_hip.target"), function)(*given)
    return made


TARGETS: Mapping[str, Callable[[], Target]] = {
    "none": lambda: Target("none", (), "none:0"),
    "host": lambda: _target("host_rows_target"),
    "sm_90": lambda: _target("hip_target", "sm_90", 32),
}


def _check_errors(test: TestFile, phase: str, target: Target | None) -> None:
    announced = [
        (number, match[1], match[2])
        for number, line in enumerate(test.before.split("\n"), test.first_line)
        for match in ERROR.finditer(line)
    ]
    if not announced:
        raise FileTestFailure(f"a file without '{EXPECT}' announces errors with '# error[...]: text'")
    found: list[tuple[int, str, str]]
    try:
        graph = parse_graph(test.before)
    except TextError as error:
        found = [(error.line + test.first_line - 1, "text", str(error))]
    else:
        lines = _statement_lines(test)
        violations = find_violations(graph, target=target, phase=phase)
        found = [(lines[item.statement], item.rule, str(item)) for item in violations]
    missing = list(announced)
    problems: list[str] = []
    for number, rule, message in found:
        match = next((item for item in missing if item[:2] == (number, rule) and item[2] in message), None)
        if match is None:
            problems.append(f"line {number}: not announced: {message}")
        else:
            missing.remove(match)
    problems += [f"line {number}: did not come: error[{rule}]: {text}" for number, rule, text in missing]
    if problems:
        raise FileTestFailure("\n".join(problems))


def _statement_lines(test: TestFile) -> list[int]:
    """The line of every statement of the graph: what is not empty, a comment, the header or the closing brace."""
    numbered = enumerate(test.before.split("\n"), test.first_line)
    says = [number for number, line in numbered if line.strip() and not line.strip().startswith("#")]
    return says[1:-1]
