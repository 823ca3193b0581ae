"""Checkpoints: Hugging Face directories and GGUF files behind one interface."""

from __future__ import annotations

from ostinato.frontend.checkpoints.base import EMBEDDING, HEAD, Checkpoint, TensorSource
from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.generation import GenerationDefaults
from ostinato.frontend.checkpoints.gguf_checkpoint import GgufCheckpoint
from ostinato.frontend.checkpoints.huggingface import HuggingFaceCheckpoint
from ostinato.frontend.checkpoints.open import open_checkpoint
from ostinato.frontend.checkpoints.packages import MODEL_PACKAGES

__all__ = [
    "EMBEDDING",
    "HEAD",
    "MODEL_PACKAGES",
    "Checkpoint",
    "GenerationDefaults",
    "GgufCheckpoint",
    "HuggingFaceCheckpoint",
    "ModelConfig",
    "TensorSource",
    "open_checkpoint",
]
