"""Algorithms of the vendor's GEMM: chosen once, recorded with their nodes, verified when they are read; the same for eager, planned and captured runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.vendor_choices import ChoiceCounters, VendorChoices, vendor_choices
from ostinato.backend_hip.vendor_record import Written, written
from ostinato.ir.errors import BackendError, ConfigError, LifecycleError
from ostinato.ir.step import KernelCall, StepKind
from ostinato.ir.types import Array, DType
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.gpu.child import run_child
from tests.backend_hip.gpu.machine import OUT_OF_MEMORY, Memory

F32 = DType.F32.number
M, N, K = 8, 12, 16
PARAMS = GemmParams(M, N, K, 1, 1, 0, F32, F32, F32, F32, NO_BIAS, K, K, M, M, 0, 0, 0, 0, 1.0, 0.0)
LEAST, MIDDLE, LARGEST = 0, 4096, 65536
"""What the emulated vendor's three algorithms need; the second records two nodes."""


@pytest.fixture
def choices(device: _native.GpuDevice, tmp_path: Path) -> VendorChoices:
    return VendorChoices(device, tmp_path)


def again(choices: VendorChoices) -> VendorChoices:
    """The choices of another process."""
    return VendorChoices(choices._device, choices.record.path.parent)


def lines(choices: VendorChoices) -> list[dict[str, dict[str, object]]]:
    return [json.loads(line) for line in choices.record.path.read_text(encoding="ascii").splitlines()]


def test_a_choice_is_made_once_and_kept(choices: VendorChoices, machine: EmulatedGpu) -> None:
    first = choices.gemm(PARAMS, LARGEST)
    proposals = machine.count("hipblasLtMatmulAlgoGetHeuristic")
    assert choices.gemm(tuple(PARAMS), LARGEST) is first
    assert machine.count("hipblasLtMatmulAlgoGetHeuristic") == proposals
    assert choices.counters == ChoiceCounters(hits=1, chosen=1)
    assert len(lines(choices)) == 1
    choices.clear()
    assert choices.counters == ChoiceCounters()
    assert choices.gemm(PARAMS, LARGEST).choice.algorithm == first.choice.algorithm
    assert choices.counters == ChoiceCounters(recorded=1)


def test_the_nodes_that_a_capture_records_are_counted_with_the_choice(choices: VendorChoices) -> None:
    found = {budget: choices.gemm(PARAMS, budget) for budget in (LEAST, MIDDLE, LARGEST)}
    assert {budget: gemm.choice.workspace_bytes for budget, gemm in found.items()} == {b: b for b in found}
    assert {budget: gemm.node_count for budget, gemm in found.items()} == {LEAST: 1, MIDDLE: 2, LARGEST: 1}
    others = again(choices)
    assert {budget: others.gemm(PARAMS, budget).node_count for budget in found} == {LEAST: 1, MIDDLE: 2, LARGEST: 1}


def test_another_process_takes_the_recorded_algorithm_once_the_vendor_said_yes(
    choices: VendorChoices, machine: EmulatedGpu
) -> None:
    first = choices.gemm(PARAMS, MIDDLE)
    others = again(choices)
    second = others.gemm(PARAMS, MIDDLE)
    assert second.choice.algorithm == first.choice.algorithm
    assert others.counters == ChoiceCounters(recorded=1)
    assert len(lines(choices)) == 1, "nothing new to record"


def test_a_recorded_algorithm_that_the_vendor_does_not_take_is_reported_and_replaced(
    choices: VendorChoices, device: _native.GpuDevice
) -> None:
    choices.record.append({**_record(choices, PARAMS, LEAST), "algorithm": [9, 0, 0, 0, 0, 0, 0, 0]})
    with pytest.warns(RuntimeWarning, match="does not take"):
        found = choices.gemm(PARAMS, LEAST)
    assert found.choice.algorithm[0] == 0
    assert choices.counters == ChoiceCounters(refused=1, chosen=1)
    assert again(choices).gemm(PARAMS, LEAST).choice.algorithm == found.choice.algorithm, "the later line counts"


def test_a_record_of_another_driver_or_library_is_reported_and_not_used(choices: VendorChoices) -> None:
    record = _record(choices, PARAMS, MIDDLE)
    for name, value in (("runtime", "0.1.0"), ("library", 1), ("device", "another card")):
        environment = record["environment"]
        assert isinstance(environment, dict)
        choices.record.append({**record, "environment": {**environment, name: value}, "nodes": 7})
    with pytest.warns(RuntimeWarning, match="another card, driver or library"):
        found = choices.gemm(PARAMS, MIDDLE)
    assert found.node_count == 2
    assert choices.counters == ChoiceCounters(stale=1, chosen=1)


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff not json\n",
        b'{"record": {}}\n',
        b"[]\n",
        b'{"record": null, "digest": "x"}\n',
        b'{"record": {"algorithm": [0]},',
        b"[" * 100_000,
    ],
)
def test_lines_that_do_not_check_are_reported_and_ignored(damage: bytes, choices: VendorChoices) -> None:
    first = choices.gemm(PARAMS, MIDDLE)
    good = choices.record.path.read_bytes()
    choices.record.path.write_bytes(damage + (b"" if damage.endswith(b"\n") else b"\n") + good)
    others = again(choices)
    with pytest.warns(RuntimeWarning, match="1 of 2 lines .* do not check"):
        assert others.gemm(PARAMS, MIDDLE).choice.algorithm == first.choice.algorithm
    assert others.counters == ChoiceCounters(recorded=1, damaged=1)


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": [0]},
        {"algorithm": "0"},
        {"algorithm": [-1] * 8},
        {"needs": None},
        {"needs": 1 << 64},
        {"nodes": -1},
        {"environment": {}},
        {"environment": None},
        {"params": None},
    ],
)
def test_a_line_that_checks_and_says_something_else_is_one_that_does_not(
    change: dict[str, Any], choices: VendorChoices
) -> None:
    """As another version's might."""
    choices.gemm(PARAMS, MIDDLE)
    (record,) = choices.record.read().records.values()
    choices.record.path.unlink()
    choices.record.append({**record, **change})
    assert written(choices.record.path.parent).damaged == 1
    others = again(choices)
    with pytest.warns(RuntimeWarning, match="1 of 1 lines .* do not check"):
        assert others.gemm(PARAMS, MIDDLE).node_count == 2
    assert others.counters == ChoiceCounters(chosen=1, damaged=1)


def test_a_changed_number_makes_a_line_one_that_does_not_check(choices: VendorChoices) -> None:
    choices.gemm(PARAMS, MIDDLE)
    choices.record.path.write_bytes(choices.record.path.read_bytes().replace(b'"nodes":2', b'"nodes":1'))
    others = again(choices)
    with pytest.warns(RuntimeWarning, match="do not check"):
        assert others.gemm(PARAMS, MIDDLE).node_count == 2
    assert others.counters == ChoiceCounters(chosen=1, damaged=1)


def test_a_torn_last_line_does_not_spoil_the_next_one(choices: VendorChoices) -> None:
    choices.gemm(PARAMS, MIDDLE)
    choices.record.path.write_bytes(choices.record.path.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="do not check"):
        again(choices).gemm(PARAMS, MIDDLE)
    others = again(choices)
    with pytest.warns(RuntimeWarning, match="1 of 2 lines"):
        others.gemm(PARAMS, MIDDLE)
    assert others.counters == ChoiceCounters(recorded=1, damaged=1)


def test_what_is_written_is_told_by_card(choices: VendorChoices) -> None:
    folder = choices.record.path.parent
    assert written(folder) == Written(str(choices.record.path), {}, 0)
    choices.gemm(PARAMS, LEAST)
    choices.gemm(PARAMS, MIDDLE)
    with choices.record.path.open("ab") as file:
        file.write(b"damaged")
    found = written(folder)
    assert (list(found.algorithms.values()), found.damaged) == ([2], 1)
    assert "gfx942" in next(iter(found.algorithms))


def test_a_folder_that_cannot_be_written_costs_the_record_and_nothing_else(
    device: _native.GpuDevice, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    choices = VendorChoices(device, tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="are not recorded"):
        assert choices.gemm(PARAMS, LEAST).node_count == 1
    assert choices.counters == ChoiceCounters(chosen=1)


def test_an_algorithm_that_does_not_run_is_left_out(choices: VendorChoices, machine: EmulatedGpu) -> None:
    machine.fail("hipblasLtMatmul", OUT_OF_MEMORY)
    found = choices.gemm(PARAMS, LARGEST)
    assert found.choice.workspace_bytes == MIDDLE, "the first of the list did not run"


def test_without_an_algorithm_the_error_names_the_node_and_what_to_do(
    choices: VendorChoices, machine: EmulatedGpu
) -> None:
    machine.fail("hipblasLtMatmul", OUT_OF_MEMORY)
    with pytest.raises(BackendError, match=r"no algorithm .* execution failed") as caught:
        choices.gemm(PARAMS, LEAST, "layers.0.o_proj")
    assert caught.value.node == "layers.0.o_proj"
    assert "levels=" in (caught.value.hint or "")
    assert choices.gemm(PARAMS, LEAST).node_count == 1, "nothing is remembered of a failure"


def test_a_vendor_that_proposes_nothing_says_why(choices: VendorChoices, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[_native.GemmChoice]:
        raise BackendError("choices of a matrix product: not supported")

    monkeypatch.setattr(_native, "gemm_choices", refuse)
    with pytest.raises(BackendError, match=r"no algorithm .* not supported"):
        choices.gemm(PARAMS, LEAST)


def test_scratch_memory_is_given_back_and_the_pool_stays_as_it_was(
    choices: VendorChoices, device: _native.GpuDevice
) -> None:
    device.pool_enabled = True
    before = device.counters.current_bytes
    choices.gemm(PARAMS, LARGEST)
    assert device.counters.current_bytes == before
    assert not device.pool_banned
    stream = _native.Stream(device)
    other = VendorChoices(device, choices.record.path.parent / "other")
    other.gemm(PARAMS, LARGEST)
    assert device.pool_banned, "a stream of somebody else's is a reason"
    del stream


def test_nothing_is_chosen_while_the_thread_captures(choices: VendorChoices, stream: _native.Stream) -> None:
    with pytest.raises(LifecycleError):
        _native.HipGraphExecutable.capture(stream, lambda: choices.gemm(PARAMS, LEAST))
    assert choices.gemm(PARAMS, LEAST).node_count == 1


def test_a_product_of_other_dtypes_is_refused(choices: VendorChoices) -> None:
    with pytest.raises(ConfigError, match="no operands of dtype"):
        choices.gemm(PARAMS._replace(a_type=DType.Q8_0.number), LEAST)


# one choice for every way of running


class Product:
    """x times weight^T on a device, in every way that steps are run."""

    def __init__(self, device: _native.GpuDevice, folder: Path, rng: np.random.Generator) -> None:
        self.gpu = HipDevice(device, cache=CodeCache(folder))
        self.weight, self.x = (Memory(device, rng.standard_normal(shape, np.float32)) for shape in ((M, K), (N, K)))
        self.result, self.workspace = Memory(device, np.zeros((N, M), np.float32)), device.allocate(LARGEST)
        self.device = device

    def close(self) -> None:
        self.device.free(self.workspace)

    def operands(self, budget: int) -> tuple[tuple[int, int], ...]:
        a, b, d = (self.weight, self.x, self.result)
        pairs = [(memory.address, memory.values.nbytes) for memory in (a, b, d)]
        return (pairs[0], pairs[1], (0, 0), (0, 0), pairs[2], (self.workspace, budget))

    def step(self, budget: int) -> ResolvedStep:
        return ResolvedStep("product", StepKind.GEMM, "gemm", self.operands(budget), tuple(PARAMS))

    def taken(self) -> Array:
        """The result; what lies there afterwards is none."""
        found = self.result.read()
        self.result.write(np.full((N, M), np.nan, np.float32))
        return found


@pytest.fixture
def product(device: _native.GpuDevice, tmp_path: Path, rng: np.random.Generator) -> Iterator[Product]:
    made = Product(device, tmp_path, rng)
    yield made
    made.close()


@pytest.mark.parametrize("budget", [LEAST, MIDDLE, LARGEST])
def test_eager_planned_and_captured_run_the_same_algorithm(budget: int, product: Product) -> None:
    launch = product.gpu.make_launch(KernelCall("product", "gemm", tuple(PARAMS), 6, StepKind.GEMM))
    launch.run(product.operands(budget))
    product.gpu.synchronize()
    eager = product.taken()
    np.testing.assert_allclose(eager, product.x.values @ product.weight.values.T, rtol=1e-5, atol=1e-5)
    table = product.gpu.make_table([product.step(budget)], product.gpu.open_stream())
    table.run()
    assert product.taken().tobytes() == eager.tobytes()
    graph = table.capture()
    assert (graph.node_count, sum(table.node_counts)) == ((2, 2) if budget == MIDDLE else (1, 1))
    graph.enqueue()
    table.finish()
    assert product.taken().tobytes() == eager.tobytes()
    graph.release()
    kept = vendor_choices(product.device, product.gpu.kernels.cache.folder)
    assert (kept.counters.chosen, len(lines(kept))) == (1, 1)
    assert kept is vendor_choices(product.device, product.gpu.kernels.cache.folder)


def test_a_table_is_captured_on_a_thread_that_did_not_load_it(product: Product) -> None:
    table = product.gpu.make_table([product.step(MIDDLE)], product.gpu.open_stream())
    table.run()
    expected, failed = product.taken(), list[BaseException]()

    def work() -> None:
        try:
            graph = table.capture()
            graph.enqueue()
            table.finish()
            graph.release()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    assert product.taken().tobytes() == expected.tobytes()


def test_a_captured_table_was_never_run_before(product: Product) -> None:
    table = product.gpu.make_table([product.step(LARGEST)], product.gpu.open_stream())
    graph = table.capture()
    assert not product.result.read().any(), "capturing runs nothing"
    graph.enqueue()
    table.finish()
    np.testing.assert_allclose(product.taken(), product.x.values @ product.weight.values.T, rtol=1e-5, atol=1e-5)
    graph.release()


def test_processes_that_start_together_choose_once(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(run_child("choose_algorithms", str(tmp_path)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [json.loads(text) for text in found]
    assert len({json.dumps(outcome["algorithms"]) for outcome in outcomes}) == 1
    assert sorted(outcome["chosen"] for outcome in outcomes) == [0, 0, 2]


def _record(choices: VendorChoices, params: GemmParams, budget: int) -> dict[str, object]:
    """What choosing records, without leaving it there."""
    choices.gemm(params, budget)
    record = lines(choices)[-1]["record"]
    choices.record.path.unlink()
    choices.clear()
    return record
