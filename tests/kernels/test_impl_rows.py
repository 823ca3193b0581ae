"""Every implementation row against the one oracle: row x samples that it accepts x instruction sets of this machine.

A new row or operator needs no test of its own to be covered here: its samples, its declarations and the tolerance of its operator are all that is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.evidence.rows import DeviceMachine, Mismatch, check, references
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.ir.errors import OstinatoError
from ostinato.ir.ops import OP
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.step import StepKind
from ostinato.ir.target import NATURAL, Impl
from ostinato.ir.types import Array

HOST_ROWS = [row for row in ROWS if "host" in row.architectures]
UNITS = list(_native.isa_available())
LISTED = 5
"""Failures shown in full."""


@functools.cache
def machines(unit: str) -> tuple[DeviceMachine, ...]:
    """The host with one and with two threads, kept for the whole test run."""
    return tuple(DeviceMachine(HostDevice(threads=threads, isa=unit)) for threads in (1, 2))


def planned(row: Impl, rng: np.random.Generator) -> list[tuple[int, Call]]:
    """All calls of a row with the number of their sample."""
    samples = [sample for sample in OP[row.op].samples(rng) if sample.error is None]
    return [(number, call) for number, sample in enumerate(samples) for call in calls(row, sample)]


@pytest.mark.parametrize("row", HOST_ROWS, ids=[row.identity for row in HOST_ROWS])
def test_row_agrees_with_the_reference(row: Impl, rng: np.random.Generator) -> None:
    """On every unit. What the reference says of a sample depends on how many rows count, and not on how its operands lie: it is asked once."""
    samples = [sample for sample in OP[row.op].samples(rng) if sample.error is None]
    failures, ran = [], 0
    for number, sample in enumerate(samples):
        arrays = [None if operand is None else materialise(operand, rng) for operand in sample.operands]
        arrays += [None] * (len(OP[row.op].operands) - len(arrays))
        expected: dict[int | None, list[Array] | None] = {}
        for call in calls(row, sample):
            ran += 1
            if call.count not in expected:
                expected[call.count] = references(call, arrays)
            for unit in UNITS:
                try:
                    check(call, machines(unit), arrays, expected[call.count])
                except (Mismatch, OstinatoError) as error:
                    failures.append(f"{unit}, sample {number}: {call}\n    {error}")
    assert ran, f"{row.identity} accepts no sample"
    assert not failures, f"{len(failures)} of {ran * len(UNITS)} calls failed\n" + "\n".join(failures[:LISTED])


DECLARED = [*HOST_ROWS, *(row for row in HIP_ROWS if row.kind is StepKind.LAUNCH)]


@pytest.mark.parametrize("row", DECLARED, ids=[row.identity for row in DECLARED])
def test_what_a_row_declares_is_exercised(row: Impl, rng: np.random.Generator) -> None:
    """Samples reach every in-place pair, every layout, strided operands and the count of a row; else they prove less than they seem to."""
    found = [call for _, call in planned(row, rng)]
    assert {pair for call in found for pair in call.in_place} == set(row.in_place)
    if "count" in row.operands:
        assert any(call.count for call in found)
    assert not row.strided or any(call.site.strided for call in found)
    seen = [
        (name, tensor)
        for call in found
        for name, tensor in [
            *((spec.name, t) for spec, t in zip(OP[row.op].operands, call.site.operands, strict=True) if t is not None),
            *((value.name, value.type) for value in call.site.node.results),
        ]
    ]
    reached = {(name, tensor.layout) for name, tensor in seen}
    for name, layouts in row.layouts:
        assert {(name, layout) for layout in layouts if layout != NATURAL} <= reached
        natural = any(key == name and tensor.is_natural for key, tensor in seen)
        assert natural or NATURAL not in layouts


def outcome(row: Impl, tampered: Impl, wanted: Callable[[Call], bool], rng: np.random.Generator) -> str:
    """What `check` says of the first call of `row` that is `wanted`, when it is run as `tampered` declares it."""
    for sample in OP[row.op].samples(rng):
        found = [call for call in calls(row, sample) if wanted(call)] if sample.error is None else []
        if found:
            arrays = [None if operand is None else materialise(operand, rng) for operand in sample.operands]
            with pytest.raises((Mismatch, OstinatoError)) as caught:
                check(replace(found[0], row=tampered), machines(UNITS[-1]), arrays, references(found[0], arrays))
            return str(caught.value)
    raise AssertionError("no such call")


def test_the_harness_notices_false_declarations(rng: np.random.Generator) -> None:
    """A wrong parameter, a count that the kernel does not get, a workspace that is too small, a result in place that is not allowed to be."""
    rows = {row.identity: row for row in HOST_ROWS}
    names = ("scale", "argmax", "sample", "rope_split_half_bias_bthd")
    scale, argmax, sample, turned = (rows[f"{name}@host"] for name in names)

    wrong = replace(scale, params=lambda site: (*scale.params(site)[:2], 3.5, *scale.params(site)[3:]))
    assert "values of y off" in outcome(scale, wrong, lambda call: call.site.operand(0).elements > 1, rng)
    deaf = replace(argmax, operands=tuple("-" if name == "count" else name for name in argmax.operands))
    assert "past its 1 valid rows" in outcome(
        argmax, deaf, lambda call: call.count == 1 and call.site.operand(0).elements > 99, rng
    )
    small = replace(sample, workspace=lambda site: sample.workspace(site) - 1)
    assert "sample" in outcome(sample, small, lambda call: call.site.operand(0).elements > 1, rng)
    greedy = replace(turned, in_place=(("y", "x"),))
    overwritten = outcome(
        greedy, greedy, lambda call: bool(call.in_place) and min(call.site.results[0].static_shape[1:3]) > 1, rng
    )
    assert "values of y off" in overwritten
