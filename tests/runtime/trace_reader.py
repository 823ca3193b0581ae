"""A reader of traces in the Trace Event Format, written from the format's description and sharing nothing with what writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Span", "Trace", "read_trace"]


@dataclass(frozen=True)
class Span:
    """A complete event, in microseconds."""

    name: str
    category: str
    start: float
    duration: float
    process: int
    thread: int
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Trace:
    """Spans in the order of the file, and names of processes and of their threads."""

    spans: tuple[Span, ...]
    processes: Mapping[int, str]
    threads: Mapping[tuple[int, int], str]

    def on(self, process: int, thread: int) -> list[Span]:
        return [span for span in self.spans if (span.process, span.thread) == (process, thread)]


def read_trace(text: str) -> Trace:
    """Raises `AssertionError` or `KeyError` for what is no such trace."""
    found = json.loads(text)
    events = found["traceEvents"] if isinstance(found, dict) else found
    spans, processes, threads = [], {}, {}
    for event in events:
        process, thread = event["pid"], event["tid"]
        match event["ph"]:
            case "X":
                start, duration = float(event["ts"]), float(event["dur"])
                assert min(start, duration) >= 0, event
                spans.append(
                    Span(event["name"], event.get("cat", ""), start, duration, process, thread, event.get("args", {}))
                )
            case "M" if event["name"] == "process_name":
                processes[process] = event["args"]["name"]
            case "M" if event["name"] == "thread_name":
                threads[process, thread] = event["args"]["name"]
            case other:
                raise AssertionError(f"a phase that was not expected: {other}")
    return Trace(tuple(spans), processes, threads)
