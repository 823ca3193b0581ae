"""Argmax, sampling and cross entropy, for every unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend_hip.kernel_harness import (
    F32,
    INVALID,
    OUT_OF_RANGE,
    Array,
    counter,
    each_unit,
    is_poison,
    launch,
    poison,
    wide,
)

I32 = np.dtype(np.int32)


def argmax(unit: str, x: Array, count: int | None = None) -> Array:
    return launch(unit, "argmax", [x, counter(count), poison(len(x), I32)], [*x.shape], writes=[2])[0]


@each_unit
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 33, 100, 1000, 32003])
def test_argmax(unit: str, width: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, width)).astype(F32)
    assert np.array_equal(argmax(unit, x), x.argmax(1))
    coarse = np.round(x)  # ties: the smallest index
    assert np.array_equal(argmax(unit, coarse), coarse.argmax(1))
    for place in {0, width // 2, width - 1}:
        x[:, place] = 100
        assert np.array_equal(argmax(unit, x), np.full(9, place))
        x[:, place] = -100


@each_unit
def test_argmax_of_rows_that_are_not_finite(unit: str, rng: np.random.Generator) -> None:
    for width in (1, 5, 40, 1000):
        x = rng.standard_normal((6, width)).astype(F32)
        x[0, width - 1] = np.nan
        x[1, width // 2] = np.inf
        x[2] = -np.inf
        x[3, : width - 1] = -np.inf
        x[4] = np.nan
        wanted = [-1, -1, -1, width - 1, -1, int(x[5].argmax())]
        assert argmax(unit, x).tolist() == wanted


@each_unit
def test_argmax_zeros_count_and_empty(unit: str) -> None:
    zeros = np.array([[-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]], F32)
    assert argmax(unit, zeros).tolist() == [0, 0]
    y = argmax(unit, np.zeros((5, 3), F32), count=2)
    assert y[:2].tolist() == [0, 0]
    assert is_poison(y[2:])
    assert argmax(unit, np.zeros((0, 3), F32)).size == 0
    assert argmax(unit, np.zeros((3, 0), F32)).tolist() == [-1, -1, -1]


# ---- sampling ------------------------------------------------------------------------------------------------------


def philox(key: int, index: int) -> int:
    """First word of Philox4x32-10."""
    mask = 0xFFFFFFFF
    c = [index & mask, 0, 0, 0]
    k = [key & mask, key >> 32 & mask]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c[0]


def test_philox_reference() -> None:
    """The published vectors of the generator."""
    assert philox(0, 0) == 0x6627E8D5
    assert philox(0xFFFFFFFFFFFFFFFF, 0) != philox(0, 0)


@dataclass
class Requests:
    """One row each."""

    logits: Array
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    seed: Array
    index: Array

    def run(self, unit: str, count: int | None = None, status: int = 0) -> Array:
        rows, width = self.logits.shape
        workspace = np.zeros(rows * width * 8, np.uint8).view(np.float64)
        operands: list[Array | None] = [
            self.logits,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seed,
            self.index,
        ]
        operands += [counter(count), poison(rows, I32), workspace]
        return launch(unit, "sample", operands, [rows, width], writes=[8, 9], status=status)[0]

    def uniform(self, row: int) -> float:
        return (philox(int(self.seed[row]) & (2**64 - 1), int(self.index[row])) + 0.5) / 2**32


def requests(
    logits: Array,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 7,
    first: int = 0,
) -> Requests:
    rows = len(logits)
    return Requests(
        logits.astype(F32),
        np.full(rows, temperature, F32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, F32),
        np.full(rows, min_p, F32),
        np.full(rows, seed, np.int64),
        np.arange(first, first + rows, dtype=np.int32),
    )


def kept(
    logits: Array, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Array, npt.NDArray[np.float64], bool]:
    """Tokens that survive, their probabilities, and whether an edge is too close to call for float32."""
    scaled = wide(logits) / temperature
    order = np.argsort(-scaled, kind="stable")
    clear = True
    if 0 < top_k < len(order):
        clear &= (
            abs(scaled[order[top_k - 1]] - scaled[order[top_k]]) > 1e-5
            or logits[order[top_k - 1]] == logits[order[top_k]]
        )
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    probability = weights / weights.sum()
    if top_p < 1:
        mass = np.cumsum(probability)
        clear &= bool(np.abs(mass - top_p).min() > 2e-6)
        order = order[: int(np.searchsorted(mass, top_p)) + 1]
        probability = probability[: len(order)]
    ratio = probability / probability[0]
    clear &= min_p == 0 or bool(np.abs(ratio - min_p).min() > 1e-5)
    order, probability = order[ratio >= min_p], probability[ratio >= min_p]
    ascending = np.argsort(order)
    return order[ascending], probability[ascending] / probability.sum(), clear


def check_tokens(unit: str, ask: Requests) -> int:
    """Compares every row that is not too close to an edge; returns how many were."""
    found = ask.run(unit)
    compared = 0
    for row, token in enumerate(found):
        limits = (float(ask.temperature[row]), int(ask.top_k[row]), float(ask.top_p[row]), float(ask.min_p[row]))
        tokens, probability, clear = kept(ask.logits[row], *limits)
        bounds, u = np.cumsum(probability), ask.uniform(row)
        if not clear or np.abs(bounds - u).min() < 2e-6:
            continue
        compared += 1
        place = int(np.searchsorted(bounds, u, side="right"))
        assert token == tokens[min(place, len(tokens) - 1)], f"row {row}"
    return compared


@each_unit
@pytest.mark.parametrize("width", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 1.0, 0.0),
        (5, 1.0, 0.0),
        (0, 0.8, 0.0),
        (0, 1.0, 0.05),
        (20, 0.9, 0.02),
        (1, 1.0, 0.0),
        (0, 0.3, 0.0),
        (10**6, 1.0, 0.0),
        (3, 0.5, 0.6),
    ],
)
def test_sample_against_a_reference(
    unit: str, width: int, top_k: int, top_p: float, min_p: float, rng: np.random.Generator
) -> None:
    logits = 2 * rng.standard_normal((60, width))
    ask = requests(
        logits,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=int(rng.integers(-(2**63), 2**63)),
        first=int(rng.integers(1000)),
    )
    ask.temperature = rng.uniform(0.3, 2.5, 60).astype(F32)
    compared = check_tokens(unit, ask)
    assert compared > 40 or width == 1


@each_unit
def test_sample_with_each_row_its_own_request(unit: str, rng: np.random.Generator) -> None:
    ask = requests(3 * rng.standard_normal((90, 300)))
    ask.temperature = rng.uniform(0.2, 2, 90).astype(F32)
    ask.top_k = rng.integers(0, 30, 90).astype(np.int32)
    ask.top_p = rng.uniform(0.2, 1, 90).astype(F32)
    ask.min_p = rng.uniform(0, 0.2, 90).astype(F32)
    ask.seed = rng.integers(-(2**63), 2**63, 90)
    assert check_tokens(unit, ask) > 70


@each_unit
def test_sample_uses_the_promised_random_numbers(unit: str) -> None:
    """Equal logits: the token is the uniform number's leading bits."""
    ask = requests(np.zeros((40, 4096)), seed=-3, first=5)
    assert ask.run(unit).tolist() == [int(ask.uniform(row) * 4096) for row in range(40)]


@each_unit
def test_sample_ties_keep_the_lower_index(unit: str) -> None:
    many = np.zeros((500, 8))
    assert set(requests(many, top_k=3).run(unit).tolist()) == {0, 1, 2}
    assert set(requests(many, top_p=0.5).run(unit).tolist()) == {0, 1, 2, 3}
    assert set(requests(many, top_p=0.51).run(unit).tolist()) == {0, 1, 2, 3, 4}
    assert set(requests(many, top_p=1e-9).run(unit).tolist()) == {0}
    assert set(requests(many, top_p=0.0).run(unit).tolist()) == {0}
    assert set(requests(many, min_p=1.0).run(unit).tolist()) == set(range(8))
    many[:, 5] = 1.0
    assert set(requests(many, top_k=3).run(unit).tolist()) == {0, 1, 5}
    assert set(requests(many, min_p=1.0).run(unit).tolist()) == {5}
    assert set(requests(many, top_p=0.4).run(unit).tolist()) == {0, 1, 5}  # e / (7 + e) = 0.28, each other 0.103


@each_unit
def test_sample_distribution(unit: str, rng: np.random.Generator) -> None:
    probability = np.array([0.5, 0.0, 0.25, 0.125, 0.125])
    with np.errstate(divide="ignore"):
        logits = np.log(probability)
    found = requests(np.tile(logits, (20_000, 1)), seed=int(rng.integers(2**62))).run(unit)
    share = np.bincount(found, minlength=5) / len(found)
    assert np.abs(share - probability).max() < 5 * 0.5 / np.sqrt(len(found))
    assert share[1] == 0


@each_unit
def test_sample_of_temperature_zero_is_argmax(unit: str, rng: np.random.Generator) -> None:
    logits = np.round(3 * rng.standard_normal((50, 70)))
    assert np.array_equal(requests(logits, temperature=0.0, top_k=3, top_p=0.1).run(unit), logits.argmax(1))


@each_unit
def test_sample_extremes(unit: str, rng: np.random.Generator) -> None:
    logits = 30 * rng.standard_normal((20, 100))
    for temperature in (1e-38, 1e-6):
        assert np.array_equal(requests(logits, temperature=temperature).run(unit), logits.argmax(1))
    hot = requests(logits, temperature=1e30)
    assert hot.run(unit).tolist() == [int(hot.uniform(row) * 100) for row in range(20)]
    logits[:, 50:] = -np.inf
    assert requests(logits, temperature=1e30).run(unit).max() < 50
    apart = np.full((4, 9), -3e38)
    apart[:, 4] = 3e38  # the difference overflows to infinity: probability 0
    assert requests(apart).run(unit).tolist() == [4] * 4


@each_unit
def test_sample_bad_rows(unit: str, rng: np.random.Generator) -> None:
    ask = requests(rng.standard_normal((9, 33)))
    ask.logits[0, 32] = np.nan
    ask.logits[1, 0] = np.inf
    ask.logits[2] = -np.inf
    ask.temperature[3] = -1
    ask.temperature[4] = np.nan
    ask.top_p[5] = np.nan
    ask.min_p[6] = np.nan
    found = ask.run(unit)
    assert found[:7].tolist() == [-1] * 7
    assert (found[7:] >= 0).all()
    ask.temperature[:3] = 0
    assert ask.run(unit)[:3].tolist() == [-1] * 3


@each_unit
def test_sample_count_empty_and_refusals(unit: str, rng: np.random.Generator) -> None:
    ask = requests(rng.standard_normal((6, 20)))
    everything = ask.run(unit)
    some = ask.run(unit, count=4)
    assert np.array_equal(some[:4], everything[:4])
    assert is_poison(some[4:])
    assert requests(np.zeros((0, 5))).run(unit).size == 0
    assert requests(np.zeros((3, 0))).run(unit).tolist() == [-1] * 3
    ask.seed = ask.seed[:5]
    assert is_poison(ask.run(unit, status=INVALID))


# ---- cross entropy -------------------------------------------------------------------------------------------------


def cross_entropy(unit: str, logits: Array, target: Array, status: int = 0) -> float:
    workspace, y = np.zeros((len(logits), 2), F32), poison(1, F32)
    result = launch(
        unit, "cross_entropy", [logits, target, workspace, y], [*logits.shape], writes=[2, 3], status=status
    )
    return float(result[1][0])


def cross_entropy_reference(logits: Array, target: Array) -> float:
    rows = np.flatnonzero(target != -100)
    exact = wide(logits[rows])
    top = exact.max(1)
    losses = np.log(np.exp(exact - top[:, None]).sum(1)) + top - exact[np.arange(len(rows)), target[rows]]
    return float(losses.mean())


@each_unit
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (4, 17), (30, 1000), (5, 32003)], ids=str)
def test_cross_entropy(unit: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    logits = (6 * rng.standard_normal(shape)).astype(F32)
    target = rng.integers(0, shape[1], shape[0]).astype(np.int32)
    assert abs(cross_entropy(unit, logits, target) - cross_entropy_reference(logits, target)) < 2e-6
    target[1::3] = -100
    logits[1::3] = np.nan  # of a row that does not count
    assert abs(cross_entropy(unit, logits, target) - cross_entropy_reference(logits, target)) < 2e-6


@each_unit
def test_cross_entropy_without_an_answer(unit: str, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((3, 8)).astype(F32)
    for target in ([-100, -100, -100], [1, 8, 2], [0, -1, 3], [-100, 2**31 - 1, 0], [-(2**31), 1, 1]):
        assert np.isnan(cross_entropy(unit, logits, np.array(target, np.int32), status=OUT_OF_RANGE))
    assert np.isnan(cross_entropy(unit, logits[:0], np.zeros(0, np.int32), status=OUT_OF_RANGE))


@each_unit
def test_cross_entropy_of_extreme_logits(unit: str) -> None:
    logits = np.array([[1e30, -1e30, 0.0], [-np.inf, 5.0, -np.inf], [np.nan, 0.0, 0.0], [np.inf, 0.0, 0.0]], F32)
    target = np.array([0, 1, 0, 0], np.int32)
    assert cross_entropy(unit, logits[:2], target[:2]) == 0
    assert cross_entropy(unit, logits[1:2], np.array([0], np.int32)) == np.inf
    assert np.isnan(cross_entropy(unit, logits[2:3], target[:1]))
    assert np.isnan(cross_entropy(unit, logits[3:4], target[:1]))
