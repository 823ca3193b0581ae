"""The scanner of the text form: a position in one line, the tokens that can stand there, and errors that show the place.

Names, strings, numbers and types are read here; statements in `parse.py`; the grammar stands in `text.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from ostinato.ir.errors import OstinatoError, TextError
from ostinato.ir.graph import Value
from ostinato.ir.opdef import Attr
from ostinato.ir.types import Dim, DType, Extent, TensorType

__all__ = ["ESCAPES", "NAME", "WORD", "Cursor"]

ESCAPES: Final[Mapping[str, str]] = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
NAME: Final = re.compile(r"[A-Za-z0-9_.]+")
WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")

_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-f]{1,6})\}|(.))")
_INTEGER = re.compile(r"-?[0-9]{1,19}(?![0-9])")
_NUMBER = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)(?![A-Za-z0-9_.])")
_FLOAT_MARK = re.compile(r"[.ein]")
_TYPE = re.compile(r"[a-z0-9_]+\[[A-Za-z0-9_:, ]*\](?:@[A-Za-z0-9_]+)?")
_TYPE_PARTS = re.compile(r"([a-z0-9_]+)\[([^]]*)\](?:@(.+))?")
_EXCERPT = 100
_T = TypeVar("_T")


class Cursor:
    """A position in one line."""

    __slots__ = ("dims", "line", "position", "text", "types")

    def __init__(self, dims: dict[str, Dim], types: dict[str, TensorType]) -> None:
        self.dims = dims
        self.types = types
        self.text = ""
        self.line = 0
        self.position = 0

    def start(self, text: str, line: int) -> None:
        self.text = text
        self.line = line
        self.position = 0
        self.skip()

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def error(self, message: str, *, at: int | None = None, hint: str | None = None) -> TextError:
        position = self.position if at is None else at
        first = max(0, position - _EXCERPT // 2)
        shown = self.text[first : first + _EXCERPT].replace("\t", " ")
        place = f"\n  | {shown}\n  | {' ' * (position - first)}^"
        column = position + 1
        return TextError(
            f"line {self.line}, column {column}: {message}{place}", line=self.line, column=column, hint=hint
        )

    def expected(self, what: str, hint: str | None = None) -> TextError:
        rest = self.text[self.position : self.position + 20]
        return self.error(
            f"expected {what}, found {rest!r}" if rest else f"expected {what}, found the end of the line", hint=hint
        )

    def at(self, literal: str) -> bool:
        return self.text.startswith(literal, self.position)

    def take(self, literal: str) -> bool:
        if not self.text.startswith(literal, self.position):
            return False
        self.position += len(literal)
        self.skip()
        return True

    def need(self, literal: str, hint: str | None = None) -> None:
        if not self.take(literal):
            raise self.expected(repr(literal), hint)

    def match(self, pattern: re.Pattern[str], what: str, hint: str | None = None) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.expected(what, hint)
        self.position = match.end()
        self.skip()
        return match[0]

    @property
    def ended(self) -> bool:
        return self.position >= len(self.text) or self.text[self.position] == "#"

    def end(self) -> None:
        if not self.ended:
            raise self.expected("the end of the statement", "one statement a line")

    def string(self) -> str:
        start = self.position
        if not self.at('"'):
            raise self.expected("a string in double quotes")
        match = _STRING.match(self.text, start)
        if match is None:
            raise self.error("expected a closed string", hint="a string ends with a double quote on its line")
        self.position = match.end()
        self.skip()
        body = match[1]
        if "\\" not in body:
            return body

        def unescape(found: re.Match[str]) -> str:
            if found[1] is not None and int(found[1], 16) <= 0x10FFFF:
                return chr(int(found[1], 16))
            if found[2] in ESCAPES:
                return ESCAPES[found[2]]
            raise self.error(
                f"unknown escape {found[0]!r}",
                at=start + 1 + found.start(),
                hint='known: \\" \\\\ \\n \\t \\r \\u{hex}',
            )

        return _ESCAPE.sub(unescape, body)

    def text_like(self, pattern: re.Pattern[str], what: str) -> str:
        return self.string() if self.at('"') else self.match(pattern, what)

    def word(self, what: str) -> str:
        return self.text_like(WORD, what)

    def value(self) -> str:
        if not self.at("%"):
            raise self.expected("a value name", "value names begin with %")
        self.position += 1
        return self.text_like(NAME, "a value name after %")

    def integer(self) -> int:
        start = self.position
        number = int(self.match(_INTEGER, "an integer"))
        if not -(2**63) <= number < 2**63:
            raise self.error(f"integer {number} does not fit 64 bits", at=start)
        return number

    def attr(self) -> Attr:
        if self.at('"'):
            return self.string()
        if self.take("["):
            return self.items(self.integer, "]")
        word = WORD.match(self.text, self.position)
        if word is not None and word[0] in ("true", "false"):
            self.match(WORD, "a boolean")
            return word[0] == "true"
        start = self.position
        text = self.match(_NUMBER, "an attribute value", "an integer, a float, true, false, a string or [integers]")
        if _FLOAT_MARK.search(text):
            return float(text)
        self.position = start
        return self.integer()

    def items(self, item: Callable[[], _T], close: str) -> tuple[_T, ...]:
        """Items separated by commas up to `close`, which is taken."""
        found: list[_T] = []
        while not self.take(close):
            if found:
                self.need(",", f"items are separated by commas and end with {close}")
            found.append(item())
        return tuple(found)

    def typed(self) -> Value:
        name = self.value()
        self.need(":", "every value states its type")
        return Value(name, self.type())

    def type(self) -> TensorType:
        start = self.position
        text = self.match(_TYPE, "a type", "for example f32[N:128,C:576]")
        known = self.types.get(text)
        if known is None:
            known = self.types[text] = self._new_type(text, start)
        return known

    def _new_type(self, text: str, start: int) -> TensorType:
        match = _TYPE_PARTS.fullmatch(text)
        assert match is not None
        axes: list[str] = []
        shape: list[Extent] = []
        position = start + match.start(2)
        for item in match[2].split(",") if match[2].strip() else ():
            axis, colon, extent = item.rpartition(":")
            extent = extent.strip()
            if colon and not axis.strip():
                raise self.error("expected an axis name before ':'", at=position)
            if extent.isdecimal() and len(extent) < 20:
                shape.append(int(extent))
            elif extent in self.dims:
                shape.append(self.dims[extent])
            else:
                raise self.error(
                    f"expected an integer or a dimension, found {extent!r}",
                    at=position,
                    hint=f"declare it in the header, (dims {extent or 'T'} in [1, 512]); declared: {sorted(self.dims)}",
                )
            axes.append(axis.strip())
            position += len(item) + 1
        try:
            return TensorType(tuple(shape), DType.parse(match[1]), tuple(axes), match[3])
        except OstinatoError as error:
            raise self.error(error.message, at=start, hint=error.hint) from error
