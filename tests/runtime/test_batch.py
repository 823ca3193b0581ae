"""Cutting and packing ragged rows."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.runtime.batch import Piece, pack, schedule


def _piece(row: int, size: int, start: int = 0) -> Piece:
    return Piece(row, np.arange(size, dtype=np.int32), start, True)


def test_schedule_fills_steps_and_marks_only_the_end_as_wanted() -> None:
    steps = schedule([_piece(0, 5), _piece(1, 6, start=3)], 4)
    assert [[(p.row, len(p.tokens), p.start, p.wanted) for p in step] for step in steps] == [
        [(0, 4, 0, False)],
        [(0, 1, 4, True), (1, 3, 3, False)],
        [(1, 3, 6, True)],
    ]


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
