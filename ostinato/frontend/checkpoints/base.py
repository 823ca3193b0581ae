"""What every checkpoint gives, whichever format its files have.

Tensors carry their original Hugging Face names in both formats, so that nothing after this folder knows which one was opened. Bytes are read through a
mapping and handed out without a copy; whoever packs a tensor releases its pages afterwards, and a load never holds two copies of the weights.
Which tensors a model needs is not decided here: the loader compares `tensors` with the weight manifest, strictly.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import ClassVar, NoReturn, Self

import numpy as np
import numpy.typing as npt

from ostinato.frontend.checkpoints.config import ModelConfig
from ostinato.frontend.checkpoints.embedding import EmbeddingRecipe
from ostinato.frontend.checkpoints.files import Bytes, MappedFile, file_identity, system_errors
from ostinato.frontend.checkpoints.generation import GenerationDefaults
from ostinato.frontend.tokenizer import Tokenizer
from ostinato.ir.errors import LifecycleError, WeightsError
from ostinato.ir.types import DType
from ostinato.ir.weights import transform_of

__all__ = ["EMBEDDING", "HEAD", "Checkpoint", "CheckpointFacts", "TensorSource"]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class TensorSource:
    """Where one tensor lies: bytes [offset, offset + nbytes) of `file`, row-major, `shape` in elements, outermost first.

    `name` is the Hugging Face name, `source_name` the one in the file. Where `row_order` is set, logical row i is row `row_order[i]` of the file.
    `shift` is added to every stored value, in float32, when it is loaded.
    """

    name: str
    source_name: str
    shape: tuple[int, ...]
    dtype: DType
    file: Path
    offset: int
    nbytes: int
    row_order: npt.NDArray[np.int64] | None = None
    shift: float = 0.0

    @property
    def transform(self) -> str:
        """How loading it differs from copying its rows: the transform of its parts in the weight manifest."""
        return transform_of(reordered=self.row_order is not None, shift=self.shift)


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What a format's reader found. `ignored_files` and `ignored_tensors` are reported to the user, never used."""

    path: Path
    config: ModelConfig
    tensors: Mapping[str, TensorSource]
    special_tokens: Mapping[str, str]
    chat_template: str | None
    generation: GenerationDefaults
    ignored_files: tuple[Path, ...] = ()
    ignored_tensors: tuple[str, ...] = ()


class Checkpoint(abc.ABC):
    """An opened checkpoint. Use it as a context manager, or call `close`; it is not bound to a thread."""

    format: ClassVar[str]

    def __init__(self, facts: CheckpointFacts) -> None:
        self._facts = facts
        self._tensors = MappingProxyType(dict(facts.tensors))
        self._files: dict[Path, MappedFile] = {}
        self._identities = {path: file_identity(path) for path in {tensor.file for tensor in self._tensors.values()}}
        self._closed = False
        self._tokenizer: Tokenizer | None = None

    @property
    def path(self) -> Path:
        """The directory or file that was opened."""
        return self._facts.path

    @property
    def config(self) -> ModelConfig:
        return self._facts.config

    @property
    def tensors(self) -> Mapping[str, TensorSource]:
        """All tensors by Hugging Face name; a tied head is absent. Names that no model file knows are in it too, for the strict load to refuse."""
        return self._tensors

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the special tokens by role: bos_token, eos_token, unk_token, pad_token, where the files name them."""
        return self._facts.special_tokens

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the default chat template, None where the files have none."""
        return self._facts.chat_template

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text, in the order in which the files name them."""
        return self._facts.config.eos_token_ids

    @property
    def generation(self) -> GenerationDefaults:
        """How the model's authors sample from it, where the files say so."""
        return self._facts.generation

    @property
    def ignored_files(self) -> tuple[Path, ...]:
        """Weight files that lie beside the used ones and were not read."""
        return self._facts.ignored_files

    @property
    def ignored_tensors(self) -> tuple[str, ...]:
        """Tensors that carry nothing a model needs (stored rotary frequencies, a head equal to the tied embedding)."""
        return self._facts.ignored_tensors

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @property
    def parameters(self) -> int:
        """Number of values in all tensors; a tied head is stored once and counted once."""
        return sum(math.prod(tensor.shape) for tensor in self._tensors.values())

    @property
    @abc.abstractmethod
    def has_tokenizer(self) -> bool:
        """True when the files carry a tokenizer; it may still turn out to be of an unsupported kind."""

    @abc.abstractmethod
    def embedding_recipe(self) -> EmbeddingRecipe:
        """How the states of an encoder's tokens become one vector; read anew on every call. Raises `ConfigError` for what is not computed."""

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the checkpoint's files, built on the first call. Raises `WeightsError` when there is none."""
        if self._tokenizer is None:
            with system_errors(self.path):
                self._tokenizer = self._build_tokenizer()
        return self._tokenizer

    @abc.abstractmethod
    def _build_tokenizer(self) -> Tokenizer: ...

    def map(self, tensor: TensorSource | str) -> Bytes:
        """The stored bytes of a tensor: uint8 [nbytes], read-only, a view of the mapped file (rows in the file's order).

        Raises `WeightsError` for a name that is not in the checkpoint or a file that changed, `LifecycleError` after `close`.
        """
        source = self._source(tensor)
        return self._mapped(source.file).view(source.offset, source.nbytes)

    def release(self, tensor: TensorSource | str) -> None:
        """Gives the resident pages of a tensor back to the system; its views stay valid and read the file again."""
        source = self._source(tensor)
        self._mapped(source.file).release(source.offset, source.nbytes)

    def close(self) -> None:
        """Unmaps all files (each as soon as its last view is gone). The configuration, names and tokenizer stay usable."""
        self._closed = True
        files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            f"the checkpoint {self.path} holds open files and cannot be copied or pickled",
            hint="hand its path over and open it again there",
        )

    def __repr__(self) -> str:
        return f"<{self.format} checkpoint {self.path}: {self.config.architecture}, {len(self._tensors)} tensors, {self.nbytes} bytes>"

    def tensor(self, name: str) -> TensorSource:
        """The tensor of that Hugging Face name; raises `WeightsError` for a name that is not in the checkpoint."""
        found = self._tensors.get(name)
        if found is None:
            raise WeightsError(
                f"the checkpoint {self.path} has no tensor {name!r}", hint="see its `tensors` for the names"
            )
        return found

    def _source(self, tensor: TensorSource | str) -> TensorSource:
        return tensor if isinstance(tensor, TensorSource) else self.tensor(tensor)

    def _mapped(self, path: Path) -> MappedFile:
        if self._closed:
            raise LifecycleError(f"the checkpoint {self.path} was closed", hint="open it again")
        if path not in self._files:
            file = MappedFile(path)
            if file.identity != self._identities[path]:
                file.close()
                raise WeightsError(
                    f"{path} was replaced or written to after the checkpoint was opened",
                    hint="open the checkpoint again",
                )
            self._files[path] = file
        return self._files[path]
