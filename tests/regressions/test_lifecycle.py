"""Use at the wrong time: streams side by side, calls from several threads, forks, copies, files that change behind an open checkpoint."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.tokenizer import tokenizer_from_gguf
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_tokenizers import gguf_metadata, train

GREEDY = ost.SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
ONE, TWO = [1, 2, 3], [7, 8, 9, 10]


def test_streams_side_by_side_do_not_share_rows(llm: ost.LLM) -> None:
    expected = [list(llm.generate([prompt], GREEDY)[0].token_ids) for prompt in (ONE, TWO)]
    streams = llm.tokens([ONE], GREEDY), llm.tokens([TWO], GREEDY)
    found: list[list[int | None]] = [[], []]
    for first, second in zip(*streams, strict=True):
        found[0].append(first.token)
        found[1].append(second.token)
    assert found == expected


def test_a_whole_generation_fits_between_two_tokens_of_a_stream(llm: ost.LLM) -> None:
    expected = [list(llm.generate([prompt], GREEDY)[0].token_ids) for prompt in (ONE, TWO)]
    stream = llm.tokens([ONE], GREEDY)
    found = [next(stream).token]
    assert [list(o.token_ids) for o in llm.generate([TWO, TWO], GREEDY)] == [expected[1]] * 2
    assert found + [event.token for event in stream] == expected[0]


def test_held_rows_are_an_error_and_come_back(llm: ost.LLM) -> None:
    streams = [llm.tokens([ONE], GREEDY) for _ in range(2)]
    assert len([next(stream) for stream in streams]) == 2
    with pytest.raises(ost.LifecycleError, match="all 2 rows are held"):
        llm.generate([TWO], GREEDY)
    streams.clear()
    assert llm.executable.free_rows.held == 0
    assert len(llm.generate([TWO], GREEDY)[0].token_ids) == 6


def test_a_failed_generation_gives_its_rows_back(llm: ost.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = llm.generate([ONE], GREEDY)[0].token_ids
    run = llm.executable.run_held
    calls = iter(range(100))

    def stop_at_the_third(*args: object) -> object:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.executable, "run_held", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([ONE, TWO, ONE], GREEDY)
    monkeypatch.undo()
    assert llm.executable.free_rows.held == 0
    assert llm.generate([ONE], GREEDY)[0].token_ids == before


def test_a_chunked_forward_is_one_call(exe: ost.TextExecutable) -> None:
    """The chunks of a long row must not be interleaved with another thread's: both write the same cache rows."""
    rows = [list(range(60)), list(range(1, 61))]
    expected = [exe(input_ids=[row])["logits"].tobytes() for row in rows]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(30):
            try:
                if exe(input_ids=[rows[which]])["logits"].tobytes() != expected[which]:
                    wrong.append(which)
            except ost.LifecycleError:
                pass

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_in_the_middle_of_a_call_can_call(exe: ost.TextExecutable) -> None:
    expected = exe(input_ids=[ONE])["logits"].tobytes()
    with exe.exclusive():
        lock_holder = threading.Thread(target=lambda: None)
        lock_holder.start()
        lock_holder.join()
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if exe(input_ids=[ONE])["logits"].tobytes() == expected else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_other_threads_hold_locks_finds_them_free(llm: ost.LLM) -> None:
    tokenizer = tokenizer_from_gguf(gguf_metadata(train(), "smollm"), "here")
    use, pool, worker = llm.executable.regions.shared.use, llm.executable.free_rows, llm._worker
    ids, expected = tokenizer.encode("hello"), llm.generate([ONE], GREEDY)[0].token_ids
    held, done = threading.Barrier(2), threading.Event()

    def hold() -> None:
        with tokenizer._lock, use._lock, pool._lock, worker._lock:
            held.wait()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for ever is ended
        try:
            assert tokenizer.encode("hello") == ids
            assert asyncio.run(llm.agenerate(ONE, GREEDY)).token_ids == expected
            os._exit(0 if llm.generate([ONE], GREEDY)[0].token_ids == expected else 1)
        except BaseException:
            os._exit(2)
    done.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("file", ["entry_runners", "executable", "generation", "rows", "use"])
def test_an_interrupt_anywhere_leaves_no_row_and_no_lock_behind(llm: ost.LLM, file: str) -> None:
    """As Ctrl-C raises it, in each line of a file that takes something and gives it back. (The line of a `with` comes again at its end, where none can.)"""
    params = ost.SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    expected = llm.generate([ONE], params)[0].token_ids
    source = Path(ost.__file__).with_name("runtime") / f"{file}.py"
    lines = source.read_text(encoding="utf-8").splitlines()
    left = 0

    def interrupt(frame: FrameType, event: str, value: object) -> Callable[..., Any] | None:
        nonlocal left
        if frame.f_code.co_filename != str(source):
            return None
        if event == "line" and not lines[frame.f_lineno - 1].lstrip().startswith("with "):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return interrupt

    for number in count(1):
        left = number
        sys.settrace(interrupt)
        try:
            llm.generate([ONE], params)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert llm.executable.free_rows.held == 0, f"line {number}"
        assert llm.generate([ONE], params)[0].token_ids == expected, f"line {number}"
        if left > 0:
            break
    assert number > 5


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_memory_files_and_devices_are_not_duplicated(
    exe: ost.TextExecutable, model: ost.Model, duplicate: Callable[[object], object]
) -> None:
    for thing in (exe, exe.device, exe.regions.arena, model.checkpoint):
        with pytest.raises(ost.LifecycleError, match=r"cannot be copied or pickled"):
            duplicate(thing)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(ost.BoundsError("message", node="n", hint="h")))
    assert (str(error), error.node, error.hint) == ("n: message\n  hint: h", "n", "h")


def test_files_removed_after_loading_do_not_matter(folder: Path) -> None:
    exe = ost.compile(folder, buckets={"B": [1], "T": [4]}, context=8)
    expected = exe(input_ids=[ONE])["logits"].tobytes()
    shutil.rmtree(folder)
    assert exe(input_ids=[ONE])["logits"].tobytes() == expected


def test_files_removed_before_loading_are_named(folder: Path) -> None:
    model = ost.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(ost.WeightsError, match=r"model\.safetensors cannot be read any more"):
        ost.compile(model, buckets={"B": [1], "T": [4]}, context=8)


def test_a_file_replaced_by_one_of_the_same_size_is_noticed(folder: Path, tmp_path: Path) -> None:
    model = ost.load(folder)
    config = small_config("llama")
    other = write_hf_checkpoint(tmp_path / "other", config, random_model(config, 6))
    os.replace(other / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(ost.WeightsError, match="was replaced or written to"):
        ost.compile(model, buckets={"B": [1], "T": [4]}, context=8)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["pipe", "pipe.gguf"])
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ost.WeightsError, match="not a regular file"):
        ost.load(tmp_path / name)


def test_resident_memory_stays_flat(exe: ost.TextExecutable) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    ids = np.array([ONE], np.int32)
    for _ in range(200):
        exe(input_ids=ids)
    before = resident()
    for _ in range(2000):
        exe(input_ids=ids)
    assert resident() - before < 2 << 20
