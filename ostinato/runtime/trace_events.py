"""Traces in the Trace Event Format, which chrome://tracing and Perfetto read: written, and checked against what the format says.

Only what we write is known here: complete events ("X": a name, a start and a duration in microseconds on a thread of a process) and metadata ("M": the names
of processes and threads), in the object form. `trace_problems` is for any text that claims to be such a trace.

Source: "Trace Event Format", the document that the Chromium project publishes with chrome://tracing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["trace_json", "trace_problems"]

_NAMES = frozenset({"process_name", "thread_name"})
"""Metadata whose `args` hold a `name`."""
_MOST_PROBLEMS = 20


def trace_json(events: Sequence[Mapping[str, object]]) -> str:
    """Events as the text of a trace. Times in it are shown in nanoseconds."""
    return json.dumps({"traceEvents": list(events), "displayTimeUnit": "ns"}, indent=1, allow_nan=False) + "\n"


def trace_problems(text: str) -> list[str]:
    """What is wrong with a trace, at most 20 findings: the form of the object and of each event, and complete events of a thread that cross one another."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [f"it is no JSON: {error}"]
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        return ['expected an object with a list "traceEvents"']
    problems: list[str] = []
    if found.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        problems.append(f'"displayTimeUnit" is {found["displayTimeUnit"]!r}, expected "ms" or "ns"')
    spans: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
    for index, event in enumerate(found["traceEvents"]):
        wrong = list(_event_problems(event))
        problems += [f"event {index}: {problem}" for problem in wrong]
        if not wrong and event["ph"] == "X":
            start, duration = float(event["ts"]), float(event["dur"])
            spans.setdefault((event["pid"], event["tid"]), []).append((start, start + duration, index))
    for thread, placed in spans.items():
        problems += _crossings(thread, placed)
    return problems[:_MOST_PROBLEMS]


def _event_problems(event: object) -> Iterator[str]:
    if not isinstance(event, dict):
        yield f"expected an object, found {type(event).__name__}"
        return
    if not isinstance(event.get("name"), str):
        yield '"name" is no text'
    for key in ("pid", "tid"):
        if type(event.get(key)) is not int:
            yield f'"{key}" is {event.get(key)!r}, expected an integer'
    if not isinstance(event.get("args", {}), dict):
        yield '"args" is no object'
    phase = event.get("ph")
    if phase == "X":
        yield from _complete_problems(event)
    elif phase == "M":
        if isinstance(event.get("name"), str) and event["name"] in _NAMES and not isinstance(_name_of(event), str):
            yield f'metadata {event["name"]} without a "name" in "args"'
    else:
        yield f'"ph" is {phase!r}, expected "X" or "M"'


def _complete_problems(event: Mapping[str, object]) -> Iterator[str]:
    for key in ("ts", "dur"):
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            yield f'"{key}" is {value!r}, expected microseconds of 0 or more'
    if not isinstance(event.get("cat", ""), str):
        yield '"cat" is no text'


def _name_of(event: Mapping[str, object]) -> object:
    arguments = event.get("args")
    return arguments.get("name") if isinstance(arguments, dict) else None


def _crossings(thread: tuple[int, int], placed: Sequence[tuple[float, float, int]]) -> Iterator[str]:
    """Events of a thread lie one behind the other or one inside the other; a nanosecond is forgiven, since times are sums of floats."""
    open_: list[tuple[float, int]] = []
    for start, stop, index in sorted(placed, key=lambda span: (span[0], -span[1])):
        while open_ and open_[-1][0] <= start + 1e-3:
            open_.pop()
        if open_ and stop > open_[-1][0] + 1e-3:
            yield f"event {index} crosses event {open_[-1][1]} on thread {thread[1]} of process {thread[0]}"
        open_.append((stop, index))
