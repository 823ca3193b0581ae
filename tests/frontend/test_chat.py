"""Chat templates: what public templates rely on, and what a hostile one must not reach."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from ostinato.frontend.chat import ChatTemplateError, render
from ostinato.ir.errors import ConfigError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe <1>?"}]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_common_template() -> None:
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGröße <1>?<|im_end|>\n"
    assert render(CHATML, MESSAGES) == expected + "<|im_start|>assistant\n"
    assert render(CHATML, MESSAGES, add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Be brief.</s>"),
        ("{% if true %}\n    x\n    {% endif %}\ny", "    x\ny"),  # trim_blocks and lstrip_blocks
        ("{{ {'b': 'é<', 'a': [1, none]} | tojson }}", '{"b": "é<", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ tools is none }}{{ documents is none }}{{ undefined_name is defined }}", "TrueTrueFalse"),
        ("{{ messages[1]['content'] | trim | upper }}{{ thinking }}", "GRÖSSE <1>?on"),
        ("{{ 'ab' * 3 }}{{ 2 ** 5 }}{{ '%s-%02d' % ('a', 7) }}", "ababab32a-07"),
        ("{{ messages[0].content.split(' ')[-1].strip('.') }}", "brief"),
    ],
)
def test_what_templates_rely_on(template: str, expected: str) -> None:
    text = render(
        template,
        MESSAGES,
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        variables={"thinking": "on"},
        now=lambda: datetime.datetime(2024, 7, 26),
    )
    assert text == expected


def test_tools_reach_the_template() -> None:
    assert render("{{ tools[0].name }}", MESSAGES, tools=[{"name": "f"}]) == "f"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__ }}",
        "{{ messages.__class__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__ }}",
        "{{ self.__init__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ ('' | attr('__class__')).x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{{ 10 ** 1000000 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ lipsum(n=1000000) }}",
        "{{ range(1000000000) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'config.json' %}",
        "{% import 'os' as os %}{{ os }}",
        "{% for i in range(99999) %}{% for j in range(1000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 30000 }}{% endfor %}{% endfor %}",
    ],
)
def test_escapes_and_exhaustion_are_typed_errors(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(template, MESSAGES)


def test_messages_are_not_changed() -> None:
    before = [dict(message) for message in MESSAGES]
    render("{% set messages = messages[1:] %}{{ messages | length }}", MESSAGES)
    assert before == MESSAGES


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{% if %}", "does not parse"),
        ("{{ x | nofilter }}", "does not parse|nofilter"),
        ("{{ messages[0].name.first }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
    ],
)
def test_faults_of_a_template_are_typed_errors(template: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        render(template, MESSAGES)
    assert issubclass(ChatTemplateError, ConfigError)


@pytest.mark.parametrize("message", ["text", {}, {"role": "user"}, {"role": 3, "content": "x"}, {"content": "x"}, None])
def test_malformed_messages_are_refused_by_number(message: Any) -> None:
    with pytest.raises(ChatTemplateError, match="message 1"):
        render(CHATML, [MESSAGES[0], message])


@pytest.mark.parametrize("messages", [None, 5, "hello", b"hello", MESSAGES[0]])
def test_what_is_no_list_of_messages_is_refused(messages: Any) -> None:
    with pytest.raises(ChatTemplateError, match="messages are a"):
        render(CHATML, messages)


@pytest.mark.parametrize(
    ("tools", "told"), [("search", "tools are a str"), (5, "tools are a int"), ([1], "tool 0 is 1")]
)
def test_what_are_no_tools_is_refused(tools: Any, told: str) -> None:
    with pytest.raises(ChatTemplateError, match=told):
        render(CHATML, MESSAGES, tools=tools)


def test_messages_that_can_be_read_once_are_all_there() -> None:
    assert render(CHATML, (message for message in MESSAGES)) == render(CHATML, MESSAGES)  # type: ignore[arg-type]
