"""The first replays of captured steps held against the planned ones, where replays are in doubt: some runtimes are known to replay wrongly without a word.

Both do the same work at the same addresses, so that every byte of activations, inputs, outputs and state must be the same after it. Host memory for two
copies of these is needed while it lasts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ostinato.ir.types import Array
from ostinato.runtime.captured import CapturedRunner
from ostinato.runtime.device import Buffer
from ostinato.runtime.put_back import put_back
from ostinato.runtime.regions import Regions
from ostinato.runtime.runners import PlannedRunner

__all__ = ["REPLAYS", "replay_difference"]

REPLAYS = 3
"""Replays that must each leave what the planned steps leave: the first launch of a graph is not like the later ones."""


def replay_difference(runner: CapturedRunner, regions: Regions, inputs: Mapping[str, Array]) -> str:
    """What replays of a captured entry leave otherwise than its planned steps do, in words; "" where they are bit-equal. All bytes are put back.

    Raises what running an entry raises.
    """
    memory: dict[str, Buffer] = {"arena": regions.arena, "io": regions.io, "state": regions.state}
    with put_back(regions, {}):
        for name, array in inputs.items():
            runner.inputs[name][...] = array
        runner.loaded.exchange.give()
        before = _bytes(memory)
        PlannedRunner.enqueue(runner)
        runner.loaded.table.finish()
        expected = _bytes(memory)
        for replay in range(1, REPLAYS + 1):
            for region, buffer in memory.items():
                buffer.write(before[region])
            runner.enqueue()
            runner.loaded.table.finish()
            for region, data in _bytes(memory).items():
                if differs := int(np.count_nonzero(data != expected[region])):
                    return f"replay {replay} left {differs} bytes of {region} otherwise than the planned steps did"
    return ""


def _bytes(memory: Mapping[str, Buffer]) -> dict[str, Array]:
    return {region: buffer.read(np.uint8, (buffer.nbytes,)) for region, buffer in memory.items()}
