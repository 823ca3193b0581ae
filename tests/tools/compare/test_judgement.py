"""What a result by itself may be off by: what rows really do is allowed, in every dtype, and what is wrong is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.graph import Attributes, Node, Value
from ostinato.ir.ops import OP
from ostinato.ir.rounding import multiply, plain_arithmetic, round_to
from ostinato.ir.types import Array, DType, TensorType
from ostinato.tools.compare.examine import examine
from ostinato.tools.compare.judgement import Judged, judged, limits_of, output_limit
from ostinato.tools.compare.workload import make_workload
from tests.frontend.small_families import SMALL_FAMILIES, small_model

SEED = 20


def node(op: str, shape: tuple[int, ...], dtype: DType = DType.F32) -> Node:
    return Node(op, ("x",), (Value("y", TensorType(shape, dtype)),), Attributes())


def never() -> list[Array]:
    pytest.fail("nothing exceeds its tolerance")


def of(
    op: str, found: Array, wanted: Array, dtype: DType = DType.F32, plain: Callable[[], list[Array]] = never
) -> Judged:
    (one,) = judged(node(op, wanted.shape, dtype), [found], [wanted], plain)
    return one


def is_wrong(one: Judged) -> bool:
    return bool((one.ratio > 1).any())


def test_a_large_row_hides_nothing_in_another() -> None:
    rng = np.random.default_rng(SEED)
    wanted = rng.normal(size=(4, 64)).astype(np.float32)
    wanted[0] *= 1000
    found = wanted.copy()
    found[0] *= 1 + 1e-5
    assert not is_wrong(of("linear", found, wanted))
    found[2] *= 1.01
    one = of("linear", found, wanted, plain=lambda: [wanted])
    assert {int(row) for row in np.argwhere(one.ratio > 1)[:, 0]} == {2}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_share_is_allowed_whatever_the_scale(scale: float) -> None:
    wanted = (scale * np.random.default_rng(SEED).normal(size=(4, 64))).astype(np.float32)
    assert not is_wrong(of("linear", wanted * np.float32(1 + 1e-5), wanted))
    assert is_wrong(of("linear", wanted * np.float32(1.01), wanted, plain=lambda: [wanted]))


def test_sums_that_cancel_are_held_against_a_plain_composition() -> None:
    """A product and what takes it away again: what is left has the error of what was summed."""
    rng = np.random.default_rng(SEED)
    a, b = rng.normal(size=(8, 512)), rng.normal(size=(512, 32))
    a, b = (np.concatenate((part, sign * part), axis) for part, sign, axis in ((a, 1, 1), (b, -1, 0)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    b[:512] *= np.float32(1 + 2**-20)
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    halves = (a[:, :512] @ b[:512]) + (a[:, 512:] @ b[512:])  # another order than term by term
    asked = 0

    def plain() -> list[Array]:
        nonlocal asked
        asked += 1
        with plain_arithmetic():
            return [multiply(a, b)]

    assert float(np.abs(halves - wanted).max() / np.abs(wanted).max()) > 1e-3, "far beyond its tolerance"
    assert not is_wrong(of("linear", halves, wanted, plain=plain))
    assert asked == 1
    assert is_wrong(of("linear", halves + np.float32(1e-3), wanted, plain=plain))


def attended(probabilities: Array, values: Array) -> Array:
    return round_to(probabilities.astype(np.float64) @ values.astype(np.float64), DType.BF16)


def test_probabilities_rounded_for_matrix_units_are_no_fault_in_bf16() -> None:
    """They move results by two units and more, as they may in a row that is validated; a scale that is off by some parts in a hundred does not pass."""
    rng = np.random.default_rng(SEED)
    scores, values = rng.normal(size=(64, 96)), rng.normal(size=(96, 64)).astype(bfloat16)
    exact = np.exp(scores - scores.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    wanted = attended(exact, values)

    def plain() -> list[Array]:
        with plain_arithmetic():
            return [multiply(exact, values.astype(np.float32)).astype(bfloat16)]

    def verdict(found: Array) -> Judged:
        return of("attention_packed", found, wanted, DType.BF16, plain)

    one = verdict(attended(exact.astype(bfloat16), values))
    base = of("attention_packed", wanted, wanted, DType.BF16)
    assert (one.difference > base.allowed).any(), "more than one unit in the last place"
    assert not is_wrong(one)
    assert is_wrong(verdict(attended(1.1 * exact, values)))
    assert is_wrong(verdict(attended(np.roll(exact, 1, axis=1), values)))
    assert is_wrong(verdict(attended(exact[::-1], values)))


def test_exact_operators_integers_and_nan_have_no_second_look() -> None:
    wanted = np.arange(8, dtype=np.float32)
    assert is_wrong(of("cast", np.nextafter(wanted, np.float32(9)), wanted))
    assert is_wrong(of("argmax", wanted.astype(np.int32) + 1, wanted.astype(np.int32), DType.I32))
    found = wanted.copy()
    found[3] = np.nan
    one = of("linear", found, wanted)
    assert np.argwhere(np.isinf(one.ratio)).tolist() == [[3]]
    assert not is_wrong(of("linear", found, found)), "NaN of NaN"
    assert judged(node("linear", (0, 4)), [np.zeros((0, 4))], [np.zeros((0, 4))], never) == []


def test_zero_and_what_a_device_may_flush_are_alike() -> None:
    wanted = np.full((1, 4), 1e-40, np.float32)
    assert not is_wrong(of("linear", np.zeros_like(wanted), wanted))
    assert is_wrong(of("linear", np.full_like(wanted, 1e-30), wanted, plain=lambda: [wanted]))


def test_the_limits_of_a_bundle_are_what_every_row_keeps() -> None:
    wanted = np.random.default_rng(SEED).normal(size=(4, 64)).astype(np.float32)
    wanted[1] *= 10
    one = of("linear", wanted, wanted)
    tolerance = OP["linear"].tolerance
    absolute, relative = limits_of(one.value.type, tolerance, wanted, wanted)
    assert (one.allowed <= absolute + relative * np.abs(wanted.astype(np.float64))).all()
    assert absolute < 20 * tolerance.absolute
    assert limits_of(one.value.type, OP["cast"].tolerance, wanted, wanted) == (0.0, 0.0)


def test_few_of_all_rows_may_be_sensitive_in_whichever_step() -> None:
    good = [np.random.default_rng(step).normal(size=(rows, 50)).astype(np.float32) for step, rows in enumerate((6, 2))]
    usual = 2e-4 * float(np.std(np.concatenate(good)))

    def limit(step: int, rows: int) -> float:
        other = [array.copy() for array in good]
        other[step][:rows] += np.float32(1.5 * usual)
        return output_limit(good, other, ("f32", "f32")) / usual

    assert limit(0, 0) == limit(0, 2) == limit(1, 2) == pytest.approx(5, rel=1e-5), "of eight"
    assert limit(0, 3) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_no_row_that_is_right_is_called_wrong(family: str, precision: str, tmp_path: Path) -> None:
    model, device = small_model(family, tmp_path, SEED), HostDevice(threads=1)
    executable: ost.TextExecutable | ost.EmbedExecutable
    if family == "bert":
        executable = ost.compile_encoder(model, buckets={"B": [4], "T": [16]}, device=device, precision=precision)
    else:
        executable = ost.compile(
            model, buckets={"B": [4], "T": [16]}, context=16, device=device, precision=precision, mode="planned"
        )
    found = examine(executable, family, make_workload(executable, tokens=16, seed=SEED))
    assert (found.cause, found.non_finite) == (None, None)
    assert all(row.worst_ratio <= 1 and not row.outside for row in found.operators)
    assert any(row.max > 0 for row in found.operators), "kernels do not add up as the reference does"
