"""Rows of the host for training on random shapes, past what samples reach: several blocks of keys and queries, rows of logits of several runs, tables larger
than a run, on every instruction set and with any number of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.calls import calls
from ostinato.backend_hip.evidence.rows import DeviceMachine, check, references
from ostinato.backend_hip.evidence.samples import arrays_of
from ostinato.backend_hip.impls import ROWS
from ostinato.ir.opdef import Sample
from ostinato.ir.ops import OP
from ostinato.ir.ops.attention_backward import ATTENTION_CAUSAL_SAVED
from ostinato.ir.ops.samplers import floats, given, indices, normal, reals, valid
from ostinato.ir.types import DType, TensorType

UNITS = list(_native.isa_available())
THREADS = (1, 2, 5)


@functools.cache
def machines(unit: str) -> tuple[DeviceMachine, ...]:
    return tuple(DeviceMachine(HostDevice(threads=threads, isa=unit)) for threads in THREADS)


def attention(rng: np.random.Generator) -> Iterator[Sample]:
    """Few groups of heads, which several workers share, and many; heads of which a block has 64, 32 and 16 tokens."""
    for groups, repeats, width in ((1, 3, 48), (5, 1, 40), (1, 2, 160), (2, 1, 300)):
        time, batch = int(rng.integers(65, 160)), int(rng.integers(1, 3))
        heads = groups * repeats
        attrs = {"scale": width**-0.5, "window": int(rng.integers(0, 2)) * int(rng.integers(1, time))}
        shapes = [(batch, time, count, width) for count in (heads, groups, groups)]
        q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        types = [TensorType(shape, DType.F32) for shape in shapes]
        y, log_sum = ATTENTION_CAUSAL_SAVED.reference([q, k, v], attrs | {"soft_cap": 0.0}, ATTENTION_CAUSAL_SAVED.infer(types, attrs | {"soft_cap": 0.0, "dtype": ""}))
        yield valid(normal(shapes[0]), reals(q), reals(k), reals(v), reals(y), reals(log_sum), **attrs)
