"""The forward call: a rectangle of token ids in, logits out, over the packed entries of an executable.

Picks the smallest bucket that fits, cuts what is longer than the largest into chunks, and gives each row's own last token (or every position).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ostinato.ir.errors import CapacityError, LifecycleError
from ostinato.ir.types import Array, TensorType
from ostinato.planner.plan import Binding, EntryPlan
from ostinato.runtime.batch import Piece, pack, schedule, tokens_of
from ostinato.runtime.device import Device
from ostinato.runtime.executable import Executable
from ostinato.runtime.program import Program
from ostinato.runtime.regions import SharedRegions
from ostinato.runtime.rows import RowPool
from ostinato.runtime.sampling_inputs import sampling_inputs
from ostinato.runtime.token_rows import token_rows

__all__ = ["TextExecutable"]


class TextExecutable(Executable):
    """An executable whose entries are token-packed (`step` graphs): callable on token ids.

    `free_rows` are the cache rows, with what the ones that no unfinished generation holds still have from the last one. Every call but the steps of a
    generation may write any row, so that what rows were known to hold is forgotten, and so it is where weights were replaced.
    """

    def __init__(self, program: Program, device: Device, shared: SharedRegions, **options: Any) -> None:
        super().__init__(program, device, shared, **options)
        self.free_rows = RowPool(self.rows, lambda: shared.use.changes)

    @property
    def vocab_size(self) -> int:
        return self._io("logits").type.static_shape[-1]

    @property
    def logits(self) -> str:
        """ "last" (one row of logits a sequence) or "all" (one a token)."""
        return "last" if self.has_input("row_count") else "all"

    @property
    def rows(self) -> int:
        """Sequences at once."""
        return max(entry.dims["R"] for entry in self.entries.values())

    @property
    def context(self) -> int:
        """Positions a sequence can hold."""
        block_size = self.program.plan.state[0].type.static_shape[2]
        return block_size * self._table_width

    @contextmanager
    def exclusive(self, *, wait: bool = False) -> Iterator[None]:
        """Holds the executable for a call that may write the caches; see `Executable.exclusive`."""
        with super().exclusive(wait=wait):
            self.free_rows.forget()
            yield

    @contextmanager
    def generating(self, *, wait: bool = False) -> Iterator[None]:
        """Holds the executable for steps that write only rows on loan from `free_rows`."""
        with super().exclusive(wait=wait):
            yield

    def has_input(self, name: str) -> bool:
        """Whether the entries have an input of that name."""
        return name in {binding.name for binding in self._any_entry.inputs}

    def input_type(self, name: str) -> TensorType:
        """Type of an input of the entries."""
        return self._io(name).type

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
        holding = [e for e in fitting if tokens_of(e) >= tokens]
        return min(holding, key=lambda e: (tokens_of(e), e.dims["R"])) if holding else max(fitting, key=tokens_of)

    def __call__(self, input_ids: Any, lengths: Sequence[int] | Array | None = None) -> dict[str, Any]:
        """Logits of whole sequences from an empty cache.

        `input_ids`: int32 or int64 [B,T] (numpy, torch or DLPack), right-padded where `lengths` [B] says so, or a list of token lists. Returns
        {"logits": float32 [B,V]} for last-token logits, [B,T,V] for all (zeros past a length), as the same kind of array. Raises `BoundsError` for ids
        outside the vocabulary, `CapacityError` past the context or the row count, before anything ran.
        """
        rows, convert = token_rows(input_ids, lengths, self.vocab_size)
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
            self._forward(plan, schedule(pieces, tokens_of(plan)), table, result)
        return {"logits": convert(result)}

    def _forward(self, plan: EntryPlan, steps: Sequence[Sequence[Piece]], table: Array, result: Array) -> None:
        """Runs the steps and writes the logits that each piece asks for into `result`."""
        for step in steps:
            inputs, wanted = pack(plan, step, table)
            inputs.update(sampling_inputs(plan, ()))  # nothing is sampled here, where the entry can
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
