"""Small vocabularies for tests, trained with the `tokenizers` library, and the GGUF metadata that carries them."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

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

# the patterns as the public tokenizer.json files spell them
_PATTERNS = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "gpt-4o": (
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    "tekken": (
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        (
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
            "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
        ),
    ),
}


def hugging_face_pre_tokenizer(pre: str) -> Any:
    """The pre-tokenizer in the public tokenizer.json of the models that a `pre` name stands for."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    if pre in ("gpt-2", "olmo"):
        return byte_level
    if pre in ("smollm", "starcoder", "command-r"):
        return pre_tokenizers.Sequence([digits, byte_level])
    if pre == "falcon":
        triples = pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")
        groups = pre_tokenizers.Digits(individual_digits=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), byte_level, groups, triples])
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in _PATTERNS[pre]]
    return pre_tokenizers.Sequence([*splits, bytes_only])


def train(pre: str = "smollm", size: int = 420) -> tokenizers.Tokenizer:
    """A byte-level tokenizer trained on `TEXTS`, with the control tokens first and the user-defined ones after them."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    if pre in ("qwen2", "command-r", "olmo"):
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


def train_sentencepiece(size: int = 480) -> dict[str, float]:
    """Pieces and scores of a SentencePiece vocabulary: unknown, begin and end token, 256 bytes, two white-space runs, then trained pieces."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    backend.train_from_iterator(
        [" " + text for text in TEXTS] * 3, trainers.BpeTrainer(vocab_size=size - 261, show_progress=False)
    )
    state = json.loads(backend.to_str())["model"]
    alphabet = {piece for piece in state["vocab"] if len(piece) == 1}
    made = dict.fromkeys("".join(pair) for pair in state["merges"])
    rare = ("é", "日", "🙂")  # left to the bytes
    pieces = dict.fromkeys(
        [*SENTENCEPIECE_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WHITE_SPACE_RUNS], 0.0
    )
    pieces |= {piece: -float(rank) for rank, piece in enumerate(made) if not set(piece) & set(rare)}
    return pieces | {piece: -1000.0 - rank for rank, piece in enumerate(sorted(alphabet)) if piece not in rare}


SENTENCEPIECE_SPECIAL = ("<unk>", "<s>", "</s>")
WHITE_SPACE_RUNS = ("\n\n", "\u2581\u2581")


def sentencepiece_metadata(pieces: dict[str, float], **changes: Any) -> dict[str, Any]:
    """The `tokenizer.ggml.*` keys of a file that carries the vocabulary; `changes` as in `gguf_metadata`."""
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, **dict.fromkeys(WHITE_SPACE_RUNS, 4)}
    metadata: dict[str, Any] = {
        "model": "llama",
        "tokens": list(pieces),
        "scores": list(pieces.values()),
        "token_type": [6 if piece.startswith("<0x") else kinds.get(piece, 1) for piece in pieces],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    metadata.update(changes)
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not ...}


WORDPIECE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def wordpiece(lowercase: bool = True) -> tokenizers.Tokenizer:
    """BERT's tokenizer as its tokenizer.json has it, with the characters of `TEXTS` and halves of its words. (The library's trainer is not repeatable.)"""
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = {word for text in TEXTS for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    letters = sorted({letter for word in words for letter in word} - {"é"})
    halves = [half for word in sorted(words) if len(word) > 3 for half in (word[:3], "##" + word[3:])]
    pieces = dict.fromkeys([*WORDPIECE_SPECIAL, *letters, *("##" + letter for letter in letters), *halves])
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(WORDPIECE_SPECIAL))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return backend


def pieces_of(backend: tokenizers.Tokenizer) -> list[str]:
    """The vocabulary in the order of its ids."""
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def wordpiece_metadata(backend: tokenizers.Tokenizer, **changes: Any) -> dict[str, Any]:
    """The `tokenizer.ggml.*` keys of a file that carries `backend`: a mark on the pieces that start a word, none on the others."""
    pieces = pieces_of(backend)
    metadata: dict[str, Any] = {
        "model": "bert",
        "tokens": [
            piece if piece in WORDPIECE_SPECIAL else piece[2:] if piece.startswith("##") else "\u2581" + piece
            for piece in pieces
        ],
        "token_type": [3 if piece in WORDPIECE_SPECIAL else 1 for piece in pieces],
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "padding_token_id": 0,
    }
    metadata.update(changes)
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not ...}
