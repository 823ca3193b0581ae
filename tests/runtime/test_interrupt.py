"""Ctrl-C, threads and fork: the process and the executable survive."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import numpy as np
import pytest

import ostinato as ost

IDS = np.arange(1, 60, dtype=np.int32)[None]


def test_ctrl_c_stops_generation_and_the_next_call_works(tiny_model: ost.Model) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=4, context=250, threads=1)
    params = ost.SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    expected = llm.generate([[1, 2]], ost.SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))[0].token_ids
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    gc.collect()
    gc.disable()  # an interrupt that arrives inside a callback of the collector (hypothesis has one) is lost to Python itself
    try:
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1, 2]] * 4000, params)
    finally:
        gc.enable()
    assert time.monotonic() - started < 30
    again = llm.generate([[1, 2]], ost.SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))[0].token_ids
    assert again == expected


def test_clones_run_on_several_threads(tiny: ost.TextExecutable) -> None:
    expected = tiny(input_ids=IDS)["logits"].tobytes()

    def work(executable: ost.TextExecutable) -> list[bytes]:
        return [executable(input_ids=IDS)["logits"].tobytes() for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, [tiny.clone() for _ in range(4)]):
            assert results == [expected] * 5


def _child(executable: ost.TextExecutable, connection: Connection) -> None:
    connection.send_bytes(executable(input_ids=IDS)["logits"].tobytes())


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_a_forked_child_can_run(tiny_model: ost.Model) -> None:
    executable = ost.compile(tiny_model, buckets={"B": [1], "T": [64]}, context=64, threads=2)
    expected = executable(input_ids=IDS)["logits"].tobytes()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(executable, there))
    child.start()
    assert here.poll(60), "the child gave no answer"
    assert here.recv_bytes() == expected
    child.join(30)
    assert child.exitcode == 0
    assert executable(input_ids=IDS)["logits"].tobytes() == expected
