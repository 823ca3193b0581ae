"""Small byte-level vocabularies for tests, trained with the `tokenizers` library, and the GGUF metadata that carries them."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = (
    "The capital of France is Paris.",
    "It's 1234567 degrees, isn't it? I'LL say: 3.14159!",
    "  several   spaces\tand\ttabs\n\n\nthree newlines \r\n windows",
    "Größe, naïve, déjà vu, Ελληνικά, Русский, 日本語のテキスト, 한국어, עברית",
    "emoji: 🙂👩‍👩‍👧‍👦🇫🇷 and combining e\u0301",
    "def f(x):\n    return x**2 + 10_000  # comment",
    "½ ² ٣ Ⅷ 一二三",
    "",
    " ",
    "\u00a0non-breaking\u2003em space",
)
"""Texts that tell the pre-tokenizers apart: digits, contractions, white space, scripts, emoji, other numerals."""

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_TOKENS = ("<tool_call>",)

_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def hugging_face_pre_tokenizer(pre: str) -> Any:
    """The pre-tokenizer in the public tokenizer.json of the models that a `pre` name stands for."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre == "gpt-2":
        return byte_level
    pattern = {"qwen2": _QWEN_PATTERN, "llama-bpe": _QWEN_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|")}[pre]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"), bytes_only])


def train(pre: str = "smollm", size: int = 420) -> tokenizers.Tokenizer:
    """A byte-level tokenizer trained on `TEXTS`, with the control tokens first and the user-defined ones after them."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = hugging_face_pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=[*CONTROL_TOKENS, *USER_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(list(TEXTS) * 3, trainer)
    # the trainer marks all of its extra tokens special; the last ones are ordinary added tokens
    state = json.loads(backend.to_str())
    for entry in state["added_tokens"]:
        entry["special"] = entry["content"] in CONTROL_TOKENS
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def gguf_metadata(backend: tokenizers.Tokenizer, pre: str, **changes: Any) -> dict[str, Any]:
    """The `tokenizer.ggml.*` keys of a file that carries `backend`; `changes` are keys without that prefix, `...` removes one."""
    state = json.loads(backend.to_str())["model"]
    pieces = sorted(state["vocab"], key=state["vocab"].__getitem__)
    types = {**dict.fromkeys(CONTROL_TOKENS, 3), **dict.fromkeys(USER_TOKENS, 4)}
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": pieces,
        "token_type": [types.get(piece, 1) for piece in pieces],
        "merges": [" ".join(pair) for pair in state["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 0,
        "add_bos_token": False,
    }
    metadata.update(changes)
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not ...}
