"""The row of products of two activations."""

from __future__ import annotations

import math

from ostinato.backend_hip.impls.common import FLOATS, HOST, fixed, need_dtype, number
from ostinato.ir.target import CallSite, Impl, Level

__all__ = ["MATMUL_ROWS", "matmul_accepts"]


def matmul_accepts(site: CallSite) -> str | None:
    """Two activations of one float dtype, a float result, and a count that is of axis 0 of a."""
    a = site.operand(0)
    if site.counted and a.rank == 2 and site.boolean("transpose_a"):
        return "the valid-rows count is of axis 0 of the result, which is axis 1 of a transposed a"
    return (
        need_dtype("a", a, FLOATS)
        or need_dtype("b", site.operand(1), (a.dtype,))
        or need_dtype("y", site.results[0], FLOATS)
    )


def _params(site: CallSite) -> tuple[int | float, ...]:
    """Entries of the first batch axis and matrices in each, M, K, N, flags, scale, dtypes, and whether a count is of the rows M."""
    a, y = site.operand(0), site.results[0]
    *lead, m, n = y.static_shape
    k = a.static_shape[-2 if site.boolean("transpose_a") else -1]
    flags = (int(site.boolean("transpose_a")), int(site.boolean("transpose_b")))
    sizes = (lead[0] if lead else 1, math.prod(lead[1:]), m, k, n)
    return (*sizes, *flags, site.real("scale"), number(a), number(y), int(not lead))


MATMUL_ROWS = (
    Impl(
        op="matmul",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        operands=("a", "b", "count", "y"),
        kernel=fixed("matmul"),
        params=_params,
        accepts=matmul_accepts,
    ),
)
