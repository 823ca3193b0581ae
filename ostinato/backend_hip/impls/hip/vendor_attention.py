"""Rows of the products of attention over whole sequences by the vendor's library: one batch of matrices with one step between them.

Heads of a token-major tensor are such a batch within one sequence: a head's rows are a token apart, heads their width apart, and so the context is written
straight to token-major memory. Of several sequences they are one only where heads lie outside the tokens. Grouped heads fold into the rows of their group
where queries and results lie head-major, and read shared matrices with a step of zero where all heads share one; any other group would take a product for
each of its sequences and groups, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import Predicate, all_of, number
from ostinato.backend_hip.impls.hip.vendor import (
    ALIGNMENT,
    NO_BIAS,
    GemmParams,
    gemm_row,
    some_elements,
    vendor_dtypes,
)
from ostinato.backend_hip.impls.matmul import Product, Stack, context_product, one_run, scores_product
from ostinato.ir.target import CallSite

__all__ = ["VENDOR_ATTENTION_ROWS"]


def _one_batch(found: Product | None) -> Product | None:
    """The product as one batch of matrices (entries of one); None where it is none."""
    if found is None:
        return None
    if found.shared > 1 and found.a.each > found.shared:
        found = _folded(found)
    if found is None:
        return None
    a, b, y = found.a, found.b, found.y
    if found.shared > 1:  # all heads share one: the same matrix again
        b = replace(b, each=a.each, matrix=0)
    stacks = [_run(stack) for stack in (a, b, y)]
    if any(stack is None for stack in stacks):
        return None
    first, second, result = (stack for stack in stacks if stack is not None)
    return replace(found, a=first, b=second, y=result, shared=1)


def _folded(found: Product) -> Product | None:
    """The heads of each group as more rows of one product."""
    a, y, group = found.a, found.y, found.shared
    if a.turned or a.matrix != found.m * a.line or y.matrix != found.m * y.line:
        return None
    first, result = (replace(s, each=s.each // group, matrix=s.matrix * group) for s in (a, y))
    return replace(found, m=found.m * group, a=first, y=result, shared=1)


def _run(stack: Stack) -> Stack | None:
    run = one_run(((stack.entries, stack.entry), (stack.each, stack.matrix)))
    return None if run is None else replace(stack, entries=1, each=run[0], entry=0, matrix=run[1])


def _lines(found: Product) -> tuple[tuple[str, Stack, int], ...]:
    """Each stack with the elements that its lines have."""
    a, b, y = found.a, found.b, found.y
    return (
        ("the first operand", a, found.m if a.turned else found.k),
        ("the second operand", b, found.k if b.turned else found.n),
        ("y", y, found.n),
    )


def _fits(product: Callable[[CallSite], Product | None]) -> Predicate:
    def accepts(site: CallSite) -> str | None:
        found = _one_batch(product(site))
        if found is None:
            return "the vendor takes one batch of matrices with one step between them, the heads are not one"
        offsets = (site.offset(0), site.offset(1), 0)
        dtypes = (site.operand(0).dtype, site.operand(1).dtype, site.results[0].dtype)
        for (name, stack, length), offset, dtype in zip(_lines(found), offsets, dtypes, strict=True):
            unit = ALIGNMENT // dtype.block_bytes
            if stack.line < length or any(step % unit for step in (length, stack.line, stack.matrix, offset)):
                return f"{name} must lie in runs of {unit} elements, which are {ALIGNMENT} bytes"
        return None

    return accepts


def _params(product: Callable[[CallSite], Product | None]) -> Callable[[CallSite], GemmParams]:
    def params(site: CallSite) -> GemmParams:
        found = _one_batch(product(site))
        assert found is not None, "accepted before"
        a, b, y = found.a, found.b, found.y
        batched = a.each > 1
        return GemmParams(
            m=found.n,
            n=found.m,
            k=found.k,
            batches=a.each,
            transpose_a=int(b.turned),
            transpose_b=int(a.turned),
            a_type=number(site.operand(1)),
            b_type=number(site.operand(0)),
            c_type=number(site.results[0]),
            d_type=number(site.results[0]),
            bias_type=NO_BIAS,
            a_leading=b.line,
            b_leading=a.line,
            c_leading=y.line,
            d_leading=y.line,
            a_stride=b.matrix if batched else 0,
            b_stride=a.matrix if batched else 0,
            c_stride=y.matrix if batched else 0,
            d_stride=y.matrix if batched else 0,
            alpha=site.real("scale") if "scale" in site.node.attrs else 1.0,
            beta=0.0,
        )

    return params


VENDOR_ATTENTION_ROWS = (
    gemm_row(
        "attention_scores_gqa",
        ("k", "q", "-", "-", "y", "workspace"),
        frozenset({"q", "k"}),
        _params(scores_product),
        all_of(vendor_dtypes("q", "k", "y"), some_elements, _fits(scores_product)),
    ),
    gemm_row(
        "attention_probability_value_bthd",
        ("v", "p", "-", "-", "y", "workspace"),
        frozenset({"p", "v"}),
        _params(context_product),
        all_of(vendor_dtypes("p", "v", "y"), some_elements, _fits(context_product)),
    ),
)
