"""`TraceSession` in clumsy hands: closed twice or by somebody else, left by an exception or a dropped generator, and used by several threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import ostinato as ost

IDS = np.array([[5, 9, 2]], np.int32)


@pytest.fixture(scope="module")
def tiny(tiny_model: ost.Model) -> ost.TextExecutable:
    """One for all tests: a session leaves it as it was."""
    return ost.compile(tiny_model, buckets={"B": [1], "T": [4]}, context=16, threads=1)


def test_a_session_closes_itself_alone(tiny: ost.TextExecutable) -> None:
    mine, other = ost.TraceSession(tiny, "layers.0"), ost.TraceSession(tiny, "layers.1")
    other.__exit__(None, None, None)  # it was never open
    with other:
        tiny(IDS)
    with mine:
        other.__exit__(None, None, None)  # a second time
        tiny(IDS)
        assert tiny.diversion is mine
    assert (len(mine.steps), len(other.steps)) == (1, 1)
    assert tiny.diversion is None


def test_a_refused_session_leaves_the_open_one(tiny: ost.TextExecutable) -> None:
    with ost.TraceSession(tiny, "layers.0") as session:
        for second in (session, ost.TraceSession(tiny, "layers.1")):
            with pytest.raises(ost.LifecycleError, match="traced already"), second:
                raise AssertionError("it opened")
        tiny(IDS)
    assert len(session.steps) == 1
    assert tiny.diversion is None


def test_a_call_that_fails_notes_nothing_and_the_session_goes_on(tiny: ost.TextExecutable) -> None:
    with ost.TraceSession(tiny, "layers.0") as session:
        with pytest.raises(ost.OstinatoError):
            tiny(np.zeros((9, 9)))
        tiny(IDS)
    assert [step.number for step in session.steps] == [0]
    with pytest.raises(KeyError, match="mine"), ost.TraceSession(tiny, "layers.0"):
        raise KeyError("mine")
    assert tiny.diversion is None


def test_a_generator_that_is_dropped_closes_its_session(tiny: ost.TextExecutable) -> None:
    def traced() -> Iterator[int]:
        with ost.TraceSession(tiny, "layers.0") as session:
            while True:
                tiny(IDS)
                yield len(session.steps)

    steps = traced()
    assert [next(steps), next(steps)] == [1, 2]
    assert tiny.diversion is not None
    del steps
    gc.collect()
    assert tiny.diversion is None


def test_threads_note_every_run_once(tiny: ost.TextExecutable) -> None:
    refused: list[ost.LifecycleError] = []

    def run() -> None:
        for _ in range(10):
            try:
                tiny(IDS)
            except ost.LifecycleError as error:
                refused.append(error)

    with ost.TraceSession(tiny, "layers.0") as session:
        threads = [Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(session.steps) + len(refused) == 30
    assert [step.number for step in session.steps] == list(range(len(session.steps)))


@pytest.mark.parametrize("place", [None, 5, b"trace.safetensors", ""])
def test_a_trace_is_saved_in_a_file(place: Any, tiny: ost.TextExecutable, tmp_path: Path) -> None:
    with ost.TraceSession(tiny, "layers.0") as session:
        tiny(IDS)
    with pytest.raises(ost.ConfigError, match="the path is"):
        session.save(place)
    with pytest.raises(ost.ConfigError, match="cannot be written"):
        session.save(tmp_path)


def test_an_input_is_said_to_be_one_with_what_to_do_instead(tiny: ost.TextExecutable) -> None:
    with pytest.raises(ost.ConfigError, match="it is an input of the graph") as refused:
        ost.TraceSession(tiny, "input_ids")
    assert "read_state" in (refused.value.hint or "")
