"""The text form of a graph: printing, hashing, and the grammar that printer and parser share. The parser is `parse.py`; this file re-exports it.

One statement a line, full types on every value, the same grammar for every phase, so that text is the one interchange format: golden tests, bug
reports, cache keys. `print_graph(parse_graph(text)) == text` for printed text, byte for byte, and `parse_graph(print_graph(graph)) == graph`.

    graph    = "graph" "@" name ["(" "dims" dim {"," dim} ")"] "{" {input} {extent} {node} return "}"
    dim      = word "in" "[" integer "," integer "]"                      every symbolic dimension, in order of first appearance
    input    = ["carried"] role value ":" type ["=" part {"+" part}] ["=" "hex:" digits]    role: input weight parameter state constant
    part     = string "[" integer ":" integer "]" [word]                  rows of a checkpoint tensor, and how they are read ("none" is left out)
    extent   = "extent" word "=" value                                    how many leading rows of that axis are valid
    node     = value ":" type {"," value ":" type} "=" word ["@" word] "(" [operand {"," operand}] ")" [attrs] ["!" string ":" integer]
    operand  = value | "_"                                                an absent optional operand
    attrs    = "{" word "=" attr {"," word "=" attr} "}"                  attr: integer, float, true, false, string, "[" integers "]"
    return   = "return" [value {"," value}]
    type     = dtype "[" [[axis ":"] extent {"," ...}] "]" ["@" layout]   extent: an integer or a dimension's name
    value    = "%" name        name, word = bare letters, digits, "_" and "." or, for any other text, a string

Strings are quoted; backslash escapes are `\\"` `\\\\` `\\n` `\\t` `\\r` and `\\u{hex}`. Constant data are the little-endian bytes in row-major order.
`#` starts a comment. Refused, with a `TextError`: what this grammar cannot say exactly (constant data that do not match their type, integers past 64 bits).
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from ostinato.ir.errors import TextError
from ostinato.ir.graph import UPPER_BOUND_HINT, Graph, GraphInput, Node
from ostinato.ir.opdef import Attr
from ostinato.ir.parse import parse_graph
from ostinato.ir.scan import ESCAPES, NAME, WORD
from ostinato.ir.types import Array, TensorType

__all__ = [
    "format_extent",
    "format_input",
    "format_name",
    "format_node",
    "format_return",
    "graph_hash",
    "parse_graph",
    "print_graph",
]

INTEGER_LIMIT: Final = 2**63
# control characters, line separators, the byte-order mark and lone surrogates would make a line that editors and encoders tear apart
_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]')
_ESCAPE_OF = {character: f"\\{letter}" for letter, character in ESCAPES.items()}


def print_graph(graph: Graph) -> str:
    """The text of a graph, ending in a newline. Raises `TextError` for what the grammar cannot say, `ShapeError` for a dimension with two sets of bounds."""
    if graph.unbounded:
        raise TextError(f"{'; '.join(graph.unbounded)}: no upper bound", hint=UPPER_BOUND_HINT)
    dims = ", ".join(f"{dim.name} in {dim.bounds}" for dim in graph.dims)
    lines = [f"graph @{format_name(graph.name)}{f'(dims {dims})' if dims else ''} {{"]
    lines += [f"  {format_input(item)}" for item in graph.inputs]
    lines += [f"  {format_extent(axis, name)}" for axis, name in graph.extents]
    lines += [f"  {format_node(node)}" for node in graph.nodes]
    lines += [f"  {format_return(graph.outputs)}", "}", ""]
    return "\n".join(lines)


def graph_hash(graph: Graph) -> str:
    """Hexadecimal sha256 of the text, constant data and source locations included."""
    return hashlib.sha256(print_graph(graph).encode()).hexdigest()


def format_name(name: str) -> str:
    """A name as it stands after `%` or `@`."""
    return name if NAME.fullmatch(name) else _string(name)


def format_input(item: GraphInput, *, data: bool = True) -> str:
    """The statement of an input; without `data` the bytes of a constant are left out, for messages."""
    value = item.value
    text = f"{'carried ' if item.carried else ''}{item.role.value} %{format_name(value.name)}: {value.type}"
    if item.parts:
        parts = [
            f"{_string(part.tensor)}[{part.start}:{part.stop}]"
            + ("" if part.transform == "none" else f" {_word(part.transform)}")
            for part in item.parts
        ]
        text += f" = {' + '.join(parts)}"
    if item.data is not None and data:
        text += f" = hex:{_hex(value.name, value.type, item.data)}"
    return text


def format_extent(axis: str, name: str) -> str:
    return f"extent {_word(axis)} = %{format_name(name)}"


def format_node(node: Node) -> str:
    """The statement of a node. Raises `TextError` when it has no result or an attribute that the grammar cannot say."""
    if not node.results:
        raise TextError(f"a node of {node.op} has no result", hint="every node makes at least one value")
    results = ", ".join(f"%{format_name(value.name)}: {value.type}" for value in node.results)
    operands = ", ".join("_" if name is None else f"%{format_name(name)}" for name in node.operands)
    text = f"{results} = {_word(node.op)}{'' if node.impl is None else f'@{_word(node.impl)}'}({operands})"
    if node.attrs:
        items = ", ".join(f"{_word(name)}={_attr(node, name, value)}" for name, value in node.attrs.items())
        text += f" {{{items}}}"
    if node.location is not None:
        text += f" !{_string(node.location.file)}:{node.location.line}"
    return text


def format_return(outputs: tuple[str, ...]) -> str:
    return f"return {', '.join(f'%{format_name(name)}' for name in outputs)}".rstrip()


def _word(text: str) -> str:
    return text if WORD.fullmatch(text) else _string(text)


def _string(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPE_OF.get(character) or f"\\u{{{ord(character):x}}}"


def _attr(node: Node, name: str, value: Attr) -> str:
    kind = type(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if kind is float:
        return repr(value)
    if kind is int and isinstance(value, int) and -INTEGER_LIMIT <= value < INTEGER_LIMIT:
        return str(value)
    if isinstance(value, tuple) and all(type(item) is int and -INTEGER_LIMIT <= item < INTEGER_LIMIT for item in value):
        return f"[{', '.join(map(str, value))}]"
    raise TextError(
        f"attribute {name} = {value!r} of type {kind.__name__} has no text form",
        node=node.name,
        hint="attributes are plain bool, int of 64 bits, float, str or a tuple of such ints",
    )


def _hex(name: str, tensor: TensorType, data: Array) -> str:
    """Checked here and not left to the verifier, since bytes of another shape or dtype would read back as other numbers."""
    if tensor.dtype.is_block or data.dtype != tensor.dtype.numpy or data.shape != tensor.shape:
        raise TextError(
            f"data {data.dtype}{list(data.shape)} do not match the type {tensor}",
            node=name,
            hint="convert the data first",
        )
    return data.tobytes().hex()
