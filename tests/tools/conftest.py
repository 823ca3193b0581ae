"""A tiny model on disk, with tokenizer and chat template, and the command line in one process, for the tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ostinato.tools import cli
from ostinato.tools.schemas import REPORTS, Report
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_tokenizers import train

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers whose vocabulary is the tokenizer's."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = train()
    config = small_config(vocab_size=tokenizer.get_vocab_size())
    write_hf_checkpoint(folder, config, random_model(config, 5))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def report(self) -> Report:
        """Standard output as the one JSON object that it must be, checked against the schema of its kind."""
        return REPORTS[json.loads(self.out)["kind"]].model_validate_json(self.out, strict=True)


Run = Callable[..., Result]


@pytest.fixture
def ostinato(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        code = caught.value.code
        return Result(code if isinstance(code, int) else 0, out, err)

    return run
