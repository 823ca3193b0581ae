"""The native solver in the life of a process: daemon threads at the end of the interpreter, signals and stop tests before there is any placement.

Each case is a program of its own, so that an abort is one failed test.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_PRELUDE = """
import random, signal, threading, time
from ostinato.planner.problem import Buffer, Problem
from ostinato.planner.solvers import Limits, solve
from ostinato.planner.solvers.native import native

def crowd(count):
    rng = random.Random(2)
    buffers = []
    for index in range(count):
        lower = rng.randrange(8 + count // 10)
        buffers.append(Buffer(str(index), lower, lower + rng.randint(1, 6), rng.randint(5, 40), rng.choice((4, 6, 9))))
    return Problem(tuple(buffers))

def shelves(count):
    '''Each of `count` buffers looks at as many fixed ones, all with gaps between them: a first placement takes its time.'''
    fixed = [Buffer(f"f{i}", 0, count, 1, 1, 3 * i) for i in range(count)]
    return Problem((*fixed, *(Buffer(str(i), i, i + 1, 2) for i in range(count))))
"""


def run_program(body: str) -> str:
    """Standard output of a program; it must end by itself with status 0."""
    program = _PRELUDE + textwrap.dedent(body)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, f"status {ended.returncode}: {ended.stderr[-2000:]}"
    return ended.stdout


@pytest.mark.parametrize("threads", [1, 2])
def test_a_daemon_thread_within_a_solve_does_not_abort_the_end(threads: int) -> None:
    """It asks for the GIL of an interpreter that has ended, while frames that own Python objects stand below it."""
    for _ in range(4):
        run_program(f"""
            problem = crowd(200)
            def work():
                solve(problem, limits=Limits(seconds=60, threads={threads}))
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.1)
        """)


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_signal_handlers_run_while_the_first_placement_is_made_also_beyond_its_time(seconds: float | None) -> None:
    out = run_program(f"""
        class Enough(Exception): pass
        seen = 0
        def handler(*_):
            global seen
            seen += 1
            if seen == 3:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise Enough
        problem = shelves(12_000)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        try:
            native(problem, Limits(seconds={seconds}))
        except Enough:
            print("ended by the handler")
    """)
    assert out == "ended by the handler\n"


def test_the_stop_test_is_asked_while_the_first_placement_is_made() -> None:
    out = run_program("""
        asked = 0
        def stop():
            global asked
            asked += 1
            if asked == 3:
                raise LookupError("enough")
        try:
            native(shelves(12_000), stop=stop)
        except LookupError as error:
            print(asked, error)
    """)
    assert out == "3 enough\n"
