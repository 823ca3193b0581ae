"""What loading refuses before a byte is packed: plans for another device, weights whose stated transform is not their source's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.errors import DeviceUnavailable, PlanError, WeightsError
from ostinato.ir.step import Region
from ostinato.ir.target import Target
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import ProgramPlan, RegionSize
from ostinato.planner.program import build_program
from ostinato.planner.saved import program_from_json, program_to_json
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from ostinato.runtime.regions import SharedRegions, allocate_regions
from ostinato.runtime.weights import load_shared, logical_weight

ROWS, COLUMNS = 6, 4


@dataclass(frozen=True)
class OneMatrix:
    """The source of `w`, f32 [6, 4], whose rows may be stored in another order and whose values less a number."""

    stored: Array
    order: Array | None = None
    added: float = 0.0

    def dtype(self, tensor: str) -> DType:
        return DType.F32

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.stored.shape

    def row_order(self, tensor: str) -> Array | None:
        return self.order

    def shift(self, tensor: str) -> float:
        return self.added

    def map(self, tensor: str) -> Array:
        return self.stored.reshape(-1).view(np.uint8)

    def release(self, tensor: str) -> None: ...


def program(source: OneMatrix, transform: str = "none", target: Target | None = None) -> Program:
    """y = x @ w^T."""
    target = target or host_target()
    builder = GraphBuilder("main")
    x = builder.input("x", TensorType((2, COLUMNS), DType.F32))
    w = builder.weight("w", TensorType((ROWS, COLUMNS), DType.F32), (WeightPart("w", 0, ROWS, transform),))
    graph = run_pipeline(builder.finish([builder.apply("linear", (x, w), name="y")]), target).graph
    plan = build_program({"main": (graph, plan_entry(graph, target, name="main"))})
    check_program(plan, {"main": graph}, target)
    return Program(plan, {"main": graph}, target, source)


def load(made: Program, mode: str = "planned") -> Executable:
    return load_program(made, Route(HostDevice(threads=1), mode), kind=Executable)


def matrix(rng: np.random.Generator) -> Array:
    return rng.standard_normal((ROWS, COLUMNS), np.float32)


@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
def test_rows_are_reordered_where_the_part_and_the_source_say_so(mode: str, rng: np.random.Generator) -> None:
    logical, order = matrix(rng), rng.permutation(ROWS)
    stored = np.empty_like(logical)
    stored[order] = logical
    x = rng.standard_normal((2, COLUMNS), np.float32)
    y = load(program(OneMatrix(stored, order), "reorder_rows"), mode).run(None, {"x": x})["y"]
    np.testing.assert_allclose(y, x @ logical.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
def test_a_shift_is_added_to_what_is_stored(mode: str, rng: np.random.Generator) -> None:
    stored, x = matrix(rng), rng.standard_normal((2, COLUMNS), np.float32)
    y = load(program(OneMatrix(stored, added=1.0), "shift"), mode).run(None, {"x": x})["y"]
    np.testing.assert_allclose(y, x @ (stored + np.float32(1)).T, rtol=1e-5, atol=1e-5)


def test_a_shift_is_added_in_float32_before_the_value_is_rounded(rng: np.random.Generator) -> None:
    source = OneMatrix(matrix(rng) * np.float32(2.0**-20), added=1.0)
    parts = program(source, "shift").plan.weights[0].parts
    np.testing.assert_array_equal(logical_weight(DType.F32, parts, source), source.stored + np.float32(1))
    np.testing.assert_array_equal(logical_weight(DType.BF16, parts, source).astype(np.float32), 1.0)


def test_a_shift_of_reordered_rows_is_refused(rng: np.random.Generator) -> None:
    source = OneMatrix(matrix(rng), np.arange(ROWS), added=1.0)
    with pytest.raises(WeightsError, match=r"1\.0 cannot be added to it"):
        load(program(source, "reorder_rows"))


@pytest.mark.parametrize(
    ("transform", "ordered", "added", "message"),
    [
        ("none", True, 0.0, "w: the plan loads it with transform 'none', the checkpoint needs 'reorder_rows'"),
        ("reorder_rows", False, 0.0, "w: the plan loads it with transform 'reorder_rows', the checkpoint needs 'none'"),
        ("none", False, 1.0, "w: the plan loads it with transform 'none', the checkpoint needs 'shift'"),
        ("shift", False, 0.0, "w: the plan loads it with transform 'shift', the checkpoint needs 'none'"),
    ],
)
def test_a_transform_that_is_not_the_sources_is_refused(
    transform: str, ordered: bool, added: float, message: str, rng: np.random.Generator
) -> None:
    source = OneMatrix(matrix(rng), np.arange(ROWS) if ordered else None, added)
    made = program(source, transform)
    packed: list[int] = []
    with pytest.raises(WeightsError, match=message) as caught:
        load_shared(HostDevice(threads=1), made.plan, source, lambda what, done, total: packed.append(done))
    assert caught.value.node == "w"
    assert not packed
    with pytest.raises(WeightsError, match=message):
        logical_weight(DType.F32, made.plan.weights[0].parts, source)


def test_an_unknown_transform_is_refused(rng: np.random.Generator) -> None:
    source = OneMatrix(matrix(rng))
    made = program(source)
    (slot,) = made.plan.weights
    parts = tuple(replace(part, transform="mirror") for part in slot.parts)
    plan = made.plan.model_copy(update={"weights": (replace(slot, parts=parts),)})
    with pytest.raises(WeightsError, match="w: the plan loads it with transform 'mirror'"):
        load_shared(HostDevice(threads=1), plan, source)


# weights that the load program makes of others


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
def test_a_transposed_matrix_and_rows_of_it_are_made_while_loading(
    mode: str, dtype: DType, rng: np.random.Generator
) -> None:
    """x times the stored matrix as it lies, and times two columns of it; the graph transposes, the step does not."""
    source = OneMatrix(matrix(rng))
    target = host_target()
    builder = GraphBuilder("main")
    x = builder.input("x", TensorType((2, ROWS), DType.F32))
    w = builder.weight("w", TensorType((ROWS, COLUMNS), dtype), (WeightPart("w", 0, ROWS),))
    turned = builder.apply("transpose", (w,), {"order": (1, 0)})
    rows = builder.apply("slice", (turned,), {"axis": 0, "start": 1, "stop": 3, "step": 1})
    both = builder.apply("concat", (rows, turned), {"axis": 0})
    outputs = [builder.apply("linear", (x, weight), name=f"y{i}") for i, weight in enumerate((turned, rows, both))]
    graph = run_pipeline(builder.finish(outputs), target, PipelineOptions(disable=frozenset({"fuse_qkv"}))).graph
    assert {node.op for node in graph.nodes} == {"linear"}
    plan = build_program({"main": (graph, plan_entry(graph, target, name="main"))})
    check_program(plan, {"main": graph}, target)
    values = rng.standard_normal((2, ROWS), np.float32)
    found = load(Program(plan, {"main": graph}, target, source), mode).run(None, {"x": values})
    stored = source.stored.astype(dtype.numpy).astype(np.float32)
    expected = values @ stored
    for name, wanted in zip(
        ("y0", "y1", "y2"), (expected, expected[:, 1:3], np.hstack([expected[:, 1:3], expected])), strict=True
    ):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_transposed_while_loading_is_refused(rng: np.random.Generator) -> None:
    parts = (WeightPart("w", 0, COLUMNS, "transpose"),)
    for source in (OneMatrix(matrix(rng), np.arange(ROWS)), OneMatrix(matrix(rng), added=1.0)):
        with pytest.raises(WeightsError, match="w: expected a matrix of floats without a transform, found f32"):
            logical_weight(DType.F32, parts, source)
    part_of_it = (WeightPart("w", 0, COLUMNS - 1, "transpose"),)
    np.testing.assert_array_equal(
        logical_weight(DType.F32, part_of_it, OneMatrix(stored := matrix(rng))), stored.T[: COLUMNS - 1]
    )


# devices


def other_region(plan: ProgramPlan) -> ProgramPlan:
    return plan.model_copy(update={"regions": (*plan.regions, RegionSize(region=Region("hip:0", "io"), bytes=8))})


def other_entry(plan: ProgramPlan) -> ProgramPlan:
    entry = plan.entries["main"].model_copy(update={"device": "hip:0"})
    return plan.model_copy(update={"entries": {"main": entry}})


def other_step(plan: ProgramPlan) -> ProgramPlan:
    entry = plan.entries["main"]
    steps = (*entry.steps[:-1], replace(entry.steps[-1], device="hip:0"))
    return plan.model_copy(update={"entries": {"main": entry.model_copy(update={"steps": steps})}})


@pytest.mark.parametrize("spoil", [other_region, other_entry, other_step], ids=lambda spoil: spoil.__name__)
def test_a_plan_that_names_another_device_is_not_loaded(
    spoil: Callable[[ProgramPlan], ProgramPlan], rng: np.random.Generator
) -> None:
    made = program(OneMatrix(matrix(rng)))
    with pytest.raises(DeviceUnavailable, match=r"the plan is for hip:0, the device opened is host:0"):
        load(replace(made, plan=spoil(made.plan)))


def test_a_program_for_another_device_is_proven_and_not_loaded(rng: np.random.Generator) -> None:
    made = program(OneMatrix(matrix(rng)), target=replace(host_target(), device="host:1"))
    assert made.plan.devices == ("host:1",)
    with pytest.raises(DeviceUnavailable, match="the plan is for host:1, the device opened is host:0"):
        load(made)
    device = HostDevice(threads=1)
    with pytest.raises(DeviceUnavailable, match="host:1"):
        allocate_regions(device, made.plan, SharedRegions(device.allocate(0), device.allocate(0)))


def test_a_region_without_memory_has_no_address(rng: np.random.Generator) -> None:
    regions = load(program(OneMatrix(matrix(rng)))).regions
    assert regions.base(Region("host:0", "io")) == regions.io.address
    for region in (Region("host:1", "io"), Region("host:0", "symmetric")):
        with pytest.raises(PlanError, match=f"no memory on host:0 stands for region {region}"):
            regions.base(region)


def test_saved_plans_name_device_and_kind(rng: np.random.Generator) -> None:
    plan = program(OneMatrix(matrix(rng))).plan
    text = program_to_json(plan)
    assert program_from_json(text) == plan
    with pytest.raises(PlanError, match=r"damaged plan.*no kind of region 'heap'"):
        program_from_json(text.replace('"kind": "constants"', '"kind": "heap"'))
