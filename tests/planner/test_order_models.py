"""Models in a searched order: every family's arena is no larger than in program order, and the bits are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from benchmarks.planner.models import lowered_model
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.compiler import plan_text_program
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.executable import load_program
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import Route
from ostinato.stages import trace
from tests.frontend.small_families import SMALL_DECODERS, small_model

BUCKETS = {"decode": {"N": 1, "R": 1}, "prefill": {"N": 16, "R": 1}}
SMALLER = {"gemma3"}
"""Families of which a searched order needs less: it makes the rotary tables where they are first read."""


@pytest.mark.parametrize("family", SMALL_DECODERS)
def test_the_searched_order_gives_the_same_bits(family: str, tmp_path: Path, rng: np.random.Generator) -> None:
    model = small_model(family, tmp_path, 3)
    traced = trace(model, "step", cache=ost.CacheShape(1, 64, 1), logits="all")
    tokens = rng.integers(0, model.config.vocab_size, 12, dtype=np.int32)
    arenas: list[list[int]] = []
    logits: list[bytes] = []
    for order in ("program", "search"):
        program = plan_text_program(traced.at(BUCKETS), host_target(), settings=PlanSettings(order=order))
        arenas.append([plan.stats.arena_bytes for plan in program.plan.entries.values()])
        device = HostDevice(threads=1)
        executable = load_program(program, Route(device, "planned"), kind=TextExecutable)
        found = b""
        for piece in (Piece(0, tokens[:11], 0, True), Piece(0, tokens[11:], 11, True)):
            plan = executable.bucket(len(piece.tokens), 1)
            inputs, _ = pack(plan, [piece], executable.block_table())
            count = len(piece.tokens)
            found += executable.run(plan.name, inputs)["logits"][:count].tobytes()
        logits.append(found)
    assert logits[0] == logits[1]
    assert all(searched <= given for given, searched in zip(*arenas, strict=True))
    assert (arenas[0] != arenas[1]) == (family in SMALLER), arenas


@pytest.mark.parametrize("name", ["Q", "L"])
def test_program_order_is_kept_where_every_order_needs_as_much(name: str) -> None:
    for shape, lowered in lowered_model(name, ("p512", "d1")):
        (_, given), (_, searched) = (lowered.fit_entry(PlanSettings(order=order)) for order in ("program", "search"))
        assert searched.steps == given.steps, shape
