"""Chat templates: a list of messages to the text a model was trained on.

Templates come with the checkpoint and are programs written by strangers. They run in a sandbox with a budget (`chat_sandbox.py`), with the whitespace rules,
the filter and the functions that the public templates rely on. Whatever a template does wrong becomes a `ChatTemplateError`; it never sees files, the
environment or Python's internals, and it ends, with a bounded amount of text made on the way.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError

from ostinato.frontend.chat_sandbox import BUDGET, Budget, Sandbox
from ostinato.ir.errors import ConfigError

__all__ = ["ChatTemplateError", "listed", "render"]

_MAX_OUTPUT = 1 << 24
_MAX_TEMPLATE = 1 << 17
_MAX_FORM = 1000
_MOST_TOLD = 1000
"""Characters of a message that a template made."""


class ChatTemplateError(ConfigError):
    """A chat template that cannot be parsed or rendered, tried to leave its sandbox, or refused the messages."""

    code = "chat_template"


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks the assistant's words for training; for a prompt it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    now: Callable[[], datetime.datetime] = datetime.datetime.now,
) -> str:
    """The prompt for `messages`, each a mapping with at least "role" and "content".

    `special_tokens` are visible to the template under their roles (bos_token, eos_token, ...), `variables` under their names; `now` answers the template's
    question for the date. Encode the result with `parse_special=True` and without adding special tokens: the template has written them.
    Raises `ChatTemplateError`.
    """
    spoken = listed("messages", messages)
    for index, message in enumerate(spoken):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ChatTemplateError(
                f"message {index} is {message!r}", hint='expected a mapping with "role" (text) and "content"'
            )
    known = None if tools is None else listed("tools", tools)
    for index, tool in enumerate(known or ()):
        if not isinstance(tool, Mapping):
            raise ChatTemplateError(f"tool {index} is {tool!r}", hint="expected a mapping, as OpenAI's API takes them")
    values = {
        **(special_tokens or {}),
        **(variables or {}),
        "messages": [dict(message) for message in spoken],
        "tools": None if known is None else [dict(tool) for tool in known],
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "strftime_now": lambda form: now().strftime(_short(form)),
        BUDGET: Budget(),
    }
    try:
        pieces = []
        length = 0
        for piece in _compiled(template).generate(values):
            length += len(piece)
            if length > _MAX_OUTPUT:
                raise SecurityError(f"the text is longer than {_MAX_OUTPUT} characters")
            pieces.append(piece)
        return "".join(pieces)
    except ChatTemplateError:
        raise
    except SecurityError as error:
        raise ChatTemplateError(
            f"the chat template tried something that is not allowed: {error}", hint="use a raw prompt"
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"the chat template does not parse: {error}", hint="use a raw prompt") from error
    except Exception as error:  # a template is a program: any operation in it may fail in any way
        raise ChatTemplateError(
            f"the chat template failed: {type(error).__name__}: {str(error)[:_MOST_TOLD]}",
            hint="check the roles and the contents of the messages",
        ) from error


def listed(what: str, given: Any) -> list[Any]:
    """The items of a list, or of anything else that gives them one by one; raises `ChatTemplateError` for what does not."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise ChatTemplateError(f"{what} are a {type(given).__name__}", hint="expected a list of mappings")
    return list(given)


def _short(form: str) -> str:
    """A form of dates; the system makes room for many times what a long one has."""
    if len(form) > _MAX_FORM:
        raise SecurityError(f"a form of dates has {len(form)} characters, more than {_MAX_FORM}")
    return form


def _refuse(message: str) -> NoReturn:
    raise ChatTemplateError(
        f"the chat template refuses these messages: {str(message)[:_MOST_TOLD]}", hint="check the roles and their order"
    )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, not escaped for HTML as Jinja's own filter does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    if len(template) > _MAX_TEMPLATE:
        raise SecurityError(f"it has {len(template)} characters, more than {_MAX_TEMPLATE}")
    extensions = [_Generation, jinja2.ext.loopcontrols]
    environment = Sandbox({"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)
