"""Cutting and packing ragged rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.runtime.batch import Piece, pack, schedule
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint


def _piece(row: int, size: int, start: int = 0) -> Piece:
    return Piece(row, np.arange(size, dtype=np.int32), start, True)


def test_schedule_fills_steps_and_marks_only_the_end_as_wanted() -> None:
    steps = schedule([_piece(0, 5), _piece(1, 6, start=3)], 4)
    assert [[(p.row, len(p.tokens), p.start, p.wanted) for p in step] for step in steps] == [
        [(0, 4, 0, False)],
        [(0, 1, 4, True), (1, 3, 3, False)],
        [(1, 3, 6, True)],
    ]


def test_every_chunk_of_a_row_knows_its_whole_length() -> None:
    steps = schedule([_piece(0, 5), _piece(1, 6, start=3), Piece(2, np.zeros(1, np.int32), 1, False, total=7)], 4)
    assert [[(p.row, p.total) for p in step] for step in steps] == [[(0, 5)], [(0, 5), (1, 9)], [(1, 9), (2, 7)]]


def test_pack_gives_the_length_of_its_row_to_every_token_where_the_entry_asks(tmp_path: Path, seed: int) -> None:
    config = small_config("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    write_hf_checkpoint(tmp_path, config, random_model(config, seed))
    executable = ost.compile(tmp_path, buckets={"B": [3], "T": [4]}, context=16)
    plan = executable.bucket(12, 3)
    prompt = Piece(0, np.arange(4, dtype=np.int32), 0, False, total=11)
    inputs, _ = pack(plan, [prompt, _piece(1, 2, start=5), _piece(2, 1, start=12)], executable.block_table())
    assert inputs["rotary_length"].tolist() == [11, 11, 11, 11, 7, 7, 13, 0, 0, 0, 0, 0]
    assert inputs["rotary_length"].dtype == np.int32


def test_an_empty_row_takes_no_step() -> None:
    assert schedule([_piece(0, 0)], 4) == []


def test_pack_puts_wanted_rows_first_and_masks_the_rest(tiny: ost.TextExecutable) -> None:
    plan = tiny.bucket(8, 2)
    waiting = Piece(0, np.array([7, 8, 9], np.int32), 2, False)
    inputs, wanted = pack(plan, [waiting, _piece(1, 2)], tiny.block_table())
    assert [piece.row for piece in wanted] == [1]
    assert inputs["row_count"].tolist() == [1]
    assert inputs["token_count"].tolist() == [5]
    assert inputs["last"].tolist() == [4, -1]
    assert inputs["row_of_token"].tolist()[:6] == [0, 0, 0, 1, 1, -1]
    assert inputs["position"].tolist()[:5] == [2, 3, 4, 0, 1]
    assert inputs["length"].tolist() == [5, 2]


def test_pack_refuses_more_than_the_entry_holds(tiny: ost.TextExecutable) -> None:
    plan = tiny.bucket(4, 1)
    with pytest.raises(ost.CapacityError, match="5 tokens of 1 rows, the entry holds 4"):
        pack(plan, [_piece(0, 5)], tiny.block_table())
