"""The sandbox that chat templates run in: Jinja's immutable one, with a budget for everything that a template may repeat, make or go through.

A template is a program, and any program may go on for ever. A rendering has so many units to spend: a turn of a loop and a call cost some by themselves and by
the size of the code that they run, text that is made one a character, items that are gone through eight each. What would make more than was given is refused
before it is made (widths, repetitions, replacements), since one such step may take the machine's memory; so are the few filters and methods whose results
nobody bounds. The budget counts, it has no clock: a template that renders once always does. Real templates spend some thousands of units a message.

The compiler's own hooks do the counting: operators, calls, filters and tests are the environment's, and calls that count are put into the syntax tree where
loops turn, text is joined or printed, and values are compared (`_Counting`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.nodes
import jinja2.sandbox
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

__all__ = ["BUDGET", "Budget", "Sandbox"]

BUDGET = "the budget"
"""The variable that holds the budget of a rendering; a template has no way to spell it."""

_UNITS = 1 << 26
_TURN, _ITEM, _HELD = 64, 8, 32
_READ = 16
"""Characters that are gone through for one unit."""
_DEEPEST = 100
_MOST_BITS = 4096
_MOST_EXPONENT = 64
_MOST_PARTS = 16
"""Of the name of an attribute, which every item is asked for."""
_LARGEST = 1 << 20
"""Of numbers given to filters and methods: widths, counts and precisions among them."""
_WIDTH = re.compile(r"\d{6}|\*")
_SPACE = re.compile(r"\s+")

_REMOVED = frozenset(("pprint", "random", "urlize", "wordwrap", "xmlattr"))
_BY_NUMBER_OF_ITEMS = frozenset(
    (
        "batch",
        "dictsort",
        "groupby",
        "list",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "select",
        "selectattr",
        "slice",
        "sort",
        "sum",
        "unique",
    )
)
_ATTRIBUTE_AT = {
    "groupby": 1,
    "join": 2,
    "max": 2,
    "min": 2,
    "rejectattr": 1,
    "selectattr": 1,
    "sort": 3,
    "sum": 1,
    "unique": 2,
}
"""Where filters take the name of an attribute of their items."""
_FREE = frozenset(("abs", "attr", "count", "d", "default", "first", "items", "last", "length", "round"))
_READING_TESTS = tuple("== != < <= > >= eq equalto ne lt lessthan le gt greaterthan ge in lower upper".split())  # noqa: SIM905
_UNBOUNDED_METHODS = frozenset(
    ("encode", "expandtabs", "format_map", "from_bytes", "fromhex", "fromkeys", "maketrans", "to_bytes", "translate")
)
_LOOKUPS = frozenset(("get", "items", "keys", "values"))
_SEARCHES = frozenset(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"))
"""Methods that take as long as both texts multiplied; those from the left do not."""


_PLAIN = (str, int, float, bool, type(None))


class Budget:
    """What is left of a rendering's units. Everything raises `SecurityError` once nothing is."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _UNITS

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise SecurityError("it takes more steps, or makes more text, than a template may")

    def turn(self, units: int) -> None:
        """A turn of a loop, or a run of a macro."""
        self.spend(_TURN + units)

    def printed(self, value: object) -> object:
        """A value that is made part of a text."""
        self.deep(value, 1)
        return value

    def read(self, value: object) -> object:
        """A value that is compared, hashed or searched."""
        self.deep(value, _READ)
        return self.counted(value)

    def copied(self, value: object) -> object:
        """A list or text of which a piece is copied."""
        self.shallow(value)
        return value

    def spread(self, value: object) -> object:
        """What becomes the arguments of a call, one by one."""
        if isinstance(value, Collection):
            self.spend(_HELD * len(value))
        return self.counted(value)

    def counted(self, value: object) -> object:
        """The value; one that gives its items one by one pays for each."""
        return self._each(value) if isinstance(value, Generator | map | filter | zip) else value

    def _each(self, items: Iterator[object]) -> Iterator[object]:
        for item in items:
            self.spend(_HELD)
            yield item

    def shallow(self, value: object) -> None:
        """Pays for the items of a list, or the characters of a text."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, Collection):
            self.spend(_ITEM * len(value))

    def deep(self, value: object, read: int, item: int = _HELD) -> None:
        """Pays for all that a value holds, as often as it holds it: `item` for each, and its characters. Values nested too deep are refused."""
        stack = [iter((value,))]
        while stack:
            found = next(stack[-1], stack)
            if found is stack:
                stack.pop()
                continue
            self.spend(item + len(found) // read if isinstance(found, str) else item)
            inside = None if type(found) in _PLAIN else _inside(found)
            if inside is not None:
                if len(stack) > _DEEPEST:
                    raise SecurityError(f"a value is nested more than {_DEEPEST} deep")
                stack.append(inside)


def _inside(value: object) -> Iterator[Any] | None:
    """The items of what holds others."""
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, Mapping):
        return itertools.chain(value, value.values())
    return iter(value) if isinstance(value, Collection) and not isinstance(value, str) else None


class _Counter:
    """A call in the syntax tree that is no call of the template's."""

    def __init__(self, pay: Callable[[Budget, Any], object]) -> None:
        self.pay = pay


class _Counting(jinja2.compiler.CodeGenerator):
    """Puts the calls that count into the tree before it is compiled."""

    def visit_Template(self, node: nodes.Template, frame: jinja2.compiler.Frame | None = None) -> None:  # noqa: N802
        for found in _all_nodes(node):
            _count(found)
        super().visit_Template(node, frame)


def _all_nodes(root: nodes.Node) -> list[nodes.Node]:
    found = [root]
    for node in found:
        found.extend(node.iter_child_nodes())
    return found


def _count(node: nodes.Node) -> None:
    if isinstance(node, nodes.Call | nodes.Filter | nodes.Test) and node.dyn_args is not None:
        node.dyn_args = _call("spread", node.dyn_args)
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
        inside = _all_nodes(node)
        size = len(inside) + sum(len(part.data) for part in inside if isinstance(part, nodes.TemplateData))
        turn = _call("turn", nodes.Const(size), node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(nodes.Not(turn), node.test)
    elif isinstance(node, nodes.Output | nodes.Concat):
        node.nodes = [_call("printed", part) for part in node.nodes]
    elif isinstance(node, nodes.Compare | nodes.Operand):
        node.expr = _call("read", node.expr)
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node.node = _call("copied", node.node)
    elif isinstance(node, nodes.Getitem):
        node.arg = _call("read", node.arg)
    elif isinstance(node, nodes.Pair):
        node.key = _call("read", node.key)
    elif isinstance(node, nodes.Const) and isinstance(node.value, int):
        _small(node.value.bit_length())


def _call(name: str, value: nodes.Expr, line: int | None = None) -> nodes.Expr:
    """The value, by way of a counter of the environment's; what stands in the template itself is paid for with its turn."""
    if line is None and isinstance(value, nodes.Const | nodes.TemplateData):
        return value
    at = value.lineno if line is None else line
    return nodes.Call(nodes.EnvironmentAttribute(name), [value], [], None, None, lineno=at)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment. A rendering is given its `Budget` as the variable `BUDGET`."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%", "//"))
    code_generator_class = _Counting
    turn, printed, read = map(_Counter, (Budget.turn, Budget.printed, Budget.read))
    copied, spread = map(_Counter, (Budget.copied, Budget.spread))

    def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        """`filters` are more of them, or others in place of Jinja's."""
        super().__init__(**options, optimized=False)
        del self.globals["lipsum"]
        own: dict[str, Any] = {**self.filters, **filters}
        self.filters = {name: _metered(name, own[name]) for name in own.keys() - _REMOVED}
        tests: dict[str, Any] = dict(self.tests)
        self.tests.update({name: _metered(name, tests[name]) for name in _READING_TESTS})

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raised at once: the base class hands out an undefined value, which prints as nothing."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not safe")

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        _pay_operator(_budget(context), operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = _budget(__context)
        if isinstance(__obj, _Counter):
            return __obj.pay(budget, args[0])
        budget.spend(_TURN + _ITEM * (len(args) + len(kwargs)))
        given = [budget.counted(item) for item in args]
        named = [value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")]
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if getattr(method, "__name__", "") in _UNBOUNDED_METHODS:
            raise SecurityError(f"method {method.__name__!r} is not safe")
        if isinstance(owner, str | int | float | Collection):
            given = [list(item) if isinstance(item, Iterator) else item for item in given]
            _pay_method(budget, owner, method.__name__, [*given, *named])
        elif not isinstance(__obj, jinja2.runtime.Macro | jinja2.runtime.LoopContext | jinja2.runtime.BlockReference):
            budget.deep([*given, *named], 1)
        return super().call(__context, __obj, *given, **kwargs)


def _budget(context: jinja2.runtime.Context) -> Budget:
    found: Budget = context.parent[BUDGET]
    return found


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that pays before it runs, and for a text that it gives."""

    @jinja2.pass_context
    def run(context: jinja2.runtime.Context, *arguments: Any, **named: Any) -> Any:
        budget = _budget(context)
        budget.spend(_TURN)
        given = [budget.counted(item) for item in arguments]
        if name == "join":
            given = [list(item) if isinstance(item, Iterator) else item for item in given]
        _pay_filter(budget, name, given, named)
        found = context.call(function, *given, **named)
        if isinstance(found, str):
            budget.spend(len(found))
        elif isinstance(found, int):
            _small(found.bit_length())
        return found

    return run


# what things cost


def _small(bits: int) -> None:
    """Refuses whole numbers that arithmetic takes long for."""
    if bits > _MOST_BITS:
        raise SecurityError(f"a number would have {bits} bits")


def _pay_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        _pay_format(budget, left, left.count("%"), right)
    elif isinstance(left, int) and isinstance(right, int):
        _small(left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length())
    elif operator == "+":
        for side in (left, right):
            budget.shallow(side)
    elif operator == "**" and not (isinstance(right, int | float) and abs(right) <= _MOST_EXPONENT):
        raise SecurityError(f"an exponent that is no number up to {_MOST_EXPONENT} is not safe")
    elif operator == "*":
        for item, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(item, Collection):
                budget.spend(max(0, len(item) * times) * (1 if isinstance(item, str) else _ITEM))


def _pay_format(budget: Budget, form: str, places: int, values: object) -> None:
    if _WIDTH.search(form):
        raise SecurityError(f"the width in {form[:40]!r} is not a small number")
    budget.spend(len(form) + sum(map(int, re.findall(r"\d+", form))))
    before = budget.left
    budget.deep(values, 1)
    budget.spend((before - budget.left) * places)


def _pay_numbers(budget: Budget, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, int):
            if abs(value) > _LARGEST:
                raise SecurityError(f"a number beyond {_LARGEST} is not safe")
            budget.spend(abs(value))


def _pay_replacement(budget: Budget, text: str, old: object, new: object) -> None:
    budget.deep((old, new), 1)
    if isinstance(old, str):
        budget.spend(len(text) + text.count(old) * len(str(new)))


def _pay_method(budget: Budget, owner: Any, name: str, values: list[Any]) -> None:
    if name not in _LOOKUPS:
        budget.deep(owner, _READ)
        _pay_numbers(budget, values)
    if name == "format" and isinstance(owner, str):
        bare = owner.replace("{{", "").replace("}}", "")
        if re.search(r"\{[^{}]*\{", bare):
            raise SecurityError("a width that is itself replaced is not safe")
        _pay_format(budget, bare, bare.count("{"), values)
        return
    budget.deep(values, _READ)
    if not isinstance(owner, str):
        return
    if name in _SEARCHES:
        _pay_search(budget, owner, values)
    if name == "replace" and len(values) >= 2:
        _pay_replacement(budget, owner, *values[:2])
    elif name == "join":
        _pay_join(budget, values, owner)
    elif name in ("split", "rsplit", "splitlines"):
        by = values[0] if values and isinstance(values[0], str) else ""
        budget.spend(_TURN * (owner.count(by) if by else sum(1 for _ in _SPACE.finditer(owner))))
    else:
        budget.spend(len(owner))


def _pay_search(budget: Budget, text: str, values: list[Any]) -> None:
    """Pays for comparing a text, at each of its places, with all of another."""
    budget.spend(len(text) * sum(len(value) for value in values if isinstance(value, str)) // _READ)


def _pay_join(budget: Budget, values: list[Any], between: object) -> None:
    budget.deep(values, 1)
    count = sum(len(value) for value in values if isinstance(value, Collection))
    budget.spend(len(str(between)) * count)


def _pay_filter(budget: Budget, name: str, given: list[Any], named: dict[str, Any]) -> None:
    value, more = given[0] if given else "", [*given[1:], *named.values()]
    if name == "format":
        budget.deep(value, 1)
        form = str(value)
        return _pay_format(budget, form, form.count("%"), more)
    _pay_numbers(budget, more)
    budget.deep(more, 1)
    place = _ATTRIBUTE_AT.get(name, len(given))
    attribute = named.get("attribute", given[place] if len(given) > place else "")
    if isinstance(attribute, str) and len(re.findall("[.,]", attribute)) > _MOST_PARTS:
        raise SecurityError(f"an attribute of more than {_MOST_PARTS} parts is not safe")
    if name in _FREE:
        if name == "round" and any(isinstance(item, int) and abs(item) > _MOST_EXPONENT for item in more):
            raise SecurityError(f"a precision beyond {_MOST_EXPONENT} is not safe")
        return None
    if name in _BY_NUMBER_OF_ITEMS:
        if name == "sum" and any(isinstance(item, Collection) and not isinstance(item, str) for item in more):
            raise SecurityError("a sum of lists is not safe")
        budget.spread(value)  # each character of a text becomes one of its own
        return budget.deep(value, _READ)
    if name == "tojson":
        flat = [part for item in more for part in (item if isinstance(item, list | tuple) else (item,))]
        return budget.deep(value, 1, _HELD + sum(_width(item) * _DEEPEST for item in flat))
    budget.deep(value, 1)
    text = "" if isinstance(value, Collection) and not isinstance(value, str) else str(value)
    if name == "replace":
        old, new = (given[at] if len(given) > at else named.get(key, "") for at, key in ((1, "old"), (2, "new")))
        return _pay_replacement(budget, text, old, new)
    if name == "trim":
        _pay_search(budget, text, more)
    if name == "indent":
        budget.spend(sum(map(_width, more)) * (1 + text.count("\n")))
    if name == "join":
        _pay_join(budget, [value], given[1] if len(given) > 1 else named.get("d", ""))
    return None


def _width(value: object) -> int:
    """How many characters an argument may add at each place: its own, or as many as the number says."""
    return abs(value) if isinstance(value, int) else len(str(value))
