"""Every family of models gives the same bits planned, without reuse of any byte, guarded, and eager: prefill and decode, f32 and bf16, one and two threads.

A plan that reused bytes too early would differ from one that reuses none, and the guarded mode turns what is read too early or too late into NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.tools.compare.differences import bits_equal
from tests.frontend.small_families import SMALL_DECODERS, small_model

PLANS: dict[str, dict[str, Any]] = {"planned": {}, "no-reuse": {"reuse": False}, "guarded": {"mode": "guarded"}}
PRECISIONS = ("f32", "bf16")


def variants(model: ost.Model, precision: str) -> Iterator[tuple[str, Any]]:
    """An executable of each plan in its mode, and an eager one, each on one thread and on two."""
    one, two = HostDevice(threads=1), HostDevice(threads=2)
    for name, options in PLANS.items():
        if model.family.encoder is None:
            executable: Executable = ost.compile(
                model,
                buckets={"B": [2], "T": [1, 8]},
                context=32,
                logits="all",
                device=one,
                precision=precision,
                **options,
            )
        else:
            executable = ost.compile_encoder(
                model, buckets={"B": [3], "T": [8]}, device=one, precision=precision, **options
            )
        yield name, executable
        yield name, load_program(executable.program, Route(two, executable.mode), kind=type(executable))
        if name == "planned":
            yield "eager", executable.clone("eager")
            yield "eager", load_program(executable.program, Route(two, "eager"), kind=type(executable))


def decoded(executable: ost.TextExecutable, tokens: Array) -> list[Array]:
    """Logits of two rows side by side: a prefill of each (one in two chunks) and two decode steps, buckets filled in part and whole."""
    steps = (
        [Piece(0, tokens[:7], 0, True)],
        [Piece(0, tokens[7:12], 7, True), Piece(1, tokens[3:14], 0, True)],
        [Piece(0, tokens[12:13], 12, True), Piece(1, tokens[14:15], 11, True)],
        [Piece(1, tokens[15:16], 12, True)],
    )
    found = []
    for pieces in steps:
        plan = executable.bucket(sum(len(piece.tokens) for piece in pieces), len(pieces))
        inputs, _ = pack(plan, pieces, executable.block_table())
        count = sum(len(piece.tokens) for piece in pieces)
        found.append(executable.run(plan.name, inputs)["logits"][:count])
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", SMALL_DECODERS)
def test_a_decoder_gives_the_same_bits_with_and_without_reuse(
    family: str, precision: str, tmp_path: Path, seed: int
) -> None:
    model = small_model(family, tmp_path, seed)
    tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, 16, dtype=np.int32)
    expected: list[Array] = []
    arenas: dict[str, int] = {}
    for name, executable in variants(model, precision):
        arenas[name] = executable.memory.arena
        found = decoded(executable, tokens)
        expected = expected or found
        assert all(np.isfinite(logits).all() for logits in found), (name, executable.device.threads)
        assert all(map(bits_equal, expected, found)), (name, executable.device.threads)
    assert expected[0].std() > 0.1
    assert arenas["planned"] < arenas["guarded"]
    assert arenas["no-reuse"] > 3 * arenas["planned"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_encoder_gives_the_same_bits_with_and_without_reuse(precision: str, tmp_path: Path, seed: int) -> None:
    model = small_model("bert", tmp_path, seed)
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, model.config.vocab_size, length, dtype=np.int32) for length in (1, 8, 5, 3, 8, 2)]
    expected: Array | None = None
    for name, executable in variants(model, precision):
        found = executable.embed(rows, normalize=True)
        expected = found if expected is None else expected
        assert np.isfinite(found).all(), (name, executable.device.threads)
        assert bits_equal(expected, found), (name, executable.device.threads)
