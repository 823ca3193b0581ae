"""What sides are given: chance and edges, packed for each executable's own buckets, and found again by row and position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.sides import Side
from ostinato.tools.compare.workload import Room, make_cases, room_of, steps_of


def test_edges_are_there() -> None:
    room = Room(rows=4, longest=16, vocab_size=300, buckets=(8, 32))
    cases = {case.name: case for case in make_cases(room, tokens=12, seed=0)}
    assert list(cases) == [
        "random",
        "edges",
        "full bucket of 8",
        "past the bucket of 8",
        "full bucket of 32",
        "past the bucket of 32",
    ]
    one, same, extremes, full = cases["edges"].sequences
    assert [len(row) for row in (one, same, extremes, full)] == [1, 12, 12, 12]
    assert len(set(same.tolist())) == 1
    assert set(extremes.tolist()) == {0, 299}
    for size in (8, 32):
        for name, total in ((f"full bucket of {size}", size), (f"past the bucket of {size}", size + 1)):
            assert sum(len(row) for row in cases[name].sequences) == total
    assert max(len(row) for case in cases.values() for row in case.sequences) <= 12


def test_many_rows_take_chance_and_edges_in_one_step() -> None:
    room = Room(rows=8, longest=16, vocab_size=300, buckets=(128,))
    first, *_ = make_cases(room, tokens=16, seed=0)
    assert first.name == "random and edges"
    assert len(first.sequences) == 8
    assert first.rounds == 3


def test_few_rows_take_the_edges_one_after_the_other() -> None:
    room = Room(rows=1, longest=8, vocab_size=50, buckets=(4,))
    names = [case.name for case in make_cases(room, tokens=8, seed=0)]
    assert names == ["random", "edges 1", "edges 2", "edges 3", "edges 4", "full bucket of 4", "past the bucket of 4"]


def test_work_follows_from_the_seed() -> None:
    room = Room(rows=2, longest=8, vocab_size=50, buckets=(4,))
    first, again, other = (
        [row.tolist() for case in make_cases(room, tokens=8, seed=seed) for row in case.sequences] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_every_position_that_is_fed_alone_is_looked_at(tiny: Path) -> None:
    executable = ost.compile(str(tiny), buckets={"B": [2], "T": [4]}, context=16)
    case, *_ = make_cases(room_of(executable), tokens=12, seed=3)
    places = [place for step in steps_of(executable, case) for place in step.places]
    wanted = [(row, head - 1) for row, head in enumerate(case.heads)]
    wanted += [(row, at) for row, ids in enumerate(case.sequences) for at in range(case.heads[row], len(ids))]
    assert sorted(places) == sorted(wanted)
    everything = ost.compile(str(tiny), buckets={"B": [2], "T": [4]}, context=16, logits="all")
    found = {place for step in steps_of(everything, case) for place in step.places}
    assert found == {(row, at) for row, ids in enumerate(case.sequences) for at in range(len(ids))}


def test_executables_with_other_buckets_are_compared_at_the_tokens_that_both_answer(tiny: Path) -> None:
    small = ost.compile(str(tiny), buckets={"B": [2], "T": [4]}, context=24)
    large = ost.compile(str(tiny), buckets={"B": [4], "T": [8]}, context=16, logits="all")
    report = compare(small, ["planned", Side("large", executable=large)], replays=1)
    assert report.ok, str(report)
    (pair,) = report.pairs
    assert pair.compared > 10
    assert pair.required == "within contract", "other sizes may add up in another order"


def test_a_decoder_and_an_encoder_have_nothing_in_common() -> None:
    decoder, encoder = (Room(2, 8, 50, (8,), encoder=encoder) for encoder in (False, True))
    with pytest.raises(ost.ConfigError, match="one side is a decoder and one an encoder"):
        decoder.shared(encoder)
    shared = decoder.shared(Room(1, 16, 40, (4,)))
    assert (shared.rows, shared.longest, shared.vocab_size) == (1, 8, 40)
    assert np.iinfo(np.int32).max > shared.vocab_size
