"""Calls of the operators of products, attention, rotations and movements, for their derivatives: odd sizes, one token, nothing at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ir.opdef import Attr
from ostinato.ir.types import Array

__all__ = ["CASES", "Case"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """`operands` has a shape of random normal numbers for each operand, the values of an integer operand or of a table, or None where it is absent."""

    op: str
    operands: Sequence[Shape | Array | None]
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    def values(self, rng: np.random.Generator) -> tuple[Array | None, ...]:
        return tuple(
            rng.standard_normal(operand).astype(np.float32) if isinstance(operand, tuple) else operand
            for operand in self.operands
        )


def _ids(values: object) -> Array:
    return np.array(values, dtype=np.int32)


def _tables(*shape: int) -> tuple[Array, Array]:
    angle = np.sin(np.arange(np.prod(shape, dtype=int)).reshape(shape) * 1.7) * 3
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _linear() -> list[Case]:
    found = []
    for lead in ((5,), (2, 3), (1, 1), (2, 0), (0,), ()):
        x, y = (*lead, 7), (*lead, 4)
        found += [
            Case("linear", (x, (4, 7))),
            Case("linear", (x, (4, 7), (4,), y)),
            Case("linear", (x, (4, 7), (4,), y, (7,)), {"eps": 1e-5}),
            Case("linear_split", (x, (6, 7), (6,)), {"sizes": (3, 2, 1)}),
            Case("linear_split", (x, (6, 7), None, (7,)), {"sizes": (3, 3), "eps": 1e-5}),
            Case("linear_swiglu", (x, (6, 7))),
            Case("linear_swiglu", (x, (6, 7), (7,)), {"eps": 1e-5}),
            Case("linear_group", (x, (4, 7), (3, 7))),
            Case("linear_group", (x, (4, 7), (3, 7), (2, 7), None, (3,), (2,))),
        ]
    found += [
        Case("linear", ((3, 0), (4, 0), (4,))),
        Case("linear", ((3, 7), (0, 7))),
        Case("linear", ((2, 3, 0), (4, 0))),
        Case("linear_split", ((3, 5), (11, 5)), {"sizes": (1,) * 11}),
    ]
    return found


def _matmul() -> list[Case]:
    found = []
    for turned_a in (False, True):
        for turned_b in (False, True):
            flags = {"transpose_a": turned_a, "transpose_b": turned_b}
            for lead, m, k, n in (((), 3, 5, 7), ((2, 3), 1, 4, 1), ((2,), 3, 0, 2), ((0,), 3, 2, 2), ((), 0, 3, 5)):
                a, b = (k, m) if turned_a else (m, k), (n, k) if turned_b else (k, n)
                found.append(Case("matmul", ((*lead, *a), (*lead, *b)), {**flags, "scale": -0.5}))
            a, b = (5, 3) if turned_a else (3, 5), (7, 5) if turned_b else (5, 7)
            found.append(Case("matmul_add", ((3, 7), a, b), {**flags, "scale": 0.25}))
    return found


def _rows() -> list[Case]:
    return [
        Case("embedding", (_ids([[3, 0, 3], [4, 3, 1]]), (5, 7))),
        Case("embedding", (_ids(2), (5, 3))),
        Case("embedding", (_ids(np.zeros((2, 0))), (5, 3))),
        Case("embedding", (_ids([0, 0]), (1, 0))),
        Case("gather_rows", ((2, 3, 4), _ids([5, -1, 0, 5]))),
        Case("gather_rows", ((3, 4), _ids([]))),
    ]


def _rope() -> list[Case]:
    found: list[Case] = []
    shapes: tuple[tuple[Shape, int, int, int], ...] = (
        ((5,), 3, 6, 3),
        ((2, 1), 2, 10, 2),
        ((0,), 2, 4, 2),
        ((3,), 1, 4, 0),
        ((), 2, 4, 2),
    )
    for op in ("rope_split_half", "rope_interleaved"):
        found += [Case(op, ((*lead, h, width), *_tables(*lead, half))) for lead, h, width, half in shapes]
    for (batch, time, heads, width), half in (((2, 3, 2, 6), 3), ((1, 1, 3, 8), 1), ((2, 0, 2, 4), 2)):
        shape = (batch, time, heads, width)
        found.append(Case("rope_split_half_bias_bthd", (shape, (heads * width,), *_tables(batch, time, half))))
    return found


_SCORES: tuple[dict[str, Attr], ...] = (
    {"scale": 0.4},
    {"scale": 0.7, "window": 3},
    {"scale": 1.5, "soft_cap": 1.3, "window": 2},
)


def _attention() -> list[Case]:
    found = []
    for batch, time, heads, groups, width in (
        (2, 5, 4, 2, 3),
        (1, 1, 3, 3, 5),
        (1, 7, 2, 1, 1),
        (0, 3, 2, 1, 4),
        (2, 0, 2, 1, 4),
    ):
        q, kv = (batch, time, heads, width), (batch, time, groups, width)
        found += [Case("attention_causal", (q, kv, kv), attrs) for attrs in _SCORES]
        found.append(Case("attention_causal_saved", (q, kv, kv), {"scale": 0.4, "soft_cap": 2.0}))
        scores = (batch, heads, time, time)
        found.append(
            Case(
                "attention_scores_gqa", ((batch, heads, time, width), (batch, groups, time + 2, width)), {"scale": 0.3}
            )
        )
        found.append(Case("attention_probability_value_bthd", (scores, kv)))
        found.append(Case("repeat_gqa_kv_bthd", ((batch, groups, time, width), kv), {"repeats": 3}))
    for rows, start, length in (
        ([0, 0, 1, 1, 1, -1], [0, 2], [2, 3]),
        ([1, 0, 0, 1, -1, 0], [2, 0], [3, 4]),
        ([0], [0], [1]),
        ([], [0], [0]),
    ):
        n = len(rows)
        where = (_ids(rows), _ids(start), _ids(length))
        found.append(Case("attention_bidirectional", ((n, 4, 3), (n, 2, 3), (n, 2, 3), *where), {"scale": 0.6}))
    return found


def _movement() -> list[Case]:
    return [
        Case("concat", ((3, 2), (3, 5)), {"axis": 1}),
        Case("concat", ((2, 3, 4), (1, 3, 4), (0, 3, 4), (3, 3, 4)), {"axis": 0}),
        Case("concat", ((0, 2), (0, 5)), {"axis": 1}),
        Case("repeat_interleave", ((3, 2, 4),), {"axis": 1, "repeats": 3}),
        Case("repeat_interleave", ((3, 0),), {"axis": 0, "repeats": 5}),
        Case("reshape", ((6, 4),), {"shape": (2, 3, 4)}),
        Case("reshape", ((2, 3, 4),), {"shape": (-1,)}),
        Case("reshape", ((2, 0, 4),), {"shape": (-1, 4)}),
        Case("reshape", ((1, 1),), {"shape": ()}),
        Case("transpose", ((2, 3, 4),), {"order": (2, 0, 1)}),
        Case("transpose", ((0, 3),), {"order": (1, 0)}),
        Case("slice", ((5, 7),), {"axis": 1, "start": 1, "stop": 6, "step": 2}),
        Case("slice", ((5, 7),), {"axis": 0, "start": 5, "stop": 5}),
        Case("contiguous", ((3, 5),)),
    ]


CASES = (*_linear(), *_matmul(), *_rows(), *_rope(), *_attention(), *_movement())
