"""Any operator of the table, as one of its own samples calls it: an operator that is added is met without being named here.

Left out are the operators that the other files must draw by name: views, those with effects, and those that read a packed weight. Results are outputs and no
operands, since nothing is known of their size.
"""

from __future__ import annotations

import functools

import numpy as np

from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import Tensor
from ostinato.ir.opdef import Effect, OpDef, Sample, SampleOperand
from ostinato.ir.ops import OPS
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.rounding import widen
from ostinato.ir.target import NATURAL
from ostinato.ir.types import Array, DType
from tests.fuzz.growth import Growth

__all__ = ["SampledOperators"]

_MOST_ELEMENTS = 4096
_LARGEST = 100.0
_HALVES = (DType.F16, DType.BF16)


class SampledOperators(Growth):
    """See the module."""

    def sampled(self, number: int) -> None:
        """Operator `number`, counted around, on inputs of its own; every result becomes an output."""
        found = _calls()
        op, samples = found[number % len(found)]
        sample = samples[number // len(found) % len(samples)]
        operands = [None if operand is None else self._operand(operand) for operand in sample.operands]
        made = self.builder.apply_many(op.name, operands, sample.attrs)
        self.halves |= any(value.dtype in _HALVES for value in made)
        self.ends += made

    def _operand(self, operand: SampleOperand) -> Tensor:
        name = self.name("sampled")
        self.inputs[name] = functools.partial(materialise, operand)
        self.halves |= operand.type.dtype in _HALVES
        return self.builder.input(name, operand.type)


@functools.cache
def _calls() -> tuple[tuple[OpDef, tuple[Sample, ...]], ...]:
    """Operators with the samples that suit: small, laid out naturally, and with results that are finite and of moderate size."""
    rng = np.random.default_rng(0)
    found = []
    for op in OPS:
        if op.is_view or op.effect is not Effect.PURE or op.must_alias or _reads_packed(op):
            continue
        samples = tuple(sample for sample in op.samples(rng) if sample.error is None and _suits(op, sample, rng))
        if samples:
            found.append((op, samples))
    return tuple(found)


def _reads_packed(op: OpDef) -> bool:
    """Whether every row wants some operand in another layout than its natural one."""
    rows = host_target().ranked(op.name)
    return all(any(NATURAL not in layouts for _, layouts in row.layouts) for row in rows)


def _suits(op: OpDef, sample: Sample, rng: np.random.Generator) -> bool:
    given = [operand for operand in sample.operands if operand is not None]
    if sum(operand.type.elements for operand in given) > _MOST_ELEMENTS:
        return False
    if any(operand.type.dtype.is_block or not operand.type.is_natural for operand in given):
        return False
    types = [None if operand is None else operand.type for operand in sample.operands]
    arrays: list[Array | None] = [
        None if operand is None else widen(materialise(operand, rng), operand.type.dtype) for operand in sample.operands
    ]
    results = op.reference(arrays, sample.attrs, op.infer(types, sample.attrs))
    seen = [array for array in (*arrays, *results) if array is not None and array.dtype.kind == "f"]
    return all(bool(np.isfinite(array).all()) and float(np.abs(array).max(initial=0.0)) <= _LARGEST for array in seen)
