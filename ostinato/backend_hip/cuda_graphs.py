"""Captured CUDA graphs read through `libcuda`, whoever captured them: nodes, edges, and the arguments of kernels as bytes.

Structures are those of cuda.h. The driver owns what it shows: values are copied out at once. Sizes of arguments come from `cuFuncGetParamInfo` (drivers from 12.4
on); an older driver shows no arguments, and says so by None.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p, sizeof
from typing import Any

from ostinato.ir.errors import BackendError, DeviceUnavailable
from ostinato.runtime.foreign.nodes import ForeignArgument, ForeignGraph, ForeignNode

__all__ = ["CudaGraphs"]
