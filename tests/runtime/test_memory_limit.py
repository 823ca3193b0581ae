"""Programs within a limit of memory on the host: the same bits as without, in every mode, and an error before anything is allocated where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from benchmarks.planner.memory_limit import training_step
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.target import host_target
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.graph import Graph, Node, Value
from ostinato.ir.step import Region
from ostinato.ir.types import Array, DType, TensorType
from ostinato.ir.verify import verify
from ostinato.ir.weights import WeightPart
from ostinato.passes.runner import run_pipeline
from ostinato.planner.check import check_program
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.recompute.fit import fit_entry
from ostinato.planner.settings import PlanSettings
from ostinato.runtime.device import WeightSource
from ostinato.runtime.executable import Executable, load_program
from ostinato.runtime.options import Route
from ostinato.runtime.program import Program
from tests.frontend.make_encoders import write_encoder
from tests.fuzz.growth import MemorySource
from tests.fuzz.random_graphs import random_case

MODES = ("reference", "eager", "planned")
ROWS, WIDTH = 64, 64
DEVICE = HostDevice(threads=2)


class Network:
    """A graph with its weights."""

    def __init__(self, name: str, seed: int) -> None:
        self.builder = GraphBuilder(name)
        self.source = MemorySource()
        self._rng = np.random.default_rng(seed)

    def input(self, name: str) -> Tensor:
        return self.builder.input(name, TensorType((ROWS, WIDTH), DType.F32))

    def linear(self, x: Tensor, rows: int) -> Tensor:
        columns = x.type.static_shape[-1]
        name = f"w{len(self.source.arrays)}"
        array = self._rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
        self.source.arrays[name] = (array, DType.F32, (rows, columns))
        weight = self.builder.weight(name, TensorType((rows, columns), DType.F32), (WeightPart(name, 0, rows),))
        return self.apply("linear", x, weight)

    def apply(self, op: str, *operands: Tensor) -> Tensor:
        return self.builder.apply(op, operands)


def load(graph: Graph, source: WeightSource, limit: int | None, order: str = "search") -> tuple[Executable, EntryPlan]:
    """The graph in planned mode within a limit, verified and proven."""
    target = host_target()
    lowered = run_pipeline(graph, target).graph
    settings = PlanSettings(order=order, memory_limit=limit)
    planned, plan = fit_entry(lowered, target, name="main", settings=settings)
    verify(planned, target=target, phase="selected")
    program = build_program({"main": (planned, plan)})
    graphs, originals = {"main": planned}, {"main": lowered}
    check_program(program, graphs, target, sources=originals)
    loaded = Program(program, graphs, target, source, originals)
    return load_program(loaded, Route(DEVICE, "planned"), kind=Executable), plan


def results(executable: Executable, inputs: Mapping[str, Array]) -> dict[str, dict[str, bytes]]:
    """The outputs of each mode as bytes; the planned arena is poisoned before."""
    arena = executable.regions.arena
    size = executable.program.plan.size_of(Region(executable.device.name, "arena"))
    arena.fill(0xFF, 0, size)
    found = {mode: executable if mode == executable.mode else executable.clone(mode) for mode in MODES}
    return {
        mode: {name: array.tobytes() for name, array in exe.run(None, inputs).items()} for mode, exe in found.items()
    }


def long_lived() -> tuple[Graph, MemorySource]:
    """Two activations that a block begins with and that are read again after it, as gates and residual branches are."""
    network = Network("long_lived", 1)
    x = network.input("x")
    gate, skip = network.apply("gelu", x), network.apply("silu", x)
    hidden = network.linear(gate + skip, WIDTH)
    for _ in range(3):
        hidden = network.linear(network.apply("tanh", network.linear(hidden, WIDTH)), WIDTH)
    return network.builder.finish([hidden * gate + skip]), network.source


def test_a_long_lived_cheap_value_fits_at_70_percent_with_the_same_bits(rng: np.random.Generator) -> None:
    graph, source = long_lived()
    inputs = {"x": rng.standard_normal((ROWS, WIDTH), np.float32)}
    unlimited, free = load(graph, source, None)
    limited, plan = load(graph, source, free.stats.arena_bytes * 7 // 10)
    assert plan.stats.arena_bytes <= 0.7 * free.stats.arena_bytes
    assert limited.memory.arena == plan.stats.arena_bytes
    assert set(plan.clones.values()) == {"gelu", "silu"}
    assert plan.stats.extra_work < 0.1
    assert results(limited, inputs) == results(unlimited, inputs)


def gradients(inputs: Mapping[str, Array], layers: int) -> list[Array]:
    """Those of `training_step`, in float64 and by the rules of calculus."""
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    hidden: list[Array] = [wide["x"]]
    active: list[Array] = []
    for i in range(layers):
        active.append(np.tanh(hidden[-1] @ wide[f"a{i}"].T))
        hidden.append(hidden[-1] + active[-1] @ wide[f"b{i}"].T)
    found: list[Array] = []
    gradient = wide["gradient"]
    for i in reversed(range(layers)):
        of_sum = gradient @ wide[f"b{i}"] * (1 - active[i] ** 2)
        found = [of_sum.T @ hidden[i], gradient.T @ active[i], *found]
        gradient = gradient + of_sum @ wide[f"a{i}"]
    return [*found, gradient]


def test_a_training_step_fits_in_a_part_of_its_memory(rng: np.random.Generator) -> None:
    """Ten layers with every gradient: the forward pass is a third of the work."""
    layers, rows, width, inner = 10, 8, 64, 256
    graph = training_step(layers, rows, width, inner)
    inputs = {
        item.value.name: rng.standard_normal(item.value.type.static_shape, np.float32) / np.float32(16)
        for item in graph.inputs
    }
    unlimited, free = load(graph, MemorySource(), None)
    expected = results(unlimited, inputs)
    found = unlimited.run(None, inputs)
    for name, gradient in zip(graph.outputs, gradients(inputs, layers), strict=True):
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-4, err_msg=name)
    for part, most_work in ((0.7, 0.09), (0.5, 0.14), (0.3, 0.2), (0.25, 0.4)):
        limited, plan = load(graph, MemorySource(), int(free.stats.arena_bytes * part))
        assert plan.stats.arena_bytes <= part * free.stats.arena_bytes
        assert 0 < plan.stats.extra_work <= most_work, part
        assert results(limited, inputs) == expected, part


def with_late_readers(graph: Graph) -> Graph:
    """Early and late values of one type are added up at the end, so that the early ones live long."""
    alike: dict[TensorType, list[str]] = {}
    for node in graph.nodes:
        for value in node.results:
            if value.type.dtype is DType.F32:
                alike.setdefault(value.type, []).append(value.name)
    late: list[Node] = []
    for tensor, names in alike.items():
        for pair in list(zip(names, reversed(names), strict=True))[: min(2, len(names) // 2)]:
            late.append(Node("add", pair, (Value(f"late{len(late)}", tensor),)))
    outputs = (*graph.outputs, *(node.name for node in late))
    return replace(graph, nodes=(*graph.nodes, *late), outputs=outputs)


def test_random_graphs_of_real_operators_give_the_same_bits_within_a_limit(seed: int) -> None:
    found = 0
    for number in range(seed % 1000, seed % 1000 + 25):
        case = random_case(number)
        graph = with_late_readers(case.graph)
        try:
            unlimited, free = load(graph, case.source, None, "program")
            limited, plan = load(graph, case.source, max(free.stats.arena_bytes - 512, 256), "program")
        except (ost.CapacityError, ost.DTypeError):
            continue  # nothing fits, or the precision policy refuses the half floats that were drawn
        found += bool(plan.clones)
        for inputs in case.inputs:
            assert results(limited, inputs) == results(unlimited, inputs), f"case {number}"
    assert found >= 5


# models


def test_every_bucket_of_a_program_keeps_to_the_limit(tiny_model: ost.Model) -> None:
    buckets = {"B": [1, 2], "T": [4, 16]}
    free = ost.compile(tiny_model, buckets=buckets, context=64, threads=1)
    exact = ost.compile(tiny_model, buckets=buckets, context=64, threads=1, memory_limit=free.memory.arena)
    assert exact.memory.arena == free.memory.arena
    assert not any(entry.clones for entry in exact.entries.values())
    limit = free.memory.arena - 256  # the rotary tables of the largest bucket are made again in every layer
    limited = ost.compile(tiny_model, buckets=buckets, context=64, threads=1, memory_limit=limit)
    assert limited.memory.arena <= limit
    assert any(entry.clones for entry in limited.entries.values())
    ids = np.arange(1, 17, dtype=np.int32)[None] % 50
    assert limited(input_ids=ids)["logits"].tobytes() == free(input_ids=ids)["logits"].tobytes()
    assert ost.compare(limited, modes=MODES, replays=2).ok


def test_an_impossible_limit_of_a_program_names_every_bucket_that_is_short(tiny_model: ost.Model) -> None:
    with pytest.raises(ost.CapacityError) as caught:
        ost.compile(tiny_model, buckets={"B": [1], "T": [4, 16]}, context=64, threads=1, memory_limit="1K")
    text = str(caught.value)
    assert text.count("memory_limit is 1024 bytes of arena") == 2
    assert "bytes are missing" in text
    assert "ostinato/frontend/" in text


def test_language_models_and_encoders_keep_to_a_limit(tiny_model: ost.Model, tmp_path: Path) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1)
    limit = llm.executable.memory.arena
    assert (
        ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1, memory_limit=limit).executable.memory.arena == limit
    )
    encoder = write_encoder(tmp_path, seed=5)
    limit = ost.Embedder(encoder, threads=1).executable.memory.arena
    assert ost.Embedder(encoder, threads=1, memory_limit=f"{limit}B").executable.memory.arena == limit
    for make in (
        lambda: ost.LLM(tiny_model, max_num_seqs=1, context=32, memory_limit=1024),
        lambda: ost.Embedder(encoder, memory_limit=1024),
        lambda: ost.compile_encoder(encoder, memory_limit=1024),
    ):
        with pytest.raises(ost.CapacityError, match="memory_limit is 1024 bytes of arena"):
            make()


def test_a_planned_model_with_clones_saves_loads_and_runs(tiny_model: ost.Model, tmp_path: Path) -> None:
    lowered = ost.trace(tiny_model, "step").lower(dims={"N": 16, "R": 1})
    free = lowered.plan()
    planned = lowered.plan(memory_limit=free.plan.stats.arena_bytes - 256)
    assert planned.plan.clones
    assert planned.graph is not lowered.graph
    planned.check()
    planned.save(tmp_path / "plan.json")
    again = lowered.load_plan(tmp_path / "plan.json", free.plan.stats.arena_bytes - 256)
    assert (again.graph, again.program) == (planned.graph, planned.program)
    assert ost.compare(again.load(), modes=("eager", "planned"), replays=1).ok


@pytest.mark.parametrize("limit", [-1, "lots", "", 1.5, True])
def test_what_is_no_number_of_bytes_is_refused(limit: object, tiny_model: ost.Model) -> None:
    lowered = ost.trace(tiny_model, "step").lower(dims={"N": 4, "R": 1})
    with pytest.raises(ost.ConfigError, match="memory_limit"):
        lowered.plan(memory_limit=limit)  # type: ignore[arg-type]
