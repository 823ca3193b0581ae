"""Philox4x32-10: random numbers as a pure function of a key and a counter (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).

There is no generator state to save, order or share between threads: the key is a request's seed and the counter the index of the token to choose, so a
row's choice depends on nothing but its own request. The kernels compute the same words bit for bit. This is not a cryptographic generator.
"""

from __future__ import annotations

import numpy as np

from ostinato.ir.types import Array

__all__ = ["philox4x32", "uniform"]

ROUNDS = 10
MULTIPLIER_0 = np.uint64(0xD2511F53)
MULTIPLIER_1 = np.uint64(0xCD9E8D57)
WEYL_0 = np.uint64(0x9E3779B9)
WEYL_1 = np.uint64(0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox4x32(counter: Array, key: Array) -> Array:
    """Four random 32-bit words for each counter: counter uint32 [..., 4], key uint32 [..., 2] -> uint32 [..., 4]; leading axes broadcast."""
    lead = np.broadcast_shapes(counter.shape[:-1], key.shape[:-1])
    c0, c1, c2, c3 = (np.broadcast_to(counter[..., i], lead).astype(np.uint64) for i in range(4))
    k0, k1 = (np.broadcast_to(key[..., i], lead).astype(np.uint64) for i in range(2))
    for _ in range(ROUNDS):
        product_0, product_1 = MULTIPLIER_0 * c0, MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (product_1 >> HALF) ^ c1 ^ k0, product_1 & LOW, (product_0 >> HALF) ^ c3 ^ k1, product_0 & LOW
        k0, k1 = (k0 + WEYL_0) & LOW, (k1 + WEYL_1) & LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniform(seed: Array, index: Array) -> Array:
    """One float64 in (0, 1) a row: key = low and high word of the int64 `seed`, counter = (index, 0, 0, 0), (word 0 + 0.5) / 2**32."""
    words = np.ascontiguousarray(seed, dtype=np.int64).view(np.uint64)
    key = np.stack([words & LOW, words >> HALF], axis=-1).astype(np.uint32)
    counter = np.zeros((*np.shape(index), 4), dtype=np.uint32)
    counter[..., 0] = np.ascontiguousarray(index, dtype=np.int32).view(np.uint32)
    first = philox4x32(counter, key)[..., 0].astype(np.float64)
    return (first + 0.5) * 2.0**-32
