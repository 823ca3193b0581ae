"""Sizes no buffer has: products that do not fit 64 bits, negative extents, counts without room. Kernels refuse them and touch nothing.

Operands end where an inaccessible page begins, so that a kernel that trusts a wrapped product crashes here.
"""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backend_hip import _native
from tests.backend_hip.kernel_harness import INVALID, OUT_OF_RANGE, UNITS, Array, Guarded, device, each_unit

HALF = 1 << 32
LARGEST = (1 << 63) - 1
EXTENTS = (-(1 << 63), -1, 0, 1, 2, 3, 8, 16, 32, 64, 1 << 31, HALF, 1 << 33, 1 << 62, LARGEST)


def run(unit: str, kernel: str, operands: list[Array | None], params: list[int | float]) -> int:
    """The status of one run, on two threads."""
    host = device(unit, 2)
    guarded = [None if array is None else Guarded(array) for array in operands]
    pairs = [(0, 0) if g is None else (g.address, g.nbytes) for g in guarded]
    status = 0
    try:
        _native.Table(host, [(0, host.kernel(kernel), 0, pairs, params, [], [])]).run()
    except _native.NativeError as error:
        status = error.status
    assert all(g is None or g.intact() for g in guarded), f"{kernel} on {unit} wrote in front of an operand"
    return status


FLOAT = np.ones(64, np.float32)
INDEX = np.zeros(64, np.int32)
LONG = np.zeros(8, np.int64)
DENSE = [1, 0, 0]  # strides of batch, token, head

TOO_LARGE: list[tuple[str, list[Array | None], list[int | float]]] = [
    ("add", [FLOAT, FLOAT, None, FLOAT], [HALF, HALF, 0]),
    ("silu", [FLOAT, None, FLOAT], [HALF, HALF, 0]),
    ("cast", [FLOAT, None, FLOAT], [HALF, HALF, 0, 0]),
    ("rms_norm", [FLOAT, FLOAT, None, FLOAT], [1 << 60, 16, 1e-6, 0, 0]),
    ("add_rms_norm", [FLOAT, FLOAT, FLOAT, None, FLOAT, FLOAT], [1 << 60, 16, 1e-6, 0, 0]),
    ("layer_norm", [FLOAT, FLOAT, FLOAT, None, FLOAT], [1 << 60, 16, 1e-6, 0, 0]),
    ("l2_normalize", [FLOAT, None, FLOAT], [1 << 60, 16, 1e-6, 0]),
    ("softmax", [FLOAT, None, FLOAT], [HALF, HALF, 0, 0]),
    ("causal_softmax", [FLOAT, None, FLOAT], [HALF, HALF, 0, 0]),
    ("gelu", [FLOAT, None, FLOAT], [HALF, HALF, 0, 0, 0]),
    ("add_bias", [FLOAT, FLOAT, None, FLOAT], [1 << 60, 16, 0]),
    ("fill", [FLOAT, None, FLOAT], [HALF, HALF, 1.0, 0]),
    (
        "matmul",
        [FLOAT, FLOAT, None, FLOAT],
        [HALF, 1, HALF, 4, 4, 0, 0, 1.0, 0, 0, 0, 1, 1 << 34, 0, 4, 16, 0, 4, 1 << 34, 0, 4],
    ),
    (
        "matmul_add",
        [FLOAT, FLOAT, FLOAT, None, FLOAT],
        [HALF, 1, HALF, 4, 4, 0, 0, 1.0, 0, 0, 0, 1, 1 << 34, 0, 4, 16, 0, 4, 1 << 34, 0, 4],
    ),
    ("linear_natural", [FLOAT, FLOAT, None, None, None, FLOAT], [HALF, HALF, HALF, 0, 0, 0]),
    ("linear_natural", [FLOAT, FLOAT, None, None, None, FLOAT], [HALF, 0, HALF, 0, 0, 0]),
    # a result of as many entries as there are, all of them in one place
    ("matmul", [FLOAT, FLOAT, None, FLOAT], [HALF, 1, 2, 2, 2, 0, 0, 1.0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 2, 0, 0, 2]),
    ("repeat_pair", [FLOAT, FLOAT, None, FLOAT, FLOAT], [4, 1 << 20, 1 << 20, 1 << 20, 8, 1, 1]),
    ("concat", [FLOAT, FLOAT, *[None] * 7, FLOAT], [1, 1, LARGEST, LARGEST, *[0] * 6]),
    ("reduce_sum", [FLOAT, None, FLOAT, FLOAT], [HALF, HALF]),
    ("masked_mean", [FLOAT, INDEX, INDEX, None, FLOAT], [HALF, HALF, 2, 0]),
    ("add_at_tokens", [FLOAT, INDEX, FLOAT, INDEX, None, FLOAT], [HALF, HALF, 2]),
    ("penalize", [FLOAT, INDEX, INDEX, INDEX, FLOAT, FLOAT, FLOAT, None, FLOAT, FLOAT], [HALF, HALF, 2]),
    ("advance", [*[INDEX] * 7, None, None], [HALF, HALF, 8]),
    ("rope_split_half_bias_bthd", [FLOAT, FLOAT, FLOAT, FLOAT, None, FLOAT], [HALF, HALF, 2, 4, 2, 0, 0]),
    ("rotary_table", [INDEX, FLOAT, None, FLOAT, FLOAT], [HALF, HALF, 1.0]),
    ("rotary_table_dynamic", [INDEX, INDEX, None, FLOAT, FLOAT], [HALF, HALF, 1e4, 2.0, 32, 1.0]),
    ("rotary_table_longrope", [INDEX, INDEX, FLOAT, FLOAT, None, FLOAT, FLOAT], [HALF, HALF, 32, 1.0]),
    ("rope_split_half", [FLOAT, FLOAT, FLOAT, None, FLOAT], [4, 2, 4, 2, 0, 1 << 62, 4, 1 << 60, 0]),
    ("rope_interleaved", [FLOAT, FLOAT, FLOAT, None, FLOAT], [1, 1, LARGEST, 1 << 62, 0, 1, 1, 1, 1]),
    ("copy", [FLOAT, FLOAT], [4, 2, HALF, HALF, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]),
    ("copy", [FLOAT, FLOAT], [4, 2, 2, 2, 1, 1, 1, 1, LARGEST, LARGEST, 0, 0, 0, 0]),
    ("gather_rows", [FLOAT, INDEX, None, FLOAT], [1, HALF, HALF, 0]),
    ("kv_store", [FLOAT, FLOAT, INDEX, INDEX, INDEX, None, FLOAT, FLOAT], [1, 2, 8, HALF, HALF, 1, 1, 0, 0]),
    (
        "attention_packed",
        [FLOAT, FLOAT, FLOAT, INDEX, INDEX, INDEX, INDEX, None, FLOAT],
        [1, 2, 2, 8, HALF, 1 << 28, 7, 1, 1.0, 0, 0.0, 0, 0, 0],
    ),
    (
        "attention_bidirectional",
        [FLOAT, FLOAT, FLOAT, INDEX, INDEX, INDEX, None, FLOAT],
        [2, 2, 2, 8, 1, 1.0, 0, 0, HALF, 1 << 31, 16, 8, 1 << 62, 1 << 62],
    ),
    (
        "attention_causal",
        [FLOAT, FLOAT, FLOAT, FLOAT],
        [HALF, 1 << 31, 2, 2, 1, 1.0, 0, 0.0, 0, 0, *DENSE, *DENSE, *DENSE],
    ),
    ("argmax", [FLOAT, None, INDEX], [1 << 34, 1 << 30]),
    ("cross_entropy", [FLOAT, INDEX, FLOAT, FLOAT], [1 << 61, 8]),
    ("pack_f32", [FLOAT, LONG, FLOAT], [0, 1 << 62, 1, 0, 1, 0]),
    ("pack_bf16", [FLOAT, LONG, FLOAT], [0, 1 << 62, 1, 0, 1, 1]),
    ("copy_rows", [FLOAT, LONG, FLOAT], [0, 0, 4, 1, LARGEST]),
    ("embedding_f32", [INDEX, FLOAT, None, FLOAT], [1, 1, 1 << 62, 0, 0]),
    ("linear_f32", [FLOAT, FLOAT, *[None] * 4, FLOAT, FLOAT, None, None], [0, 1, 0, 0, LARGEST, 1, 0, 0.0]),
    ("linear_f32", [FLOAT, FLOAT, None, FLOAT, None, None, FLOAT, *[None] * 3], [HALF, 1, 0, 0, HALF, 0, 0, 0.0]),
    ("linear_swiglu_f32", [FLOAT, FLOAT, None, None, FLOAT, None], [1, 1, LARGEST, 0, 0, 0.0]),
    ("swiglu", [FLOAT, FLOAT, None, FLOAT], [HALF, HALF, 1, 1, 1, 0, 0]),
    ("swiglu", [FLOAT, FLOAT, None, FLOAT], [4, 1, 4, 1 << 62, 4, 0, 0]),
    (
        "rope_store",
        [*[FLOAT] * 5, INDEX, INDEX, INDEX, None, FLOAT, FLOAT, FLOAT],
        [2, 1, 1, 8, 4, 1, 1, 1, 1, 0, 0, 1 << 62, 8, 8, 8, 8, 8],
    ),
    (
        "rope_store",
        [*[FLOAT] * 5, INDEX, INDEX, INDEX, None, FLOAT, FLOAT, FLOAT],
        [1, HALF, HALF, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1],
    ),
    (
        "qkv_rope_store_f32",
        [FLOAT, FLOAT, None, None, FLOAT, FLOAT, INDEX, INDEX, INDEX, None, FLOAT, FLOAT, FLOAT, None],
        [1, 1, 0, 0.0, 1, LARGEST, 2, 1, 1, 1, 1, 1, 0, 0],
    ),
]


@each_unit
@pytest.mark.parametrize(("kernel", "operands", "params"), TOO_LARGE, ids=[row[0] for row in TOO_LARGE])
def test_products_that_do_not_fit_are_refused(
    unit: str, kernel: str, operands: list[Array | None], params: list[int | float]
) -> None:
    assert run(unit, kernel, operands, params) == INVALID


@each_unit
def test_negative_extents_are_refused(unit: str) -> None:
    for rows, width in [(-1, 4), (4, -1), (-1, -1), (0, -1)]:
        assert run(unit, "add", [FLOAT, FLOAT, None, FLOAT], [rows, width, 0]) == INVALID
        assert run(unit, "rms_norm", [FLOAT, FLOAT, None, FLOAT], [rows, width, 1e-6, 0, 0]) == INVALID
        assert run(unit, "gather_rows", [FLOAT, INDEX, None, FLOAT], [rows, 1, width, 0]) == INVALID
    assert run(unit, "add", [FLOAT, FLOAT, None, FLOAT], [0, 4, 0]) == 0


@each_unit
def test_a_count_needs_its_four_bytes(unit: str) -> None:
    short = np.zeros(2, np.uint8)
    assert run(unit, "add", [FLOAT, FLOAT, short, FLOAT], [4, 4, 0]) == INVALID
    assert (
        run(unit, "linear_f32", [FLOAT, FLOAT, None, None, None, short, FLOAT, *[None] * 3], [1, 1, 0, 0, 1, 0, 0, 0.0])
        == INVALID
    )


@pytest.mark.parametrize("kernel", sorted(_native.kernel_names()))
def test_any_parameters_are_survived(kernel: str, rng: np.random.Generator) -> None:
    """Whatever the parameters, a kernel computes within its operands or refuses."""
    operand_count, param_count, optional = _native.kernel_names()[kernel]
    operands: list[Array | None] = [
        None if optional >> i & 1 else np.zeros(512, np.uint8) for i in range(operand_count)
    ]
    for _ in range(150):
        extents = [int(rng.choice(EXTENTS)) for _ in range(param_count)]
        small = [int(rng.integers(0, 5)) for _ in range(param_count)]
        params: list[int | float] = [a if rng.random() < 0.4 else b for a, b in zip(extents, small, strict=True)]
        assert run(UNITS[-1], kernel, operands, params) in (0, INVALID, OUT_OF_RANGE), params
