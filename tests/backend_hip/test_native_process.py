"""The native layer in the life of a process: signal handlers within a run, forks beside other threads, daemon threads at the end of the interpreter.

Each case is a program of its own, so that a deadlock or an abort is one failed test.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

_PRELUDE = """
import os, resource, signal, threading, time
from ostinato.backend_hip import _native
device = _native.Device(2)
size = 1 << 22
memory = device.allocate(size)
def fill(steps):
    return _native.Table(device, [(3, 0, 0, [(memory, size)], [1], [], [])] * steps)
one = fill(1)
"""

_LONG_RUN = """
done = False
def run_until_done(table):
    while not done:
        table.run()
"""


def run_program(body: str, seconds: float = 60) -> str:
    """Standard output of a program; it must end by itself with status 0."""
    program = _PRELUDE + _LONG_RUN + textwrap.dedent(body)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert ended.returncode == 0, f"status {ended.returncode}: {ended.stderr[-2000:]}"
    return ended.stdout


def test_a_handler_that_runs_on_the_same_device_is_refused() -> None:
    out = run_program("""
        def handler(*_):
            global done
            done = True
            try:
                one.run()
            except _native.NativeError as error:
                print(error.status, error.text)
            other = _native.Device(1)  # another device is free
            place = other.allocate(8)
            _native.Table(other, [(3, 0, 0, [(place, 8)], [1], [], [])]).run()
            print("other ran")
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        fill(5000).run()
        assert done
        one.run()
    """)
    assert out.startswith("3 a run on this device is in progress on this thread")
    assert "other ran" in out


def test_a_handler_may_fork() -> None:
    run_program("""
        child = None
        def handler(*_):
            global child
            child = os.fork()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        fill(5000).run()
        one.run()
        if child == 0:
            thread = threading.Thread(target=one.run)
            thread.start()
            thread.join()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """)


def test_forks_beside_threads_that_allocate_and_run() -> None:
    run_program("""
        def allocate():
            while not done:
                device.free(device.allocate(4096))
        threads = [threading.Thread(target=allocate) for _ in range(2)]
        threads.append(threading.Thread(target=run_until_done, args=(fill(3),)))
        for thread in threads:
            thread.start()
        for _ in range(25):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                device.free(device.allocate(100))
                one.run()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        done = True
        for thread in threads:
            thread.join()
    """)


def test_a_daemon_thread_within_runs_does_not_abort_the_end() -> None:
    for steps in (1, 100):
        run_program(f"""
            threading.Thread(target=run_until_done, args=(fill({steps}),), daemon=True).start()
            time.sleep(0.05)
        """)


def test_a_large_alignment_costs_no_memory() -> None:
    run_program("""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        address = device.allocate(64, 1 << 30)
        assert address % (1 << 30) == 0
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    """)
