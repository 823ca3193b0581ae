"""What stands between the projections of a token and its attention, in one: the rotation of q and k, and the store of k and v in a block-table cache.

`qkv_rope_store` has the joint projection before it as well, so that the only memory that a decode step needs between the residual stream and attention is the
rotated q. Both are compositions of `linear_split`, `rope_split_half` and `kv_store`, without the roundings in between; caches change as in `kv_store`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ostinato.ir.errors import BoundsError, ConfigError, DTypeError, LayoutError, ShapeError
from ostinato.ir.opdef import (
    Attr,
    AttrSpec,
    Cost,
    Effect,
    OperandSpec,
    OperandTypes,
    Sample,
    SampleOperand,
    Sizes,
    Tolerance,
)
from ostinato.ir.ops.attend import check_heads
from ostinato.ir.ops.cache import check_cache, check_token_vectors, stored
from ostinato.ir.ops.derivatives import CACHED
from ostinato.ir.ops.projection import (
    BIAS,
    EPS,
    GAIN,
    TOLERANCE,
    WEIGHT,
    X,
    check_bias,
    check_gain,
    check_product,
    product,
    product_flops,
)
from ostinato.ir.ops.rope import require_tables, turned
from ostinato.ir.ops.rules import (
    DTYPE_ATTR,
    F32,
    FLOATS,
    I32,
    Arrays,
    Site,
    define,
    fail,
    make_type,
    nbytes,
    require_axes,
    require_rank,
    require_same_extent,
    require_shape,
    result_float,
)
from ostinato.ir.ops.samplers import indices, invalid, normal, reals, valid
from ostinato.ir.types import Array, DType, TensorType

__all__ = ["QKV_ROPE_STORE", "ROPE_STORE", "ROPE_STORE_OPS"]

_PLACES = (
    OperandSpec("cos", F32),
    OperandSpec("sin", F32),
    OperandSpec("row_of_token", I32),
    OperandSpec("position", I32),
    OperandSpec("block_table", I32),
    OperandSpec("k_cache", FLOATS),
    OperandSpec("v_cache", FLOATS),
)
"""What both operators read besides the values of their tokens."""
_RESULTS = ("q_rotated", "k_cache_out", "v_cache_out")


def _check_places(site: Site, first: int, q: TensorType, k: TensorType) -> tuple[TensorType, TensorType]:
    """The operands of `_PLACES` from operand `first` on, beside q [N,H,D] and k [N,G,D]; returns the caches as results."""
    cos, sin, row, position, table, k_cache, v_cache = (site.operand(first + i) for i in range(len(_PLACES)))
    check_heads(site.op, q.shape[1], k.shape[1])
    require_tables(site, q, cos, sin)
    check_cache(site, k_cache, v_cache, k)
    require_same_extent(site.op, "cache kv heads", k.shape[1], k_cache.shape[1])
    check_token_vectors(site, k, row, position, table)
    return k_cache.with_layout(None), v_cache.with_layout(None)


def _infer(site: Site) -> tuple[TensorType, ...]:
    q, k, v = site.operand(0), site.operand(1), site.operand(2)
    require_rank(site.op, "q", q, exactly=3)
    require_axes(site.op, "q", q, "NHD")
    require_rank(site.op, "k", k, exactly=3)
    require_axes(site.op, "k", k, "NGD")
    require_shape(site.op, "k", k, (q.shape[0], k.shape[1], q.shape[2]))
    require_shape(site.op, "v", v, k.shape)
    require_axes(site.op, "v", v, "NGD")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype is not q.dtype:
            expected = f"{name} of dtype {q.dtype.value} like q"
            fail(DTypeError, site.op, expected, str(tensor), "cast one of them explicitly")
    return (make_type(site.op, q.shape, q.dtype, q.axes), *_check_places(site, 3, q, k))


def _infer_qkv(site: Site) -> tuple[TensorType, ...]:
    x, weight = check_product(site)
    require_rank(site.op, "x", x, exactly=2)
    require_axes(site.op, "x rows", TensorType(x.shape[:1], x.dtype, x.axes[:1]), "N")
    check_bias(site, 9)
    check_gain(site, 10)
    heads, k_cache = site.integer("heads"), site.operand(7)
    require_rank(site.op, "k_cache", k_cache, exactly=4)
    shared, width = k_cache.shape[1], k_cache.shape[3]
    if not isinstance(shared, int) or not isinstance(width, int):
        fail(ShapeError, site.op, "integer kv heads and head width", str(k_cache), "bind these dimensions first")
    if heads < 1:
        fail(ConfigError, site.op, "1 query head or more", str(heads), "take the heads of the model's configuration")
    rows = (heads + 2 * shared) * width
    require_same_extent(site.op, "weight rows, those of q, k and v,", rows, weight.shape[0])
    dtype = result_float(site, x)
    q = make_type(site.op, (x.shape[0], heads, width), dtype, (x.axes[0], "H", "D"))
    k = make_type(site.op, (x.shape[0], shared, width), dtype, (x.axes[0], "G", "D"))
    return (q, *_check_places(site, 2, q, k))


def _stored(call: Arrays, first: int, q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    """The results, of q, k and v in float64 and the operands of `_PLACES` from operand `first` on."""
    cos, sin = call.wide(first), call.wide(first + 1)
    half = cos.shape[-1]
    pairs = slice(0, half), slice(half, 2 * half)
    rotated, k = (turned(item, cos, sin, *pairs).astype(np.float32) for item in (q, k))
    places = [call.operand(first + i) for i in range(2, len(_PLACES))]
    return (rotated, *stored(call.op, k, v.astype(np.float32), *places))


def _reference(call: Arrays) -> tuple[Array, ...]:
    return _stored(call, 3, call.wide(0), call.wide(1), call.wide(2))


def _reference_qkv(call: Arrays) -> tuple[Array, ...]:
    y, k_cache = product(call, bias=9, gain=10), call.operand(7)
    heads, shared, width = call.integer("heads"), k_cache.shape[1], k_cache.shape[3]
    y = y.reshape(len(y), heads + 2 * shared, width)
    return _stored(call, 2, *np.split(y, (heads, heads + shared), axis=1))


def _sizes(operands: OperandTypes, table: int) -> Sizes:
    """Tokens, and the rows of the block table."""
    tokens, rows = operands[0], operands[table]
    assert tokens is not None
    assert rows is not None
    return Sizes(tokens.static_shape[0], rows.static_shape[0])


def _traffic(operands: OperandTypes, q: TensorType, stored_tokens: int, first: int) -> int:
    """Bytes of the tables, of q written and of the tokens stored; the rest of the caches is not touched."""
    cache = operands[first + 5]
    assert cache is not None
    return nbytes(*operands[first : first + 5], q) + 2 * stored_tokens * cache.dtype.block_bytes


def _cost(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """Three operations an element that is turned."""
    del attrs
    q, k = operands[0], operands[1]
    assert q is not None
    assert k is not None
    return Cost(3 * (q.elements + k.elements), nbytes(*operands[:3]) + _traffic(operands, results[0], k.elements, 3))


def _cost_qkv(operands: OperandTypes, results: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Cost:
    """The product, and three operations an element that is turned."""
    del attrs
    q, cache = results[0], results[1]
    tokens = q.static_shape[0] * cache.static_shape[1] * cache.static_shape[3]
    read = nbytes(*operands[:2], *operands[9:])
    return Cost(product_flops(operands, 10) + 3 * (q.elements + tokens), read + _traffic(operands, q, tokens, 2))


_TABLE = ((3, 0), (5, 2), (1, 4))
_PROMPT = [(0, p) for p in range(5)] + [(2, p) for p in range(3, 5)]


class _Places:
    """Operands of `_PLACES` for tokens given as (row, position), in blocks of `size` tokens."""

    def __init__(
        self,
        rng: np.random.Generator,
        tokens: Sequence[tuple[int, int]] = _PROMPT,
        shared: int = 2,
        width: int = 64,
        half: int = -1,
        cache: DType = DType.F32,
        size: int = 4,
        named: bool = False,
    ) -> None:
        pairs = np.array(tokens, dtype=np.int32).reshape(-1, 2)
        angle = rng.uniform(-3.0, 3.0, (len(pairs), width // 2 if half < 0 else half))
        row, table, store = ("N", "RW", "PGSD") if named else ("", "", "")
        self.count, self.shared, self.width, self.row = len(pairs), shared, width, row
        caches = normal((6, shared, size, width), cache, store)
        self.operands: tuple[SampleOperand, ...] = (
            reals(np.cos(angle), f"{row}_" if named else ""),
            reals(np.sin(angle), f"{row}_" if named else ""),
            indices(pairs[:, 0], row),
            indices(pairs[:, 1], row),
            indices(_TABLE, table),
            caches,
            caches,
        )

    def vectors(self, heads: int, dtype: DType = DType.F32) -> tuple[SampleOperand, ...]:
        """q, k and v."""
        axes = ("NHD", "NGD", "NGD") if self.row else ("", "", "")
        counts = (heads, self.shared, self.shared)
        return tuple(normal((self.count, n, self.width), dtype, a) for n, a in zip(counts, axes, strict=True))

    def joint(self, heads: int, k: int, dtype: DType, weight: DType) -> tuple[SampleOperand, ...]:
        """x and weight."""
        rows = (heads + 2 * self.shared) * self.width
        return normal((self.count, k), dtype, "NC" if self.row else ""), normal((rows, k), weight)


def _forty() -> list[tuple[int, int]]:
    """Forty tokens of three rows, in blocks of 32 tokens."""
    return [
        (row, position) for row, count in ((0, 20), (1, 1), (2, 19)) for position in range(5 * row, 5 * row + count)
    ]


_SKIPPED = ((0, 0), (-1, 0), (2, 4), (-1, 99))
"""Tokens of which two are not stored."""


def _each(rng: np.random.Generator) -> Iterator[_Places]:
    """Tokens of f32 caches: one, seven, forty, none, some that are skipped; narrow, odd and partly turned heads."""
    yield _Places(rng, [(1, 6)])
    yield _Places(rng, width=128)
    yield _Places(rng, _forty(), size=32)
    yield _Places(rng, [])
    yield _Places(rng, _SKIPPED, named=True)
    yield _Places(rng, width=6, shared=1)
    yield _Places(rng, width=10, half=3)
    yield _Places(rng, width=64, half=16)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for places in _each(rng):
        yield valid(*places.vectors(4), *places.operands)
    for dtype in (DType.F32, DType.F16, DType.BF16):
        for cache in (DType.F32, DType.F16, DType.BF16):
            places = _Places(rng, cache=cache)
            yield valid(*places.vectors(6, dtype), *places.operands)
    for dtype in (DType.F32, DType.BF16):
        places = _Places(rng, _forty(), 2, 128, cache=DType.BF16, size=32)
        yield valid(*places.vectors(14, dtype), *places.operands)
    good = _Places(rng)
    q, k, v = good.vectors(4)
    yield invalid(ShapeError, normal((7, 3, 64)), k, v, *good.operands)
    yield invalid(ShapeError, normal((6, 4, 64)), k, v, *good.operands)
    yield invalid(ShapeError, normal((7, 256)), k, v, *good.operands)
    yield invalid(ShapeError, q, k, normal((7, 1, 64)), *good.operands)
    yield invalid(DTypeError, q, normal((7, 2, 64), DType.BF16), v, *good.operands)
    yield invalid(DTypeError, q, k, normal((7, 2, 64), DType.BF16), *good.operands)
    yield invalid(LayoutError, normal((7, 4, 64), axes="HND"), k, v, *good.operands)
    yield from _invalid_places(rng, good, (q, k, v))


def _samples_qkv(rng: np.random.Generator) -> Iterator[Sample]:
    for places in _each(rng):
        yield valid(*places.joint(4, 96, DType.F32, DType.F32), *places.operands, heads=4)
    for weight in (dtype for dtype in DType if dtype in WEIGHT.dtypes):
        columns = max(32, weight.block_elements)
        places = _Places(rng, [(1, 6)], width=32)
        operands = *places.joint(2, columns, DType.F32, weight), *places.operands
        yield valid(*operands, normal((192,)), normal((columns,)), heads=2, eps=1e-6)
    for x, weight, cache in (
        (DType.F32, DType.F32, DType.BF16),
        (DType.F32, DType.BF16, DType.F32),
        (DType.BF16, DType.BF16, DType.BF16),
        (DType.F16, DType.F16, DType.F16),
    ):
        for tokens, width in (([(2, 5)], 64), (_PROMPT, 128)):
            places = _Places(rng, tokens, width=width, cache=cache)
            operands = *places.joint(4, 100, x, weight), *places.operands
            yield valid(*operands, normal((8 * width,)), normal((100,)), heads=4, eps=1e-6)
            yield valid(*operands, None, normal((100,)), heads=4, eps=1e-6, dtype="f32")
            yield valid(*operands, normal((8 * width,)), heads=4)
    for x, weight in (
        (DType.F32, DType.F32),
        (DType.F32, DType.BF16),
        (DType.BF16, DType.BF16),
        (DType.F16, DType.F16),
    ):
        places = _Places(rng, [(1, 6)], width=64, cache=weight)
        operands = *places.joint(4, 64, x, weight), *places.operands
        yield valid(*operands, heads=4, dtype="f32")
        yield valid(*operands, normal((512,)), heads=4, dtype="f32")
        yield valid(*operands, normal((512,)), normal((64,)), heads=4, eps=1e-6, dtype="f32")
    places = _Places(rng, _forty(), cache=DType.BF16, size=32, named=True)
    operands = *places.joint(4, 64, DType.BF16, DType.BF16), *places.operands
    yield valid(*operands, None, normal((64,), axes="C"), heads=4, eps=1e-6)
    good = _Places(rng)
    joint = good.joint(4, 96, DType.F32, DType.F32)
    everything = *joint, *good.operands
    yield invalid(ShapeError, *everything, attrs={"heads": 6})
    yield invalid(ConfigError, *everything, attrs={"heads": 0})
    yield invalid(ShapeError, *good.joint(3, 96, DType.F32, DType.F32), *good.operands, attrs={"heads": 3})
    yield invalid(ShapeError, normal((7, 1, 96)), *everything[1:], attrs={"heads": 4})
    yield invalid(ShapeError, normal((7, 95)), *everything[1:], attrs={"heads": 4})
    yield invalid(LayoutError, normal((7, 96), axes="TC"), *everything[1:], attrs={"heads": 4})
    yield invalid(ShapeError, *everything, normal((500,)), attrs={"heads": 4})
    yield invalid(ShapeError, *everything, None, normal((95,)), attrs={"heads": 4, "eps": 1e-6})
    yield invalid(ConfigError, *everything, None, normal((96,)), attrs={"heads": 4})
    yield invalid(ConfigError, *everything, attrs={"heads": 4, "eps": 1e-6})
    yield invalid(ConfigError, *everything)
    yield from _invalid_places(rng, good, joint, heads=4)


def _invalid_places(
    rng: np.random.Generator, good: _Places, before: tuple[SampleOperand, ...], **attrs: Attr
) -> Iterator[Sample]:
    """Tables, vectors and caches that do not fit, and values out of range."""
    cos, sin, row, position, table, k_cache, v_cache = good.operands
    caches = k_cache, v_cache
    yield invalid(ShapeError, *before, cos, normal((7, 31)), row, position, table, *caches, attrs=attrs)
    yield invalid(ShapeError, *before, normal((7, 33)), normal((7, 33)), row, position, table, *caches, attrs=attrs)
    yield invalid(ShapeError, *before, cos, sin, indices([0] * 6), position, table, *caches, attrs=attrs)
    yield invalid(ShapeError, *before, cos, sin, row, position, indices([0, 1]), *caches, attrs=attrs)
    yield invalid(ShapeError, *before, *good.operands[:6], normal((6, 2, 5, 64)), attrs=attrs)
    yield invalid(ShapeError, *before, *good.operands[:5], *[normal((6, 2, 4, 32))] * 2, attrs=attrs)
    yield invalid(DTypeError, *before, *good.operands[:6], normal((6, 2, 4, 64), DType.BF16), attrs=attrs)
    yield invalid(DTypeError, *before, cos, sin, normal((7,)), position, table, *caches, attrs=attrs)
    swapped = normal((6, 2, 4, 64), axes="PSGD")
    yield invalid(LayoutError, *before, *good.operands[:5], swapped, swapped, attrs=attrs)
    for tokens in ((3, 0), (0, 8), (0, -1)):
        bad = _Places(rng, [tokens] * 7)
        yield invalid(BoundsError, *before, *bad.operands, attrs=attrs)


ROPE_STORE = define(
    "rope_store",
    "Turns q [N,H,D] and k [N,G,D] as rope_split_half does, and stores the turned k and v [N,G,D] as kv_store does; q is the first result.",
    (OperandSpec("q", FLOATS), OperandSpec("k", FLOATS), OperandSpec("v", FLOATS), *_PLACES),
    _RESULTS,
    _infer,
    _reference,
    _samples,
    Tolerance(
        2e-5, 2e-5, "contract of rope: two fp32 products and a sum, fused or not; stored values are rounded once"
    ),
    effect=Effect.STATE,
    must_alias=((1, 8), (2, 9)),
    sizes=lambda operands: _sizes(operands, 7),
    cost=_cost,
    derivative=CACHED,
)

QKV_ROPE_STORE = define(
    "qkv_rope_store",
    "linear_split of x [N,K] by weight [(H+2G)*D,K], rows of q, k and v in this order, then rope_store; x RMS-normalised with gain [K] where there is one.",
    (X, WEIGHT, *_PLACES, BIAS, GAIN),
    _RESULTS,
    _infer_qkv,
    _reference_qkv,
    _samples_qkv,
    TOLERANCE,
    attrs=(AttrSpec("heads", int), DTYPE_ATTR, EPS),
    effect=Effect.STATE,
    must_alias=((1, 7), (2, 8)),
    sizes=lambda operands: _sizes(operands, 6),
    cost=_cost_qkv,
    packed={"weight": "panel32"},
    derivative=CACHED,
)

ROPE_STORE_OPS = (ROPE_STORE, QKV_ROPE_STORE)
