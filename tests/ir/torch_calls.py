"""Calls of references, and their comparison with torch. Modules that import this one are skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["call", "close", "normal", "t", "torch"]

torch: Any = pytest.importorskip("torch")


def call(name: str, *arrays: Array | None, **attrs: Attr) -> tuple[Array, ...]:
    types = [None if array is None else TensorType(array.shape, DType.of(array.dtype)) for array in arrays]
    return OP[name].reference(arrays, attrs, OP[name].infer(types, attrs))


def close(name: str, actual: Array, expected: Any) -> None:
    tolerance = OP[name].tolerance
    np.testing.assert_allclose(actual, expected.numpy(), rtol=tolerance.relative, atol=tolerance.absolute)


def t(array: Array) -> Any:
    return torch.from_numpy(array.copy())


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)
