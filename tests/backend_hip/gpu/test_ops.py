"""`ostinato.ops` on device memory, on the emulated GPU: every operator's samples, streams, captures, and what a call does to the device: one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops import OPS
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.rounding import round_to, widen
from ostinato.ir.step import StepKind
from ostinato.ir.types import Array, DType, TensorType
from tests.backend_hip.gpu.device_memory import OnDevice, opened
from tests.runtime.operator_samples import check_result

SAMPLES = 4
"""Of each operator: the kernels themselves are tested with all of them elsewhere."""

COPIES = ("hipMemcpyAsync", "hipMemsetAsync", "hipMemcpy")
WAITS = ("hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipStreamQuery")
MEMORY = ("hipMalloc", "hipMallocAsync", "hipHostMalloc", "hipFree", "hipFreeAsync", "hipHostFree")


@pytest.fixture
def gpu(machine: EmulatedGpu) -> Iterator[OnDevice]:
    with opened(machine.gpu.device(0)) as found:
        yield found


@pytest.fixture
def other(machine: EmulatedGpu) -> Iterator[OnDevice]:
    with opened(machine.gpu.device(1)) as found:
        yield found


def counts(machine: EmulatedGpu, *names: str) -> dict[str, int]:
    return {name: machine.count(name) for name in names}


# operators


class Call:
    """A sample laid out on a device."""

    def __init__(self, gpu: OnDevice, op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
        self.gpu, self.op, self.attrs = gpu, op, dict(sample.attrs)
        self.stored: list[Array | None] = []
        self.types: list[TensorType | None] = []
        self.operands: list[ost.TensorView | None] = []
        for operand in sample.operands:
            if operand is None:
                self.stored.append(None)
                self.types.append(None)
                self.operands.append(None)
                continue
            tensor = TensorType(operand.type.static_shape, operand.type.dtype)
            array = np.ascontiguousarray(materialise(operand, rng))
            self.types.append(tensor)
            self.stored.append(array)
            raw = gpu.put(array.reshape(-1).view(np.uint8))
            self.operands.append(raw.reinterpret(tensor.dtype, tensor.static_shape))
        self.results = ops.result_types(op.name, *self.operands, **self.attrs)
        self.aliased = dict(op.aliased(self.operands))
        self.outs = [
            gpu.bytes(tensor.nbytes).reinterpret(tensor.dtype, tensor.static_shape)
            for index, tensor in enumerate(self.results)
            if index not in self.aliased
        ]

    def run(self, **options: Any) -> Any:
        needed = ops.workspace_bytes(self.op.name, *self.operands, **self.attrs)
        out = None if not self.outs else self.outs[0] if len(self.outs) == 1 else tuple(self.outs)
        return getattr(ops, self.op.name)(
            *self.operands, **self.attrs, out=out, workspace=self.gpu.bytes(needed) if needed else None, **options
        )

    def expected(self) -> list[Array]:
        seen = [
            None if t is None or a is None else widen(a, t.dtype) for t, a in zip(self.types, self.stored, strict=True)
        ]
        made = self.op.reference(seen, self.attrs, self.results)
        return [round_to(array, tensor.dtype) for array, tensor in zip(made, self.results, strict=True)]

    def found(self) -> list[Array]:
        outs = iter(self.outs)
        views = [
            self.operands[self.aliased[index]] if index in self.aliased else next(outs)
            for index in range(len(self.results))
        ]
        return [self.gpu.get(view) for view in views if view is not None]


def valid_samples(op: OpDef, rng: np.random.Generator) -> list[Sample]:
    usable = (
        sample
        for sample in op.samples(rng)
        if sample.error is None and all(o is None or not o.type.is_packed for o in sample.operands)
    )
    return list(islice(usable, SAMPLES))


@pytest.mark.parametrize("index", [0, 1], ids=["wave 64", "wave 32"])
def test_every_operator_equals_its_reference(index: int, machine: EmulatedGpu, rng: np.random.Generator) -> None:
    """On raw pointers of device memory; each call is one launch of one kernel or one product of the vendor's, and no copy."""
    failures, ran = [], 0
    with opened(machine.gpu.device(index)) as gpu:
        gpu.load()
        for op in OPS:
            if op.is_view:
                continue
            for number, sample in enumerate(valid_samples(op, rng)):
                call = Call(gpu, op, sample, rng)
                before, launches = counts(machine, *COPIES), ops.launches(gpu.name)
                products = machine.count("hipblasLtMatmul")
                call.run()
                ran += 1
                done = ops.launches(gpu.name) - launches + machine.count("hipblasLtMatmul") - products
                if done != int(any(tensor.elements for tensor in call.results)):
                    failures.append(f"{op.name}, sample {number}: {done} launches")
                if counts(machine, *COPIES) != before:
                    failures.append(f"{op.name}, sample {number}: a copy")
                ops.check(gpu.name)
                for tensor, actual, wanted in zip(call.results, call.found(), call.expected(), strict=True):
                    if problem := check_result(op, tensor, actual, wanted):
                        failures.append(f"{op.name}, sample {number}, {sample.attrs} -> {tensor}: {problem}")
        assert ran > len(OPS)
    assert not failures, f"{len(failures)} failures of {ran}\n" + "\n".join(failures[:10])
