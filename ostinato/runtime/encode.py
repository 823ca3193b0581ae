"""Embeddings of token rows over the packed entries of an executable (`embed` graphs).

Rows are laid one after another into steps of whole rows, in the order they came: there is no padding to save by sorting, and a row's vector has the same
bits whatever shares its step. Empty rows have no token to pool and give zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ostinato.ir.errors import CapacityError, ShapeError
from ostinato.ir.ops import OP
from ostinato.ir.types import Array
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.executable import Executable
from ostinato.runtime.token_rows import token_rows

__all__ = ["EmbedExecutable", "pack_texts"]

_OUTPUTS = {False: "pooled", True: "normalized"}


class EmbedExecutable(Executable):
    """An executable whose entries embed packed texts: callable on token ids."""

    @property
    def dimension(self) -> int:
        """Width of an embedding."""
        plan = self._largest
        return next(b.type.static_shape[-1] for b in plan.outputs if b.name in _OUTPUTS.values())

    @property
    def vocab_size(self) -> int:
        return self._table_rows("input_ids")

    @property
    def tokens(self) -> int:
        """Tokens of the largest step: what one row may have at most, where the model has as many positions."""
        return min(self._largest.dims["N"], self._table_rows("position"))

    @property
    def rows(self) -> int:
        """Rows of the largest step."""
        return self._largest.dims["R"]

    @property
    def _largest(self) -> EntryPlan:
        """The entry that steps are laid out for; a smaller one runs those that fit it."""
        return max(self.entries.values(), key=lambda entry: (entry.dims["N"], entry.dims["R"]))

    def _table_rows(self, name: str) -> int:
        """Rows of the table that an input picks from; what int32 holds where it picks from none."""
        graph = self.program.graphs[self._largest.name]
        for reader in graph.users.get(name, ()):
            if OP[reader.op].operands[0].name == "ids":
                return graph.types[reader.operands[1] or ""].static_shape[0]
        return int(np.iinfo(np.int32).max)

    def __call__(
        self,
        input_ids: Any,
        lengths: Sequence[int] | Array | None = None,
        *,
        token_type_ids: Any = None,
        normalize: bool = False,
    ) -> dict[str, Any]:
        """Embeddings of token rows.

        `input_ids`: int32 or int64 [B,T] (numpy, torch or DLPack), right-padded where `lengths` [B] says so, or a list of rows; `token_type_ids` likewise, 0
        where it is None. Returns {"embedding": float32 [B, dimension]} as the same kind of array, of Euclidean length 1 with `normalize`. Raises `BoundsError`
        for ids outside the vocabulary and `CapacityError` for a row that no step holds, before anything ran.
        """
        rows, convert = token_rows(input_ids, lengths, self.vocab_size)
        types = None
        if token_type_ids is not None:
            types, _ = token_rows(token_type_ids, lengths, self._table_rows("token_type"), "token_type_ids")
        return {"embedding": convert(self.embed(rows, types, normalize=normalize))}

    def embed(
        self,
        rows: Sequence[Array],
        types: Sequence[Array] | None = None,
        *,
        normalize: bool = False,
        batch_size: int | None = None,
    ) -> Array:
        """float32 [len(rows), dimension] of int32 token rows whose ids were checked; at most `batch_size` rows share a step.

        Raises `ShapeError` for token types that do not match the rows, `CapacityError` for a row that no step holds, `LifecycleError` when another call is in
        progress.
        """
        if types is not None and [len(row) for row in types] != [len(row) for row in rows]:
            raise ShapeError("expected a token type for each token", node="token_type_ids")
        for index, row in enumerate(rows):
            if len(row) > self.tokens:
                raise CapacityError(
                    f"row {index} has {len(row)} tokens, the limit is {self.tokens}",
                    hint="cut the text, or compile with a larger T as far as the model has positions",
                )
        result = np.zeros((len(rows), self.dimension), np.float32)
        output = _OUTPUTS[normalize]
        with self.exclusive():
            for chosen in self.steps([len(row) for row in rows], batch_size):
                step = [rows[index] for index in chosen]
                plan = self.bucket(sum(len(row) for row in step), len(step))
                inputs = pack_texts(plan, step, types and [types[index] for index in chosen])
                result[chosen] = self.run_held(plan.name, inputs, (output,))[output][: len(step)]
        return result

    def bucket(self, tokens: int, rows: int) -> EntryPlan:
        """The smallest entry that holds a step; raises `CapacityError` when none does."""
        fitting = [entry for entry in self.entries.values() if entry.dims["N"] >= tokens and entry.dims["R"] >= rows]
        if not fitting:
            raise CapacityError(f"no entry holds {tokens} tokens of {rows} rows", hint="compile a larger bucket")
        return min(fitting, key=lambda entry: (entry.dims["N"], entry.dims["R"]))

    def steps(self, sizes: Sequence[int], batch_size: int | None = None) -> Iterator[list[int]]:
        """Indices of the rows that share a step, for rows of those sizes in order; rows without tokens are in none."""
        capacity, most = self._largest.dims["N"], min(batch_size or self.rows, self.rows)
        step: list[int] = []
        room = capacity
        for index, size in enumerate(sizes):
            if size == 0:
                continue
            if step and (size > room or len(step) == most):
                yield step
                step, room = [], capacity
            step.append(index)
            room -= size
        if step:
            yield step


def pack_texts(plan: EntryPlan, rows: Sequence[Array], types: Sequence[Array] | None = None) -> dict[str, Array]:
    """Inputs of the entry for one step of non-empty rows, which must fit it. What is past the counts is never read."""
    tokens, capacity = plan.dims["N"], plan.dims["R"]
    sizes = np.array([len(row) for row in rows], np.int32)
    ends = np.cumsum(sizes, dtype=np.int32)
    count = int(ends[-1])
    inputs = {name: np.zeros(tokens, np.int32) for name in ("input_ids", "position", "token_type")}
    inputs["row_of_token"] = np.full(tokens, -1, np.int32)
    inputs |= {name: np.zeros(capacity, np.int32) for name in ("start", "length")}
    inputs["token_count"], inputs["row_count"] = np.array([count], np.int32), np.array([len(rows)], np.int32)
    inputs["input_ids"][:count] = np.concatenate(rows)
    if types is not None:
        inputs["token_type"][:count] = np.concatenate(types)
    inputs["start"][: len(rows)] = ends - sizes
    inputs["length"][: len(rows)] = sizes
    inputs["row_of_token"][:count] = np.repeat(np.arange(len(rows), dtype=np.int32), sizes)
    inputs["position"][:count] = np.arange(count, dtype=np.int32) - np.repeat(ends - sizes, sizes)
    for name, chosen in (("first_token", ends - sizes), ("last_token", ends - 1)):
        if any(binding.name == name for binding in plan.inputs):
            inputs[name] = np.full(capacity, -1, np.int32)
            inputs[name][: len(rows)] = chosen
    return inputs
