"""The parser of the text form: one function for each kind of statement. The grammar stands in `text.py`, the tokens in `scan.py`.

No recursion, so that a chain of 20,000 nodes is as deep as one of two. Every error is a `TextError` that names line and column, says what was expected and
found, and shows the place. The parser builds what the text says and no more: whether names are unique, operands exist and types fit is the verifier's
business, which can then report all of it at once.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ostinato.ir.errors import OstinatoError, TextError
from ostinato.ir.graph import UPPER_BOUND_HINT, Attributes, Graph, GraphInput, Location, Node, Role
from ostinato.ir.opdef import Attr
from ostinato.ir.scan import NAME, WORD, Cursor
from ostinato.ir.types import Array, Dim, TensorType
from ostinato.ir.weights import WeightPart

__all__ = ["parse_graph"]

HEX: Final = re.compile(r"[0-9a-f]*")
_ROLES = {role.value: role for role in Role}
_CARRIED = "carried"


class _Statements:
    """The lines of a graph that say something, one after the other."""

    def __init__(self, text: str, cursor: Cursor) -> None:
        self.lines = text.split("\n")
        self.next = 0
        self.cursor = cursor

    def advance(self) -> bool:
        """Moves the cursor to the next line that is not empty or a comment; False at the end of the text."""
        cursor = self.cursor
        while self.next < len(self.lines):
            self.next += 1
            cursor.start(self.lines[self.next - 1].removesuffix("\r"), self.next)
            if not cursor.ended:
                return True
        return False

    def need(self, what: str) -> None:
        if not self.advance():
            raise self.cursor.expected(what)


def parse_graph(text: str) -> Graph:
    """The graph that the text says. Raises `TextError` with line and column for anything outside the grammar, including text after the graph."""
    dims: dict[str, Dim] = {}
    cursor = Cursor(dims, {})
    statements = _Statements(text, cursor)
    statements.need("a graph")
    name = _header(cursor)
    inputs: list[GraphInput] = []
    extents: list[tuple[str, str]] = []
    nodes: list[Node] = []
    while True:
        statements.need("a statement or 'return'")
        if cursor.at("%"):
            nodes.append(_node(cursor))
            continue
        start = cursor.position
        word = cursor.match(WORD, "a statement", "an input, an extent, a node that begins with %, or return")
        if word == "return":
            break
        if carried := word == _CARRIED:
            start, word = cursor.position, cursor.match(WORD, f"one of {', '.join(_ROLES)}")
        role = _ROLES.get(word)
        if role is None and (word != "extent" or carried):
            hint = f"statements begin with {', '.join(_ROLES)} ({_CARRIED} may stand before those), extent, return, or % for a node"
            raise cursor.error(f"unknown statement {word!r}", at=start, hint=hint)
        if nodes or (extents and role is not None):
            raise cursor.error(
                f"expected every {word} before the nodes",
                at=start,
                hint="inputs, then extents, then nodes, then return",
            )
        if role is None:
            extents.append(_extent(cursor))
        else:
            inputs.append(_input(cursor, role, carried))
    outputs: list[str] = []
    while not cursor.ended:
        if outputs:
            cursor.need(",")
        outputs.append(cursor.value())
    statements.need("'}'")
    cursor.need("}", "return is the last statement")
    cursor.end()
    if statements.advance():
        raise cursor.expected("the end of the text", "one graph a text")
    graph = Graph(name, tuple(inputs), tuple(nodes), tuple(outputs), tuple(extents))
    named = {dim.name for dim in graph.dims}
    if unused := [dim for dim in dims if dim not in named]:
        raise TextError(
            f"line 1, column 1: no type names the dimensions {unused}",
            line=1,
            column=1,
            hint="leave them out of the header",
        )
    return graph


def _header(cursor: Cursor) -> str:
    cursor.need("graph", "the text begins with graph @name {")
    cursor.need("@")
    name = cursor.text_like(NAME, "a graph name")
    if cursor.take("("):
        cursor.need("dims")
        cursor.items(lambda: _dim(cursor), ")")
    cursor.need("{")
    cursor.end()
    return name


def _dim(cursor: Cursor) -> None:
    start = cursor.position
    name = cursor.match(WORD, "a dimension's name")
    if name in cursor.dims:
        raise cursor.error(f"dimension {name} is declared twice", at=start)
    cursor.need("in")
    cursor.need("[")
    low = cursor.integer()
    cursor.need(",")
    if cursor.take("_"):
        raise cursor.error(f"dimension {name} has no upper bound", at=start, hint=UPPER_BOUND_HINT)
    high = cursor.integer()
    cursor.need("]")
    try:
        cursor.dims[name] = Dim(name, low, high)
    except OstinatoError as error:
        raise cursor.error(error.message, at=start, hint=error.hint) from error


def _extent(cursor: Cursor) -> tuple[str, str]:
    axis = cursor.word("an axis")
    cursor.need("=")
    name = cursor.value()
    cursor.end()
    return axis, name


def _input(cursor: Cursor, role: Role, carried: bool) -> GraphInput:
    value = cursor.typed()
    parts: list[WeightPart] = []
    data: Array | None = None
    while data is None and cursor.take("="):
        if cursor.take("hex:"):
            data = _data(cursor, value.type)
            break
        if parts:
            raise cursor.expected("'hex:'", "parts are joined by +")
        parts.append(_part(cursor))
        while cursor.take("+"):
            parts.append(_part(cursor))
    cursor.end()
    return GraphInput(value, role, tuple(parts), data, carried)


def _part(cursor: Cursor) -> WeightPart:
    if not cursor.at('"'):
        raise cursor.expected("a tensor name or hex:", 'for example = "model.norm.weight"[0:576], or = hex:0000803f')
    tensor = cursor.string()
    cursor.need("[")
    start = cursor.integer()
    cursor.need(":")
    stop = cursor.integer()
    cursor.need("]")
    transform = (
        "none" if cursor.ended or cursor.at("+") or cursor.at("=") else cursor.word("a transform, '+' or the end")
    )
    return WeightPart(tensor, start, stop, transform)


def _data(cursor: Cursor, tensor: TensorType) -> Array:
    start = cursor.position
    digits = cursor.match(HEX, "hexadecimal digits")
    try:
        dtype = tensor.dtype.numpy
        count = tensor.elements * dtype.itemsize
    except OstinatoError as error:
        raise cursor.error(f"a constant of type {tensor} cannot hold data: {error.message}", at=start) from error
    if len(digits) != 2 * count:
        raise cursor.error(f"expected {2 * count} hexadecimal digits for {tensor}, found {len(digits)}", at=start)
    return np.frombuffer(bytes.fromhex(digits), dtype=dtype).reshape(tensor.static_shape)


def _node(cursor: Cursor) -> Node:
    results = [cursor.typed()]
    while cursor.take(","):
        results.append(cursor.typed())
    cursor.need("=", "a node is %result: type = operator(operands)")
    op = cursor.word("an operator")
    impl = cursor.word("an implementation") if cursor.take("@") else None
    cursor.need("(")

    operands = cursor.items(lambda: _operand(cursor), ")")
    attrs: dict[str, Attr] = {}
    if cursor.take("{"):
        while not cursor.take("}"):
            if attrs:
                cursor.need(",", "attributes are separated by commas and end with }")
            start = cursor.position
            name = cursor.word("an attribute name")
            if name in attrs:
                raise cursor.error(f"attribute {name} is given twice", at=start)
            cursor.need("=")
            attrs[name] = cursor.attr()
    location = None
    if cursor.take("!"):
        file = cursor.string()
        cursor.need(":")
        location = Location(file, cursor.integer())
    cursor.end()
    return Node(op, operands, tuple(results), Attributes(attrs), impl, location)


def _operand(cursor: Cursor) -> str | None:
    if cursor.at("%"):
        return cursor.value()
    if cursor.take("_"):
        return None
    raise cursor.expected("an operand", "operands are %names, or _ for an absent one")
