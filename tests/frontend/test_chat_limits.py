"""Chat templates that would never end, or take all memory: typed errors, whichever way they go about it; and what the counting leaves as it is."""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2.ext
import jinja2.sandbox
import pytest

from ostinato.frontend import chat_sandbox
from ostinato.frontend.chat import ChatTemplateError, render
from ostinato.frontend.chat_sandbox import Budget

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Größe <1>?\nAnd now?"},
    {
        "role": "assistant",
        "content": "<think>hm</think>\n\nyes",
        "tool_calls": [{"name": "f", "arguments": {"x": [1, "é"]}}],
    },
    {"role": "user", "content": "More."},
]
SETUP = "{% set ns = namespace(x='a', l=[], t=(1,), u=(2,)) %}"
GROWS = SETUP + "{% for i in range(99) %}{% set ns.x = @ %}{% endfor %}"
NESTS = SETUP + "{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% set ns.u = [ns.u, ns.u] %}{% endfor %}@"
DEEPENS = SETUP + "{% for i in range(999) %}{% set ns.t = (ns.t,) %}{% endfor %}@"
TWICE = "{% for i in range(99999) %}{% for j in range(99999) %}@{% endfor %}{% endfor %}"
OFTEN = "{% for i in range(99999) %}{{ @ }}{% endfor %}"


def refused(template: str, told: str) -> None:
    with pytest.raises(ChatTemplateError, match=told):
        render(template, MESSAGES)


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that is gone through in a fraction of a second."""
    monkeypatch.setattr(chat_sandbox, "_UNITS", 1 << 21)


def test_loops_in_loops_end() -> None:
    refused(TWICE.replace("@", ""), "more steps")


@pytest.mark.usefixtures("small_budget")
@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% for i in range(99) recursive %}{% if loop.depth < 9 %}{{ loop(range(99)) }}{% endif %}{% endfor %}",
        OFTEN.replace("@", "range(99999) | list | length"),
        OFTEN.replace("@", "range(99999) | select('none') | list | length"),
        OFTEN.replace("@", "range(99999) | map('string') | join | length"),
        OFTEN.replace("@", "range(99999) | sum"),
        OFTEN.replace("@", "5.5 in range(99999)"),
        OFTEN.replace("@", "range(99999).count(5.5)"),
        OFTEN.replace("@", "('a ' * 100000).split() | length"),
        OFTEN.replace("@", "('a' * 1000000)[::-1] | length"),
        OFTEN.replace("@", "('a.' * 10000) | title | length"),
        OFTEN.replace("@", "cycler(*range(99999)).next()"),
        OFTEN.replace("@", "('1' * 100000) | float"),
        OFTEN.replace("@", "('a' * 100000) is lower"),
        OFTEN.replace("@", "range(9999) | select('defined') | select('defined') | list | length"),
        TWICE.replace("@", "{{ 'a' * 100000 == 'a' * 100000 }}"),
        TWICE.replace("@", "{{ 'b' in 'a' * 100000 }}"),
        SETUP + "{% set ns.x %}" + TWICE.replace("@", "y" * 10000) + "{% endset %}",
        SETUP + "{% for i in range(99999) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
        SETUP + "{% for i in range(99999) %}{% set ns.l = [ns.l, namespace(a=range(9999) | list)] %}{% endfor %}",
    ],
)
def test_endless_work_is_refused(template: str) -> None:
    refused(template, "more steps")


@pytest.mark.parametrize(
    "doubled",
    [
        "ns.x ~ ns.x",
        "ns.x + ns.x",
        "ns.x * 2",
        "'%s%s' % (ns.x, ns.x)",
        "'%(a)s%(a)s' % {'a': ns.x}",
        "'%s%s' | format(ns.x, ns.x)",
        "'{0}{0}'.format(ns.x)",
        "''.join([ns.x, ns.x])",
        "[ns.x, ns.x] | join",
        "[1, 2, 3] | join(d=ns.x)",
        "ns.x.join('abc')",
        "ns.x.replace('a', 'aa')",
        "ns.x | replace('a', 'aa')",
        "ns.x | replace(new='aa', old='a')",
        "ns.x | center(2 * ns.x | length)",
        "('a\nb' | indent(ns.x)) ~ ns.x",
    ],
)
def test_text_that_doubles_is_refused_before_it_is_made(doubled: str) -> None:
    refused(GROWS.replace("@", doubled), "more steps|beyond 1048576")


@pytest.mark.usefixtures("small_budget")
@pytest.mark.parametrize(
    "expression",
    [
        "('a' * 100000).rfind('ab' + 'a' * 50000)",
        "('a' * 100000).rsplit('ab' + 'a' * 50000) | length",
        "('a' * 100000).rpartition('ab' + 'a' * 50000) | length",
        "('a' * 100000).strip('b' * 100000 + 'a')",
        "('a' * 100000) | trim('b' * 100000 + 'a')",
        "('中' * 100000) | list | length",
        "('中' * 100000) | sort | length",
        "cycler(*('中' * 100000)) is none",
        "raise_exception(['a' * 100000] * 100)",
    ],
)
def test_what_takes_far_more_than_its_characters_is_paid_for(expression: str) -> None:
    refused(f"{{{{ {expression} }}}}", "more steps")


def test_what_a_template_says_when_it_refuses_is_told_in_short() -> None:
    for template in ("{{ raise_exception('a' * 100000) }}", "{{ {}['a' * 100000].x }}"):
        with pytest.raises(ChatTemplateError) as refusal:
            render(template, MESSAGES)
        assert "a" * 500 in str(refusal.value)
        assert len(str(refusal.value)) < 2000


def test_text_that_doubles_in_blocks_and_macros_is_refused() -> None:
    refused(
        SETUP + "{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        "more steps",
    )
    refused("{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + GROWS.replace("@", "m(ns.x)"), "more steps")


@pytest.mark.parametrize(
    "expression",
    [
        "'a'.ljust(10000000000)",
        "'a'.rjust(10000000000)",
        "'a'.center(10000000000)",
        "'a'.zfill(10000000000)",
        "'a' | center(10000000000)",
        "'a' | center(width=10000000000)",
        "'a' | indent(10000000000, true)",
        "'a b' | wordwrap(1, wrapstring='x' * 1000000)",
        "'{:1000000000}'.format(1)",
        "'{:{}}'.format(1, 1000000000)",
        "'{:{0[0]}}'.format([1000000000])",
        "'%1000000000d' % 1",
        "'%*d' | format(1000000000, 1)",
        "1.5 | round(1000000000, 'ceil')",
        "1.5 | round(1000, 'ceil')",
        "(1).to_bytes(1000000000, 'big')",
        "'a'.translate({97: 'x' * 1000000})",
        "'\t'.expandtabs(1000000000)",
        "{}.fromkeys(range(99999))",
        "[1] | batch(1000000000, 'x') | list",
        "[1] | slice(1000000000) | list",
        "messages | tojson(indent=1000000000)",
        "range(9999) | list | tojson(separators=('x' * 100000, 'y'))",
        "[[1], [2]] | sum(start=[])",
        "10 ** 64 ** 64",
        "range(99999) | map('string') | join('x' * 100000)",
        "range(99999) | map(attribute='real' ~ '.real' * 1000) | list",
        "range(99999) | sort(false, false, 'real' ~ '.real' * 1000)",
        "strftime_now('%c' * 1000000)",
    ],
)
def test_results_that_nobody_asks_for_are_refused(expression: str) -> None:
    refused(f"{{{{ {expression} }}}}", "not allowed|No filter named 'wordwrap'")


@pytest.mark.parametrize(
    "expression",
    [
        "('f' * 9999) | int(base=16) > 0",
        "0x" + "f" * 9999,
        "(2 ** 3000 + 1) % (2 ** 3000)",
        "(2 ** 3000 + 1) // (2 ** 3000)",
        "-(2 ** 3000) - 2 ** 3000",
    ],
)
def test_large_numbers_are_refused(expression: str) -> None:
    refused(f"{{{{ {expression} }}}}", "a number would have")


@pytest.mark.usefixtures("small_budget")
def test_an_exponent_that_is_no_number_is_not_told() -> None:
    refused(NESTS.replace("@", "{{ 2 ** ns.t }}"), "an exponent that is no number")


def test_numbers_do_not_grow_without_end() -> None:
    refused(
        SETUP + "{% set ns.x = 10 %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "a number would have",
    )


@pytest.mark.usefixtures("small_budget")
@pytest.mark.parametrize(
    "use",
    [
        "{{ ns.t }}",
        "{{ ns }}",
        "{{ ns.t ~ '' }}",
        "{{ ns.t | string | length }}",
        "{{ ns.t | tojson | length }}",
        "{{ ns.t == ns.u }}",
        "{{ ns.t in [ns.u] }}",
        "{{ ns.t is eq(ns.u) }}",
        "{{ ns.t is lower }}",
        "{{ ns | upper }}",
        "{{ ns | format }}",
        "{{ [ns.t].index(ns.u) }}",
        "{{ [ns.t, ns.u] | sort | length }}",
        "{{ [ns.t] | select('eq', ns.u) | list | length }}",
        "{% for i in [1, 2] %}{{ loop.changed(ns.t if i == 1 else ns.u) }}{% endfor %}",
    ],
)
def test_values_that_hold_themselves_over_and_over_are_paid_for_as_often(use: str) -> None:
    refused(NESTS.replace("@", use), "more steps")


@pytest.mark.parametrize(
    "use",
    [
        "{{ ns.t }}",
        "{{ {ns.t: 1} }}",
        "{{ {}[ns.t] }}",
        "{{ {}.get(ns.t) }}",
        "{{ [ns.t] | unique | list }}",
        "{{ dict([(ns.t, 1)]) }}",
    ],
)
def test_values_nested_without_end_are_refused_before_anything_follows_them(use: str) -> None:
    refused(DEEPENS.replace("@", use), "nested more than 100 deep")


@pytest.mark.parametrize(
    "template",
    [
        "{{" + "(" * 30000 + "1" + ")" * 30000 + "}}",
        "{{" + "[" * 30000 + "]" * 30000 + "}}",
        "{{" + "not " * 30000 + "1 }}",
        "{{ x" + ".a" * 20000 + "}}",
        "{% if x %}" * 3000 + "{% endif %}" * 3000,
        "{% for i in x %}" * 50 + "{% endfor %}" * 50,
        "{" * 100000,
        "x" * 200000,
    ],
)
def test_templates_nested_too_deep_or_too_long_are_typed_errors(template: str) -> None:
    refused(template, "chat template")


TREE = (
    "{% macro tree(x) %}{% for k, v in x.items() %}{{ k }}={% if v is mapping %}({{ tree(v) }}){% else %}{{ v }}{% endif %}{% endfor %}"
    "{% endmacro %}{{ tree({'a': 1, 'b': {'c': [1, 2], 'd': {}}}) }}"
)
CALLER = (
    "{% macro turn(m, end='.') %}[{{ m.role }}]{{ caller() if caller else m.content | trim }}{{ end }}{% endmacro %}"
    "{{ turn(messages[0]) }}{% call turn(messages[1], end='!') %}called{% endcall %}"
)
BACKWARDS = (
    "{% set ns = namespace(last=-1, out=[]) %}{% for m in messages[::-1] %}{% set i = messages | length - 1 - loop.index0 %}"
    "{% if ns.last < 0 and m.role == 'user' %}{% set ns.last = i %}{% endif %}{% set ns.out = ns.out + [m.role] %}{% endfor %}"
    "{{ ns.last }}{{ ns.out | join(', ') }}"
)


@pytest.mark.parametrize(
    "template",
    [
        TREE,
        CALLER,
        BACKWARDS,
        "{{ messages[0].content | trim }}{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ 'a' in 'abc' and 1 < 2 <= 3 }}",
        "{% for m in messages if m.role != 'system' %}{{ loop.index0 }}/{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}",
        "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% endfor %}",
        "{{ messages[2].content.split('</think>')[-1].lstrip('\n') }}{{ messages[2].content.startswith('<think>') }}",
        "{% set text %}{% for m in messages %}{{ m.role }} {% endfor %}{% endset %}{{ text | trim | title | replace('User', 'U') }}",
        "{{ messages | map(attribute='role') | list }}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}",
        "{{ messages | rejectattr('tool_calls', 'defined') | list | length }}{{ [3, 1, 2] | sort | first }}{{ [1, 2] | sum }}",
        "{{ '%s-%03d %5.2f' % ('a', 7, 2.5) }}{{ '{} {name:>4}'.format(1, name='x') }}{{ '%s!' | format('y') }}{{ 'a-b'.replace('-', '+') }}",
        "{{ 'a' ~ 1 ~ none }}{{ 3 * 'ab' + 'c' }}{{ 7 // 2 ** 2 % 3 }}{{ [[1, 2], [3]] | map('length') | list }}",
        "{% for c, group in messages | groupby('role') %}{{ c }}{{ group | length }}{% endfor %}{{ {'b': 1, 'a': 2} | dictsort }}",
        "{{ 'b' | center(5) }}|{{ 'x\ny' | indent(2) }}{{ {'a': 1}['a'] }}{{ joiner()() }}{{ 2.5 | round | int }}",
        "{% filter upper %}{{ messages[3].content }}{% endfilter %}{% for a, b in [(1, 2)] %}{{ cycler(a, b).next() }}{% endfor %}",
        "{% block b %}{{ messages[0].role }}{% endblock %}{{ self.b() }}{% set x = 5 if messages else 6 %}{{ x is odd }}",
    ],
)
def test_what_a_template_says_is_what_jinjas_own_sandbox_makes_of_it(template: str) -> None:
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    assert render(template, MESSAGES) == plain.from_string(template).render(messages=MESSAGES)


def test_a_long_conversation_spends_a_small_part_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Budget] = []

    class Kept(Budget):
        def __init__(self) -> None:
            super().__init__()
            held.append(self)

    monkeypatch.setattr("ostinato.frontend.chat.Budget", Kept)
    template = (
        "{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\n{% endfor %}{% endif %}"
        "{% for m in messages %}{% if m.role == 'assistant' and '</think>' in m.content %}{% set c = m.content.split('</think>')[-1] %}"
        "{% else %}{% set c = m.content | trim %}{% endif %}{{ '<|im_start|>' + m.role + '\n' + c + '<|im_end|>\n' }}{% endfor %}"
    )
    tools = [
        {"name": f"f{i}", "parameters": {"x": {"type": "string", "description": "a word " * 20}}} for i in range(50)
    ]
    text = render(template, MESSAGES * 500, tools=tools, now=datetime.datetime.now)
    assert json.dumps(tools[49], indent=4, ensure_ascii=False) in text
    (budget,) = held
    assert chat_sandbox._UNITS - budget.left < chat_sandbox._UNITS // 20
