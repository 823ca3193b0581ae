"""A tiny model on disk, with tokenizer and chat template, for the tools."""

from __future__ import annotations

from pathlib import Path

import pytest

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
