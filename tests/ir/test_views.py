"""Where values lie: offsets and strides through chains of views against numpy's own, storage classes, call sites, counted extents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ir.errors import LayoutError
from ostinato.ir.graph import Attributes, Graph, GraphInput, Node, Role, Value
from ostinato.ir.opdef import Attr
from ostinato.ir.ops import OP
from ostinato.ir.text import parse_graph
from ostinato.ir.types import Array, DType, TensorType, is_contiguous
from ostinato.ir.views import StorageView, ViewTable, call_site, extent_input

Step = tuple[str, dict[str, Attr], Array]


def moved(array: Array, choice: st.DataObject) -> Step:
    """One random view of `array` with what numpy makes of it; a reshape that numpy would copy is not drawn."""
    kinds = ["transpose"]
    if array.ndim and array.size:
        kinds.append("slice")
    if array.flags.c_contiguous and array.size:
        kinds.append("reshape")
    kind = choice.draw(st.sampled_from(kinds))
    if kind == "transpose":
        order = tuple(choice.draw(st.permutations(range(array.ndim))))
        return kind, {"order": order}, array.transpose(order)
    if kind == "slice":
        axis = choice.draw(st.integers(0, array.ndim - 1))
        start = choice.draw(st.integers(0, array.shape[axis]))
        stop = choice.draw(st.integers(start, array.shape[axis]))
        step = choice.draw(st.integers(1, 3))
        index = (slice(None),) * axis + (slice(start, stop, step),)
        return kind, {"axis": axis, "start": start, "stop": stop, "step": step}, array[index]
    shapes: list[tuple[int, ...]] = [(array.size,), (1, array.size), (array.size, 1)]
    shapes += [(array.size // n, n) for n in (2, 3) if array.size % n == 0]
    shape = choice.draw(st.sampled_from(shapes))
    return kind, {"shape": shape}, array.reshape(shape)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 5), st.data())
def test_chains_of_views_lie_where_numpy_says(shape: list[int], length: int, choice: st.DataObject) -> None:
    base = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    start = base.__array_interface__["data"][0]
    nodes: list[Node] = []
    arrays = [base]
    for number in range(length):
        op, attrs, array = moved(arrays[-1], choice)
        arrays.append(array)
        nodes.append(
            Node(op, (f"v{number}",), (Value(f"v{number + 1}", TensorType(array.shape, DType.I32)),), Attributes(attrs))
        )
    graph = Graph("g", (GraphInput(Value("v0", TensorType(tuple(shape), DType.I32)), Role.INPUT),), tuple(nodes), ())
    table = ViewTable(graph)
    for number, array in enumerate(arrays):
        place = table[f"v{number}"]
        assert place.base == "v0"
        assert place.strides is not None
        assert place.contiguous == array.flags.c_contiguous
        if array.size:
            assert place.offset * 4 == array.__array_interface__["data"][0] - start
            assert [a for a, n in zip(place.strides, array.shape, strict=True) if n > 1] == [
                a // 4 for a, n in zip(array.strides, array.shape, strict=True) if n > 1
            ]


def test_a_reshape_of_a_strided_view_is_refused() -> None:
    graph = parse_graph(
        """graph @g {
  input %x: f32[4,6]
  %t: f32[6,4] = transpose(%x) {order=[1, 0]}
  %r: f32[24] = reshape(%t) {shape=[24]}
  return %r
}"""
    )
    with pytest.raises(LayoutError, match="contiguous"):
        ViewTable(graph)


CACHE = """graph @step {
  input %k: f32[N:3,G:1,D:4]
  input %row: i32[N:3]
  input %position: i32[N:3]
  input %table: i32[R:2,W:1]
  input %length: i32[R:2]
  input %index: i32[R:2]
  input %token_count: i32[1]
  input %row_count: i32[1]
  state %kc: f32[P:2,G:1,S:8,D:4]
  state %vc: f32[P:2,G:1,S:8,D:4]
  extent N = %token_count
  extent R = %row_count
  %k2: f32[P:2,G:1,S:8,D:4], %v2: f32[P:2,G:1,S:8,D:4] = kv_store(%k, %k, %row, %position, %table, %kc, %vc)
  %half: f32[P:1,G:1,S:8,D:4] = slice(%k2) {axis=0, start=1, stop=2}
  %y: f32[N:3,G:1,D:4] = silu(%k)
  %flat: f32[N:3,C:4] = reshape(%y) {shape=[0, 4], axes="NC"}
  %last: f32[R:2,C:4] = gather_rows(%flat, %index)
  return %half, %last
}"""


def test_must_alias_results_and_views_of_them_share_the_storage_of_the_state() -> None:
    table = ViewTable(parse_graph(CACHE))
    assert table["k2"] == StorageView("kc", 0, (32, 32, 4, 1), True)
    assert table["half"] == StorageView("kc", 32, (32, 32, 4, 1), True)
    classes = table.classes()
    assert classes["kc"] == ("kc", "k2", "half")
    assert classes["vc"] == ("vc", "v2")
    assert classes["y"] == ("y", "flat")
    assert len(table) == sum(len(names) for names in classes.values())


def test_counted_extents() -> None:
    graph = parse_graph(CACHE)
    found = {node.name: extent_input(graph, node) for node in graph.nodes}
    assert found == {"k2": "token_count", "half": None, "y": "token_count", "flat": None, "last": "row_count"}


def test_call_sites_are_complete_and_do_not_depend_on_the_table() -> None:
    graph = parse_graph(CACHE)
    table = ViewTable(graph)
    for node in graph.nodes:
        site = call_site(graph, node)
        assert site == call_site(graph, node, table)
        assert len(site.operands) == len(site.strides) == len(OP[node.op].operands)
        assert list(site.node.attrs) == [spec.name for spec in OP[node.op].attrs]
        assert site.counted == (extent_input(graph, node) is not None)
    site = call_site(graph, graph.producers["half"])
    assert site.integer("step") == 1


def test_call_sites_see_strides_through_views_and_absent_operands() -> None:
    graph = parse_graph(
        """graph @g {
  input %x: f32[4,6]
  weight %w: f32[8,6]@panel32
  %s: f32[2,6] = slice(%x) {axis=0, start=1, stop=4, step=2}
  %y: f32[2,8] = linear(%s, %w)
  return %y
}"""
    )
    site = call_site(graph, graph.producers["y"])
    assert site.strides == ((12, 1), None, None, None, None)
    assert not site.has(2)


def test_packed_permuted_and_symbolic_values() -> None:
    graph = parse_graph(
        """graph @g(dims T in [1, 4]) {
  weight %w: f32[8,6]@panel32
  input %p: f32[N:2,C:4]@CN
  input %x: f32[T:T,C:4]
  %t: f32[C:4,T:T] = transpose(%x) {order=[1, 0]}
  return %t
}"""
    )
    table = ViewTable(graph)
    assert table["w"] == StorageView("w", 0, None, True)
    assert table["p"] == StorageView("p", 0, (1, 2), False)
    assert table["x"] == StorageView("x", 0, None, True)
    assert table["t"] == StorageView("x", 0, None, False)


def test_contiguity_ignores_axes_of_one_element_and_empty_values() -> None:
    assert is_contiguous(TensorType((1, 4), DType.F32), (99, 1))
    assert is_contiguous(TensorType((0, 4), DType.F32), (1, 77))
    assert not is_contiguous(TensorType((2, 4), DType.F32), (5, 1))


def test_a_chain_of_20000_views() -> None:
    x = TensorType((2, 3), DType.F32)
    t = TensorType((3, 2), DType.F32)
    nodes = tuple(
        Node("transpose", (f"v{i}",), (Value(f"v{i + 1}", x if i % 2 else t),), Attributes({"order": (1, 0)}))
        for i in range(20_000)
    )
    last = Node("silu", ("v20000",), (Value("y", x),))
    graph = Graph("g", (GraphInput(Value("v0", x), Role.INPUT),), (*nodes, last), ("y",))
    assert ViewTable(graph)["v20000"] == StorageView("v0", 0, (3, 1), True)
    assert call_site(graph, last).strides == ((3, 1),)
