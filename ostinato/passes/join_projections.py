"""For training, before anything is differentiated: projections of one input become one, by a parameter that is theirs joined.

Two or three products forward, and four or six backward, are then one and two, and an optimizer updates one parameter in place of three: elementwise, so that
every number is what it would be. The parts of the joined weight are those of the single ones, in order, so that original names stay what is read and saved.
A weight may be used by several micro-batches, as long as all of them use it together with the same others. `apart` takes the joint projections apart again when
gradients are there: one product, whose columns are read as views.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from ostinato.ir.graph import Graph, GraphInput, Node, Role, Value
from ostinato.passes.rewrite import (
    Names,
    fused_input,
    infer,
    joined_projections,
    joint_product,
    new_node,
    range_attrs,
    rebuilt,
    replace_nodes,
    reshape_node,
)

__all__ = ["apart", "join_projections"]

MOST = 3
"""Projections that become one: query, key and value, or gate and up."""


def join_projections(graph: Graph, frozen: Collection[str] = ()) -> Graph:
    """The graph with `linear_split` in place of linears of one input, by weights that are joined; those with a frozen weight stay as they are."""
    groups = [group for group in _groups(graph, frozen) if 2 <= len(group) <= MOST]
    together = _together(graph, groups)
    names, joined = Names(graph), dict[tuple[str, ...], GraphInput]()
    replaced: dict[str, Node | None] = {}
    inputs: dict[str, GraphInput] = {}
    for group in groups:
        tuples = [_names_of(group, place) for place in range(1, len(group[0].operands))]
        if any(together.get(name) != given for given in tuples for name in given):
            continue
        for given in tuples:
            if given not in joined:
                joined[given] = fused_input([graph.inputs_by_name[name] for name in given], names)
                inputs.update(dict.fromkeys(given, joined[given]))
        weights = [joined[given].value.name for given in tuples]
        replaced.update((node.name, None) for node in group)
        replaced[group[0].name] = joined_projections(group, weights, graph.types)
    return replace_nodes(graph, replaced, inputs)


def apart(graph: Graph) -> Graph:
    """The graph with one `linear` and views of its columns in place of each `linear_split`."""
    names, types = Names(graph), dict(graph.types)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op != "linear_split":
            nodes.append(node)
            continue
        joint = joint_product(node, names.unique(f"{node.name}.joint"), types)
        types[joint.name] = joint.results[0].type
        nodes.append(joint)
        first, axis = 0, joint.results[0].type.rank - 1
        for value in node.results:
            extent = value.type.static_shape[-1]
            attrs = range_attrs(axis, first, extent)
            (tensor,) = infer("slice", (joint.name,), attrs, types)
            first += extent
            seen = Value(value.name, tensor)
            if tensor.axes == value.type.axes:
                nodes.append(new_node("slice", (joint.name,), (seen,), attrs, node.location))
                continue
            seen = Value(names.unique(f"{value.name}.columns"), tensor)
            nodes.append(new_node("slice", (joint.name,), (seen,), attrs, node.location))
            nodes.append(reshape_node(seen.name, value, node.location))
    return rebuilt(graph, nodes)


def _groups(graph: Graph, frozen: Collection[str]) -> list[list[Node]]:
    """Linears of one input, in program order, whose operands are weights of like dtypes."""
    found: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node.op != "linear" or not 2 <= len(node.operands) <= 3:
            continue
        given = [name or "" for name in node.operands[1:]]
        items = [graph.inputs_by_name.get(name) for name in given]
        if any(item is None or item.role is not Role.WEIGHT or not item.parts for item in items):
            continue
        if frozen and not set(given).isdisjoint(frozen):
            continue
        tensors = [graph.types[name] for name in given]
        if not all(tensor.dtype.is_float for tensor in tensors):
            continue
        alike = (tuple(tensor.dtype for tensor in tensors), tensors[0].shape[1:], tensors[0].axes[1:])
        found.setdefault((node.operands[0], alike, node.results[0].type.dtype), []).append(node)
    return list(found.values())


def _names_of(group: Sequence[Node], place: int) -> tuple[str, ...]:
    return tuple(node.operands[place] or "" for node in group)


def _together(graph: Graph, groups: Sequence[Sequence[Node]]) -> dict[str, tuple[str, ...]]:
    """With which others a weight is always used, by name; weights that are also used otherwise are left out."""
    found: dict[str, tuple[str, ...]] = {}
    counted: dict[str, int] = {}
    mixed: set[str] = set(graph.outputs)
    for group in groups:
        for place in range(1, len(group[0].operands)):
            given = _names_of(group, place)
            if len(set(given)) < len(given):
                mixed.update(given)
            for name in given:
                counted[name] = counted.get(name, 0) + 1
                if found.setdefault(name, given) != given:
                    mixed.add(name)
    for name, count in counted.items():
        if len(graph.users[name]) != count:
            mixed.add(name)
    return {name: given for name, given in found.items() if mixed.isdisjoint(given)}
