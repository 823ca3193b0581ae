"""Parameters at run time: loaded once from the checkpoint, trained by each executable for itself, read by every entry, read and written by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.errors import DTypeError, InputError, LayoutError, LifecycleError, ShapeError, WeightsError
from ostinato.ir.graph import Graph, GraphInput, Role, Value
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.passes.runner import run_pipeline
from ostinato.planner.lower import plan_entry
from ostinato.planner.program import build_program
from ostinato.planner.saved import Purpose, program_to_json, read_plan
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from tests.training.steps import (
    TENSORS,
    Tensors,
    batch,
    forward_graph,
    make,
    program_of,
    state_of,
    step_graph,
)

MODES = ("reference", "eager", "planned", "guarded")


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of({"train": step_graph(), "forward": forward_graph()})


def halves(dtype: str = "bfloat16") -> Tensors:
    """The checkpoint with its matrices in 16 bits."""
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    return Tensors({name: array.astype(kind) if array.ndim > 1 else array for name, array in TENSORS.items()})


@pytest.mark.parametrize("mode", MODES)
def test_parameters_come_from_the_checkpoint(mode: str, program: Program) -> None:
    exe = make(mode, program=program)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(exe.read_state(name), array, err_msg=name)
    assert not any(exe.read_state(name).any() for name in exe.state_names if name not in TENSORS)
    assert exe.memory.weights == 0
    assert exe.memory.parameters == sum(array.nbytes for array in TENSORS.values())
    assert exe.memory.total == sum(item.bytes for item in program.plan.regions)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_a_master_and_its_mirror_are_one_tensor(mode: str, stored: str) -> None:
    """Loaded from one tensor in two dtypes, trained together, written together."""
    source = halves(stored)
    program = program_of({"train": step_graph(dtype=DType.BF16), "forward": forward_graph(DType.BF16)}, source)
    assert {slot.name: slot.type.dtype for slot in program.plan.parameters} == {
        "embed": DType.F32,
        "gain": DType.F32,
        "up": DType.BF16,
        "master.up": DType.F32,
    }
    exe = make(mode, program=program)
    rounded = source.arrays["up"].astype(np.float32)
    np.testing.assert_array_equal(exe.read_state("up"), rounded)
    np.testing.assert_array_equal(exe.read_state("embed"), source.arrays["embed"].astype(np.float32))
    for seed in range(3):
        exe.step(batch(seed))
        master = exe.read_state("master.up")
        assert master.dtype == np.float32
        np.testing.assert_array_equal(exe.read_state("up"), master)
        mirror = exe._state._values(exe._state._slots["up"])
        np.testing.assert_array_equal(mirror, master.astype(ml_dtypes.bfloat16))
    exe.write_state("up", TENSORS["up"])
    np.testing.assert_array_equal(exe.read_state("master.up"), TENSORS["up"])
    mirror = exe._state._values(exe._state._slots["up"])
    np.testing.assert_array_equal(mirror, TENSORS["up"].astype(ml_dtypes.bfloat16))


def test_a_tensor_is_mapped_once_for_each_slot_that_it_fills() -> None:
    source = halves()
    exe = make(program=program_of({"train": step_graph(dtype=DType.BF16)}, source))
    assert sorted(source.mapped) == ["embed", "gain", "up", "up"]
    exe.clone()
    assert sorted(source.mapped) == sorted(["embed", "gain", "up", "up"] * 2)


@pytest.mark.parametrize("mode", MODES)
def test_another_entry_reads_what_a_step_has_trained(mode: str, program: Program) -> None:
    exe = make(mode, program=program)
    ids = {"input_ids": batch(9)["input_ids"]}
    before = exe.run("forward", ids)["logits"]
    for seed in range(2):
        exe.step(batch(seed))
    after = exe.run("forward", ids)["logits"]
    assert not np.array_equal(before, after)
    other = make(mode, program=program)
    other.write_states({name: exe.read_state(name) for name in TENSORS})
    np.testing.assert_array_equal(other.run("forward", ids)["logits"], after)


def test_the_entries_have_one_address_of_a_parameter(program: Program) -> None:
    exe = make(program=program)
    slot = next(slot for slot in program.plan.parameters if slot.name == "embed")
    read = {
        operand.range
        for entry in exe.entries.values()
        for step in entry.steps
        for operand in step.operands
        if operand is not None and operand.value == "embed"
    }
    assert read == {slot.range}


@pytest.mark.parametrize("mode", MODES)
def test_a_clone_trains_parameters_of_its_own(mode: str, program: Program) -> None:
    exe = make(mode, program=program)
    exe.step(batch(0))
    trained = state_of(exe)
    clone = exe.clone()
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(clone.read_state(name), array)
    clone.step(batch(1))
    assert state_of(exe) == trained
    again = exe.clone("planned")
    again.write_states({name: exe.read_state(name) for name in exe.state_names})
    assert state_of(again) == trained
    assert (again.number, exe.number) == (1, 1)


@pytest.mark.parametrize("mode", MODES)
def test_reset_begins_anew(mode: str, program: Program) -> None:
    exe = make(mode, program=program)
    first = [exe.step(batch(seed)).loss for seed in range(2)]
    trained = state_of(exe)
    exe.reset_state()
    assert exe.number == 0
    np.testing.assert_array_equal(exe.read_state("embed"), TENSORS["embed"])
    assert [exe.step(batch(seed)).loss for seed in range(2)] == first
    assert state_of(exe) == trained


def _refused(program: Program) -> list[tuple[Mapping[str, Any], type[Exception], str]]:
    del program
    embed = TENSORS["embed"]
    return [
        ({"embd": embed}, InputError, "close names: embed"),
        ({"embed": embed[:-1]}, ShapeError, "expected shape"),
        ({"embed": embed.astype(np.float64)}, DTypeError, "expected f32 or f16 or bf16, found float64"),
        ({"embed": np.asfortranarray(embed)}, LayoutError, "not contiguous"),
        ({"first.embed": embed.astype(np.float16)}, DTypeError, "expected f32"),
        ({"step": np.zeros(2, np.int32)}, ShapeError, "expected shape"),
        ({"embed": "abc"}, DTypeError, "expected an array, found str"),
        ({3: embed}, InputError, "no parameter and no state is called 3"),  # type: ignore[dict-item]
    ]


@pytest.mark.parametrize("mode", ["reference", "planned"])
def test_a_write_changes_all_or_nothing(mode: str, program: Program) -> None:
    exe = make(mode, program=program)
    exe.step(batch(0))
    before = state_of(exe)
    for values, error, words in _refused(program):
        good = {"gain": np.zeros(8, np.float32), "first.up": np.ones((8, 8), np.float32)}
        with pytest.raises(error, match=words):
            exe.write_states({**good, **values})
        assert state_of(exe) == before
    with pytest.raises(InputError, match="values are a list"):
        exe.write_states([1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no parameter and no state"):
        exe.read_state("nothing")
    assert state_of(exe) == before


def test_state_is_not_touched_while_a_call_runs(program: Program) -> None:
    exe = make(program=program)
    with exe.exclusive():
        for call in (lambda: exe.read_state("embed"), lambda: exe.write_state("embed", TENSORS["embed"])):
            with pytest.raises(LifecycleError, match="another call"):
                call()


def test_parameters_are_no_weights_to_replace(program: Program) -> None:
    exe = make(program=program)
    with pytest.raises(WeightsError, match="embed is trained here, every clone has its own"):
        exe.replace_weights({"embed": TENSORS["embed"]})


def test_a_saved_plan_trains_alike(program: Program) -> None:
    target = host_target()
    purposes = {name: Purpose(graph, {}, program.plan.entries[name].options) for name, graph in program.graphs.items()}
    text = program_to_json(program.plan)
    again = read_plan(text, target, purposes).plan
    assert again == program.plan
    loaded = make(program=Program(again, program.graphs, target, Tensors(TENSORS)))
    assert loaded.step(batch(3)).loss == make(program=program).step(batch(3)).loss


def _pieces(mode: str) -> tuple[Executable, dict[str, Array]]:
    """Parameters that are pieces: two tensors one below the other, one turned, rows of one, and columns of one turned."""
    rng = np.random.default_rng(4)
    arrays = {
        name: rng.standard_normal(shape, np.float32)
        for name, shape in {"a": (3, 4), "b": (2, 4), "t": (4, 6), "r": (5, 4), "c": (4, 6)}.items()
    }
    parts = {
        "joined": (WeightPart("a", 0, 3), WeightPart("b", 0, 2)),
        "turned": (WeightPart("t", 0, 6, "transpose"),),
        "rows": (WeightPart("r", 1, 4),),
        "columns": (WeightPart("c", 1, 3, "transpose"),),
    }
    builder = GraphBuilder("forward")
    x = builder.input("x", TensorType((16, 4), DType.F32))
    rows = {name: sum(part.stop - part.start for part in found) for name, found in parts.items()}
    weights = [builder.weight(name, TensorType((rows[name], 4), DType.F32), parts[name]) for name in parts]
    made = builder.finish([x + builder.apply("concat", weights, {"axis": 0})])
    inputs = tuple(
        GraphInput(Value(i.value.name, i.value.type), Role.PARAMETER, i.parts) if i.role is Role.WEIGHT else i
        for i in made.inputs
    )
    target = host_target()
    graph = run_pipeline(Graph("forward", inputs, made.nodes, made.outputs), target).graph
    plan = build_program({"forward": (graph, plan_entry(graph, target, name="forward"))})
    program = Program(plan, {"forward": graph}, target, Tensors(arrays))
    return load_program(program, Route(HostDevice(threads=1), mode), kind=Executable), arrays


@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
def test_tensors_are_addressed_through_pieces(mode: str) -> None:
    exe, arrays = _pieces(mode)
    for name in arrays:
        np.testing.assert_array_equal(exe.read_state(name), arrays[name], err_msg=name)
    for name, told in (("r", "2 of its 5 rows"), ("c", "4 of its 6 rows")):
        with pytest.raises(InputError, match=f"{told} are frozen"):
            exe.write_state(name, -arrays[name])
    np.testing.assert_array_equal(exe.read_state("rows"), arrays["r"][1:4])
    with pytest.raises(InputError, match="written by the names of its tensors, a, b"):
        exe.write_state("joined", np.zeros((5, 4), np.float32))
    new = {name: -array for name, array in arrays.items()}
    new["r"][[0, 4]] = arrays["r"][[0, 4]]
    new["c"][:, [0, 3, 4, 5]] = arrays["c"][:, [0, 3, 4, 5]]
    exe.write_states(new)
    zero = np.zeros((16, 4), np.float32)
    found = next(iter(exe.run(None, {"x": zero}).values()))
    np.testing.assert_array_equal(
        found, np.concatenate([new["a"], new["b"], new["t"].T, new["r"][1:4], new["c"].T[1:3]])
    )
    for name in ("t", "c"):
        np.testing.assert_array_equal(exe.read_state(name), new[name], err_msg=name)
