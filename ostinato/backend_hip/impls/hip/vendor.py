"""Rows of matrix products by the vendor's library (cublasLt, hipBLASLt), for more rows than the few that our own kernels serve best.

Their steps are of kind GEMM and name no kernel: everything of the product is in the parameters (`GemmParams`) and the operands (`GEMM_OPERANDS`). The vendor's
matrices are column-major, so a product of row-major ones is asked for turned round: y = x times weight^T is d = weight^T^T times x^T with d = y^T, which lie in
memory as they are. Sums are f32, exact products, no TF32. A residual of `linear` and what a `matmul_add` adds to is c, added with beta 1 before the result is
rounded; both libraries let d be c itself, which is in place. The workspace depends on the size of the product alone.

The library knows no count: rows past the valid ones are computed too, from whatever lies there. What comes of them is unspecified, not even finite, and no
later step reads it; a valid row depends on its own row of x alone.

A row refuses what the library would have to be asked about at run time: blocks, operands of different dtypes, a bias that is not of the result's dtype,
matrices whose rows are not whole runs of 16 bytes, strides that are not those of one batch of matrices, and whatever has no elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ostinato.backend_hip.impls.common import (
    FLOATS,
    Predicate,
    all_of,
    first_reason,
    fixed,
    need_dtype,
    number,
    without,
)
from ostinato.backend_hip.impls.hip.few_rows import FEW_ROWS
from ostinato.backend_hip.impls.matmul import added_count, one_run
from ostinato.ir.step import StepKind
from ostinato.ir.target import ANY, CallSite, Extents, Impl, Level
from ostinato.ir.types import DType, TensorType

__all__ = [
    "ALIGNMENT",
    "GEMM_OPERANDS",
    "NO_BIAS",
    "VENDOR_ROWS",
    "GemmParams",
    "gemm_row",
    "some_elements",
    "vendor_dtypes",
]

GEMM_OPERANDS = ("a", "b", "bias", "c", "d", "workspace")
"""What a GEMM step's operands are, in their order: d = alpha op(a) op(b) + beta c, plus the bias along the rows of d."""
ALIGNMENT = 16
"""Bytes at whose multiples every operand, row of a matrix and matrix of a batch starts."""
NO_BIAS = -1
_LARGE = 2**24
"""Products of two elements from which on a GEMM is given a workspace, which lets the vendor share few results among many processors."""
_WORKSPACE = 4 << 20
_MOST = 2**31 - 1
"""Of an extent that the libraries take."""
_ARCHITECTURES = ("sm", "gfx90a", "gfx942", "gfx950")
"""Every GPU of NVIDIA, and those of AMD for which hipBLASLt has all of these dtypes."""


class GemmParams(NamedTuple):
    """The parameters of a GEMM step, column-major as the vendors have it: op(a) is m x k, op(b) k x n, c and d are m x n, in `batches`.

    Leading dimensions, and strides between the matrices of a batch, are in elements; types are `DType.number`, that of the bias `NO_BIAS` where there is none.
    """

    m: int
    n: int
    k: int
    batches: int
    transpose_a: int
    transpose_b: int
    a_type: int
    b_type: int
    c_type: int
    d_type: int
    bias_type: int
    a_leading: int
    b_leading: int
    c_leading: int
    d_leading: int
    a_stride: int
    b_stride: int
    c_stride: int
    d_stride: int
    alpha: float
    beta: float


@dataclass(frozen=True, slots=True)
class _Matrices:
    """A tensor as a batch of row-major matrices, `transposed` where the bytes lie by columns."""

    rows: int
    columns: int
    batches: int
    stride: int
    leading: int
    transposed: bool


def _matrices(tensor: TensorType, strides: tuple[int, ...], *, folded: bool = False) -> _Matrices | None:
    """The last two axes as matrices, those before them as one batch (`folded`: as more rows); None where the strides are not of that form."""
    shape = tensor.static_shape
    axes = list(zip(shape, strides, strict=True))
    columns, step = axes[-1]
    rows, batch = (one_run(axes[:-1]), (1, 0)) if folded else (axes[-2], one_run(axes[:-2]))
    if rows is None or batch is None:
        return None
    count, leading = rows
    leading, step = (columns if count == 1 else leading), (count if columns == 1 else step)
    if columns == 1 or (step == 1 and leading >= columns):
        return _Matrices(count, columns, *batch, leading, transposed=False)
    if count == 1 or (leading == 1 and step >= count):
        return _Matrices(count, columns, *batch, step, transposed=True)
    return None


def _seen(site: CallSite, index: int, *, folded: bool = False) -> _Matrices | None:
    strides = site.strides[index]
    assert strides is not None, "a packed operand is refused before"
    return _matrices(site.operand(index), strides, folded=folded)


def _taken(site: CallSite, index: int, *, folded: bool = False) -> _Matrices:
    found = _seen(site, index, folded=folded)
    assert found is not None, "accepted before"
    return found


def vendor_dtypes(first: str, second: str, result: str, at: int = 0) -> Predicate:
    """Two operands of one float dtype, number `at` and the next; the result is of it too, or f32."""

    def accepts(site: CallSite) -> str | None:
        dtype = site.operand(at).dtype
        return first_reason(
            need_dtype(first, site.operand(at), FLOATS),
            need_dtype(second, site.operand(at + 1), (dtype,)),
            need_dtype(result, site.results[0], dict.fromkeys((dtype, DType.F32))),
        )

    return accepts


def some_elements(site: CallSite, at: int = 0) -> str | None:
    """Operands, number `at` and the next, and a result with elements, of extents that the libraries take."""
    tensors = (site.operand(at), site.operand(at + 1), site.results[0])
    if not all(tensor.elements for tensor in tensors):
        return "the vendor multiplies nothing that has no elements"
    if any(max(tensor.elements // tensor.static_shape[-1], *tensor.static_shape) > _MOST for tensor in tensors):
        return f"the vendor's matrices have at most {_MOST} rows and columns"
    return None


def _aligned(name: str, tensor: TensorType, found: _Matrices | None, offset: int = 0) -> str | None:
    """The reason why a tensor is no batch of matrices whose rows are whole runs of 16 bytes."""
    if found is None:
        return f"{name} must be matrices with one step between them and rows or columns without gaps, found {tensor}"
    unit = ALIGNMENT // tensor.dtype.block_bytes
    lengths = (found.rows if found.transposed else found.columns, found.leading, found.stride, offset)
    if any(length % unit for length in lengths):
        return f"{name} must lie in runs of {unit} elements, which are {ALIGNMENT} bytes, found {tensor}"
    return None


def _natural(tensor: TensorType) -> _Matrices:
    """A result, whose axes but the last are rows; never strided."""
    columns = tensor.static_shape[-1]
    return _Matrices(tensor.elements // columns, columns, 1, 0, columns, transposed=False)


def _linear_accepts(site: CallSite) -> str | None:
    if site.has(2) and site.results[0].dtype is not DType.F32:
        return f"the vendor adds a bias of the result's dtype, found {site.operand(2)} and {site.results[0]}"
    return first_reason(
        _aligned("x", site.operand(0), _seen(site, 0, folded=True), site.offset(0)),
        _aligned("weight", site.operand(1), _seen(site, 1), site.offset(1)),
        _aligned("y", site.results[0], _natural(site.results[0])),
        "bias must lie at a multiple of 16 bytes" if site.has(2) and site.offset(2) * 4 % ALIGNMENT else None,
        _residual_lies(site) if site.has(3) else None,
    )


def _residual_lies(site: CallSite) -> str | None:
    """The reason why a residual is not the result's equal, of which the vendor adds one: c, which may be d."""
    tensor = site.operand(3)
    if site.offset(3) * tensor.dtype.block_bytes % ALIGNMENT:
        return "residual must lie at a multiple of 16 bytes"
    return need_dtype("residual", tensor, (site.results[0].dtype,))


def _linear_params(site: CallSite) -> GemmParams:
    x, weight, y = _taken(site, 0, folded=True), _taken(site, 1), site.results[0]
    return GemmParams(
        m=weight.rows,
        n=x.rows,
        k=weight.columns,
        batches=1,
        transpose_a=int(not weight.transposed),
        transpose_b=int(x.transposed),
        a_type=number(site.operand(1)),
        b_type=number(site.operand(0)),
        c_type=number(y),
        d_type=number(y),
        bias_type=number(site.operand(2)) if site.has(2) else NO_BIAS,
        a_leading=weight.leading,
        b_leading=x.leading,
        c_leading=weight.rows,
        d_leading=weight.rows,
        a_stride=0,
        b_stride=0,
        c_stride=0,
        d_stride=0,
        alpha=1.0,
        beta=1.0 if site.has(3) else 0.0,
    )


def _matmul_accepts(site: CallSite, at: int = 0) -> str | None:
    return first_reason(
        _aligned("a", site.operand(at), _seen(site, at), site.offset(at)),
        _aligned("b", site.operand(at + 1), _seen(site, at + 1), site.offset(at + 1)),
        _aligned("y", site.results[0], _natural(site.results[0])),
    )


def _added_accepts(site: CallSite) -> str | None:
    if site.offset(0) * site.operand(0).dtype.block_bytes % ALIGNMENT:
        return "c must lie at a multiple of 16 bytes"
    return added_count(site) or some_elements(site, 1) or _matmul_accepts(site, 1)


def _matmul_params(site: CallSite, at: int = 0, beta: float = 0.0) -> GemmParams:
    first, second, y = _taken(site, at), _taken(site, at + 1), site.results[0]
    m, n = y.static_shape[-2:]
    batched = first.batches > 1
    return GemmParams(
        m=n,
        n=m,
        k=first.rows if site.boolean("transpose_a") else first.columns,
        batches=first.batches,
        transpose_a=int(site.boolean("transpose_b") != second.transposed),
        transpose_b=int(site.boolean("transpose_a") != first.transposed),
        a_type=number(site.operand(at + 1)),
        b_type=number(site.operand(at)),
        c_type=number(y),
        d_type=number(y),
        bias_type=NO_BIAS,
        a_leading=second.leading,
        b_leading=first.leading,
        c_leading=n,
        d_leading=n,
        a_stride=second.stride if batched else 0,
        b_stride=first.stride if batched else 0,
        c_stride=m * n if batched else 0,
        d_stride=m * n if batched else 0,
        alpha=site.real("scale"),
        beta=beta,
    )


def gemm_row(
    op: str,
    operands: tuple[str, ...],
    strided: frozenset[str],
    params: Callable[[CallSite], GemmParams],
    accepts: Predicate,
    in_place: tuple[tuple[str, str], ...] = (),
    extents: Extents = ANY,
) -> Impl:
    """A row of the vendor's; `operands` are in the order of `GEMM_OPERANDS`."""

    def workspace(site: CallSite) -> int:
        wanted = params(site)
        return _WORKSPACE if wanted.m * wanted.n * wanted.k * wanted.batches >= _LARGE else 0

    return Impl(
        op,
        "hip_vendor",
        Level.VENDOR,
        _ARCHITECTURES,
        operands,
        fixed("gemm"),
        lambda site: tuple(params(site)),
        accepts,
        workspace=workspace,
        in_place=in_place,
        kind=StepKind.GEMM,
        extents=extents,
        strided=strided,
    )


VENDOR_ROWS = (
    gemm_row(
        "linear",
        ("weight", "x", "bias", "residual", "y", "workspace"),
        frozenset({"x"}),
        _linear_params,
        all_of(vendor_dtypes("x", "weight", "y"), without("gain"), some_elements, _linear_accepts),
        (("y", "residual"),),
        Extents(rows=(FEW_ROWS + 1, None)),  # fewer are multiplied by kernels of our own
    ),
    gemm_row(
        "matmul",
        ("b", "a", "-", "-", "y", "workspace"),
        frozenset({"a", "b"}),
        _matmul_params,
        all_of(vendor_dtypes("a", "b", "y"), some_elements, _matmul_accepts),
    ),
    gemm_row(
        "matmul_add",
        ("b", "a", "-", "c", "y", "workspace"),
        frozenset({"a", "b"}),
        lambda site: _matmul_params(site, 1, 1.0),
        all_of(vendor_dtypes("a", "b", "y", 1), _added_accepts),
    ),
)
