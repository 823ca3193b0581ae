"""`ostinato run MODEL --chat` without a prompt: a conversation in the terminal, or with the lines of a pipe.

Each line is a message; one that begins with "/" is a command. Every turn renders the whole conversation through the model's template; the cache still
holds the turns before, so that only what is new is computed. Ctrl-C ends the answer, what was said so far stays; Ctrl-D or the end of the pipe ends the
program. Answers go to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable

from ostinato.ir.errors import ConfigError, OstinatoError
from ostinato.llm import LLM
from ostinato.runtime.output import RequestOutput
from ostinato.runtime.sampling import SamplingParams
from ostinato.tools.console import facts, notice, print_error, remark, write_piece
from ostinato.tools.generate import answer, messages_of, tokens_per_second

__all__ = ["COMMANDS", "Conversation", "converse"]

COMMANDS = {
    "/help": "show these commands",
    "/reset": "forget the conversation; the system prompt stays",
    "/system [TEXT]": "show the system prompt, or set it and start anew",
    "/stats": "show what was said and how fast",
    "/exit": "leave, like Ctrl-D",
}
_HINT = "Ctrl-C ends an answer, Ctrl-D the conversation; /help shows the commands"


class Conversation:
    """Messages and answers with one model. Each answer draws from a seed of its own."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self._llm = llm
        self._params = params
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.answers: list[RequestOutput] = []

    def reset(self) -> None:
        """Forgets what was said."""
        self.messages.clear()

    def say(self, text: str, write: Callable[[str], None]) -> RequestOutput:
        """Answers a message; Ctrl-C ends the answer. What fails is not part of the conversation.

        Raises what `LLM.stream` and `LLM.chat_prompt` raise.
        """
        ids = self._llm.chat_prompt(messages_of(text, self.system, self.messages))
        found = answer(self._llm, ids, self._turn_params(), write, interruptible=True)
        if found.text or found.finished:
            turn = {"role": "user", "content": text}, {"role": "assistant", "content": found.text}
            self.messages.extend(turn)
        self.answers.append(found)
        return found

    def _turn_params(self) -> SamplingParams:
        seed = self._params.seed
        if seed is None:
            return self._params
        return dataclasses.replace(self._params, seed=(seed + len(self.answers)) % 2**63)

    def speed(self, found: RequestOutput) -> str:
        """What an answer took, in one line."""
        rate = tokens_per_second(found)
        prompt, made = len(found.prompt_token_ids), len(found.token_ids)
        how = "" if found.finished else ", interrupted"
        return (
            f"{made} tokens{'' if rate is None else f', {rate:.1f} tokens/s'}{how}; {prompt + made} of {self._llm.context} positions, "
            f"{found.num_cached_tokens} of {prompt} prompt tokens were in the cache"
        )

    def stats(self) -> list[tuple[str, str]]:
        """Names and values of `/stats`."""
        made = sum(len(found.token_ids) for found in self.answers)
        prompt = sum(len(found.prompt_token_ids) for found in self.answers)
        cached = sum(found.num_cached_tokens for found in self.answers)
        timed = [found for found in self.answers if found.metrics is not None and len(found.token_ids) > 1]
        took = sum(found.metrics.tokens_time for found in timed if found.metrics is not None)
        rows = [
            ("messages", str(len(self.messages))),
            ("answers", str(len(self.answers))),
            ("tokens made", str(made)),
            ("prompt tokens", f"{prompt}, of which {cached} were in the cache"),
        ]
        if took > 0:
            rows.append(("tokens/s", f"{sum(len(found.token_ids) - 1 for found in timed) / took:.1f}"))
        return [*rows, ("last", self.speed(self.answers[-1]))] if self.answers else rows


def converse(conversation: Conversation) -> None:
    """Reads messages and answers them until the input ends or `/exit`."""
    read_line = _line_reader()
    notice(_HINT)
    while (line := read_line()) is not None:
        text = line.strip()
        if not text:
            continue
        if line.startswith("/"):
            if not _obey(conversation, text):
                return
            continue
        try:
            found = conversation.say(text, write_piece)
        except OstinatoError as error:
            print_error(_explained(error), as_json=False)
            continue
        write_piece("\n")
        notice(conversation.speed(found))


def _obey(conversation: Conversation, line: str) -> bool:
    """Does what a command line says; False to leave."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    if command == "/exit":
        return False
    if command == "/help":
        remark(facts(COMMANDS.items()))
    elif command == "/stats":
        remark(facts(conversation.stats()))
    elif command == "/reset":
        conversation.reset()
        notice("the conversation is forgotten")
    elif command == "/system" and rest:
        conversation.system = rest
        conversation.reset()
        notice("the system prompt is set; the conversation starts anew")
    elif command == "/system":
        notice("there is no system prompt" if conversation.system is None else f"system: {conversation.system}")
    else:
        print_error(
            ConfigError(f"{command} is no command", hint="/help shows them; a space in front makes it a message"), False
        )
    return True


def _explained(error: OstinatoError) -> OstinatoError:
    """A conversation that outgrew its context, told in the words of a conversation."""
    if error.code != "capacity":
        return error
    return ConfigError(
        f"the conversation does not fit any more: {error.message}",
        hint="/reset starts anew; a larger --context or fewer --max-tokens leave more room",
    )


def _line_reader() -> Callable[[], str | None]:
    """Reads a line at the terminal with editing and history, or from a pipe; None at its end."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed", hint="give the message with --prompt")
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it is what gives `input` editing and history
        return _ask
    if hasattr(sys.stdin, "reconfigure"):
        # bytes that are no text become an error of their message
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return lambda: sys.stdin.readline() or None


def _ask() -> str | None:
    while True:
        try:
            return input("> ")
        except EOFError:
            write_piece("\n")
            return None
        except KeyboardInterrupt:
            write_piece("\n")
            notice(_HINT)
