"""The tokenizer of a Hugging Face directory, and what its files say beside the vocabulary: special tokens, flags, chat template.

`tokenizer.json` is the whole tokenizer. `tokenizer_config.json` adds to it: tokens that are not in it, whether texts get begin and end tokens, and the
texts of the special ones, each as a text or as an object. A BERT directory may have `vocab.txt` instead. Vocabularies that only other libraries read
(`tokenizer.model`, `vocab.json` with `merges.txt`) are refused with the way to convert them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ostinato.frontend.checkpoints.files import describe_foreign, optional_json, require_file
from ostinato.frontend.checkpoints.reader import ConfigReader
from ostinato.frontend.tokenizer import Tokenizer, tokenizer_from_vocab_txt
from ostinato.ir.errors import ConfigError, WeightsError

__all__ = ["HuggingFaceTokenizerFiles"]

_TOKENIZER, _VOCABULARY = "tokenizer.json", "vocab.txt"
_CONFIG = "tokenizer_config.json"
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
_WORDPIECE_CLASSES = (None, "BertTokenizer", "BertTokenizerFast")
_ID_DIGITS = 10
_OTHERS = ("tokenizer.model", "spiece.model", "vocab.json")


class HuggingFaceTokenizerFiles:
    """The tokenizer files of one directory; the small ones are read at once, the vocabulary by `build`. Raises `ConfigError` and `WeightsError`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._config = optional_json(directory / _CONFIG, "tokenizer configuration")
        self.special_tokens: Mapping[str, str] = _special_tokens(directory, self._config)
        self.chat_template: str | None = _chat_template(directory, self._config)

    @property
    def present(self) -> bool:
        return any((self.directory / name).exists() for name in (_TOKENIZER, _VOCABULARY))

    def build(self) -> Tokenizer:
        """The tokenizer. Raises `WeightsError` where there is none that can be read, `ConfigError` where the files contradict each other."""
        file, vocabulary = self.directory / _TOKENIZER, self.directory / _VOCABULARY
        if not file.exists() and vocabulary.exists():
            return self._build_wordpiece(vocabulary)
        if not file.exists():
            others = [name for name in _OTHERS if (self.directory / name).exists()]
            hint = "copy the model's tokenizer.json into the directory"
            if others:
                hint = f"write one from {others[0]} with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            raise WeightsError(f"{self.directory} has no {_TOKENIZER}", hint=hint)
        require_file(file, "tokenizer")
        foreign = describe_foreign(file, "a tokenizer")
        if foreign is not None:
            raise foreign
        read = ConfigReader(self._config, str(self.directory / _CONFIG))
        return Tokenizer.from_file(
            file,
            bos_token=self.special_tokens.get("bos_token"),
            eos_token=self.special_tokens.get("eos_token"),
            pad_token=self.special_tokens.get("pad_token"),
            add_bos=read.optional("add_bos_token", read.flag),
            add_eos=read.optional("add_eos_token", read.flag),
            added_tokens=_added_tokens(read),
        )

    def _build_wordpiece(self, vocabulary: Path) -> Tokenizer:
        read = ConfigReader(self._config, str(self.directory / _CONFIG))
        kind = self._config.get("tokenizer_class")
        if kind not in _WORDPIECE_CLASSES:
            raise read.refuse(
                f"the directory has no {_TOKENIZER}, and a {_VOCABULARY} of a {kind} is not supported",
                hint="write one with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
            )
        return tokenizer_from_vocab_txt(
            vocabulary,
            lowercase=read.flag("do_lower_case", default=True),
            strip_accents=read.optional("strip_accents", read.flag),
            chinese_characters=read.flag("tokenize_chinese_chars", default=True),
            special_tokens=self.special_tokens,
        )


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    merged = {**optional_json(directory / "special_tokens_map.json", "special token map"), **config}
    found = {}
    for role in _ROLES:
        value = merged.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[role] = text
    return found


def _added_tokens(read: ConfigReader) -> dict[int, tokenizers.AddedToken]:
    """The tokens that `tokenizer_config.json` lists by id, as older slow tokenizers and some fine-tuned models write them."""
    entries = read.mapping("added_tokens_decoder") or {}
    added = {}
    for key, entry in entries.items():
        if not (
            key.isdecimal()
            and len(key) <= _ID_DIGITS
            and isinstance(entry, Mapping)
            and isinstance(entry.get("content"), str)
        ):
            raise ConfigError(
                f"{read.where}: added_tokens_decoder has {key!r}: {entry!r}",
                hint="expected an id and an object with content",
            )
        flags = {
            name: ConfigReader(entry, f"{read.where}: added_tokens_decoder {key}").flag(name)
            for name in ("lstrip", "rstrip", "single_word", "special")
        }
        added[int(key)] = tokenizers.AddedToken(entry["content"], normalized=entry.get("normalized") is True, **flags)
    return added


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The default template: its own file wins over the tokenizer configuration, as it does in transformers."""
    own = directory / "chat_template.jinja"
    if own.exists():
        if not own.is_file():
            raise WeightsError(f"{own} is not a regular file", hint="download it again")
        try:
            return own.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{own} is not UTF-8 text: {error}", hint="download it again") from error
    for source in (optional_json(directory / "chat_template.json", "chat template"), config):
        template = source.get("chat_template")
        if isinstance(template, list):  # named templates: the default one is the one for plain chat
            defaults = [item for item in template if isinstance(item, dict) and item.get("name") == "default"]
            template = defaults[-1].get("template") if defaults else None
        if isinstance(template, str):
            return template
    return None
