"""The verifier: the numbered rules that every graph keeps, and the gates of each phase.

V01  A name is given once, is not empty and can be encoded; a node has at least one result.
V02  An operand is an input or a result of an earlier node.
V03  The operator is in the table.
V04  Operands fit the schema in number: required ones are present, absent ones at the end are left out.
V05  Operand dtypes are ones that the operator takes.
V06  Attributes fit the schema: required ones present, none unknown, of the right type, in schema order.
V07  Operand shapes are ones that the operator takes.
V08  Axis names and layouts of the operands agree (H is not T, however equal their extents).
V09  Stated result types are the ones that the operator's rule gives: number, shape, dtype, axis names.
V10  A view can be described by strides in the storage it looks into.
V11  Bytes that a must-alias result took over have no later reader: no node, no view, no output.
V12  A must-aliased operand is a `state`, `parameter` or carried input, an earlier alias of one, or bytes that a node made (or a view of all of them that
     lies without gaps); it is aliased once, and has the type of its result.
V13  A node with effect `state` reads `state` inputs only through operands that it aliases.
V14  Outputs are values of the graph.
V15  An extent names a capital letter once and an `input` of type i32[1] that is not carried.
V16  Parts stand on weights and parameters and cover their rows exactly, with a known transform; the tensors' names can be encoded.
V17  Constants, and nothing else, carry data; they match the type.
V18  Layouts are possible: packed ones on two-dimensional weights, permuted ones on plain dtypes, a view result in its logical order, a parameter's too.
V19  Block dtypes stand on weights only, with whole blocks along the last axis.
V20  A dimension has one pair of bounds, an upper one among them; from phase `bound` on nothing is symbolic.
V21  From phase `laid_out` on every value has a layout.
V22  From phase `selected` on every node but a view names an implementation; a view never does.
V23  The named implementation is a row of the target, and the row takes the node's operands as they lie.
V24  Only an `input` is carried.

All broken rules of a graph are reported in one `VerificationError`, each with the statement in text form, its neighbours and the user's line. A node whose
operands are unknown or of the wrong kind is not judged further, so that one mistake is one report. Nothing here changes a graph, and no operator is named.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from ostinato.ir.diagnostics import Diagnostics, plain
from ostinato.ir.errors import (
    ConfigError,
    DTypeError,
    LayoutError,
    OstinatoError,
    ShapeError,
    UserCodeError,
    VerificationError,
    Violation,
)
from ostinato.ir.graph import UPPER_BOUND_HINT, Graph, Node, Role
from ostinato.ir.naming import NO_TEXT_HINT, is_text
from ostinato.ir.opdef import Effect, OpDef
from ostinato.ir.ops import OP
from ostinato.ir.target import Target
from ostinato.ir.types import Dim, DType, TensorType
from ostinato.ir.verify_inputs import check_input, check_result
from ostinato.ir.views import StorageView, ViewTable, call_site, padded_operands, row_refusal

__all__ = ["PHASES", "find_violations", "verify"]

PHASES: Final = ("traced", "bound", "laid_out", "selected")
_BOUND, _LAID_OUT, _SELECTED = 1, 2, 3


def _rule_of(error: OstinatoError) -> str:
    """The rule that an error of an operator's type rule breaks; what is not about dtypes, attributes or layouts is about shapes."""
    if isinstance(error, DTypeError):
        return "V05"
    if isinstance(error, ConfigError):
        return "V06"
    return "V08" if isinstance(error, LayoutError) else "V07"


def verify(graph: Graph, *, ops: Mapping[str, OpDef] = OP, target: Target | None = None, phase: str = "traced") -> None:
    """Raises one `VerificationError` that lists every broken rule, chained to the first typed error; returns nothing when none is broken.

    `phase` is one of `PHASES`; each includes the gates of those before it. `target` is needed for V23 only.
    """
    out = _check(graph, ops, target, phase)
    if out.found:
        count = f"{len(out.found)} rule{'s' if len(out.found) > 1 else ''}"
        lines = [f"graph @{graph.name} breaks {count} of phase {phase}", *map(str, out.found)]
        raise VerificationError("\n".join(lines), violations=tuple(out.found)) from out.cause


def find_violations(
    graph: Graph, *, ops: Mapping[str, OpDef] = OP, target: Target | None = None, phase: str = "traced"
) -> tuple[Violation, ...]:
    """The broken rules in order of the statements that break them; arguments as for `verify`."""
    return tuple(_check(graph, ops, target, phase).found)


def _check(graph: Graph, ops: Mapping[str, OpDef], target: Target | None, phase: str) -> Diagnostics:
    if phase not in PHASES:
        raise ConfigError(f"unknown phase {phase!r}", hint=f"one of {', '.join(PHASES)}")
    out = Diagnostics(graph)
    _Walk(graph, ops, target, phase, out).run()
    return out


class _Walk:
    """One pass over one graph in statement order."""

    def __init__(
        self, graph: Graph, ops: Mapping[str, OpDef], target: Target | None, phase: str, out: Diagnostics
    ) -> None:
        self.graph = graph
        self.ops = ops
        self.target = target
        self.level = PHASES.index(phase)
        self.out = out
        self.types: dict[str, TensorType] = {}
        self.views = ViewTable.empty(ops)
        self.dims: dict[str, Dim] = {}
        self.roles = {item.value.name: item.role for item in graph.inputs}
        # per base value: how often a must-alias result took over its bytes, and the last that did; per value: the count when it was made
        self.takeovers: dict[str, int] = {}
        self.takers: dict[str, str] = {}
        self.made_at: dict[str, int] = {}
        self.mutable = {item.value.name for item in graph.updated}
        names = [item.value.name for item in graph.inputs] + [
            value.name for node in graph.nodes for value in node.results
        ]
        self.unique = len(set(names)) == len(names)
        # what the operators' rules say: models repeat themselves, layer by layer
        self._known: dict[Hashable, tuple[TensorType, ...]] = {}

    def run(self) -> None:
        graph, out = self.graph, self.out
        for index, item in enumerate(graph.inputs):
            self._define(index, item.value.name, item.value.type, None)
            check_input(out, index, item)
        for index, (axis, name) in enumerate(graph.extents):
            self._extent(len(graph.inputs) + index, axis, name, [earlier for earlier, _ in graph.extents[:index]])
        for index, node in enumerate(graph.nodes, out.first_node):
            self._node(index, node)
        for name in dict.fromkeys(graph.outputs):
            if name not in self.types:
                hint = "return a value that an input or a node makes"
                out.report("V14", out.last, f"output %{name} does not exist", hint=hint)
            elif self._is_stale(name):
                self._report_stale(out.last, name, "is returned")

    # values

    def _define(self, statement: int, name: str, tensor: TensorType, place: StorageView | None) -> None:
        out = self.out
        if not name:
            out.report("V01", statement, "a value has an empty name", hint="name every value")
        elif not is_text(name):
            out.report("V01", statement, f"the name {name!r} has half of a surrogate pair", hint=NO_TEXT_HINT)
        elif name in self.types:
            hint = "every value is made once; rename one"
            out.report("V01", statement, f"the name %{name} is given twice", hint=hint)
        self.types[name] = tensor
        place = self.views.add(name, tensor, place)
        self.made_at[name] = self.takeovers.get(place.base, 0)
        if not tensor.is_static:
            self._symbolic(statement, name, tensor)
        if tensor.layout is None and self.level >= _LAID_OUT:
            hint = "run the layout pass"
            out.report("V21", statement, f"%{name} has no layout", "a layout on every value", str(tensor), hint)

    def _symbolic(self, statement: int, name: str, tensor: TensorType) -> None:
        for dim in tensor.shape:
            if not isinstance(dim, Dim):
                continue
            known = self.dims.setdefault(dim.name, dim)
            if known != dim:
                hint = "a dimension is declared once"
                message = f"dimension {dim.name} of %{name} has other bounds"
                self.out.report("V20", statement, message, known.bounds, dim.bounds, hint)
            elif dim.high is None:
                message = f"dimension {dim.name} of %{name} has no upper bound"
                self.out.report("V20", statement, message, "two bounds", dim.bounds, UPPER_BOUND_HINT)
            elif self.level >= _BOUND:
                message = f"dimension {dim.name} of %{name} is not bound"
                self.out.report("V20", statement, message, "integers", str(tensor), "bind the graph to a bucket")

    def _extent(self, statement: int, axis: str, name: str, earlier: list[str]) -> None:
        if axis in earlier or len(axis) != 1 or not "A" <= axis <= "Z":
            message = f"extent {axis} names no axis, or one that has an extent already"
            self.out.report("V15", statement, message, "a capital letter, once", repr(axis))
        tensor = self.types.get(name)
        role = self.roles.get(name)
        if tensor is None or role is not Role.INPUT or tensor.dtype is not DType.I32 or tensor.shape != (1,):
            found = "nothing" if tensor is None or role is None else f"{role.value} {tensor}"
            message = f"%{name} does not count the rows of axis {axis}"
            self.out.report("V15", statement, message, "an input of type i32[1]", found)
        elif name in self.mutable:
            hint = "nodes read a count without naming it"
            self.out.report("V15", statement, f"%{name} counts rows and is carried", hint=hint)

    # nodes

    def _node(self, statement: int, node: Node) -> None:
        out = self.out
        if not node.results:
            hint = "every node makes at least one value"
            out.report("V01", statement, f"a node of {node.op} has no result", hint=hint)
            return
        undefined = [name for name in dict.fromkeys(node.operands) if name is not None and name not in self.types]
        for name in undefined:
            hint = "define it on an earlier line, or check the spelling"
            out.report("V02", statement, f"operand %{name} is not defined before it is read", hint=hint)
        opdef = self.ops.get(node.op)
        if opdef is None:
            out.report(
                "V03", statement, f"operator {node.op} is not in the table", hint=f"it has {', '.join(self.ops)}"
            )
        if opdef is None or undefined or not self._schema(statement, node, opdef):
            # nothing more can be said of this node; its results stand as declared, so that later nodes are judged
            for operand in node.operands:
                if operand is not None and operand in self.types and self._is_stale(operand):
                    self._report_stale(statement, operand, "is read")
            for value in node.results:
                self._define(statement, value.name, value.type, None)
            return
        places: Mapping[str, StorageView] = {}
        inferred = self._inferred(statement, node, opdef)
        if inferred:
            try:
                places = self.views.results(node, self.types)
            except (LayoutError, UserCodeError) as error:
                out.report_error("V10", statement, error)
        self._state(statement, node, opdef)
        for value in node.results:
            self._define(statement, value.name, value.type, places.get(value.name))
            check_result(out, statement, value.name, value.type, opdef.is_view)
        self._implementation(statement, node, opdef, sound=inferred and self.unique)

    def _schema(self, statement: int, node: Node, opdef: OpDef) -> bool:
        out = self.out
        before = len(out.found)
        given = len(node.operands)
        signature = f"({', '.join(f'{spec.name}?' if spec.optional else spec.name for spec in opdef.operands)})"
        if given > len(opdef.operands):
            out.report("V04", statement, f"{node.op} has too many operands", signature, f"{given} operands")
            return False
        if given and node.operands[-1] is None:
            hint = "leave absent operands at the end out"
            out.report("V04", statement, f"{node.op} ends with an absent operand", signature, hint=hint)
        for index, spec in enumerate(opdef.operands):
            name = node.operands[index] if index < given else None
            if name is None:
                if not spec.optional:
                    out.report("V04", statement, f"{node.op} lacks operand {spec.name}", signature, f"{given} operands")
            elif self.types[name].dtype not in spec.dtypes:
                wanted = " or ".join(sorted(dtype.value for dtype in spec.dtypes))
                message = f"operand {spec.name} = %{name} has the wrong dtype"
                found, hint = str(self.types[name]), "insert an explicit cast; nothing is converted silently"
                out.report("V05", statement, message, wanted, found, hint, code=DTypeError.code)
        try:
            complete = opdef.attributes(node.attrs)
        except ConfigError as error:
            out.report_error("V06", statement, error)
        else:
            order = [name for name in complete if name in node.attrs]
            if order != list(node.attrs):
                expected, found = ", ".join(order), ", ".join(node.attrs)
                out.report("V06", statement, f"attributes of {node.op} are out of order", expected, found)
        return len(out.found) == before

    def _inferred(self, statement: int, node: Node, opdef: OpDef) -> bool:
        operands = padded_operands(node, opdef, self.types)
        key = (node.op, operands, node.attrs)
        inferred = self._known.get(key)
        if inferred is None:
            try:
                inferred = self._known[key] = opdef.infer(operands, node.attrs)
            except OstinatoError as error:
                self.out.report_error(_rule_of(error), statement, error)
                return False
        stated = [value.type for value in node.results]
        same = len(inferred) == len(stated)
        for one, other in zip(inferred, stated, strict=False):
            same = same and (one.shape, one.dtype, one.axes) == (other.shape, other.dtype, other.axes)
        if not same:
            expected, found = (", ".join(map(plain, types)) for types in (inferred, stated))
            message = f"result types of {node.op} are not what its operands give"
            self.out.report("V09", statement, message, expected, found, "correct the stated types")
        return same

    # bytes that results take over

    def _is_stale(self, name: str) -> bool:
        return self.made_at[name] != self.takeovers.get(self.views[name].base, 0)

    def _report_stale(self, statement: int, name: str, what: str) -> None:
        taker = self.takers[self.views[name].base]
        hint = f"use %{taker}, or read %{name} before that"
        self.out.report("V11", statement, f"%{name} {what} after %{taker} took over its bytes", hint=hint)

    def _state(self, statement: int, node: Node, opdef: OpDef) -> None:
        out = self.out
        taken = {operand for _, operand in opdef.must_alias}
        for index, name in enumerate(node.operands):
            if name is None or index in taken:
                continue
            if self._is_stale(name):
                self._report_stale(statement, name, "is read")
            elif opdef.effect is Effect.STATE and self.roles.get(self.views[name].base) is Role.STATE:
                message = f"{node.op} changes state and reads %{name} of a state input without aliasing it"
                out.report("V13", statement, message, hint="pass a value with bytes of its own")
        for result, operand in opdef.aliased(node.operands):
            name = node.operands[operand]
            if name is None or result >= len(node.results):
                continue
            self._take_over(statement, node, name, node.results[result].name, node.results[result].type)
            for index, other in enumerate(node.operands):
                if other is not None and index not in taken and self.views[other].base == self.views[name].base:
                    hint = "pass a value with bytes of its own"
                    out.report("V11", statement, f"%{other} is read while {node.op} overwrites its bytes", hint=hint)

    def _take_over(self, statement: int, node: Node, name: str, result: str, tensor: TensorType) -> None:
        out, base = self.out, self.views[name].base
        if name not in self.mutable and not self._is_made(name):
            expected = "a state, parameter or carried input, an earlier alias of one, or all bytes of what a node made"
            hint = "only bytes that the caller owns and gives away, or that nobody else has, are overwritten"
            out.report("V12", statement, f"{node.op} overwrites %{name}", expected, f"%{name}", hint)
        elif self._is_stale(name):
            out.report("V12", statement, f"%{name} is aliased a second time", f"%{self.takers[base]}", f"%{name}")
        elif tensor != self.types[name]:
            message = f"%{result} lies in the bytes of %{name} and has another type"
            out.report("V12", statement, message, str(self.types[name]), str(tensor))
        self.takeovers[base] = self.takeovers.get(base, 0) + 1
        self.takers[base] = result
        self.mutable.add(result)

    def _is_made(self, name: str) -> bool:
        """Whether the value is all of what a node of the graph made, in the order in which that lies."""
        view = self.views[name]
        if view.base in self.roles or name == view.base:
            return view.base not in self.roles
        return view.contiguous and not view.offset and self.types[name].elements == self.types[view.base].elements

    # gates

    def _implementation(self, statement: int, node: Node, opdef: OpDef, *, sound: bool) -> None:
        """The gates of a node; rows are asked about `sound` ones alone, whose types are what every row may rely on."""
        out = self.out
        if opdef.is_view:
            if node.impl is not None:
                hint = "a view is no work; name none"
                out.report("V22", statement, f"view {node.op} names implementation {node.impl}", hint=hint)
        elif node.impl is None:
            if self.level >= _SELECTED:
                out.report("V22", statement, f"{node.op} has no implementation", hint="run the selection pass")
        elif self.target is not None:
            row = self.target.row(node.op, node.impl)
            if row is None:
                rows = ", ".join(row.name for row in self.target.rows_for(node.op)) or "none"
                message = f"{self.target.name} has no row {node.impl} for {node.op}"
                out.report("V23", statement, message, f"one of: {rows}", node.impl)
                return
            if not sound:
                return
            try:
                refusal = row_refusal(row, call_site(self.graph, node, self.views, ops=self.ops), opdef)
            except ShapeError as error:
                refusal = error.message  # a symbolic dimension: V20 says so as well
            if refusal is not None:
                out.report(
                    "V23", statement, f"row {row.identity} refuses the node: {refusal}", hint="select another row"
                )
