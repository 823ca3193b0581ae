"""Token ids as callers give them, to checked int32 rows: an array with lengths, or a list of rows, in numpy, torch or DLPack memory.

int64 is what tokenizers give and becomes int32 with a range check; other dtypes and ids outside the vocabulary are refused, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.ir.checks import integers
from ostinato.ir.errors import BoundsError, DTypeError, InputError, ShapeError
from ostinato.ir.types import Array
from ostinato.runtime.binding import any_array, as_array
from ostinato.runtime.inputs import narrow_indices

__all__ = ["check_tokens", "token_rows"]


def token_rows(
    ids: Any, lengths: Sequence[int] | Array | None, limit: int, name: str = "input_ids"
) -> tuple[list[Array], Callable[[Array], Any]]:
    """Checked int32 rows, and the function that turns a result into the caller's kind of array.

    `ids` is int32 or int64 [B,T], right-padded where `lengths` [B] says so, or a list of rows. Raises `ShapeError`, `DTypeError` or `InputError` for what is
    neither, and `BoundsError` for ids outside [0, limit) or lengths outside [0, T], naming the row.
    """
    convert: Callable[[Array], Any] = np.asarray
    if isinstance(ids, list | tuple):
        rows = [any_array(f"{name}[{index}]", row) for index, row in enumerate(ids)]
        if lengths is not None:
            raise InputError(
                "lengths are for a padded array; a list of rows has its own", node="lengths", hint="leave lengths out"
            )
    else:
        array = as_array(name, ids)
        if not isinstance(ids, np.ndarray):
            convert = _converter(ids)
        if array.ndim != 2:
            raise ShapeError(
                f"expected [batch, tokens], found shape {list(array.shape)}",
                node=name,
                hint="one sequence is ids[None]",
            )
        sizes = [array.shape[1]] * array.shape[0] if lengths is None else integers(lengths, "lengths", error=DTypeError)
        if len(sizes) != array.shape[0]:
            raise ShapeError(f"{len(sizes)} lengths for {array.shape[0]} rows", node="lengths")
        if bad := [n for n in sizes if not 0 <= n <= array.shape[1]]:
            raise BoundsError(f"lengths {bad} are outside [0, {array.shape[1]}]", node="lengths")
        rows = [array[index, :size] for index, size in enumerate(sizes)]
    return [_checked_row(f"{name}[{index}]", row, limit) for index, row in enumerate(rows)], convert


def check_tokens(where: str, tokens: Array, vocab_size: int) -> None:
    """Raises `BoundsError` with the first offending id and its index."""
    bad = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if bad.size:
        raise BoundsError(
            f"token id {tokens[bad[0]]} at index {bad[0]} is outside the vocabulary of {vocab_size}", node=where
        )


def _checked_row(where: str, row: Array, limit: int) -> Array:
    if row.ndim != 1:
        raise ShapeError(f"expected one dimension of token ids, found shape {list(row.shape)}", node=where)
    if row.size == 0:
        return np.zeros(0, np.int32)
    if row.dtype == np.int64:
        row = narrow_indices(where, row)
    if row.dtype != np.int32:
        raise DTypeError(f"expected int32 or int64 token ids, found {row.dtype}", node=where)
    check_tokens(where, row, limit)
    return row


def _converter(like: Any) -> Callable[[Array], Any]:
    """Turns a numpy array into the caller's kind: a torch tensor for a torch tensor, numpy otherwise."""
    if type(like).__module__.partition(".")[0] == "torch":
        import torch  # the caller has it: an optional package

        convert: Callable[[Array], Any] = torch.from_numpy
        return convert
    return np.asarray
