"""The conversation of `ostinato run --chat`: lines of a pipe, a terminal with Ctrl-C and Ctrl-D, commands, and what the cache saves."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

import ostinato as ost
from ostinato.tools import cli
from ostinato.tools.chat import COMMANDS, Conversation
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_tokenizers import train
from tests.tools.conftest import TEMPLATE

Talk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talk(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Runs a conversation whose lines come through a pipe: exit code, standard output, standard error."""

    def run(text: str | bytes, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        data = text if isinstance(text, bytes) else text.encode("utf-8")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", str(tiny), "--chat", "--max-tokens", "6", "--ignore-eos", "--threads", "1", *arguments])
        out, err = capsys.readouterr()
        return (caught.value.code if isinstance(caught.value.code, int) else 0), out, err

    return run


def test_each_line_of_a_pipe_is_a_message(talk: Talk) -> None:
    code, out, err = talk("hello\n\n  \nand again\n")
    assert code == 0
    assert len(re.findall(r"6 tokens, [\d.]+ tokens/s; \d+ of 256 positions", err)) == 2
    first, second = re.findall(r"(\d+) of (\d+) prompt tokens were in the cache", err)
    assert first[0] == "0"
    assert 0 < int(second[0]) < int(second[1])
    assert out.endswith("\n")
    assert "tokens/s" not in out


def test_commands(talk: Talk) -> None:
    code, _, err = talk(
        "/help\n/system\nhello\n/stats\n/system Be brief.\n/system\n/stats\n/nonsense\n/reset\n/exit\nnever\n"
    )
    assert code == 0
    for name, purpose in COMMANDS.items():
        assert name in err
        assert purpose in err
    assert "there is no system prompt" in err
    assert "system: Be brief." in err
    assert re.search(r"tokens made\s+6\b", err)
    assert "/nonsense is no command" in err
    assert "the conversation is forgotten" in err
    assert err.count("positions,") == 3, "one answer, told when it ended and in both statistics"


def test_a_space_in_front_makes_a_command_a_message(talk: Talk) -> None:
    _, _, err = talk(" /exit\nhello\n")
    assert len(re.findall("prompt tokens were in the cache", err)) == 2


def test_a_conversation_that_outgrows_its_context_says_so_and_goes_on(talk: Talk) -> None:
    code, _, err = talk("hello\n" + "word " * 200 + "\nhello\n", "--context", "64")
    assert code == 0
    assert "the conversation does not fit any more" in err
    assert "/reset starts anew" in err
    assert len(re.findall("prompt tokens were in the cache", err)) == 2, "what failed is not part of it"


def test_bytes_that_are_no_text_are_an_error_of_their_message(talk: Talk) -> None:
    code, _, err = talk(b"\xff\xfe\nhello\n")
    assert code == 0
    assert "error" in err
    assert len(re.findall("prompt tokens were in the cache", err)) == 1


def test_a_conversation_draws_from_new_seeds(tiny: Path) -> None:
    llm = ost.LLM(tiny, max_num_seqs=1, context=128, threads=1)
    params = ost.SamplingParams(max_tokens=8, seed=4, ignore_eos=True)
    texts = []
    for _ in range(2):
        conversation = Conversation(llm, params, "be brief")
        texts.append([conversation.say("hello", lambda _: None).text for _ in range(1)])
        conversation.reset()
        texts[-1].append(conversation.say("hello", lambda _: None).text)
    assert texts[0] == texts[1], "the same seed, the same conversation"
    assert texts[0][0] != texts[0][1]
    assert (
        llm.generate(
            llm.chat_prompt([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]), params
        )[0].text
        == texts[0][0]
    )


def test_the_whole_conversation_is_rendered_for_each_turn(tiny: Path) -> None:
    llm = ost.LLM(tiny, max_num_seqs=1, context=128, threads=1)
    params = ost.SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    conversation = Conversation(llm, params, "sys")
    first = conversation.say("one", lambda _: None)
    second = conversation.say("two", lambda _: None)
    messages = [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "two"},
    ]
    assert list(second.prompt_token_ids) == llm.chat_prompt(messages)
    assert second.num_cached_tokens > len(first.prompt_token_ids) - 1


def test_options_that_do_not_go_together(talk: Talk) -> None:
    code, out, _ = talk("hello\n", "--json")
    assert code == 2
    assert "not one JSON object" in out
    assert talk("", "--logprobs", "2")[0] == 2


class Terminal:
    """A process with a terminal of its own."""

    def __init__(self, model: Path, *arguments: str) -> None:
        import pty  # not everywhere

        self.seen = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            program = "from ostinato.tools.cli import main; main()"
            command = [sys.executable, "-c", program, "run", str(model), "--chat", *arguments]
            os.execve(sys.executable, command, {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"})

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        """Reads until the pattern appears in what was not waited for yet."""
        assert self._came(pattern, seconds), f"{pattern} never came: {self.seen!r}"

    def interrupt(self, pattern: str, times: int = 10) -> None:
        """Presses Ctrl-C and waits for the pattern. A signal between the prompt and the read behind it is Python's alone until a key comes: then again."""
        for _ in range(times):
            self.write("\x03")
            if self._came(pattern, 6):
                return
        raise AssertionError(f"{pattern} never came: {self.seen!r}")

    def _came(self, pattern: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            if time.monotonic() > end:
                return False
            if select.select([self._terminal], [], [], 0.1)[0]:
                self.seen += self._read()
        self.seen = self.seen[found.end() :]
        return True

    def exit_code(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self) -> str:
        try:
            return os.read(self._terminal, 65536).decode("utf-8", "replace")
        except OSError:  # how Linux says that the other side is closed
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._terminal)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A model with room for an answer that nobody wants to wait for."""
    tokenizer = train()
    config = small_config(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=1 << 16)
    write_hf_checkpoint(tmp_path, config, random_model(config, 5))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_the_answer_and_ctrl_d_the_program(endless: Path) -> None:
    options = ("--ignore-eos", "--context", "60000", "--max-tokens", "50000", "--threads", "1")
    with Terminal(endless, *options) as terminal:
        terminal.wait_for("/help shows the commands")
        terminal.wait_for("> ")
        terminal.interrupt("> ")  # at the prompt it leaves nothing behind
        for _ in range(2):
            terminal.write("hello\n")
            terminal.wait_for("hello[\\s\\S]{20}")  # the echo, and some of the answer
            terminal.write("\x03")
            terminal.wait_for("interrupted; .* of 60000 positions")
            terminal.wait_for("> ")
        terminal.write("/stats\n")
        terminal.wait_for("answers +2")
        terminal.wait_for("> ")
        terminal.write("\x04")
        assert terminal.exit_code() == 0
