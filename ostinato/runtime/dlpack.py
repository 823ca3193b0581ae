"""Capsules of DLPack as bytes: what numpy neither says nor reads of them is read and changed here.

numpy knows no bf16 and no GPU. An array of it may stand for either, over addresses that it never looks at: its capsule is made, and then told what it is.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ostinato.ir.types import DType

__all__ = [
    "BFLOAT",
    "COPIED",
    "CPU",
    "CUDA",
    "DTYPES",
    "GPU_KINDS",
    "MANAGED",
    "PINNED_KINDS",
    "READ_ONLY",
    "ROCM",
    "UINT",
    "as_exported",
    "tensor_of",
]

CPU = (1, 0)
"""The name of CPU memory: kind and index."""
CUDA, ROCM = 2, 10
GPU_KINDS = frozenset({CUDA, ROCM})
"""Of GPU memory, NVIDIA's and AMD's."""
PINNED_KINDS = frozenset({3, 11})
"""Of host memory that a GPU's driver pinned."""
MANAGED = 13

READ_ONLY, COPIED = 1, 2
"""Flags of a versioned capsule."""

UINT, BFLOAT = 1, 4
DTYPES = {
    (0, 8): DType.I8,
    (0, 32): DType.I32,
    (0, 64): DType.I64,
    (1, 8): DType.U8,
    (2, 16): DType.F16,
    (2, 32): DType.F32,
    (2, 64): DType.F64,
    (BFLOAT, 16): DType.BF16,
    (6, 8): DType.BOOL,
}
"""By code and bits of an element."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def tensor_of(capsule: Any) -> tuple[_Tensor, int]:
    """The tensor within a capsule, and its flags. Raises `ValueError` for one that was used, or is none of DLPack."""
    name = _name_of(capsule)
    if name == b"dltensor":
        return _Managed.from_address(_pointer_of(capsule, name)).tensor, 0
    if name == b"dltensor_versioned":
        versioned = _Versioned.from_address(_pointer_of(capsule, name))
        if versioned.major != 1:
            raise ValueError(f"expected version 1 of DLPack, found {versioned.major}.{versioned.minor}")
        return versioned.tensor, versioned.flags
    raise ValueError(f"expected a fresh DLPack capsule, found one named {name!r}")


def as_exported(capsule: Any, device: tuple[int, int], is_bfloat: bool) -> Any:
    """A fresh capsule of numpy's, told on which device it is and whether its 16-bit elements are bf16."""
    tensor, _ = tensor_of(capsule)
    tensor.device_kind, tensor.device_index = device
    if is_bfloat:
        tensor.code = BFLOAT
    return capsule
