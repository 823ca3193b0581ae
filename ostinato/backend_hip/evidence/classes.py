"""Calls of one class of types: samples of an operator laid out as a site that a program has, whose class (`signature_class`) they share.

A sample that has the site's dtypes is taken as it is. Where no sample has them, the samples are retyped: each operand gets the dtype of the site's, and the
names of its axes where all ranks agree, and extents grow to whole blocks where a block dtype asks for them. Operands that the site has strided are strided in
three ways, results that it has in place of operands lie there, and a site whose rows are counted is run with none, half and all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostinato.backend_hip.evidence.calls import Call, counted_calls, node_of, own_strides, plain_calls, spread_strides
from ostinato.backend_hip.evidence.samples import LARGE, in_other_shape, well_typed
from ostinato.ir.errors import BoundsError, OstinatoError, UserCodeError
from ostinato.ir.opdef import OpDef, Sample, SampleOperand
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import whole
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import TensorType
from ostinato.ir.views import row_refusal

__all__ = ["ClassCall", "class_calls"]

_RANDOM_SHAPES = 4


@dataclass(frozen=True, slots=True)
class ClassCall:
    """A call with the sample it is of. `refused`: an index is out of range, which the kernel must notice."""

    call: Call
    sample: Sample

    @property
    def refused(self) -> bool:
        return self.sample.error is BoundsError


def class_calls(row: Impl, like: CallSite, rng: np.random.Generator) -> list[ClassCall]:
    """Every call of the site's class that samples of the operator give; empty where none does."""
    op = OP[row.op]
    samples = [
        sample
        for sample in (*op.samples(rng), *LARGE.get(row.op, ()))
        if sample.error in (None, BoundsError) and well_typed(op, sample)
    ]
    found = [one for sample in samples for one in _calls(row, sample, like)]
    if all(one.refused for one in found):
        samples = [other for sample in samples for other in _retyped(op, sample, like)]
        found = [one for sample in samples for one in _calls(row, sample, like)]
    bases = list({id(one.sample): one.sample for one in found if not one.refused}.values())
    for index in rng.permutation(len(bases))[:_RANDOM_SHAPES].tolist():
        other = in_other_shape(bases[index], rng)
        if other is not None and well_typed(op, other):
            found += _calls(row, other, like)
    return found


def _calls(row: Impl, sample: Sample, like: CallSite) -> Iterator[ClassCall]:
    wanted = signature_class(like)
    for site in _sites(OP[row.op], sample, like):
        if signature_class(site) != wanted or row_refusal(row, site, OP[row.op]) is not None:
            continue
        ways = counted_calls(row, site) if site.counted else plain_calls(row, site)
        found = [ClassCall(call, sample) for call in ways]
        if sample.error is None:
            yield from found
        elif found:
            yield found[-1 if site.counted else 0]  # all rows are counted, and nothing lies in place of an operand


def _sites(op: OpDef, sample: Sample, like: CallSite) -> Iterator[CallSite]:
    """The sample with operands and results laid out like the site's; none where its operands are not those of the site."""
    types = _padded(op, [None if operand is None else operand.type for operand in sample.operands])
    pairs = list(zip(types, like.operands, strict=True))
    if any((mine is None) != (theirs is None) for mine, theirs in pairs):
        return
    if any(mine is not None and theirs is not None and mine.dtype is not theirs.dtype for mine, theirs in pairs):
        return
    try:
        results = op.infer(types, sample.attrs)
        if len(results) != len(like.results):
            return
        laid = [None if mine is None else _laid_out(mine, theirs) for mine, theirs in pairs]
        node = node_of(op, laid, tuple(map(_laid_out, results, like.results)), sample)
    except UserCodeError:
        raise
    except OstinatoError:  # its axes have other names, or none
        return
    made = tuple(value.type for value in node.results)
    plain = CallSite(node, tuple(laid), made, tuple(map(own_strides, laid)), counted=like.counted)
    strided = [index for index in like.strided if like.operand(index).is_natural]
    if not strided:
        yield plain
        return
    ways = [_strided_ways(laid[index]) for index in strided]
    for number in range(max(map(len, ways))):
        strides = list(plain.strides)
        for index, way in zip(strided, ways, strict=True):
            strides[index] = way[number % len(way)]
        yield replace(plain, strides=tuple(strides))


def _padded(op: OpDef, types: Sequence[TensorType | None]) -> list[TensorType | None]:
    return [*types, *[None] * (len(op.operands) - len(types))]


def _laid_out(mine: TensorType, theirs: TensorType | None) -> TensorType:
    """A type in the layout of another one, where that is not the natural one."""
    assert theirs is not None
    return mine if theirs.is_natural else mine.with_layout(theirs.layout)


def _strided_ways(tensor: TensorType | None) -> list[tuple[int, ...]]:
    """Ways of striding an operand: a slice of something three times as wide, and those of `spread_strides`."""
    assert tensor is not None
    if not tensor.rank:
        return [()]
    outer, *inner = tensor.strides
    return [(3 * outer, *inner), *spread_strides(tensor)]


def _retyped(op: OpDef, sample: Sample, like: CallSite) -> Iterator[Sample]:
    """The sample with the dtypes of the site, with the names of its axes first; none where the operator does not take it so."""
    mine = [*sample.operands, *[None] * (len(op.operands) - len(sample.operands))]
    if any(have is None and want is not None for have, want in zip(mine, like.operands, strict=True)):
        return
    pairs = [(None if want is None else have, want) for have, want in zip(mine, like.operands, strict=True)]
    if any(have and want and have.data is not None and have.type.dtype is not want.dtype for have, want in pairs):
        return  # given values are of their dtype
    ranks = all(have is None or want is None or have.type.rank == want.rank for have, want in pairs)
    for named in (True, False) if ranks else (False,):
        names = {spec.name for spec in op.attrs} & ({"dtype", "axis", "axes"} if named else {"dtype"})
        attrs = {**sample.attrs, **{name: like.node.attrs[name] for name in names if name in like.node.attrs}}
        operands = [_as(have, want, named=named) for have, want in pairs]
        made = Sample(tuple(_in_whole_blocks(operands)), attrs, sample.error)
        if well_typed(op, made):
            yield made
            return


def _as(operand: SampleOperand | None, want: TensorType | None, *, named: bool) -> SampleOperand | None:
    if operand is None or want is None:
        return None
    axes = want.axes if named else operand.type.axes
    return replace(operand, type=TensorType(operand.type.shape, want.dtype, axes))


def _in_whole_blocks(operands: Sequence[SampleOperand | None]) -> Iterator[SampleOperand | None]:
    """The operands with last extents of block dtypes rounded up, wherever those extents stand."""
    grown: dict[object, int] = {}
    for operand in operands:
        if operand is not None and operand.type.dtype.is_block and operand.type.rank:
            extent = operand.type.static_shape[-1]
            grown[extent] = max(whole(operand.type.dtype, extent), grown.get(extent, 0))
    for operand in operands:
        if operand is None or operand.data is not None or not grown:
            yield operand
        else:
            shape = tuple(grown.get(extent, extent) for extent in operand.type.static_shape)
            yield replace(operand, type=replace(operand.type, shape=shape))
