"""The text form: byte-exact round trips over random graphs, and errors that name the place."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.ir.errors import TextError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Location, Node, Role, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.text import graph_hash, parse_graph, print_graph
from ostinato.ir.types import PACKED_LAYOUTS, Array, Dim, DType, Extent, TensorType
from ostinato.ir.weights import WeightPart

PLAIN = [dtype for dtype in DType if not dtype.is_block]
# every code point, lone surrogates included; some names that a sloppy grammar would trip over
TEXTS = st.one_of(
    st.text(st.characters(), max_size=8),
    st.sampled_from(
        [
            "a",
            "layers.0.q",
            "_",
            "",
            "0",
            "return",
            'x"y',
            "a\\",
            "é/ü.py",
            "\u2028",
            "#",
            "%",
            "true",
            "\ud800\udc00",
            "nan",
        ]
    ),
)
INTS = st.integers(-(2**63), 2**63 - 1)
ATTRS: st.SearchStrategy[Attr] = st.one_of(
    st.booleans(), INTS, st.floats(), TEXTS, st.lists(INTS, max_size=3).map(tuple)
)


@st.composite
def tensor_types(draw: st.DrawFn, dims: tuple[Dim, ...] = (), dtypes: list[DType] | None = None) -> TensorType:
    rank = draw(st.integers(0, 4))
    extents: st.SearchStrategy[Extent] = st.integers(0, 4) | st.sampled_from(dims) if dims else st.integers(0, 4)
    shape = tuple(draw(extents) for _ in range(rank))
    letters = draw(st.permutations("NBTHD"))[:rank]
    axes = tuple(letter if draw(st.booleans()) else "" for letter in letters)
    plain = TensorType(shape, draw(st.sampled_from(dtypes or list(DType))), axes)
    layouts: list[str | None] = [None, plain.natural_layout, *PACKED_LAYOUTS]
    if rank and all(axes):
        layouts.append("".join(draw(st.permutations(axes))))
    return plain.with_layout(draw(st.sampled_from(layouts)))


@st.composite
def constants(draw: st.DrawFn) -> GraphInput:
    tensor = draw(tensor_types(dtypes=PLAIN))
    data: Array = np.frombuffer(
        draw(st.binary(min_size=(size := tensor.elements * tensor.dtype.numpy.itemsize), max_size=size)),
        tensor.dtype.numpy,
    ).reshape(tensor.static_shape)
    return GraphInput(Value(draw(TEXTS), tensor), Role.CONSTANT, data=data)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph that can be built, sense or no sense: names may repeat, operands need not exist."""
    bounds = st.tuples(st.integers(0, 9), st.integers(0, 9))
    dims = tuple(
        Dim(name, low, low + more)
        for name, (low, more) in draw(st.dictionaries(st.sampled_from(["T", "B", "size_1"]), bounds)).items()
    )
    types = tensor_types(dims)
    values = st.builds(Value, TEXTS, types)
    parts = st.lists(st.builds(WeightPart, TEXTS, INTS, INTS, st.just("none") | TEXTS), max_size=2).map(tuple)
    inputs = st.builds(GraphInput, values, st.sampled_from(Role), parts, carried=st.booleans()) | constants()
    locations = st.none() | st.builds(Location, TEXTS, INTS)
    nodes = st.builds(
        Node,
        TEXTS,
        st.lists(st.none() | TEXTS, max_size=3).map(tuple),
        st.lists(values, min_size=1, max_size=2).map(tuple),
        st.dictionaries(TEXTS, ATTRS, max_size=3).map(Attributes),
        st.none() | TEXTS,
        locations,
    )
    return Graph(
        draw(TEXTS),
        tuple(draw(st.lists(inputs, max_size=3))),
        tuple(draw(st.lists(nodes, max_size=3))),
        tuple(draw(st.lists(TEXTS, max_size=2))),
        tuple(draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=2))),
    )


@given(graphs())
@settings(max_examples=200)
def test_round_trip(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text)
    assert again == graph
    assert print_graph(again) == text
    assert graph_hash(again) == graph_hash(graph)
    # one statement a line for every reader of lines, and writable to a file
    statements = 3 + len(graph.inputs) + len(graph.extents) + len(graph.nodes)
    assert len(text.splitlines()) == statements
    assert text.encode("utf-8").decode("utf-8") == text


def place_of_error(text: str) -> tuple[int, int] | None:
    """Where the parser stops, None when it does not; any other exception is a mistake."""
    try:
        parse_graph(text)
    except TextError as error:
        return error.line, error.column
    return None


@given(st.text(st.sampled_from(list('graph @{}()[]%:=,"\\!#\n _x01.-ihex')), max_size=60))
def test_any_text_is_a_graph_or_a_text_error(text: str) -> None:
    line, column = place_of_error(text) or (1, 1)
    assert 1 <= line <= text.count("\n") + 1
    assert column >= 1


@given(st.integers(0, 600), st.characters())
def test_a_damaged_graph_is_a_graph_or_a_text_error(place: int, character: str) -> None:
    text = print_graph(chain(4))
    line, _ = place_of_error(text[:place] + character + text[place + 1 :]) or (1, 1)
    assert 1 <= line <= text.count("\n") + 2


def chain(length: int) -> Graph:
    x = TensorType((128, 64), DType.F32, ("N", "C"))
    nodes = tuple(
        Node(
            "add", (f"x.{i}", "x.0"), (Value(f"x.{i + 1}", x),), Attributes({"eps": 1e-6}), "host", Location("m.py", i)
        )
        for i in range(length)
    )
    return Graph("chain", (GraphInput(Value("x.0", x), Role.INPUT),), nodes, (f"x.{length}",))


def test_a_chain_of_20000_nodes() -> None:
    graph = chain(20_000)
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text


def test_floats_keep_every_bit_and_kind() -> None:
    values = [1e-06, 1.0, -0.0, 0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308, 0.1, 1e16]
    attrs = Attributes({f"a{i}": value for i, value in enumerate(values)})
    value = Value("y", TensorType((), DType.F32))
    graph = Graph("g", (), (Node("op", (), (value,), attrs),), ("y",))
    found = parse_graph(print_graph(graph)).nodes[0].attrs
    assert [repr(item) for item in found.values()] == [repr(item) for item in values]
    assert found == attrs
    assert Attributes({"a": 0.0}) != Attributes({"a": -0.0})
    assert Attributes({"a": 1}) != Attributes({"a": True})


def test_constant_data_of_every_dtype() -> None:
    data = np.array([0.5, -2.0, math.inf], ml_dtypes.bfloat16)
    graph = Graph("g", (GraphInput(Value("c", TensorType((3,), DType.BF16)), Role.CONSTANT, data=data),), (), ("c",))
    text = print_graph(graph)
    assert "constant %c: bf16[3] = hex:003f00c0807f" in text
    assert parse_graph(text) == graph


def test_a_large_constant() -> None:
    data = np.arange(1_000_000, dtype=np.float32)
    graph = Graph(
        "g", (GraphInput(Value("c", TensorType((1_000_000,), DType.F32)), Role.CONSTANT, data=data),), (), ("c",)
    )
    assert parse_graph(print_graph(graph)) == graph


def test_the_hash_sees_everything() -> None:
    base = chain(2)
    text = print_graph(base)
    changed = [
        text.replace("@chain", "@other"),
        text.replace("1e-06", "1e-05"),
        text.replace('"m.py":1', '"m.py":2'),
        text.replace("C:64", "D:64"),
        text.replace("@host(", "(", 1),
    ]
    hashes = {graph_hash(base), *(graph_hash(parse_graph(item)) for item in changed)}
    assert len(hashes) == len(changed) + 1
    assert len(graph_hash(base)) == 64


def wrap(statement: str) -> str:
    return f"graph @g(dims T in [1, 4]) {{\n  input %x: f32[T:T]\n  {statement}\n  return %x\n}}\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected a graph"),
        ("grph @g {", 1, 1, "expected 'graph', found 'grph @g {'"),
        ("graph @g {\n  return\n", 3, 1, "expected '}'"),
        ("graph @g {\n  return\n}\nx", 4, 1, "expected the end of the text"),
        ("graph @g(dims T in [4, 1]) {", 1, 15, "has bounds [4, 1]"),
        ("graph @g(dims T in [1, 4], T in [1, 4]) {", 1, 28, "declared twice"),
        ("graph @g(dims T in [1, 4]) {\n  return\n}", 1, 1, "no type names the dimensions ['T']"),
        (wrap("input %y: f32[Q]"), 3, 17, "expected an integer or a dimension, found 'Q'"),
        (wrap("input %y: f33[4]"), 3, 13, "unknown dtype 'f33'"),
        (wrap("input %y: f32[N:4,N:4]"), 3, 13, "repeat"),
        (wrap("input %y: f32[n:4]"), 3, 13, "not one capital letter"),
        (wrap("input %y: f32[N:4]@T"), 3, 13, "does not fit axes"),
        (wrap("input %y: f32[4] = hex:0000"), 3, 26, "expected 32 hexadecimal digits"),
        (wrap("input %y: f32[T] = hex:0000"), 3, 26, "cannot hold data"),
        (wrap("input %y: q8_0[32] = hex:0000"), 3, 28, "cannot hold data"),
        (wrap("inputs %y: f32[4]"), 3, 3, "unknown statement 'inputs'"),
        (wrap("extent N = %x\n  input %y: f32[4]"), 4, 3, "expected every input before the nodes"),
        (wrap('weight %w: f32[4] = "a"[0:4] "b"[0:4]'), 3, 35, "expected the end of the statement"),
        (wrap("weight %w: f32[4] = a[0:4]"), 3, 23, "expected a tensor name"),
        (wrap("%y: f32[T:T]"), 3, 15, "expected '=', found the end of the line"),
        (wrap("%y = silu(%x)"), 3, 6, "expected ':'"),
        (wrap("%y: f32[T:T] = silu(x)"), 3, 23, "expected an operand"),
        (wrap("%y: f32[T:T] = silu(%x"), 3, 25, "expected ','"),
        (wrap("%y: f32[T:T] = silu(%x) {a=1 b=2}"), 3, 32, "expected ','"),
        (wrap("%y: f32[T:T] = silu(%x) {a=1, a=2}"), 3, 33, "attribute a is given twice"),
        (wrap("%y: f32[T:T] = silu(%x) {a=yes}"), 3, 30, "expected an attribute value"),
        (wrap("%y: f32[T:T] = silu(%x) {a=9223372036854775808}"), 3, 30, "does not fit 64 bits"),
        (wrap('%y: f32[T:T] = silu(%x) {a="b}'), 3, 30, "expected a closed string"),
        (wrap('%y: f32[T:T] = silu(%x) {a="b\\q"}'), 3, 32, "unknown escape"),
        (wrap('%y: f32[T:T] = silu(%x) {a="\\u{110000}"}'), 3, 31, "unknown escape"),
        (wrap('%y: f32[T:T] = silu(%x) !"m.py"'), 3, 34, "expected ':'"),
        (wrap("%y: f32[T:T] = silu(%x) !m.py:3"), 3, 28, "expected a string in double quotes"),
        (wrap("%: f32[T:T] = silu(%x)"), 3, 4, "expected a value name after %"),
        (wrap("return %x\n  return %x"), 4, 3, "expected '}'"),
    ],
)
def test_errors_name_line_and_column(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert f"line {line}, column {column}" in str(caught.value)


def test_long_lines_are_shown_in_part() -> None:
    with pytest.raises(TextError) as caught:
        parse_graph(wrap(f'%y: f32[T:T] = silu(%x) {{a="{"z" * 100_000}", b=?}}'))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [2**63, (2**63,), (True,), [1], None, np.float32(1), b"x"])
def test_attributes_without_a_text_form_are_refused(value: Attr) -> None:
    node = Node("op", (), (Value("y", TensorType((), DType.F32)),), Attributes({"a": value}))
    with pytest.raises(TextError, match="attribute a"):
        print_graph(Graph("g", (), (node,), ("y",)))


def test_constants_that_do_not_match_are_refused() -> None:
    item = GraphInput(Value("c", TensorType((2,), DType.F32)), Role.CONSTANT, data=np.zeros(2, np.int32))
    with pytest.raises(TextError, match="do not match"):
        print_graph(Graph("g", (item,), (), ()))


def test_a_node_without_results_is_refused() -> None:
    with pytest.raises(TextError, match="no result"):
        print_graph(Graph("g", (), (Node("op", (), ()),), ()))


def test_windows_line_ends_are_read() -> None:
    text = print_graph(chain(3))
    assert parse_graph(text.replace("\n", "\r\n")) == parse_graph(text)
