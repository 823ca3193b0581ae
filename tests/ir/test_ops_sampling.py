"""Random numbers and sampling: published vectors, the distribution that is drawn from, and the filters one by one."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.ir.ops import OP
from ostinato.ir.random import philox4x32, uniform
from ostinato.ir.types import Array, DType, TensorType

# counter, key, words: the known-answer vectors published with the generator
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_known_answers(counter: list[int], key: list[int], words: list[int]) -> None:
    found = philox4x32(np.array(counter, dtype=np.uint32), np.array(key, dtype=np.uint32))
    assert [int(word) for word in found] == words


def test_philox_is_vectorised() -> None:
    counters = np.array([vector[0] for vector in VECTORS], dtype=np.uint32)
    keys = np.array([vector[1] for vector in VECTORS], dtype=np.uint32)
    np.testing.assert_array_equal(philox4x32(counters, keys), [vector[2] for vector in VECTORS])
    assert philox4x32(counters[:, None], keys[None]).shape == (3, 3, 4)


def test_uniform_uses_both_words_of_the_seed() -> None:
    seeds = np.array([0, 1, 1 << 32, -1], dtype=np.int64)
    points = uniform(seeds, np.zeros(4, dtype=np.int32))
    assert len(set(points.tolist())) == 4
    assert points[0] == (0x6627E8D5 + 0.5) / 2**32
    assert ((points > 0) & (points < 1)).all()


def sample(
    logits: Array,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 7,
    index: Array | int = 0,
) -> Array:
    """The reference on one row of settings repeated for every row of logits."""
    rows = logits.shape[0]
    operands: list[Array] = [
        logits.astype(np.float32),
        np.full(rows, temperature, dtype=np.float32),
        np.full(rows, top_k, dtype=np.int32),
        np.full(rows, top_p, dtype=np.float32),
        np.full(rows, min_p, dtype=np.float32),
        np.full(rows, seed, dtype=np.int64),
        np.broadcast_to(np.asarray(index, dtype=np.int32), (rows,)).copy(),
    ]
    types = [TensorType(array.shape, DType.of(array.dtype)) for array in operands]
    (token,) = OP["sample"].reference(operands, {}, OP["sample"].infer(types, {}))
    return token


def frequencies(logits: Array, draws: int, **settings: float) -> Array:
    tokens = sample(np.tile(logits, (draws, 1)), index=np.arange(draws), **settings)  # type: ignore[arg-type]
    return np.bincount(tokens, minlength=logits.size) / draws


def softmax(x: Array) -> Array:
    power = np.exp(x - np.max(x))
    weights: Array = power / power.sum()
    return weights


DRAWS = 4000
LOGITS = np.array([1.0, -0.5, 2.0, 0.0, 1.5, -3.0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_distribution(temperature: float) -> None:
    expected = softmax(LOGITS / temperature)
    # a standard deviation is at most 0.008
    np.testing.assert_allclose(frequencies(LOGITS, DRAWS, temperature=temperature), expected, atol=0.04)


def test_a_row_depends_on_its_own_settings_alone(rng: np.random.Generator) -> None:
    logits = rng.standard_normal((5, 40))
    index = np.array([3, 1, 4, 1, 5])
    together = sample(logits, index=index)
    alone = [int(sample(logits[row : row + 1], index=index[row : row + 1])[0]) for row in range(5)]
    assert together.tolist() == alone
    assert sample(np.tile(logits[0], (64, 1)), index=np.arange(64)).std() > 0


def test_temperature_zero_is_argmax(rng: np.random.Generator) -> None:
    logits = rng.integers(0, 4, (20, 30)).astype(np.float32)
    np.testing.assert_array_equal(sample(logits, temperature=0.0, top_k=3, top_p=0.1), np.argmax(logits, axis=1))


def allowed(logits: Array, **settings: float) -> set[int]:
    return set(np.flatnonzero(frequencies(logits, 400, **settings)).tolist())


def test_top_k_keeps_the_lower_index_at_a_tie() -> None:
    logits = np.array([1.0, 2.0, 1.0, 2.0, 1.0])
    assert allowed(logits, top_k=2) == {1, 3}
    assert allowed(logits, top_k=3) == {0, 1, 3}
    assert allowed(logits, top_k=0) == {0, 1, 2, 3, 4}
    assert allowed(logits, top_k=9) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    assert allowed(logits, top_p=0.39) == {1}
    assert allowed(logits, top_p=0.41) == {1, 2}
    assert allowed(logits, top_p=0.69) == {1, 2}
    assert allowed(logits, top_p=0.75) == {1, 2, 3}
    assert allowed(logits, top_p=0.0) == {1}
    even = np.zeros(4)
    assert allowed(even, top_p=0.45) == {0, 1}


def test_top_p_counts_what_top_k_left() -> None:
    """The filters run in order: top-p is a share of the mass that top-k kept."""
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    assert allowed(logits, top_k=2, top_p=0.55) == {1}
    assert allowed(logits, top_k=2, top_p=0.6) == {1, 2}


def test_min_p_is_relative_to_the_most_probable() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    assert allowed(logits, min_p=0.2) == {0, 1, 2, 3}
    assert allowed(logits, min_p=0.45) == {1, 2, 3}
    assert allowed(logits, min_p=1.0) == {1}
    assert allowed(logits, min_p=2.0) == {1}


def test_what_is_kept_is_renormalised() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    np.testing.assert_allclose(frequencies(logits, DRAWS, top_k=2), [0, 4 / 7, 3 / 7, 0], atol=0.04)


def test_rows_that_cannot_be_used_give_minus_one() -> None:
    logits = np.zeros((5, 6))
    logits[0, 2], logits[1, 2], logits[2, :], logits[3, 1:] = np.nan, np.inf, -np.inf, -np.inf
    for temperature in (0.0, 1.0):
        tokens = sample(logits, temperature=temperature)
        assert tokens[:4].tolist() == [-1, -1, -1, 0]
        assert tokens[4] >= 0
    for settings in ({"temperature": -1.0}, {"temperature": np.nan}, {"top_p": np.nan}, {"min_p": np.nan}):
        assert sample(np.zeros((1, 4)), **settings).tolist() == [-1]  # type: ignore[arg-type]


def test_a_tiny_temperature_does_not_overflow() -> None:
    assert sample(np.array([[1e4, -1e4, 9e3]]), temperature=1e-38).tolist() == [0]


def test_argmax_rules() -> None:
    rows = np.array(
        [[1, 3, 3], [np.nan, 1, 2], [1, np.inf, 2], [-np.inf, -np.inf, -np.inf], [-np.inf, -5, -np.inf], [-1, -1, -2]],
        dtype=np.float32,
    )
    (found,) = OP["argmax"].reference([rows], {}, OP["argmax"].infer([TensorType(rows.shape, DType.F32)], {}))
    assert found.tolist() == [1, -1, -1, -1, 1, 0]
    assert found.dtype == np.int32
