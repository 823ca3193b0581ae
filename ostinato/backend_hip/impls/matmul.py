"""Rows of products of two activations, batch by batch: `matmul`, `matmul_add`, and the two products of attention over whole sequences.

One kernel does all of them: where its matrices lie is given as steps, so that it reads the heads of token-major tensors in place, writes them so, and lets
grouped heads share keys and values without a copy. A batch of more than two axes must be one run behind its first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ostinato.backend_hip.impls.common import FLOATS, HOST, Predicate, all_of, first_reason, fixed, need_dtype, number
from ostinato.ir.evidence import Exactness
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType, TensorType

__all__ = [
    "MATMUL_ROWS",
    "Product",
    "Stack",
    "added_accepts",
    "added_count",
    "added_product",
    "context_product",
    "matmul_accepts",
    "matmul_product",
    "one_run",
    "part_accepts",
    "scores_product",
    "stacked",
]

Axes = Sequence[tuple[int, int]]
"""Extents and strides, outermost first."""


def one_run(axes: Axes) -> tuple[int, int] | None:
    """Axes as one: its extent and stride; None where they do not follow one another in memory. Axes of one element lie anywhere."""
    kept = [axis for axis in axes if axis[0] != 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(kept)):
        return None
    extent = 1
    for axis in kept:
        extent *= axis[0]
    return (extent, kept[-1][1] if kept else 0)


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices in memory: `entries` of the first batch axis with `each` matrices, of lines `line` elements apart: rows, or columns where it is `turned`."""

    entries: int
    each: int
    entry: int
    matrix: int
    line: int
    turned: bool = False

    @property
    def steps(self) -> tuple[int, int, int]:
        return (self.entry, self.matrix, self.line)


def _stack_of(shape: Sequence[int], strides: Sequence[int]) -> Stack | None:
    """A tensor [..., rows, columns] as matrices; None where strides do not describe it so."""
    *lead, (rows, down), (columns, across) = zip(shape, strides, strict=True)
    entries, entry = lead[0] if lead else (1, 0)
    inner = one_run(lead[1:])
    if inner is None:
        return None
    if columns <= 1 or across == 1:
        return Stack(entries, inner[0], entry, inner[1], down)
    if rows <= 1 or down == 1:
        return Stack(entries, inner[0], entry, inner[1], across, turned=True)
    return None


@dataclass(frozen=True, slots=True)
class Product:
    """y [m, n] = a [m, k] b [k, n] for each matrix of a; `shared` of them read one of b. Each is stored the other way round where its stack is turned."""

    m: int
    k: int
    n: int
    a: Stack
    b: Stack
    y: Stack
    shared: int = 1


def _seen(site: CallSite, index: int, order: Sequence[int] | None = None) -> Stack | None:
    """An operand as matrices, its axes in another order where one is given."""
    shape, strides = site.operand(index).static_shape, site.strides[index]
    assert strides is not None, "an activation is never packed"
    places = range(len(shape)) if order is None else order
    return _stack_of([shape[i] for i in places], [strides[i] for i in places])


def _turned(stack: Stack | None, turn: bool) -> Stack | None:
    if stack is None or not turn:
        return stack
    return Stack(stack.entries, stack.each, stack.entry, stack.matrix, stack.line, not stack.turned)


def _natural(tensor: TensorType) -> Stack:
    found = _stack_of(tensor.static_shape, tensor.strides)
    assert found is not None, "results of products lie in their natural order"
    return found


def matmul_product(site: CallSite, first: int = 0) -> Product | None:
    """The product of a `matmul` whose operand a is number `first`, None where an operand is no batch of matrices."""
    y = site.results[0]
    a = _turned(_seen(site, first), site.boolean("transpose_a"))
    b = _turned(_seen(site, first + 1), site.boolean("transpose_b"))
    if a is None or b is None:
        return None
    m, n = y.static_shape[-2:]
    k = site.operand(first).static_shape[-2 if site.boolean("transpose_a") else -1]
    return Product(m, k, n, a, b, _natural(y))


def added_product(site: CallSite) -> Product | None:
    """The same of a `matmul_add`, whose y lies where c does."""
    return matmul_product(site, 1)


_TOKEN_MAJOR = (0, 2, 1, 3)


def scores_product(site: CallSite) -> Product | None:
    """The product of `attention_scores_gqa`, None where an operand is no batch of matrices."""
    a, b = _seen(site, 0), _turned(_seen(site, 1), turn=True)
    if a is None or b is None:
        return None
    _, heads, queries, width = site.operand(0).static_shape
    _, groups, keys, _ = site.operand(1).static_shape
    return Product(queries, width, keys, a, b, _natural(site.results[0]), heads // groups)


def context_product(site: CallSite) -> Product | None:
    """The product of `attention_probability_value_bthd`, whose values and results are head by head in token-major memory."""
    a, b = _seen(site, 0), _seen(site, 1, _TOKEN_MAJOR)
    if a is None or b is None:
        return None
    _, heads, queries, keys = site.operand(0).static_shape
    _, _, groups, width = site.operand(1).static_shape
    y, strides = site.results[0].static_shape, site.results[0].strides
    to = _stack_of([y[i] for i in _TOKEN_MAJOR], [strides[i] for i in _TOKEN_MAJOR])
    assert to is not None, "results of products lie in their natural order"
    return Product(queries, keys, width, a, b, to, heads // groups)


def stacked(product: Callable[[CallSite], Product | None], first: int = 0) -> Predicate:
    """The reason when the operands of a product, `first` and the one behind it, are no batches of matrices."""

    def accepts(site: CallSite) -> str | None:
        if product(site) is not None:
            return None
        seen = " and ".join(
            f"{site.operand(i)} with strides {list(site.strides[i] or ())}" for i in range(first, first + 2)
        )
        return (
            f"operands must be matrices with rows or columns without gaps, behind one run of batch axes, found {seen}"
        )

    return accepts


def part_accepts(site: CallSite) -> str | None:
    """Two activations of one float dtype, and a float result."""
    first = site.operand(0)
    return first_reason(
        need_dtype("the first operand", first, FLOATS),
        need_dtype("the second operand", site.operand(1), (first.dtype,)),
        need_dtype("y", site.results[0], FLOATS),
    )


def added_count(site: CallSite) -> str | None:
    """The reason when a count, which is of axis 0 of c, is of no axis 0 of a."""
    c, first = site.operand(0), site.operand(1)
    if not site.counted or (first.axes[0] == c.axes[0] and not (c.rank == 2 and site.boolean("transpose_a"))):
        return None
    return f"the valid-rows count is of axis 0 of c, which is not that of a: found {c} and {first}"


def added_accepts(site: CallSite) -> str | None:
    """Two activations of one float dtype behind a c of float32."""
    first = site.operand(1)
    return first_reason(
        added_count(site),
        need_dtype("c", site.operand(0), (DType.F32,)),
        need_dtype("a", first, FLOATS),
        need_dtype("b", site.operand(2), (first.dtype,)),
    )


def matmul_accepts(site: CallSite) -> str | None:
    """The same, with a count that is of axis 0 of a."""
    if site.counted and site.operand(0).rank == 2 and site.boolean("transpose_a"):
        return "the valid-rows count is of axis 0 of the result, which is axis 1 of a transposed a"
    return part_accepts(site)


def _params(product: Callable[[CallSite], Product | None], first: int) -> Callable[[CallSite], tuple[int | float, ...]]:
    def params(site: CallSite) -> tuple[int | float, ...]:
        """Entries of the first batch axis and matrices in each, M, K, N, flags, scale, dtypes, whether a count is of the rows M, sharers of b, steps."""
        found = product(site)
        assert found is not None, "accepted before"
        a, b, y = found.a, found.b, found.y
        flags = (int(a.turned), int(b.turned))
        scale = site.real("scale") if "scale" in site.node.attrs else 1.0
        dtypes = (number(site.operand(first)), number(site.results[0]))
        steps = (*a.steps, *b.steps, *y.steps)
        counts_rows = int(site.results[0].rank == 2)
        sizes = (y.entries, y.each, found.m, found.k, found.n)
        return (*sizes, *flags, scale, *dtypes, counts_rows, found.shared, *steps)

    return params


def _row(op: str, operands: tuple[str, str], product: Callable[[CallSite], Product | None], accepts: Predicate) -> Impl:
    return Impl(
        op=op,
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.ROW_INVARIANT,
        operands=(*operands, "count", "y"),
        kernel=fixed("matmul"),
        params=_params(product, 0),
        accepts=all_of(accepts, stacked(product)),
        strided=frozenset(operands),
    )


_ADD = Impl(
    op="matmul_add",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("c", "a", "b", "count", "y"),
    kernel=fixed("matmul_add"),
    params=_params(added_product, 1),
    accepts=all_of(added_accepts, stacked(added_product, 1)),
    strided=frozenset(("a", "b")),
)

MATMUL_ROWS = (
    _row("matmul", ("a", "b"), matmul_product, matmul_accepts),
    _ADD,
    _row("attention_scores_gqa", ("q", "k"), scores_product, part_accepts),
    _row("attention_probability_value_bthd", ("p", "v"), context_product, part_accepts),
)
