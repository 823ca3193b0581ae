"""Run by test_allocations.py under the interposer: prints the allocations of native calls, beyond those of a native call that does nothing.

With a model: of one step of an entry, or of a few texts; with "train" behind it, of whole training steps. Without: of the launch of every operator that
`ostinato.ops` makes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OPS
from ostinato.ir.step import KernelCall
from ostinato.ir.target import Level
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.encode import pack_texts
from ostinato.runtime.generation import Generator
from ostinato.runtime.runners import PlannedRunner
from ostinato.runtime.sampling_inputs import sampling_inputs
from tests.runtime.operator_samples import Recording, arguments

REPEATS = 20
"""Runs a count covers: the interpreter's own odd allocation disappears in it, one of ours on each run does not."""

_counter = ctypes.CDLL(None)
_start, _stop = _counter.counting_start, _counter.counting_stop
_stop.restype = ctypes.c_long


def counted(run: Callable[[], None]) -> int:
    """The fewest allocations that so many runs made, on any thread."""

    def once() -> int:
        _start()
        for _ in range(REPEATS):
            run()
        return int(_stop())

    once()
    return min(once() for _ in range(5))


def of_steps(model: str, threads: int) -> Iterator[str]:
    """A prefill and a decode step, and one that also chooses a token with everything that a request can ask for."""
    forward = ost.compile(model, buckets={"B": [1], "T": [1, 32]}, context=64, threads=threads)
    choosing = ost.LLM(model, max_num_seqs=2, context=64, threads=threads).executable
    everything = ost.SamplingParams(
        temperature=0.8, top_k=9, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.5, logit_bias={3: 1.0}
    )
    request = Generator(choosing, ()).request(0, [1, 2, 3], everything)
    for executable, tokens, requests in ((forward, 32, ()), (forward, 1, ()), (choosing, 2, (request,))):
        plan = executable.bucket(tokens, 1)
        inputs, _ = pack(plan, [Piece(0, np.arange(tokens, dtype=np.int32), 0, True)], executable.block_table())
        executable.run(plan.name, {**inputs, **sampling_inputs(plan, requests)})
        runner = executable.runner(plan.name)
        assert isinstance(runner, PlannedRunner)
        run = runner.loaded.table.run
        excess = counted(lambda: run(0, -1)) - counted(lambda: run(0, 0))  # noqa: B023 - called at once
        yield f"tokens {tokens} steps {len(plan.steps)} calls 1 allocations {round(excess / REPEATS)}"


def of_texts(model: str, threads: int) -> Iterator[str]:
    """Several texts, and one, through an encoder."""
    executable = ost.compile_encoder(model, buckets={"B": [1, 4], "T": [32]}, threads=threads)
    for texts in (4, 1):
        plan = executable.bucket(24 * texts, texts)
        inputs = pack_texts(plan, [np.arange(24, dtype=np.int32)] * texts)
        executable.run(plan.name, inputs)
        runner = executable.runner(plan.name)
        assert isinstance(runner, PlannedRunner)
        run = runner.loaded.table.run
        excess = counted(lambda: run(0, -1)) - counted(lambda: run(0, 0))  # noqa: B023 - called at once
        yield f"texts {texts} steps {len(plan.steps)} calls 1 allocations {round(excess / REPEATS)}"


def of_training(model: str, threads: int) -> Iterator[str]:
    """Forward, backward and optimizer: with everything, and with values that are computed again."""
    free = ost.train_step(model, batch=(2, 8), optimizer=ost.AdamW(), device="cpu", threads=threads)
    more: dict[str, Any] = {"micro_batches": 2, "dropout": 0.1, "keep_gradients": True}
    limit = free.memory.arena * 3 // 4
    whole = ost.train_step(
        model, batch=(2, 8), optimizer=ost.AdamW(clip_norm=1.0), device="cpu", threads=threads, **more
    )
    tight = ost.train_step(
        model, batch=(2, 8), optimizer=ost.SGD(momentum=0.9), device="cpu", threads=threads, memory_limit=limit
    )
    ids = np.arange(16, dtype=np.int32).reshape(2, 8)
    for step in (free, whole, tight):
        step(ids, ids)
        runner = step.runner("train")
        assert isinstance(runner, PlannedRunner)
        run = runner.loaded.table.run
        excess = counted(lambda: run(0, -1)) - counted(lambda: run(0, 0))  # noqa: B023 - called at once
        yield f"training steps {len(step.plan.steps)} calls {step.submissions} allocations {round(excess / REPEATS)}"


def of_operators(threads: int) -> Iterator[str]:
    """Every operator on its largest sample; the baseline is a kernel without rows."""
    host = HostDevice(threads=threads)
    device: Any = Recording(host)
    ops.use(device)
    rng = np.random.default_rng(0)
    one = np.ones((1, 1), np.float32)
    nothing = host.make_launch(KernelCall("nothing", "silu", (0, 0, 0), 3))
    address = (one.ctypes.data, 0)
    no_rows = (address, (0, 0), address)
    baseline = counted(lambda: nothing.run(no_rows))
    for op in OPS:
        if op.is_view or all(row.level is Level.REFERENCE for row in host.target.rows_for(op.name)):
            continue  # numpy allocates
        samples = [sample for sample in op.samples(rng) if sample.error is None]
        call = arguments(op, max(samples, key=_size), rng)
        call.run()
        launch, operands = device.launched[-1]
        excess = counted(lambda: launch.run(operands)) - baseline  # noqa: B023 - called at once
        yield f"{op.name} calls 1 allocations {round(excess / REPEATS)}"


def _size(sample: Sample) -> int:
    return sum(operand.type.elements for operand in sample.operands if operand is not None)


def main() -> None:
    gc.disable()  # a collection allocates and frees when it likes
    threads = int(sys.argv[1])
    if len(sys.argv) < 3:
        lines = of_operators(threads)
    elif sys.argv[3:] == ["train"]:
        lines = of_training(sys.argv[2], threads)
    else:
        encoder = ost.load(sys.argv[2]).family.encoder is not None
        lines = (of_texts if encoder else of_steps)(sys.argv[2], threads)
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
