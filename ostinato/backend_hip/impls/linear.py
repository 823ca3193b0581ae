"""Rows of the projections and of the embedding: kernels over weights packed in panels of 32 output rows, one a weight dtype, named after it.

Activations may be f32, bf16 or f16 on both sides, products accumulate in fp32. `host_natural` reads a weight as a checkpoint has it, which is how parameters
lie that are trained; it comes last, for a packed weight is read faster where it stays as it is.

A norm inside keeps x in f32. bf16 weights meet x in bf16 two products at a time where the machine can, which is twice as fast with many rows; so a norm that is
fused with them is served by the twin `host_wide`, of a level below, and fusions, which never go down a level, leave it apart. Measured with one row to 512:
with any other weight the norm costs nothing inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import (
    FLOATS,
    HOST,
    WEIGHT_DTYPES,
    Predicate,
    all_of,
    all_rows_twin,
    first_reason,
    fixed,
    flat,
    foldable_count,
    need_dtype,
    number,
    without,
)
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops import OP
from ostinato.ir.target import NATURAL, CallSite, Impl, Level
from ostinato.ir.types import DType

__all__ = [
    "LINEAR_ROWS",
    "MAX_SPLIT",
    "at_most_three",
    "by_weight",
    "embedding_dtypes",
    "linear_dtypes",
    "norm_workspace",
    "pairs_kept",
    "residual_dtype",
    "wide_twin",
]

MAX_SPLIT = 3
"""Results that a kernel has operands for."""


_GAIN = {op: OP[op].place("gain") for op in ("linear", "linear_split", "linear_swiglu", "qkv_rope_store")}
_FEW_ROWS = 8
"""Rows whose norm is put into the workspace; blocks of more rows are normalised as they are copied."""


def pairs_kept(site: CallSite) -> str | None:
    """No norm in front of a bf16 weight."""
    if site.has(_GAIN[site.node.op]) and site.operand(1).dtype is DType.BF16:
        return "x that is normalised inside is f32, and bf16 weights are multiplied faster with bf16"
    return None


def norm_workspace(site: CallSite) -> int:
    """The norm of a few rows of x."""
    rows, columns = flat(site.operand(0))
    return min(rows, _FEW_ROWS) * columns * DType.F32.block_bytes if site.has(_GAIN[site.node.op]) else 0


def wide_twin(row: Impl, accepts: Predicate) -> Impl:
    """`row` for what `pairs_kept` refuses."""
    return replace(row, name=f"{row.name}_wide", level=Level.READABLE, accepts=accepts)


def by_weight(kernel: str) -> Callable[[CallSite], str]:
    """The kernel of that name for the dtype of the weight, operand 1."""
    return lambda site: f"{kernel}_{site.operand(1).dtype.value}"


def linear_dtypes(site: CallSite) -> str | None:
    """Floats by a float or block weight of whole blocks, float results."""
    weight = site.operand(1)
    return first_reason(
        need_dtype("x", site.operand(0), FLOATS),
        need_dtype("weight", weight, WEIGHT_DTYPES),
        *(need_dtype("result", result, FLOATS) for result in site.results),
        _whole_blocks(site),
    )


def residual_dtype(site: CallSite) -> str | None:
    """A residual of the result's dtype."""
    return need_dtype("residual", site.operand(3), (site.results[0].dtype,)) if site.has(3) else None


def _whole_blocks(site: CallSite) -> str | None:
    weight = site.operand(1)
    columns = weight.static_shape[1]
    if columns % weight.dtype.block_elements:
        return f"weight columns must be a multiple of {weight.dtype.block_elements} for {weight.dtype.value}, found {columns}"
    return None


def at_most_three(site: CallSite) -> str | None:
    """No more results than the kernels have operands for, all of one dtype."""
    if len(site.results) > MAX_SPLIT:
        return f"the kernel writes at most {MAX_SPLIT} results, found {len(site.results)}"
    if len({result.dtype for result in site.results}) > 1:
        return "all results must have one dtype"
    return None


def _linear_params(site: CallSite) -> tuple[int | float, ...]:
    rows, columns = flat(site.operand(0))
    sizes = [result.static_shape[-1] for result in site.results]
    padding = [0] * (MAX_SPLIT - len(sizes))
    return (rows, columns, number(site.operand(0)), number(site.results[0]), *sizes, *padding, site.real("eps"))


def _swiglu_params(site: CallSite) -> tuple[int | float, ...]:
    rows, columns = flat(site.operand(0))
    dtypes = (number(site.operand(0)), number(site.results[0]))
    return (rows, columns, site.results[0].static_shape[-1], *dtypes, site.real("eps"))


def embedding_dtypes(site: CallSite) -> str | None:
    """int32 ids of a float or block table of whole blocks, a float result."""
    return first_reason(
        need_dtype("ids", site.operand(0), (DType.I32,)),
        need_dtype("weight", site.operand(1), WEIGHT_DTYPES),
        need_dtype("result", site.results[0], FLOATS),
        _whole_blocks(site),
    )


def _embedding_params(site: CallSite) -> tuple[int, ...]:
    vocabulary, width = site.operand(1).static_shape
    packed = 1 if site.operand(1).is_packed else 0
    return (site.operand(0).elements, vocabulary, width, number(site.results[0]), packed)


_LINEAR = Impl(
    op="linear",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "weight", "bias", "residual", "gain", "count", "y", "-", "-", "workspace"),
    kernel=by_weight("linear"),
    params=_linear_params,
    accepts=all_of(linear_dtypes, residual_dtype, pairs_kept, foldable_count()),
    workspace=norm_workspace,
    layouts=(("weight", ("panel32",)),),
    in_place=(("y", "residual"),),
)


def _natural_params(site: CallSite) -> tuple[int, ...]:
    rows, columns = flat(site.operand(0))
    y = site.results[0]
    return (rows, columns, y.static_shape[-1], number(site.operand(0)), number(site.operand(1)), number(y))


def _natural_accepts(site: CallSite) -> str | None:
    """Floats throughout, no norm in front."""
    return first_reason(
        need_dtype("x", site.operand(0), FLOATS),
        need_dtype("weight", site.operand(1), FLOATS),
        need_dtype("result", site.results[0], FLOATS),
        residual_dtype(site),
        without("gain")(site),
    )


_LINEAR_NATURAL = Impl(
    op="linear",
    name="host_natural",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "weight", "bias", "residual", "count", "y"),
    kernel=fixed("linear_natural"),
    params=_natural_params,
    accepts=all_of(_natural_accepts, foldable_count()),
    in_place=(("y", "residual"),),
    priority=-2,  # behind the packed twin that computes all rows
)

_LINEAR_SPLIT = Impl(
    op="linear_split",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "weight", "bias", "-", "gain", "count", "y0", "y1", "y2", "workspace"),
    kernel=by_weight("linear"),
    params=_linear_params,
    accepts=all_of(linear_dtypes, at_most_three, pairs_kept, foldable_count()),
    workspace=norm_workspace,
    layouts=(("weight", ("panel32",)),),
)

_LINEAR_SWIGLU = Impl(
    op="linear_swiglu",
    name="host",
    level=Level.TUNED,
    architectures=HOST,
    exactness=Exactness.ROW_INVARIANT,
    operands=("x", "weight", "gain", "count", "y", "workspace"),
    kernel=by_weight("linear_swiglu"),
    params=_swiglu_params,
    accepts=all_of(linear_dtypes, pairs_kept, foldable_count()),
    workspace=norm_workspace,
    layouts=(("weight", ("panel32_pair",)),),
)


def _twins(row: Impl, accepts: Predicate) -> tuple[Impl, ...]:
    """The row; without its count operand; and both for a norm in front of a bf16 weight."""
    wide = wide_twin(row, all_of(accepts, foldable_count()))
    return (row, all_rows_twin(row, all_of(accepts, pairs_kept)), wide, all_rows_twin(wide, accepts))


LINEAR_ROWS = (
    *_twins(_LINEAR, all_of(linear_dtypes, residual_dtype)),
    _LINEAR_NATURAL,
    all_rows_twin(_LINEAR_NATURAL, _natural_accepts),
    *_twins(_LINEAR_SPLIT, all_of(linear_dtypes, at_most_three)),
    *_twins(_LINEAR_SWIGLU, linear_dtypes),
    Impl(
        op="embedding",
        name="host",
        level=Level.TUNED,
        architectures=HOST,
        exactness=Exactness.REFERENCE,
        operands=("ids", "weight", "count", "y"),
        kernel=by_weight("embedding"),
        params=_embedding_params,
        accepts=all_of(embedding_dtypes, foldable_count(inner=0)),
        layouts=(("weight", (NATURAL, "panel32")),),
    ),
)
