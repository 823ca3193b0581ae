"""Validation: rows as they are pass, and each kind of fault that is planted in one is found and said, on the class that has it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.environment import host_environment
from ostinato.backend_hip.evidence.records import ValidationRecord
from ostinato.backend_hip.evidence.rows import RowLaunch
from ostinato.backend_hip.evidence.survey import sample_sites
from ostinato.backend_hip.evidence.trials import trials
from ostinato.backend_hip.evidence.validate import validate
from ostinato.ir.errors import CapacityError
from ostinato.ir.evidence import Exactness
from ostinato.ir.graph import Attributes, Node, Value
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import normal
from ostinato.ir.rounding import multiply, plain_arithmetic
from ostinato.ir.signature import signature_class
from ostinato.ir.step import KernelCall
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import Array, DType, TensorType

Operands = tuple[tuple[int, int], ...]
Memory = Callable[[str], Array]
"""The bytes of an operand of a launch, by its name."""
Fault = Callable[[KernelCall, Memory], None]


@dataclass
class FaultyLaunch:
    """Runs the kernel, and then does what is wrong."""

    launch: RowLaunch
    call: KernelCall
    row: Impl
    fault: Fault

    def run(self, operands: Operands, stream: object = None) -> None:
        self.launch.run(operands)

        def memory(name: str) -> Array:
            address, nbytes = operands[self.row.operands.index(name)]
            interface = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
            return np.asarray(type("Bytes", (), {"__array_interface__": interface})())

        self.fault(self.call, memory)


class Faulty(HostDevice):
    """The host with a fault behind each launch of a row."""

    def __init__(self, row: Impl, fault: Fault) -> None:
        super().__init__(threads=1)
        self.row, self.fault = row, fault

    def make_launch(self, call: Any) -> Any:
        return FaultyLaunch(super().make_launch(call), call, self.row, self.fault)


def row(identity: str) -> Impl:
    return next(found for found in HostDevice(threads=1).target.rows if found.identity == identity)


def site(found: Impl, *dtypes: str) -> CallSite:
    """The site of a row's class with these dtypes of its first operands."""
    for each in sample_sites(found):
        if tuple(tensor.dtype.value for tensor in each.operands[: len(dtypes)] if tensor is not None) == dtypes:
            return each
    raise AssertionError(f"{found.identity} has no class of {dtypes}")


def validated(found: Impl, like: CallSite, seed: int, fault: Fault | None = None) -> ValidationRecord:
    device = HostDevice(threads=1) if fault is None else Faulty(found, fault)
    return validate(device, host_environment(device.info.cpu, device.isa), found, like, seed)


@pytest.mark.parametrize("identity", ["rms_norm@host", "linear@host", "argmax@host", "cast@host", "reduce_sum@host"])
def test_a_row_as_it_is_passes(identity: str, seed: int) -> None:
    found = row(identity)
    for like in sample_sites(found)[:3]:
        record = validated(found, like, seed)
        assert record.passed, record.reason
        assert (record.operator, record.row, record.signature) == (found.op, found.name, signature_class(like))
        assert (record.calls > 0, record.seed) == (True, seed)
        assert set(record.sources) >= {"row"}
        assert record.maximum_error is not None
        assert record.bound is not None
        assert record.maximum_error <= record.bound or record.maximum_error == 0


def test_the_same_seed_gives_the_same_trials_and_another_one_others(seed: int) -> None:
    found = row("rms_norm@host")
    like = site(found, "f32")
    first, again, other = (trials(found, like, number) for number in (seed, seed, seed + 1))
    assert [str(trial.call) for trial in first] == [str(trial.call) for trial in again]
    values = [[trial.arrays[0] for trial in each] for each in (first, again, other)]
    assert all(np.array_equal(a, b) for a, b in zip(values[0], values[1], strict=True))  # type: ignore[arg-type]
    assert not np.array_equal(values[0][0], values[2][0])  # type: ignore[arg-type]


def test_the_tail_that_is_not_written_is_found(seed: int) -> None:
    def forget_the_last(call: KernelCall, memory: Memory) -> None:
        memory("y").view(np.float32)[-1:] = np.nan

    found = row("rms_norm@host")
    record = validated(found, site(found, "f32"), seed, forget_the_last)
    assert not record.passed
    assert "values of y off" in record.reason


def test_not_a_number_for_nothing_is_found(seed: int) -> None:
    def divide_by_nothing(call: KernelCall, memory: Memory) -> None:
        if not memory("x").size:
            memory("y").view(np.float32)[:] = np.nan

    found = row("reduce_sum@host")
    record = validated(found, site(found, "f32"), seed, divide_by_nothing)
    assert not record.passed
    assert "nan for 0" in record.reason


def test_a_fault_in_one_dtype_fails_that_class_alone(seed: int) -> None:
    def spoil_bf16(call: KernelCall, memory: Memory) -> None:
        if call.params[3] == DType.BF16.number:
            memory("y")[:] = 0

    found = row("rms_norm@host")
    assert not validated(found, site(found, "bf16"), seed, spoil_bf16).passed
    assert validated(found, site(found, "f32"), seed, spoil_bf16).passed


def test_an_error_of_more_than_twice_a_plain_composition_is_found_within_the_tolerance(seed: int) -> None:
    def drift(call: KernelCall, memory: Memory) -> None:
        memory("y").view(np.float32)[:] *= np.float32(1 + 1e-5)

    found = row("rms_norm@host")
    assert OP["rms_norm"].tolerance.relative > 1e-5
    record = validated(found, site(found, "f32"), seed, drift)
    assert not record.passed
    assert "a plain composition is at most" in record.reason
    assert record.maximum_error is not None
    assert record.bound is not None
    assert record.plain_error is not None
    assert record.maximum_error > record.bound >= 2 * record.plain_error


def test_bytes_that_are_not_a_row_s_to_write_are_found(seed: int) -> None:
    def scribble(call: KernelCall, memory: Memory) -> None:
        memory("gain")[:1] += 1

    found = row("rms_norm@host")
    record = validated(found, site(found, "f32"), seed, scribble)
    assert not record.passed
    assert "operand gain changed" in record.reason


def test_a_row_that_promises_the_bits_of_the_reference_is_held_to_them(seed: int) -> None:
    found = row("softmax@host")
    assert validated(found, site(found, "f32"), seed).passed
    record = validated(replace(found, exactness=Exactness.REFERENCE), site(found, "f32"), seed)
    assert not record.passed
    assert "differ from the reference's" in record.reason


def test_indices_out_of_range_must_be_noticed(seed: int) -> None:
    class Deaf(HostDevice):
        def make_launch(self, call: Any) -> Any:
            launch = super().make_launch(call)

            class Silent:
                def run(self, operands: Operands) -> None:
                    try:
                        launch.run(operands)
                    except IndexError:
                        return

            return Silent()

    found = row("gather_rows@host")
    device = Deaf(threads=1)
    record = validate(device, host_environment(device.info.cpu, device.isa), found, site(found, "f32"), seed)
    assert not record.passed
    assert "the reference refuses these rows, the kernel does not" in record.reason


def test_a_class_that_no_sample_has_is_made_of_retyped_samples(seed: int) -> None:
    """x f16 by a weight f32 packed in panels with a bias, rows counted: samples have each of these, and no sample all of them."""
    found = row("linear@host")
    x, weight = TensorType((4, 64), DType.F16, ("N", "C")), TensorType((48, 64), DType.F32, ("F", "C"), "panel32")
    bias, y = TensorType((48,), DType.F32, ("F",)), TensorType((4, 48), DType.F16, ("N", "F"))
    attrs = Attributes(OP["linear"].attributes({"axis": "F"}))
    node = Node("linear", ("x", "weight", "bias"), (Value("y", y),), attrs)
    absent = (None,) * (len(OP["linear"].operands) - 3)
    strides = (x.strides, None, bias.strides, *absent)
    like = CallSite(node, (x, weight, bias, *absent), (y,), strides, counted=True)
    record = validated(found, like, seed)
    assert record.passed, record.reason
    assert record.signature == "f16,f32@panel32,f32->f16;counted"
    assert record.calls > 5


def test_strided_operands_are_strided_together(seed: int) -> None:
    found = row("swiglu@host_convert")
    tensor = TensorType((8, 32), DType.F32)
    node = Node(found.op, ("gate", "up"), (Value("y", tensor),), Attributes(OP[found.op].attributes({})))
    like = CallSite(node, (tensor, tensor), (tensor,), ((96, 1), (96, 1)))
    made = trials(found, like, seed)
    assert made
    assert {signature_class(trial.call.site) for trial in made} == {"f32~,f32~->f32"}
    assert validated(found, like, seed).passed


def test_a_class_without_a_sample_does_not_pass(seed: int) -> None:
    found = row("argmax@host")
    like = site(found, "f32")
    odd = replace(like, operands=(normal((3, 4), DType.F64).type,))
    record = validated(found, odd, seed)
    assert (record.passed, record.calls) == (False, 0)
    assert "no sample of this class" in record.reason


def test_a_plain_product_sums_term_by_term() -> None:
    """1e8 + 1 - 1e8 is 0 in float32, in this order alone; several shapes give what a loop over single values gives."""
    x = np.array([[1e8, 1.0, -1e8]])
    assert multiply(x, np.ones((3, 1))) == 1.0
    with plain_arithmetic():
        assert multiply(x, np.ones((3, 1))) == 0.0
        rng = np.random.default_rng(5)
        for shape in ((7,), (3, 7), (2, 3, 7), (40, 7)):
            a, b = rng.standard_normal(shape), rng.standard_normal((*shape[:-2][:1], 7, 90))
            found = multiply(a, b)
            total = np.zeros(found.shape, np.float32)
            for k in range(7):
                left = a[..., k].astype(np.float32)
                right = b[..., k, :].astype(np.float32)
                total += left[..., None] * (right if right.ndim == 1 else right[..., None, :])
            assert found.tobytes() == total.tobytes()


def test_what_a_row_is_not_to_blame_for_is_raised(seed: int) -> None:
    def no_memory(call: KernelCall, memory: Memory) -> None:
        raise CapacityError("no memory")

    found = row("rms_norm@host")
    with pytest.raises(CapacityError, match="no memory"):
        validated(found, site(found, "f32"), seed, no_memory)
