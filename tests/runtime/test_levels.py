"""Every level of every operator on the host, forced: the oracle's values, the same bits in every mode; and what a reference is as a step of a plan."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import hip_target
from ostinato.ir.evidence import Exactness
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP, OPS
from ostinato.ir.step import StepKind
from ostinato.ir.target import Level
from ostinato.ir.types import Array
from tests.frontend.small_families import small_model
from tests.one_operator import OneCall, one_calls

RUNNING = tuple(op for op in OPS if not op.is_view)
MODES = ("planned", "eager", "guarded")
CALLS = 4


@cache
def host() -> HostDevice:
    return HostDevice(threads=1)


def levels_of(op: OpDef) -> list[str]:
    return sorted({row.level.name.lower() for row in host().target.rows_for(op.name)})


def agrees(call: OneCall, found: Mapping[str, Array], expected: Mapping[str, Array], *, exactly: bool) -> None:
    for name, actual in found.items():
        wanted, dtype = expected[name], call.graph.types[name].dtype
        assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
        if exactly or not dtype.is_float:
            assert actual.tobytes() == wanted.tobytes(), name
            continue
        tolerance = call.opdef.tolerance.for_result(dtype)
        left, right = actual.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(left, right, rtol=tolerance.relative, atol=tolerance.absolute, err_msg=name)


@pytest.mark.parametrize("op", RUNNING, ids=lambda op: op.name)
def test_every_level_gives_what_the_oracle_gives_in_every_mode(op: OpDef, rng: np.random.Generator) -> None:
    levels = levels_of(op)
    ran = dict.fromkeys(levels, 0)
    for number, call in enumerate(one_calls(op, rng, CALLS)):
        expected = call.expected()
        for level in levels:
            try:
                executable = call.loaded(host(), level, "planned")
            except ost.BackendError:
                assert level != "reference"
                continue
            ran[level] += 1
            found = call.run(executable)
            agrees(call, found, expected, exactly=level == "reference")
            for mode in MODES[1:] if number < 2 or call.valid is not None else ():
                agrees(call, call.run(executable.clone(mode)), found, exactly=True)
    assert all(ran.values()), ran


def test_a_reference_stands_in_a_plan_as_a_call(rng: np.random.Generator) -> None:
    call = next(one_calls(OP["rms_norm"], rng, 1))
    executable = call.loaded(host(), "reference", "planned")
    (step,) = executable.entries["main"].steps
    assert step.kind is StepKind.CALL
    assert "rms_norm" in step.kernel
    assert "graph @rms_norm" in step.kernel
    assert call.loaded(host(), None, "planned").entries["main"].steps[0].kind is StepKind.LAUNCH


def compiled(model: ost.Model, **options: Any) -> ost.TextExecutable:
    return ost.compile(model, buckets={"B": [1], "T": [4]}, context=16, device="cpu", **options)


def test_a_model_runs_by_the_policy_strict_and_says_so(tmp_path: Path, seed: int) -> None:
    model = small_model("llama", tmp_path, seed)
    ids = np.array([[3, 7, 1, 4, 9]], np.int32)
    strict = compiled(model, policy="strict")
    exact = strict.clone("reference")
    assert strict(ids)["logits"].tobytes() == exact(ids)["logits"].tobytes()
    for node in strict.explain("*").nodes:
        assert node.decision.exactness.name == "REFERENCE"
    default = compiled(model)
    np.testing.assert_allclose(default(ids)["logits"], strict(ids)["logits"], atol=1e-3)


def test_a_tied_embedding_is_read_row_by_row_where_one_reader_is_the_reference(tmp_path: Path, seed: int) -> None:
    model = small_model("qwen2", tmp_path, seed)
    ids = np.array([[3, 7, 1, 4, 9]], np.int32)
    expected = compiled(model)(ids)["logits"]
    for levels in ({"embedding": "reference"}, {"logits": "reference"}):
        found = compiled(model, levels=levels)
        np.testing.assert_allclose(found(ids)["logits"], expected, atol=1e-3)


# what a call of a reference may meet


def with_reference(monkeypatch: pytest.MonkeyPatch, function: Callable[..., tuple[Array, ...]]) -> None:
    """What is loaded from now on has another reference of silu."""
    monkeypatch.setattr("ostinato.backend_hip.reference_calls.OP", {"silu": replace(OP["silu"], reference=function)})


@pytest.mark.parametrize("mode", ["planned", "eager"])
@pytest.mark.parametrize("error", [ost.BoundsError("row 9"), ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_an_error_of_a_reference_comes_out_of_the_run(
    error: BaseException, mode: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = next(one_calls(OP["silu"], rng, 1))
    executable = call.loaded(host(), "reference", mode)
    before = call.run(executable)

    def fail(*given: object) -> tuple[Array, ...]:
        raise error

    with_reference(monkeypatch, fail)
    broken = call.loaded(host(), "reference", mode)
    with pytest.raises(type(error)) as caught:
        call.run(broken)
    assert caught.value is error
    if isinstance(error, ost.OstinatoError):
        assert error.node == "result.0"
    elif isinstance(error, Exception):
        assert "%result.0" in error.__notes__[0]
    agrees(call, call.run(executable), before, exactly=True)  # the device is free again


def test_a_signal_is_answered_within_a_reference(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> tuple[Array, ...]:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the handler ran too late")

    with_reference(monkeypatch, interrupted)
    call = next(one_calls(OP["silu"], rng, 1))
    with pytest.raises(KeyboardInterrupt):
        call.run(call.loaded(host(), "reference", "planned"))


def test_a_reference_that_runs_its_own_device_is_refused_and_does_not_hang(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = next(one_calls(OP["silu"], rng, 1))
    inner = call.loaded(host(), "tuned", "planned")
    with_reference(monkeypatch, lambda *given: tuple(call.run(inner).values()))
    with pytest.raises(ost.LifecycleError, match="in progress on this thread"):
        call.run(call.loaded(host(), "reference", "planned"))


def test_other_threads_run_while_a_reference_does(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run starts on a thread that is not the main one; its reference waits for another thread of Python, which needs the GIL."""
    call = next(one_calls(OP["silu"], rng, 1))
    expected = call.expected()
    entered, leave, plain = threading.Event(), threading.Event(), OP["silu"].reference

    def waiting(*given: Any) -> tuple[Array, ...]:
        entered.set()
        assert leave.wait(30)
        return plain(*given)

    with_reference(monkeypatch, waiting)
    executable = call.loaded(host(), "reference", "planned")
    found: dict[str, Array] = {}
    worker = threading.Thread(target=lambda: found.update(call.run(executable)))
    worker.start()
    assert entered.wait(30)
    leave.set()
    worker.join(30)
    agrees(call, found, expected, exactly=True)


def test_a_plan_whose_operator_is_gone_does_not_load(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    call = next(one_calls(OP["silu"], rng, 1))
    monkeypatch.setattr("ostinato.backend_hip.reference_calls.OP", {})
    executable = call.loaded(host(), "reference", "planned")
    with pytest.raises(ost.BackendError, match="no call of a reference here"):
        call.run(executable)


def test_a_gpu_has_no_reference_and_says_so() -> None:
    target = hip_target("sm_90", 32)
    with pytest.raises(ost.ConfigError, match=r"never runs in a plan of this device\n.*readable is the plainest"):
        target.forced("silu", "reference")
    assert target.lowest is Level.READABLE


def test_every_operator_has_one_reference_that_comes_last() -> None:
    for op in RUNNING:
        rows = host().target.ranked(op.name)
        assert [row.level for row in rows].count(Level.REFERENCE) == 1
        assert rows[-1].exactness is Exactness.REFERENCE
