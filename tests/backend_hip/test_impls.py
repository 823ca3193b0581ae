"""Implementation rows on the native device: every row on every sample that it accepts, whole decoders, in-place pairs, and the reasons rows give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.target import host_target
from ostinato.ir.errors import BackendError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.interp import interpret
from ostinato.ir.opdef import OpDef, Sample
from ostinato.ir.ops import OP, OPS
from ostinato.ir.ops.samplers import materialise
from ostinato.ir.target import Impl
from ostinato.ir.types import Array, DType
from ostinato.ir.views import call_site
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.choice import RowChoice
from ostinato.passes.pipeline import PipelineOptions, pipeline
from ostinato.passes.runner import run_pipeline
from ostinato.passes.select_impl import SelectImpl
from tests.backend_hip.execute import execute
from tests.ir.test_ops_table import FOR_GPUS
from tests.passes.graphs import Builder, Config, decoder, input_values, run, tensors

HOST = host_target()
COMPUTED = tuple(op for op in OPS if not op.is_view)
OPTIONAL = frozenset(item.name for item in pipeline() if item.optional)


@cache
def device(isa: str = "auto", threads: int = 2) -> HostDevice:
    return HostDevice(threads, isa)


def graph_of(opdef: OpDef, sample: Sample) -> Graph:
    """A graph of one node, its operands as inputs named after the schema."""
    overwritten = {operand for _, operand in opdef.must_alias}
    inputs = []
    for index, (spec, operand) in enumerate(zip(opdef.operands, sample.operands, strict=False)):
        if operand is not None:
            role = Role.STATE if index in overwritten else Role.WEIGHT if spec.name == "weight" else Role.INPUT
            inputs.append(GraphInput(Value(spec.name, operand.type), role))
    attrs = Attributes(opdef.attributes(sample.attrs))
    types = opdef.infer([None if operand is None else operand.type for operand in sample.operands], attrs)
    results = tuple(Value(f"result.{i}", tensor) for i, tensor in enumerate(types))
    operands = tuple(
        None if operand is None else spec.name for spec, operand in zip(opdef.operands, sample.operands, strict=False)
    )
    return Graph(
        "one", tuple(inputs), (Node(opdef.name, operands, results, attrs),), tuple(value.name for value in results)
    )


def lowered(graph: Graph, row: Impl) -> Graph | None:
    """The graph with `row` chosen, None when the row refuses it."""
    choice = RowChoice(forced=((row.op, row.name), ("contiguous", "host")))
    try:
        return SelectImpl(choice).apply(AssignLayout(choice).apply(graph, HOST), HOST)
    except BackendError:
        return None


def samples(opdef: OpDef, rng: np.random.Generator) -> Iterator[tuple[Graph, dict[str, Array]]]:
    for sample in opdef.samples(rng):
        if sample.error is None:
            graph = graph_of(opdef, sample)
            names = [item.value.name for item in graph.inputs]
            arrays = [materialise(operand, rng) for operand in sample.operands if operand is not None]
            yield graph, dict(zip(names, arrays, strict=True))


def test_every_operator_has_a_row_and_names_are_unique() -> None:
    without = {op.name for op in COMPUTED} - {row.op for row in ROWS}
    assert without <= FOR_GPUS, "a pass makes these where a GPU has a row; here their reference runs"
    assert {row.op for row in HOST.rows} == {op.name for op in COMPUTED}
    assert not [identity for identity, count in Counter(row.identity for row in ROWS).items() if count > 1]


@pytest.mark.parametrize("isa", _native.isa_available())
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.identity)
def test_row_equals_the_reference_on_every_sample_it_accepts(row: Impl, isa: str, rng: np.random.Generator) -> None:
    opdef, accepted = OP[row.op], 0
    for graph, values in samples(opdef, rng):
        chosen = lowered(graph, row)
        if chosen is None:
            continue
        accepted += 1
        expected = interpret(graph, values)
        actual = execute(device(isa), chosen, HOST, values)
        for value in graph.nodes[0].results:
            tolerance = opdef.tolerance.for_result(value.type.dtype)
            np.testing.assert_allclose(
                _comparable(actual[value.name]),
                _comparable(expected.outputs[value.name]),
                rtol=tolerance.relative,
                atol=tolerance.absolute,
                err_msg=f"{row.identity} {value.type}",
            )
    assert accepted, f"no sample of {row.op} suits {row.identity}"


def _comparable(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.identity)
def test_row_fits_its_kernel(row: Impl, rng: np.random.Generator) -> None:
    kernels = _native.kernel_names()
    absent = {index for index, name in enumerate(row.operands) if name in ("-", "count")}
    absent |= {
        index
        for index, name in enumerate(row.operands)
        if name in {spec.name for spec in OP[row.op].operands if spec.optional}
    }
    absent |= {index for index, name in enumerate(row.operands) if name in ("y1", "y2")}
    for graph, _ in samples(OP[row.op], rng):
        chosen = lowered(graph, row)
        if chosen is None:
            continue
        node = next(node for node in chosen.nodes if node.op == row.op)
        site = call_site(chosen, node)
        operands, params, optional = kernels[row.kernel(site)]
        assert len(row.operands) == operands
        assert len(row.params(site)) == params
        assert all(optional >> index & 1 for index in absent)
        assert all(type(value) in (int, float) for value in row.params(site))


@pytest.mark.parametrize("row", [row for row in ROWS if row.in_place], ids=lambda row: row.identity)
def test_a_result_may_take_the_bytes_of_an_operand(row: Impl, rng: np.random.Generator) -> None:
    opdef, tried = OP[row.op], Counter[str]()
    for graph, values in samples(opdef, rng):
        chosen = lowered(graph, row)
        if chosen is None:
            continue
        apart = execute(device(), chosen, HOST, values)
        for result, operand in ((result, operand) for result, operand in row.in_place if operand in graph.types):
            value = chosen.nodes[-1].results[opdef.results.index(result)]
            source = graph.types[operand]
            assert (value.type.dtype, value.type.shape) == (source.dtype, source.shape), (
                "in place needs elements of one size"
            )
            together = execute(device(), chosen, HOST, values, {value.name: operand})
            for other in chosen.nodes[-1].results:
                assert together[other.name].tobytes() == apart[other.name].tobytes(), (
                    f"{row.identity} {result} in {operand}"
                )
            tried[f"{result} in {operand}"] += 1
    assert len(tried) == len(row.in_place)


CONFIGS = {
    "dense": Config(),
    "packed": Config(packed=True),
    "biases": Config(bias=True, layers=1, packed=True, tied=False),
    "blocks": Config(matrix=DType.Q8_0, layers=1, width=16, heads=2, kv_heads=1, ffn=64),
    "mixed": Config(query=DType.Q8_0, layers=1, packed=True),
}


@pytest.mark.parametrize("disable", [frozenset(), OPTIONAL], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_equals_the_interpreter(name: str, disable: frozenset[str], rng: np.random.Generator) -> None:
    config = CONFIGS[name]
    graph = decoder(config)
    values, checkpoint = input_values(config, rng), tensors(graph, rng)
    chosen = run_pipeline(graph, HOST, PipelineOptions(disable=disable)).graph
    expected, actual = (
        run(graph, values, checkpoint),
        execute(device(), chosen, HOST, {**values, **stored(chosen, checkpoint)}),
    )
    spread = float(np.std(expected.outputs["logits"]))
    np.testing.assert_allclose(actual["logits"], expected.outputs["logits"], rtol=0, atol=1e-4 * spread)
    for cache_name, array in expected.state.items():
        np.testing.assert_allclose(actual[cache_name], array, rtol=0, atol=1e-4)


def test_a_bf16_decoder_stays_near_the_interpreter_on_the_same_graph(rng: np.random.Generator) -> None:
    config = Config(matrix=DType.BF16, packed=True, cache=DType.BF16)
    graph = decoder(config)
    values, checkpoint = input_values(config, rng), tensors(graph, rng)
    chosen = run_pipeline(graph, HOST, PipelineOptions("bf16")).graph
    expected, actual = (
        run(chosen, values, checkpoint),
        execute(device(), chosen, HOST, {**values, **stored(chosen, checkpoint)}),
    )
    spread = float(np.std(expected.outputs["logits"]))
    np.testing.assert_allclose(actual["logits"], expected.outputs["logits"], rtol=0, atol=0.03 * spread)


def stored(graph: Graph, checkpoint: dict[str, Array]) -> dict[str, Array]:
    """Weights in the dtype of their type, from their parts."""
    found = {}
    for item in graph.with_role(Role.WEIGHT):
        joined = np.concatenate([checkpoint[part.tensor][part.start : part.stop] for part in item.parts])
        dtype = item.value.type.dtype
        found[item.value.name] = joined if dtype.is_block else joined.astype(dtype.numpy)
    return found


def refusal(
    row: str, op: str, *operands: tuple[tuple[int, ...], DType], axes: str = "", **attrs: float | str
) -> str | None:
    builder = Builder("g")
    names = [spec.name for spec in OP[op].operands]
    for name, (shape, dtype) in zip(names, operands, strict=False):
        builder.value(name, shape, axes if name == names[0] else "", dtype)
    count = builder.value("n", (1,), dtype=DType.I32)
    builder.add(op, names[: len(operands)], "y", **attrs)
    graph = builder.graph(("y",), (("N", count),))
    found = HOST.row(op, row)
    assert found is not None
    return found.accepts(call_site(graph, graph.nodes[0]))


def test_rows_say_why_they_refuse() -> None:
    f32, f16, bf16 = DType.F32, DType.F16, DType.BF16
    vector = ((8,), f32)
    assert refusal("host", "rms_norm", ((2, 4, 8), f32), vector, axes="N__", eps=1e-5) == (
        "the valid-rows count is of axis 0, the kernel's rows are axes 0 to 1 of f32[N:2,4,8]"
    )
    assert refusal("host_all_rows", "rms_norm", ((2, 4, 8), f32), vector, axes="N__", eps=1e-5) is None
    assert refusal("host", "rms_norm", ((2, 4, 8), f32), vector, eps=1e-5) is None
    assert refusal("host", "swiglu", ((2, 8), f32), ((2, 8), f32), dtype="bf16") == "y must be f32, found bf16"
    assert refusal("host_convert", "swiglu", ((2, 8), f32), ((2, 8), f32), dtype="bf16") is None
    assert refusal("host_head_major", "rope_split_half", ((2, 1, 8), f32), ((2, 4), f32), ((2, 4), f32)) == (
        "head-major results need four named axes, found f32[2,1,8]"
    )
    assert refusal("host", "linear", ((2, 8), f16), ((4, 8), f16)) is None
    assert refusal("host", "contiguous", ((1,) * 7, bf16)) == "the kernel copies at most 6 axes, found 7"
