"""What of this machine a record may say: never where a user's files are."""

from __future__ import annotations

import dataclasses
import hashlib
import re

from ostinato.frontend.checkpoints.packages import MODEL_PACKAGES
from ostinato.frontend.model import Model

__all__ = ["fingerprint", "label_of", "names_a_path", "without_paths"]

_PATH = re.compile(r"(?<![\w./\\-])(?:~?(?:/[^\s/:;,'\"()\[\]]+){2,}/?|[A-Za-z]:\\[^\s;,'\"()\[\]]+)")


def without_paths(text: str) -> str:
    """The text in one line, with <path> for every path of a file system."""
    return _PATH.sub("<path>", " ".join(text.split()))


def names_a_path(text: str) -> bool:
    return _PATH.search(text) is not None


def fingerprint(model: Model) -> str:
    """A hash of what a model computes, its weights and their dtypes apart: two checkpoints of the same shape are the same model."""
    config = dataclasses.replace(model.config, dtype=None, bos_token_id=None, eos_token_ids=(), pad_token_id=None)
    return hashlib.sha256(repr(config).encode()).hexdigest()[:16]


def label_of(name: str, model: Model) -> str:
    """The model for people: the name of a package, or its family and size."""
    if name in MODEL_PACKAGES:
        return name
    config = model.config
    return f"{model.family.name} {config.num_layers}x{config.hidden_size}"
