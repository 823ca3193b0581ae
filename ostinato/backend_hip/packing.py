"""Steps of the load program: rows of a checkpoint tensor become rows of a weight, in the weight's dtype and layout, in one native call.

The native kernels read the mapped file directly (unaligned, any row order) and write panels in place, so that no second copy of a weight ever exists. Float
dtypes convert into one another, blocks dequantise into floats. Floats never become blocks and no block dtype becomes another: quantising is a decision of
whoever made the checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ostinato.backend_hip.impls.common import FLOATS, WEIGHT_DTYPES
from ostinato.ir.errors import BoundsError, DTypeError, LayoutError, ShapeError
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["PackCall", "Source", "bytes_of", "pack_call", "unpack_call"]

_LAYOUT_NUMBERS = {"row": 0, "panel32": 1, "panel32_pair": 2}


class Source(Protocol):
    """Rows to pack: `data` uint8 holds row-major source rows of `dtype`; `row_index` int64 gives the source row of each logical row."""

    @property
    def data(self) -> Array: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def row_index(self) -> Array: ...


@dataclass(frozen=True, slots=True)
class PackCall:
    """One kernel call: operands are (address, bytes). `keep` holds the arrays behind the addresses."""

    kernel: str
    operands: tuple[tuple[int, int], ...]
    params: tuple[int, ...]
    keep: tuple[Array, ...]


def pack_call(tensor: TensorType, address: int, source: Source, first_row: int) -> PackCall:
    """The call that writes `source` as logical rows [first_row, first_row + len(row_index)) of the weight `tensor` at `address`.

    A vector is a column of rows of one element. Raises `DTypeError` for a conversion that does not exist, `LayoutError` for a layout that cannot be packed,
    `ShapeError` and `BoundsError` for rows that the source or the weight does not have.
    """
    rows, columns = _rows_and_columns(tensor)
    _check_dtypes(source.dtype, tensor.dtype)
    data, index = bytes_of(source.data), np.ascontiguousarray(source.row_index)
    if index.dtype != np.int64 or index.ndim != 1:
        raise DTypeError(f"the row index must be int64 of one dimension, found {index.dtype} {list(index.shape)}")
    count = len(index)
    if not 0 <= first_row <= first_row + count <= rows:
        raise BoundsError(f"rows [{first_row}, {first_row + count}) are outside of {tensor}")
    row_bytes = source.dtype.nbytes(columns)
    available = data.nbytes // row_bytes if row_bytes else rows
    if count and not (int(index.min()) >= 0 and int(index.max()) < available):
        raise BoundsError(
            f"the row index goes from {int(index.min())} to {int(index.max())}, the source has {available} rows of {row_bytes} bytes",
            hint="the tensor is smaller than its type says, or its row order belongs to another one",
        )
    operands = ((data.ctypes.data, data.nbytes), (index.ctypes.data, index.nbytes), (address, tensor.nbytes))
    if tensor.rank == 1:
        vector = (source.dtype.number, tensor.dtype.number, columns, count, first_row)
        return PackCall("copy_rows", operands, vector, (data, index))
    layout = tensor.layout if tensor.is_packed and tensor.layout is not None else "row"
    matrix = (source.dtype.number, columns, count, first_row, rows, _LAYOUT_NUMBERS[layout])
    return PackCall(f"pack_{tensor.dtype.value}", operands, matrix, (data, index))


def unpack_call(tensor: TensorType, address: int) -> tuple[PackCall, Array]:
    """The call that reads the weight `tensor` at `address` back, and the float32 array of its logical shape that it fills.

    A matrix is read as an embedding reads its table, row by row. A panel of pairs is a panel of 32 rows whose upper half belongs to the second half of the
    weight, so that its rows only have other numbers there.
    """
    rows, columns = _rows_and_columns(tensor)
    values = np.empty((rows, columns), np.float32)
    ids = np.arange(rows, dtype=np.int32)
    table_rows = rows
    if tensor.layout == "panel32_pair":
        half = rows // 2
        place = ids % half
        ids = (place // 16 * 32 + place % 16 + ids // half * 16).astype(np.int32)
        table_rows = -(-half // 16) * 32
    layout = _LAYOUT_NUMBERS["panel32" if tensor.is_packed and tensor.layout != "row" else "row"]
    table = (address, tensor.nbytes)
    operands = ((ids.ctypes.data, ids.nbytes), table, (0, 0), (values.ctypes.data, values.nbytes))
    params = (rows, table_rows, columns, DType.F32.number, layout)
    return PackCall(f"embedding_{tensor.dtype.value}", operands, params, (ids, values)), values.reshape(
        tensor.static_shape
    )


def _rows_and_columns(tensor: TensorType) -> tuple[int, int]:
    if not (tensor.is_packed or tensor.is_natural):
        raise LayoutError(
            f"weights are stored in natural or packed layouts, found {tensor}", hint="let the layout pass assign it"
        )
    if tensor.rank == 0:
        raise ShapeError("a weight has at least one dimension, found a scalar", hint="store it as a vector of one")
    shape = tensor.static_shape
    return shape[0], math.prod(shape[1:])


def _check_dtypes(source: DType, target: DType) -> None:
    if target not in WEIGHT_DTYPES:
        known = ", ".join(dtype.value for dtype in WEIGHT_DTYPES)
        raise DTypeError(f"weights of dtype {target.value} cannot be packed", hint=f"use one of {known}")
    if source is target or (target in FLOATS and source in WEIGHT_DTYPES):
        return
    raise DTypeError(
        f"{source.value} rows cannot become {target.value}",
        hint="floats convert into floats and blocks dequantise into floats; quantise the checkpoint instead",
    )


def bytes_of(data: Array) -> Array:
    """The bytes of an array as they lie, uint8 [its bytes]; raises `LayoutError` for a strided one: it would need a copy."""
    if not data.flags.c_contiguous:
        raise LayoutError(f"expected contiguous values, found strides {list(data.strides)}")
    return data.reshape(-1).view(np.uint8)
