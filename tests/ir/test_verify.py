"""What the verifier reports and how; the rules one by one are the `verify_v*.ir` files beside this one, those without a text form are here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato.ir.verify
from ostinato.ir.errors import ConfigError, DTypeError, LayoutError, ShapeError, VerificationError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Location, Node, Role, Value
from ostinato.ir.target import NATURAL, CallSite, Impl, Level, Target
from ostinato.ir.text import parse_graph
from ostinato.ir.types import Dim, DType, TensorType
from ostinato.ir.verify import PHASES, find_violations, verify

X = TensorType((2, 4), DType.F32, ("N", "C"))
INPUT = GraphInput(Value("x", X), Role.INPUT)


def graph_of(*nodes: Node, inputs: tuple[GraphInput, ...] = (INPUT,), outputs: tuple[str, ...] = ("x",)) -> Graph:
    return Graph("g", inputs, nodes, outputs)


def rules_of(graph: Graph, *, target: Target | None = None, phase: str = "traced") -> list[str]:
    return [item.rule for item in find_violations(graph, target=target, phase=phase)]


def test_every_rule_has_a_failing_test() -> None:
    folder = Path(__file__).parent
    header = (ostinato.ir.verify.__doc__ or "").splitlines()
    rules = [line[:3] for line in header if line[:1] == "V" and line[1:3].isdigit()]
    assert rules == [f"V{number:02}" for number in range(1, len(rules) + 1)]
    for rule in rules:
        files = folder / f"verify_{rule.lower()}.ir"
        here = f"def test_{rule.lower()}_"
        assert files.exists() or here in Path(__file__).read_text(encoding="utf-8"), f"{rule} has no test"


def test_a_sound_graph_passes_every_phase() -> None:
    graph = parse_graph(
        """graph @g {
  input %x: f32[N:2,C:4]@NC
  weight %w: f32[F:8,C:4]@FC = "w"[0:8]
  %y: f32[N:2,F:8]@NF = linear@any(%x, %w) {dtype="", axis="F"}
  %t: f32[F:8,N:2]@FN = transpose(%y) {order=[1, 0]}
  %c: f32[F:8,N:2]@FN = contiguous@any(%t)
  return %c
}"""
    )
    for phase in PHASES:
        verify(graph, phase=phase)


def test_all_errors_are_collected_in_order_with_their_places() -> None:
    graph = parse_graph(
        """graph @g {
  input %x: f32[N:2,C:4]
  %a: f32[N:2,C:4] = silu(%missing) !"models/llama.py":41
  %b: f32[N:2,C:5] = silu(%x) !"models/llama.py":42
  return %a, %b, %c
}"""
    )
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    error = caught.value
    assert [(item.rule, item.statement, item.node, item.location) for item in error.violations] == [
        ("V02", 1, "a", "models/llama.py:41"),
        ("V09", 2, "b", "models/llama.py:42"),
        ("V14", 3, None, ""),
    ]
    assert str(error).startswith(
        "graph @g breaks 3 rules of phase traced\nV02 %a (models/llama.py:41): operand %missing"
    )
    assert """V09 %b (models/llama.py:42): result types of silu are not what its operands give
  expected: f32[N:2,C:4]
  found: f32[N:2,C:5]
  hint: correct the stated types
  | %a: f32[N:2,C:4] = silu(%missing) !"models/llama.py":41
  > %b: f32[N:2,C:5] = silu(%x) !"models/llama.py":42
  | return %a, %b, %c""" in str(error)
    assert error.code == "verification"


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("%y: f32[8] = reshape(%t) {shape=[8]}", LayoutError),
        ("%y: f32[N:2,C:4] = add(%x, %t)", ShapeError),
        ('%y: f32[N:2,C:4] = cast(%x) {dtype="f12"}', DTypeError),
        ("%y: f32[N:2,C:4] = scale(%x)", ConfigError),
    ],
)
def test_the_first_typed_error_is_the_cause(statement: str, kind: type[Exception]) -> None:
    graph = parse_graph(
        f"graph @g {{\n  input %x: f32[N:2,C:4]\n  %t: f32[C:4,N:2] = transpose(%x) {{order=[1, 0]}}\n  {statement}\n  return %y\n}}"
    )
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    assert isinstance(caught.value.__cause__, kind)
    assert caught.value.violations[0].code == getattr(kind, "code", None)


def test_v01_a_node_without_results() -> None:
    assert rules_of(graph_of(Node("silu", ("x",), ()))) == ["V01"]


def test_v06_attributes_without_a_text_form_are_still_reported() -> None:
    odd = Attributes({"factor": np.float32(2)})  # type: ignore[dict-item]
    found = find_violations(graph_of(Node("scale", ("x",), (Value("y", X),), odd, location=Location("m.py", 3))))
    assert [item.rule for item in found] == ["V06"]
    assert "m.py:3" in str(found[0])


def test_v17_constant_data_of_another_type() -> None:
    data = np.zeros((2, 4), np.float64)
    item = GraphInput(Value("x", X), Role.CONSTANT, data=data)
    assert rules_of(graph_of(inputs=(item,))) == ["V17"]
    block = GraphInput(Value("x", TensorType((32,), DType.Q8_0)), Role.CONSTANT, data=np.zeros(34, np.uint8))
    assert rules_of(graph_of(inputs=(block,))) == ["V17", "V19"]


def test_v20_two_bounds_of_one_dimension() -> None:
    one, other = (
        GraphInput(Value(name, TensorType((Dim("T", 1, high),), DType.F32)), Role.INPUT)
        for name, high in (("x", 4), ("y", 5))
    )
    assert rules_of(graph_of(inputs=(one, other))) == ["V20"]


def test_symbolic_graphs_are_judged_as_far_as_they_go() -> None:
    graph = parse_graph(
        """graph @g(dims T in [1, 8]) {
  input %x: f32[T:T,E:2,C:4]
  %t: f32[C:4,E:2,T:T] = transpose(%x) {order=[2, 1, 0]}
  %r: f32[8,T] = reshape(%t) {shape=[8, -1]}
  return %r
}"""
    )
    verify(graph)
    assert [item.rule for item in find_violations(graph.bind({"T": 3}), phase="bound")] == ["V10"]


def takes_even_rows(site: CallSite) -> str | None:
    rows = site.operand(0).static_shape[0]
    return None if rows % 2 == 0 else f"needs an even number of rows, found {rows}"


def row(op: str, name: str, **facts: object) -> Impl:
    no_params: dict[str, object] = {
        "kernel": lambda site: name,
        "params": lambda site: (),
        "operands": ("x", "y"),
        "accepts": takes_even_rows,
    }
    return Impl(op=op, name=name, level=Level.READABLE, architectures=("none",), **{**no_params, **facts})  # type: ignore[arg-type]


TARGET = Target(
    "test",
    (
        row("silu", "even"),
        row("silu", "any_strides", strided=frozenset({"x"})),
        row("silu", "transposed", layouts=(("x", (NATURAL, "CN")), ("y", (NATURAL, "CN")))),
        row("linear", "packed", layouts=(("weight", ("panel32",)),)),
        row("linear", "plain"),
    ),
    device="test:0",
)


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("%y: f32[N:2,C:4]@NC = silu@even(%x)", None),
        ("%y: f32[N:2,C:4]@NC = silu@odd(%x)", "one of: even, any_strides, transposed"),
        ("%y: f32[N:3,C:4]@NC = silu@even(%z)", "needs an even number of rows, found 3"),
        ("%y: f32[N:2,C:4]@NC = silu@even(%s)", "x must be contiguous, found f32[N:2,C:4]@NC with strides [8, 1]"),
        ("%y: f32[N:2,C:4]@NC = silu@any_strides(%s)", None),
        ("%y: f32[N:2,C:4]@NC = silu@even(%p)", "x must be contiguous, found f32[N:2,C:4]@CN with strides [1, 2]"),
        ("%y: f32[N:2,C:4]@NC = silu@transposed(%p)", None),
        ("%y: f32[N:2,C:4]@CN = silu@transposed(%x)", None),
        ("%y: f32[N:2,C:4]@CN = silu@even(%x)", "y must have its natural layout, found f32[N:2,C:4]@CN"),
        ('%y: f32[N:2,F:8]@NF = linear@packed(%x, %w) {axis="F"}', None),
        ('%y: f32[N:2,F:8]@NF = linear@packed(%x, %v) {axis="F"}', "weight must have layout panel32"),
        ('%y: f32[N:2,F:8]@NF = linear@plain(%x, %w) {axis="F"}', "weight must not be packed"),
    ],
)
def test_v23_the_row_takes_the_operands_as_they_lie(statement: str, refusal: str | None) -> None:
    graph = parse_graph(
        f"""graph @g {{
  input %x: f32[N:2,C:4]@NC
  input %z: f32[N:3,C:4]@NC
  input %wide: f32[N:4,C:4]@NC
  input %p: f32[N:2,C:4]@CN
  weight %w: f32[F:8,C:4]@panel32
  weight %v: f32[F:8,C:4]@FC
  %s: f32[N:2,C:4]@NC = slice(%wide) {{axis=0, start=0, stop=3, step=2}}
  {statement}
  return %y
}}"""
    )
    found = find_violations(graph, target=TARGET, phase="selected")
    assert [item.rule for item in found] == ([] if refusal is None else ["V23"])
    assert refusal is None or refusal in str(found[0])


def test_unknown_phases_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown phase 'later'"):
        verify(graph_of(), phase="later")


def test_a_chain_of_20000_nodes() -> None:
    nodes = [Node("silu", ("x",), (Value("v0", X),))]
    nodes += [Node("add", (f"v{i}", "x"), (Value(f"v{i + 1}", X),)) for i in range(20_000)]
    verify(graph_of(*nodes, outputs=("v20000",)))


def test_a_graph_full_of_errors_is_reported_in_full() -> None:
    nodes = [Node("silu", ("nothing",), (Value(f"v{i}", X),)) for i in range(500)]
    with pytest.raises(VerificationError) as caught:
        verify(graph_of(*nodes))
    assert len(caught.value.violations) == 500
    assert str(caught.value).count("V02") == 500
