"""Screening of the vendor's algorithms: complete results against the oracle, times of right ones alone, a record that another card or library does not use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.vendor_choices import ChoiceCounters, VendorChoices, gemm_problem
from ostinato.backend_hip.vendor_oracle import oracle
from ostinato.backend_hip.vendor_record import solutions
from ostinato.backend_hip.vendor_scratch import Operands
from ostinato.backend_hip.vendor_screen import GAIN, MOST_CANDIDATES, Product, products_of, screen
from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.step import ByteRange, Region, Step, StepKind, StepOperand
from ostinato.ir.types import DType

F32, BF16 = DType.F32.number, DType.BF16.number
M, N, K = 16, 12, 24
PARAMS = GemmParams(M, N, K, 1, 1, 0, F32, F32, F32, F32, NO_BIAS, K, K, M, M, 0, 0, 0, 0, 1.0, 0.0)
RESIDUAL = PARAMS._replace(a_type=BF16, b_type=BF16, c_type=BF16, d_type=BF16, beta=1.0)
BATCHED = RESIDUAL._replace(
    batches=2, a_stride=M * K, b_stride=N * K, c_stride=M * N + 4, d_stride=M * N + 4, alpha=0.5
)
LAST = 2 * (2 * M * N + 4)
"""Bytes from the first to the last element of its result."""
ALL = 65536
"""The workspace that all three of the emulated vendor's algorithms may use; it proposes that with the largest first."""
LARGEST, HALVES, PLAIN = range(3)
"""Their places in its list; as it calls them itself: 2, 1, 0."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "evidence"))
    return tmp_path / "evidence"


def choices(device: _native.GpuDevice, tmp_path: Path) -> VendorChoices:
    """The choices of another process."""
    return VendorChoices(device, tmp_path)


def lines() -> list[dict[str, Any]]:
    return [json.loads(line)["record"] for line in solutions().path.read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("params", [PARAMS, RESIDUAL], ids=["f32", "bf16 with a residual"])
def test_the_fastest_right_algorithm_is_recorded_and_used(
    params: GemmParams, machine: EmulatedGpu, device: _native.GpuDevice, tmp_path: Path
) -> None:
    machine.vendor(ticks=(1, 2, 3))
    found = screen(device, Product(params, ALL), seed=3)
    assert (found.first, found.winner, found.unkept) == (LARGEST, PLAIN, "")
    assert [one.workspace for one in found.solutions] == [65536, 4096, 0]
    assert not any(one.refused for one in found.solutions)
    assert found.gain == pytest.approx(2.0, rel=0.01)
    (line,) = lines()
    assert line["params"] == list(params)
    assert (line["mode"], line["nodes"], line["needs"]) == ("f32", 1, 0)
    assert line["screened"]["candidates"] == line["screened"]["right"] == 3
    later = choices(device, tmp_path)
    assert later.gemm(params, ALL).choice.algorithm == line["algorithm"]
    assert later.counters == ChoiceCounters(screened=1)


def test_without_a_screening_the_choice_is_the_first_that_runs(
    machine: EmulatedGpu, device: _native.GpuDevice, tmp_path: Path
) -> None:
    machine.vendor(ticks=(1, 2, 3))
    found = choices(device, tmp_path)
    assert found.gemm(PARAMS, ALL).choice.workspace_bytes == 65536
    assert found.counters == ChoiceCounters(chosen=1)


@pytest.mark.parametrize(("spoilt", "winner"), [(0, HALVES), (2, PLAIN)])
def test_a_faster_algorithm_that_is_wrong_is_neither_timed_nor_chosen(
    spoilt: int, winner: int, machine: EmulatedGpu, device: _native.GpuDevice
) -> None:
    machine.vendor(spoilt=spoilt, ticks=(1, 2, 9) if spoilt == 0 else (1, 2, 0))
    found = screen(device, Product(PARAMS, ALL), seed=3)
    wrong = found.solutions[LARGEST if spoilt == 2 else PLAIN]
    assert wrong.seconds is None
    assert "the oracle's is" in wrong.refused
    assert found.winner == winner
    assert lines()[0]["screened"]["right"] == 2


def test_nothing_is_recorded_where_nothing_is_right(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    machine.vendor(spoilt=0)
    with pytest.raises(BackendError, match=r"no algorithm of the vendor's is right for 16x12x24: d\[0,0\] is"):
        screen(device, Product(PARAMS, 0))
    assert not solutions().path.exists()
    with pytest.raises(ConfigError, match=f"1 to {MOST_CANDIDATES} candidates, found 0"):
        screen(device, Product(PARAMS, 0), candidates=0)


def test_what_is_hardly_faster_than_the_first_does_not_win(machine: EmulatedGpu, device: _native.GpuDevice) -> None:
    machine.vendor(ticks=(999, 4000, 1000))
    found = screen(device, Product(PARAMS, ALL))
    assert 1 < found.solutions[LARGEST].seconds / found.solutions[PLAIN].seconds < GAIN  # type: ignore[operator]
    assert found.winner == found.first == LARGEST
    assert found.gain == 1.0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("library", 1, "library 1, here 100000"),
        ("runtime", "5.0", "runtime '5.0', here"),
        ("architecture", "gfx90a", "architecture 'gfx90a', here 'gfx942'"),
        ("device", "another card", "device 'another card', here"),
    ],
)
def test_what_was_screened_elsewhere_is_said_and_not_used(
    name: str, value: object, said: str, machine: EmulatedGpu, device: _native.GpuDevice, tmp_path: Path
) -> None:
    machine.vendor(ticks=(1, 2, 3))
    screen(device, Product(PARAMS, ALL))
    (line,) = lines()
    solutions().path.unlink()
    solutions().append({**line, "environment": {**line["environment"], name: value}})
    later = choices(device, tmp_path)
    with pytest.warns(RuntimeWarning, match=f"is not used: it is of {said}.*evidence screen"):
        found = later.gemm(PARAMS, ALL)
    assert found.choice.workspace_bytes == 65536, "as without it"
    assert later.counters == ChoiceCounters(stale=1, chosen=1)


def test_a_screened_algorithm_that_the_vendor_does_not_take_is_said_and_not_used(
    device: _native.GpuDevice, tmp_path: Path
) -> None:
    screen(device, Product(PARAMS, ALL))
    solutions().append({**lines()[0], "algorithm": [9, 0, 0, 0, 0, 0, 0, 0]})
    later = choices(device, tmp_path)
    with pytest.warns(RuntimeWarning, match="does not take; screen it again"):
        assert later.gemm(PARAMS, ALL).choice.algorithm[0] == 2
    assert later.counters == ChoiceCounters(refused=1, chosen=1)


@pytest.mark.parametrize(
    "other",
    [
        {"n": N + 4},
        {"alpha": float(np.nextafter(1.0, 2.0))},
        {"beta": 1.0},
        {"transpose_b": 1, "b_leading": N},
        {"a_leading": K + 4},
        {"batches": 2, "a_stride": M * K, "b_stride": N * K, "c_stride": M * N, "d_stride": M * N},
        {"d_type": BF16, "c_type": BF16},
    ],
    ids=str,
)
def test_a_record_is_of_one_product_alone(
    other: dict[str, Any], machine: EmulatedGpu, device: _native.GpuDevice, tmp_path: Path
) -> None:
    machine.vendor(ticks=(1, 2, 3))
    screen(device, Product(PARAMS, ALL))
    later = choices(device, tmp_path)
    later.gemm(PARAMS._replace(**other), ALL)
    later.gemm(PARAMS, ALL - 256)
    assert later.counters == ChoiceCounters(chosen=2)


@pytest.mark.parametrize(
    ("reason", "after", "value"),
    [
        ("of batch 1 is", -2, 0x11),
        ("d[15,11] of batch 1", -2, 0x11),
        ("d[0,0] of batch 0 is nan", -LAST, 0xFF),
        ("writes behind its result", 0, 0),
        ("two runs differ", -LAST, None),
    ],
)
def test_a_product_is_judged_whole(reason: str, after: int, value: int | None, device: _native.GpuDevice) -> None:
    """What runs it may leave nothing out, write nothing beside it, and give the same twice."""
    choice = _native.gemm_choices(device, gemm_problem(BATCHED), 4096, 1)[0]
    turns = iter(range(99))
    with oracle(device, BATCHED, 4096, 5) as judge:

        def right(operands: Operands) -> None:
            a, b, bias, c, d, work = (address for address, _ in operands)
            alpha, beta = BATCHED.alpha, BATCHED.beta
            _native.gemm(device, gemm_problem(BATCHED), choice, a, b, c, d, bias, alpha, beta, work, 4096)

        def wrong(operands: Operands) -> None:
            right(operands)
            _native.fill_async(operands[4][0] + LAST + after, device, next(turns) if value is None else value, 2)

        assert judge.refusal(right) is None
        assert reason in (judge.refusal(wrong) or "")


def test_the_products_of_a_plan_are_each_there_once() -> None:
    place = ByteRange(Region("hip:0", "arena"), 0, 4096)
    work = StepOperand("workspace", place, reads=False, writes=True)
    steps = [
        Step("a", StepKind.GEMM, "hip:0", "gemm", (None,) * 5 + (work,), tuple(PARAMS)),
        Step("b", StepKind.GEMM, "hip:0", "gemm", (None,) * 6, tuple(PARAMS)),
        Step("c", StepKind.GEMM, "hip:0", "gemm", (None,) * 5 + (work,), tuple(PARAMS)),
        Step("d", StepKind.LAUNCH, "hip:0", "norm", ()),
    ]
    assert products_of(steps) == [Product(PARAMS, 4096), Product(PARAMS, 0)]
    assert str(replace(Product(PARAMS, 0), params=PARAMS._replace(batches=3))) == "16x12x24 x3"
