"""Tokens as training data: shifted windows, an order that seed and epoch decide, a cursor that goes on where it was, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, InputError
from ostinato.runtime.training.batches import Batches
from ostinato.runtime.training.dataset import TokenDataset, open_tokens

SIZES: dict[str, Any] = {"batch": 3, "sequence": 8, "vocab_size": 1000}


def counted(count: int = 200, **changes: Any) -> TokenDataset:
    return TokenDataset(np.arange(count, dtype=np.int32), **{**SIZES, "seed": 5, **changes})


def taken(data: Batches, count: int) -> list[bytes]:
    return [batch.input_ids.tobytes() + batch.target.tobytes() for batch in itertools.islice(data, count)]


def test_targets_are_the_inputs_one_token_later_and_an_epoch_has_every_window_once() -> None:
    data = counted()
    assert (data.rows, data.batches_per_epoch, data.tokens_per_batch) == (24, 8, 24)
    starts = []
    for _ in range(data.batches_per_epoch):
        ids, target = next(data)
        assert ids.dtype == target.dtype == np.int32
        assert ids.shape == target.shape == (3, 8)
        assert np.array_equal(ids + 1, target)
        starts += ids[:, 0].tolist()
    assert sorted(starts) == list(range(0, 192, 8))
    assert starts != sorted(starts)
    assert data.cursor.epoch == 1
    assert data.cursor.batch == 0


def test_the_order_is_that_of_seed_and_epoch_and_of_nothing_else() -> None:
    data = counted()
    order = data.order(0)
    # Philox4x32-10 of key (5, 0): these may never change, or no run can be resumed
    assert order[:8].tolist() == [11, 10, 19, 8, 23, 15, 1, 9]
    assert np.array_equal(counted().order(0), order)
    assert not np.array_equal(data.order(1), order)
    assert not np.array_equal(counted(seed=6).order(0), order)
    assert not np.array_equal(counted(seed=5 + 2**32).order(0), order)
    assert np.array_equal(counted(shuffle=False).order(3), np.arange(24))


@pytest.mark.parametrize("at", [0, 1, 7, 8, 13, 23])
def test_a_restored_cursor_goes_on_with_the_same_batches(at: int) -> None:
    whole = taken(counted(), 30)
    data = counted()
    taken(data, at)
    state = json.loads(json.dumps(data.state()))
    fresh = counted()
    fresh.load_state(state)
    assert fresh.cursor == data.cursor
    assert taken(fresh, 5) == whole[at : at + 5]


def test_peeking_does_not_go_on() -> None:
    data = counted()
    first = data.peek()
    assert np.array_equal(first.input_ids, next(data).input_ids)
    assert not np.array_equal(first.input_ids, data.peek().input_ids)


def test_pieces_and_files_of_any_integer_type_are_one_stream(tmp_path: Path) -> None:
    tokens = np.arange(200)
    whole = counted()
    np.save(tmp_path / "a.npy", tokens[:50].astype(np.uint16))
    tokens[50:51].astype("<i4").tofile(tmp_path / "b.int32")
    tokens[51:].astype("<u2").tofile(tmp_path / "c.uint16")
    files = TokenDataset.from_files((tmp_path / name for name in ("a.npy", "b.int32", "c.uint16")), **SIZES, seed=5)
    pieces = TokenDataset([tokens[:9], tokens[9:10], tokens[10:]], **SIZES, seed=5)
    for data in (files, pieces):
        assert data.identity == whole.identity
        assert taken(data, 9) == taken(counted(), 9)
    assert isinstance(open_tokens(tmp_path / "c.uint16"), np.memmap)
    (tmp_path / "c.uint16").rename(tmp_path / "c.bin")
    assert open_tokens(tmp_path / "c.bin", "uint16").tolist() == list(range(51, 200))


def test_identity_is_of_all_that_decides_the_batches() -> None:
    changed = np.arange(200, dtype=np.int32)
    changed[150] = 7
    others = [
        counted(seed=6),
        counted(batch=2),
        counted(sequence=7),
        counted(shuffle=False),
        counted(201),
        TokenDataset(changed, **SIZES, seed=5),
    ]
    assert len({data.identity for data in [counted(), *others]}) == 7
    state = counted().state()
    for data in others:
        with pytest.raises(ConfigError, match="other data"):
            data.load_state(state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0, 1: 2},
        {"epoch": 0, "batch": 8},
        {"epoch": -1, "batch": 0},
        {"epoch": 0, "batch": 1.5},
        {"epoch": True, "batch": 0},
    ],
)
def test_a_state_that_is_none_is_refused_and_the_cursor_stays(state: dict[str, Any]) -> None:
    data = counted()
    next(data)
    before = data.cursor
    with pytest.raises(ConfigError):
        data.load_state({**state, "identity": data.identity} if state else state)
    assert data.cursor == before


class Letters:
    """A tokenizer of one letter a token, that ends a text with 0."""

    vocab_size = 128
    eos_token_id: int | None = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]


def test_texts_end_with_the_end_token() -> None:
    data = TokenDataset.from_texts(["ab", "", "cde"], Letters(), batch=1, sequence=7, shuffle=False)
    assert next(data).input_ids.tolist() == [[97, 98, 0, 0, 99, 100, 101]]
    assert data.vocab_size == 128


@pytest.mark.parametrize(
    ("tokens", "changes", "error", "told"),
    [
        (
            np.arange(24, dtype=np.int32),
            {},
            InputError,
            "24 tokens give 2 windows of 8 tokens and their targets, a batch",
        ),
        (np.zeros(0, dtype=np.int32), {}, InputError, "no tokens"),
        ([], {}, InputError, "no tokens"),
        (np.arange(200), {"vocab_size": 150}, BoundsError, "token 150 is 150, outside the vocabulary of 150"),
        (np.array([5] * 77 + [-1] + [5] * 50), {}, BoundsError, "token 77 is -1"),
        ([np.arange(100), np.array([0, 2**40])], {}, BoundsError, "token 101 is 1099511627776"),
        (np.zeros(100), {}, DTypeError, "float64"),
        (np.zeros(100, dtype=bool), {}, DTypeError, "bool"),
        ([[1, 2], [3]], {}, DTypeError, "tokens are no array"),
        (np.arange(200), {"vocab_size": 2**40}, ConfigError, "vocab_size is 1099511627776"),
        (np.zeros((10, 10), dtype=np.int32), {}, DTypeError, r"shape \[10, 10\]"),
        (np.arange(200), {"batch": 0}, ConfigError, "batch is 0"),
        (np.arange(200), {"sequence": 2.5}, ConfigError, "sequence is 2.5"),
        (np.arange(200), {"seed": 2**63}, ConfigError, "seed is"),
        (np.arange(200), {"shuffle": "no"}, ConfigError, "shuffle is 'no'"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(
    tokens: Any, changes: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        TokenDataset(tokens, **{**SIZES, **changes})


def test_one_text_and_one_path_are_no_list_of_them() -> None:
    """A text would be taken for as many texts as it has letters."""
    with pytest.raises(ConfigError, match="expected a list of texts, found 'abc"):
        TokenDataset.from_texts("abc" * 20, Letters(), batch=1, sequence=7)
    with pytest.raises(ConfigError, match="expected a list of paths of files of tokens"):
        TokenDataset.from_files("tokens.uint16", **SIZES)
    with pytest.raises(ConfigError, match="expected a list of texts"):
        TokenDataset.from_texts([b"abc"], Letters(), batch=1, sequence=1)  # type: ignore[list-item]


def test_files_that_are_no_tokens_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.uint16").write_bytes(b"123")
    (tmp_path / "none.int32").write_bytes(b"")
    (tmp_path / "text.txt").write_text("x" * 64)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, error, told in (
        ("odd.uint16", InputError, "3 bytes"),
        ("none.int32", InputError, "0 bytes"),
        ("text.txt", ConfigError, "does not say what its integers are"),
        ("absent.npy", ConfigError, "cannot be read"),
        ("cut.npy", InputError, "no array"),
        ("objects.npy", InputError, "no array"),
    ):
        with pytest.raises(error, match=told):
            open_tokens(tmp_path / name)
