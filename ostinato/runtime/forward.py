"""The forward call: a rectangle of token ids in, logits out, over the packed entries of an executable.

Picks the smallest bucket that fits, cuts what is longer than the largest into chunks, and gives each row's own last token (or every position).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.ir.checks import integers
from ostinato.ir.errors import BoundsError, CapacityError, DTypeError, InputError, LifecycleError, ShapeError
from ostinato.ir.types import Array
from ostinato.planner.plan import Binding, EntryPlan
from ostinato.runtime.batch import Piece, RowPool, pack, schedule
from ostinato.runtime.binding import any_array, as_array
from ostinato.runtime.device import Device
from ostinato.runtime.executable import Executable, narrow_indices
from ostinato.runtime.program import Program
from ostinato.runtime.regions import SharedRegions

__all__ = ["TextExecutable"]


class TextExecutable(Executable):
    """An executable whose entries are token-packed (`step` graphs): callable on token ids.

    `free_rows` are the cache rows that no unfinished generation holds.
    """

    def __init__(self, program: Program, device: Device, shared: SharedRegions, **options: Any) -> None:
        super().__init__(program, device, shared, **options)
        self.free_rows = RowPool(self.rows)

    @property
    def vocab_size(self) -> int:
        return self._io("logits").type.static_shape[-1]

    @property
    def logits(self) -> str:
        """ "last" (one row of logits a sequence) or "all" (one a token)."""
        return "last" if "row_count" in {b.name for b in self._any_entry.inputs} else "all"

    @property
    def rows(self) -> int:
        """Sequences at once."""
        return max(entry.dims["R"] for entry in self.entries.values())

    @property
    def context(self) -> int:
        """Positions a sequence can hold."""
        block_size = self.program.plan.state[0].type.static_shape[2]
        return block_size * self._table_width

    @property
    def _any_entry(self) -> EntryPlan:
        return next(iter(self.entries.values()))

    @property
    def _table_width(self) -> int:
        return self._io("block_table").type.static_shape[1]

    def _io(self, name: str) -> Binding:
        entry = self._any_entry
        return next(binding for binding in (*entry.inputs, *entry.outputs) if binding.name == name)

    def block_table(self) -> Array:
        """Row r uses the blocks r*W .. r*W + W - 1: int32 [rows, W]."""
        width = self._table_width
        return np.arange(self.rows * width, dtype=np.int32).reshape(self.rows, width)

    def bucket(self, tokens: int, rows: int, prefix: str = "") -> EntryPlan:
        """The entry with the fewest tokens that holds `tokens` tokens of `rows` rows, else the one with the most tokens.

        Raises `CapacityError` when no entry holds that many rows.
        """
        fitting = [e for name, e in self.entries.items() if e.dims["R"] >= rows and name.startswith(prefix)]
        if not fitting:
            raise CapacityError(f"{rows} rows, the largest bucket has {self.rows}", hint="compile with a larger B")
        holding = [e for e in fitting if e.dims["N"] >= tokens]
        return (
            min(holding, key=lambda e: (e.dims["N"], e.dims["R"]))
            if holding
            else max(fitting, key=lambda e: e.dims["N"])
        )

    def __call__(self, input_ids: Any, lengths: Sequence[int] | Array | None = None) -> dict[str, Any]:
        """Logits of whole sequences from an empty cache.

        `input_ids`: int32 or int64 [B,T] (numpy, torch or DLPack), right-padded where `lengths` [B] says so, or a list of token lists. Returns
        {"logits": float32 [B,V]} for last-token logits, [B,T,V] for all (zeros past a length), as the same kind of array. Raises `BoundsError` for ids
        outside the vocabulary, `CapacityError` past the context or the row count, before anything ran.
        """
        rows, convert = self._rows_of(input_ids, lengths)
        if not rows:
            shape = (0, self.vocab_size) if self.logits == "last" else (0, 0, self.vocab_size)
            return {"logits": convert(np.zeros(shape, np.float32))}
        longest = max(len(row) for row in rows)
        if longest > self.context:
            raise CapacityError(
                f"a row has {longest} tokens, the context is {self.context}",
                hint=f"compile with context={longest} or more",
            )
        plan = self.bucket(sum(len(row) for row in rows), len(rows))
        pieces = [Piece(index, row, 0, True) for index, row in enumerate(rows)]
        table = self.block_table()
        positions = () if self.logits == "last" else (longest,)
        result = np.zeros((len(rows), *positions, self.vocab_size), np.float32)
        with self.exclusive():
            if self.free_rows.held:
                raise LifecycleError(
                    f"{self.free_rows.held} cache rows belong to unfinished generations",
                    hint="finish or close() them first",
                )
            self._forward(plan, schedule(pieces, plan.dims["N"]), table, result)
        return {"logits": convert(result)}

    def _forward(self, plan: EntryPlan, steps: Sequence[Sequence[Piece]], table: Array, result: Array) -> None:
        """Runs the steps and writes the logits that each piece asks for into `result`."""
        for step in steps:
            inputs, wanted = pack(plan, step, table)
            logits = self.run_held(plan.name, inputs, ("logits",))["logits"]
            if self.logits == "last":
                for index, piece in enumerate(wanted):
                    result[piece.row] = logits[index]
            else:
                offset = 0
                for piece in step:
                    result[piece.row, piece.start : piece.start + len(piece.tokens)] = logits[
                        offset : offset + len(piece.tokens)
                    ]
                    offset += len(piece.tokens)

    def _rows_of(self, input_ids: Any, lengths: Sequence[int] | Array | None) -> tuple[list[Array], Any]:
        """Checked int32 rows, and the function that turns the result into the caller's kind of array."""
        convert: Any = np.asarray
        if isinstance(input_ids, list | tuple):
            rows = [any_array(f"input_ids[{index}]", row) for index, row in enumerate(input_ids)]
            if lengths is not None:
                raise InputError("lengths are for a padded array; a list of rows has its own", node="lengths")
        else:
            array = as_array("input_ids", input_ids)
            if not isinstance(input_ids, np.ndarray):
                convert = _converter(input_ids)
            if array.ndim != 2:
                raise ShapeError(f"expected [batch, tokens], found shape {list(array.shape)}", node="input_ids")
            sizes = (
                [array.shape[1]] * array.shape[0] if lengths is None else integers(lengths, "lengths", error=DTypeError)
            )
            if len(sizes) != array.shape[0]:
                raise ShapeError(f"{len(sizes)} lengths for {array.shape[0]} rows", node="lengths")
            if bad := [n for n in sizes if not 0 <= n <= array.shape[1]]:
                raise BoundsError(f"lengths {bad} are outside [0, {array.shape[1]}]", node="lengths")
            rows = [array[index, :size] for index, size in enumerate(sizes)]
        return [self._check_row(index, row) for index, row in enumerate(rows)], convert

    def _check_row(self, index: int, row: Array) -> Array:
        where = f"input_ids[{index}]"
        if row.ndim != 1:
            raise ShapeError(f"expected one dimension of token ids, found shape {list(row.shape)}", node=where)
        if row.size == 0:
            return np.zeros(0, np.int32)
        if row.dtype == np.int64:
            row = narrow_indices(where, row)
        if row.dtype != np.int32:
            raise DTypeError(f"expected int32 or int64 token ids, found {row.dtype}", node=where)
        check_tokens(where, row, self.vocab_size)
        return row


def check_tokens(where: str, tokens: Array, vocab_size: int) -> None:
    """Raises `BoundsError` with the first offending id and its index."""
    bad = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if bad.size:
        raise BoundsError(
            f"token id {tokens[bad[0]]} at index {bad[0]} is outside the vocabulary of {vocab_size}", node=where
        )


def _converter(like: Any) -> Any:
    """Turns a numpy array into the caller's kind: a torch tensor for a torch tensor, numpy otherwise."""
    if type(like).__module__.partition(".")[0] == "torch":
        import torch  # the caller has it: an optional package

        return torch.from_numpy
    return np.asarray
