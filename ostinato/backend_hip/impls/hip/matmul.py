"""Rows of products of two activations, for GPUs: a block a tile of 16 x 16 results, operands read and results written wherever their steps say.

`matmul_add` is the same product, added to what lies in the place of its result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import Predicate, all_of
from ostinato.backend_hip.impls.hip.common import THREADS, Params, by_dtypes, element_launch, readable
from ostinato.backend_hip.impls.matmul import (
    Product,
    added_accepts,
    added_product,
    context_product,
    matmul_accepts,
    matmul_product,
    part_accepts,
    scores_product,
    stacked,
)
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl

__all__ = ["MATMUL_ROWS"]

_TILE = 16


def _row(
    op: str,
    operands: tuple[str, str],
    product: Callable[[CallSite], Product | None],
    accepts: Predicate,
    kernel: str = "matmul",
    first: int = 0,
) -> Impl:
    """The row of an operator whose operand number `first` and the next are multiplied."""

    def found(site: CallSite) -> Product:
        seen = product(site)
        assert seen is not None, "accepted before"
        return seen

    def params(site: CallSite) -> Params:
        """Entries of the first batch axis and matrices in each, M, K, N, flags, whether a count is of the rows M, scale, sharers of b, steps."""
        seen = found(site)
        a, b, y = seen.a, seen.b, seen.y
        flags = (int(a.turned), int(b.turned), int(site.results[0].rank == 2))
        scale = site.real("scale") if "scale" in site.node.attrs else 1.0
        return (y.entries, y.each, seen.m, seen.k, seen.n, *flags, scale, seen.shared, *a.steps, *b.steps, *y.steps)

    def launch(site: CallSite) -> Launch:
        """A block a tile, matrices along the second axis."""
        seen = found(site)
        tiles = -(-seen.m // _TILE) * -(-seen.n // _TILE)
        return element_launch(tiles * THREADS, rows=seen.y.entries * seen.y.each)

    row = readable(
        op,
        (*operands, "count", "y"),
        by_dtypes("matmul/matmul", kernel, first, result=0),
        params,
        launch,
        all_of(accepts, stacked(product, first)),
    )
    return replace(row, strided=frozenset(operands))


MATMUL_ROWS = (
    _row("matmul", ("a", "b"), matmul_product, matmul_accepts),
    _row("matmul_add", ("a", "b"), added_product, added_accepts, "matmul_add", 1),
    _row("attention_scores_gqa", ("q", "k"), scores_product, part_accepts),
    _row("attention_probability_value_bthd", ("p", "v"), context_product, part_accepts),
)
