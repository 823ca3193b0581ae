"""One contender of training in its own process: answers one JSON request a line on standard input with one JSON line.

    python -m benchmarks.training.worker CONTENDER FOLDER PRECISION THREADS DEVICE BATCH SEQUENCE [MEMORY_LIMIT [CHUNKS]]

CONTENDER: `ours` (or `ours planned`, `ours eager`), `torch eager`, `torch compile`, `torch compile-ro`, `torch graph`, `torch eager+N` (N layers checkpointed).

Requests: `losses` (of the first steps, from the weights of the checkpoint), `time` (milliseconds a step of n in a row), `memory`, `quit`. On one thread of a
CPU times are CPU time of the process, which leaves out moments when others held the core; otherwise they are wall time. CHUNKS are pieces of our head, as many
as the limit asks for by default.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ostinato.ir.types import Array

__all__ = ["LEARNING_RATE", "batch_of"]

LEARNING_RATE = 1e-4


class Contender(Protocol):
    """`give` the batch of the next steps, `step` submits one, `loss` waits for the last one's."""

    def give(self, ids: Array, target: Array) -> None: ...
    def step(self) -> None: ...
    def loss(self) -> float: ...
    def wait(self) -> None: ...
    def peak_bytes(self) -> int: ...
    def device_bytes(self) -> int: ...


class Ours:
    def __init__(
        self,
        mode: str,
        folder: str,
        shape: tuple[int, int],
        *,
        precision: str,
        device: str,
        threads: int,
        limit: str,
        chunks: str,
    ) -> None:
        import ostinato as ost  # each contender imports only its own library

        opened: Any = {"device": "hip"} if device == "cuda" else {"device": "cpu", "threads": threads}
        self._step = ost.train_step(
            folder,
            batch=shape,
            optimizer=ost.AdamW(lr=LEARNING_RATE, weight_decay=0.0),
            precision=precision,
            memory_limit=limit or None,
            chunks=int(chunks) if chunks else None,
            mode=mode or "auto",
            on_nan="skip",
            **opened,
        )
        self._device: Any = self._step.device
        self._batch: tuple[Array, Array] | None = None
        self._last: Any = None

    def give(self, ids: Array, target: Array) -> None:
        self._batch = (ids, target)

    def step(self) -> None:
        assert self._batch is not None
        self._last = self._step(*self._batch)

    def loss(self) -> float:
        return float(self._last.loss)

    def wait(self) -> None:
        self._step.finish()

    def peak_bytes(self) -> int:
        """Bytes beyond parameters and optimizer state: what the plan says, which the device's counters are held against elsewhere."""
        memory = self._step.memory
        return memory.arena + memory.io + memory.constants

    def begin_peak(self) -> None:
        """Forgets what was taken once, to choose and warm the vendor's products before anything was captured."""
        if self._device.captures:
            self._device.native.reset_peak()

    def device_bytes(self) -> int:
        """All bytes of the device at the peak of the steps, by its counters; -1 on a CPU."""
        return int(self._device.native.counters.peak_bytes) if self._device.captures else -1

    def plan(self) -> dict[str, Any]:
        """What a limit did to the step."""
        stats, nodes = self._step.plan.stats, {step.node for step in self._step.plan.steps}
        pieces = sum(node.startswith("chunk") and node.endswith(".losses") for node in nodes)
        found = {"arena": stats.arena_bytes, "bound": stats.lower_bound, "status": stats.status}
        return {**found, "recomputed": stats.recomputed, "extra_work": stats.extra_work, "chunks": pieces or 1}


def batch_of(number: int, batch: int, sequence: int, vocabulary: int) -> tuple[Array, Array]:
    """Random tokens [batch, sequence] and what follows them, the same for every contender."""
    ids = np.random.default_rng([7, number]).integers(0, vocabulary, (batch, sequence + 1), dtype=np.int64)
    return ids[:, :-1].astype(np.int32), ids[:, 1:].astype(np.int32)


def _contender(
    name: str, folder: str, precision: str, threads: int, device: str, shape: tuple[int, int], limit: str, chunks: str
) -> Contender:
    family, _, variant = name.partition(" ")
    if family == "ours":
        told: Any = {"precision": precision, "device": device, "threads": threads, "limit": limit, "chunks": chunks}
        return Ours(variant, folder, shape, **told)
    from benchmarks.training.torch_peer import TorchTraining  # likewise

    return TorchTraining(
        variant, folder, shape[1], precision=precision, device=device, lr=LEARNING_RATE, threads=threads
    )


def main() -> None:
    name, folder, precision, threads, device, batch, sequence, *limits = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not disturb the protocol
    shape = (int(batch), int(sequence))
    vocabulary = json.loads(Path(folder, "config.json").read_text())["vocab_size"]
    clock: Callable[[], float] = time.process_time if threads == "1" and device == "cpu" else time.perf_counter
    started = time.perf_counter()
    limit, chunks = [*limits, "", ""][:2]
    contender = _contender(name, folder, precision, int(threads), device, shape, limit, chunks)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    answer(load_seconds=time.perf_counter() - started)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "losses":
            found = []
            begin = time.perf_counter()
            first = 0.0
            for number in range(request["n"]):
                contender.give(*batch_of(number, *shape, vocabulary))
                contender.step()
                found.append(contender.loss())
                first = first or time.perf_counter() - begin
            if isinstance(contender, Ours):
                contender.begin_peak()
            answer(losses=found, first_seconds=first)
        elif request["op"] == "time":
            contender.give(*batch_of(0, *shape, vocabulary))
            contender.wait()
            begin = clock()
            for _ in range(request["n"]):
                contender.step()
            contender.wait()
            answer(ms=(clock() - begin) * 1e3 / request["n"])
        elif request["op"] == "memory":
            status = Path("/proc/self/status").read_text().splitlines()
            fields = dict(part.split(":", 1) for part in status if ":" in part)
            plan = contender.plan() if isinstance(contender, Ours) else {}
            peaks = {"peak_bytes": contender.peak_bytes(), "device_bytes": contender.device_bytes()}
            answer(process_peak_bytes=int(fields["VmHWM"].split()[0]) * 1024, **peaks, **plan)
        else:
            break


if __name__ == "__main__":
    main()
