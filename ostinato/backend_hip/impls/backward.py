"""What the rows of backward operators and of the optimizer share.

A training step knows all of its extents: none of these rows has a valid-rows count. Rows whose kernels work row by row compute unused rows too; those that sum
over rows, or check what lies in them, refuse a count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.backend_hip.impls.common import FLOATS, HOST, Predicate, first_reason, fixed, need_dtype
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops import OP
from ostinato.ir.target import CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = ["backward_row", "operand_dtypes", "result_dtypes"]

_F32 = (DType.F32,)
Params = Callable[[CallSite], tuple[int | float, ...]]


def operand_dtypes(**allowed: Sequence[DType]) -> Predicate:
    """The reason when an operand that is there has none of the dtypes given by its name; float32 where none are given."""

    def accepts(site: CallSite) -> str | None:
        specs = enumerate(OP[site.node.op].operands)
        present = [(spec.name, index) for index, spec in specs if site.has(index)]
        return first_reason(
            *(need_dtype(name, site.operand(index), allowed.get(name, _F32)) for name, index in present)
        )

    return accepts


def result_dtypes(*allowed: DType) -> Predicate:
    """The reason when the first result has none of these dtypes."""

    def accepts(site: CallSite) -> str | None:
        return need_dtype("the result", site.results[0], allowed or FLOATS)

    return accepts


def _no_workspace(site: CallSite) -> int:
    del site
    return 0


def backward_row(
    op: str,
    operands: tuple[str, ...],
    params: Params,
    accepts: Predicate,
    *,
    name: str = "host",
    kernel: str = "",
    exactness: Exactness = Exactness.ROW_INVARIANT,
    in_place: tuple[tuple[str, str], ...] = (),
    workspace: Callable[[CallSite], int] = _no_workspace,
    layouts: tuple[tuple[str, tuple[str, ...]], ...] = (),
    strided: frozenset[str] = frozenset(),
    priority: int = 0,
) -> Impl:
    """A row of the host whose kernel has the name of the operator unless another is given."""
    return Impl(
        op=op,
        name=name,
        level=Level.TUNED,
        architectures=HOST,
        operands=operands,
        kernel=fixed(kernel or op),
        params=params,
        accepts=accepts,
        in_place=in_place,
        exactness=exactness,
        strided=strided,
        priority=priority,
        workspace=workspace,
        layouts=layouts,
    )
