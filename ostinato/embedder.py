"""`Embedder`: texts in, vectors out, with the conventions of sentence-transformers over a compiled encoder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers.normalizers import Lowercase

from ostinato.artifact import Weights, open_artifact
from ostinato.frontend.model import Model
from ostinato.frontend.tokenizer import Tokenizer
from ostinato.ir.checks import integer
from ostinato.ir.errors import ConfigError, DTypeError, ShapeError
from ostinato.ir.explain import Explanation
from ostinato.ir.precision import PrecisionPolicy
from ostinato.ir.types import Array
from ostinato.passes.policy import Policy
from ostinato.runtime.device import Device
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.options import check_progress, settle_route
from ostinato.runtime.weights import Progress
from ostinato.served import serve_encoder
from ostinato.stages import Passes, open_device, open_model

__all__ = ["Embedder"]


class Embedder:
    """An encoder with its tokenizer and its pooling.

    `model` is a directory, a `.gguf` file, the name of an installed model package, or a `Model`. `max_seq_length` is where texts are cut, in tokens, special
    ones included: by default what the checkpoint says, never more than the model has positions. `mode`, `capture`, `memory_limit`, `reuse`,
    `levels`, `disable`, `policy`, `passes` and `validate` are those of `ostinato.compile_encoder`.
    Raises the errors of `ostinato.load` and `ostinato.compile_encoder`.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        *,
        max_seq_length: int | None = None,
        device: str | Device = "auto",
        mode: str = "auto",
        precision: str | PrecisionPolicy = "auto",
        memory_limit: int | str | None = None,
        reuse: bool = True,
        threads: int = 0,
        isa: str = "auto",
        on_fallback: str = "report",
        capture: Sequence[str] | None = None,
        markers: bool | None = None,
        levels: Mapping[str, str] | None = None,
        disable: Iterable[str] = (),
        policy: Policy | str = "balanced",
        passes: Passes = (),
        validate: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        route = settle_route(open_device(device, threads, isa), mode, on_fallback, capture, markers)
        check_progress(progress)
        self._describe(open_model(model), max_seq_length)
        self._start(
            serve_encoder(
                self.model,
                route,
                max_seq_length=self.max_seq_length,
                precision=precision,
                mode=mode,
                memory_limit=memory_limit,
                reuse=reuse,
                levels=levels,
                disable=disable,
                policy=policy,
                passes=passes,
                validate=validate,
                progress=progress,
            )
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | Device = "auto",
        mode: str = "auto",
        trust: bool = False,
        recompile: bool = False,
        weights: Weights | None = None,
        threads: int = 0,
        progress: Progress | None = None,
    ) -> Self:
        """The `Embedder` that `save` wrote, without compiling it: arguments and errors are those of `ostinato.load_executable`, and `ConfigError` for an
        artifact of something else."""
        how: dict[str, Any] = {"trust": trust, "recompile": recompile, "weights": weights, "threads": threads}
        opened = open_artifact(path, device, mode, progress=progress, **how)
        made = cls.__new__(cls)
        executable = opened.of_kind("embedder", EmbedExecutable, "an Embedder")
        made._describe(opened.model, opened.request.max_seq_length)
        made._start(executable)
        return made

    def save(self, path: str | os.PathLike[str], *, weights: bool = False, whole: bool = False) -> Path:
        """Writes what this compiled to one file, for `Embedder.load` and the commands; see `Executable.save`."""
        return self.executable.save(path, weights=weights, whole=whole)

    def _describe(self, model: Model, max_seq_length: int | None) -> None:
        """The model, how it pools, and where texts are cut."""
        self.model = model
        self.recipe = model.checkpoint.embedding_recipe()
        positions = model.config.max_position_embeddings
        own = min(self.recipe.max_length or positions, positions)
        self.max_seq_length = own if max_seq_length is None else integer(max_seq_length, "max_seq_length", low=1)
        if self.max_seq_length > positions:
            raise ConfigError(f"max_seq_length {self.max_seq_length} is more than the model's {positions} positions")

    def _start(self, executable: EmbedExecutable) -> None:
        self.executable = executable
        self.executable.prewarm()

    def explain(self, node: str) -> Explanation:
        """Why the nodes of a name or pattern run as they do, in every step that this compiles; see `Executable.explain`."""
        return self.executable.explain(node)

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; raises `WeightsError` when it has none."""
        return self.model.checkpoint.tokenizer()

    @property
    def dimension(self) -> int:
        """Width of an embedding."""
        return self.executable.dimension

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool | None = None,
    ) -> Array:
        """Embeddings float32 [n, dimension] of texts in their order, [dimension] of a single text.

        A text of more than `max_seq_length` tokens loses its end. `prompt`, or the checkpoint's prompt of that name (its default one where neither is given),
        is put in front of every text. At most `batch_size` texts share a step; a text's vector has the same bits in every batch. `normalize_embeddings` None
        does what the checkpoint's modules say, True divides by the Euclidean length, False leaves the pooled vector as it is.

        Raises `DTypeError` naming what is not text, `ConfigError` for a prompt or batch size that cannot be used; all texts are read before any runs.
        """
        single = isinstance(sentences, str)
        listed = [sentences] if isinstance(sentences, str) else _listed(sentences)
        front = self._prompt(prompt_name, prompt)
        size = integer(batch_size, "batch_size", low=1)
        if normalize_embeddings is not None and not isinstance(normalize_embeddings, bool):
            raise ConfigError(f"normalize_embeddings is {normalize_embeddings!r}, expected True, False or None")
        rows = [np.array(self.token_ids(f"{front}{text}"), np.int32) for text in listed]
        normalize = self.recipe.normalize if normalize_embeddings is None else normalize_embeddings
        found = self.executable.embed(rows, normalize=normalize, batch_size=size)
        vector: Array = found[0] if single else found
        return vector

    def token_ids(self, text: str) -> list[int]:
        """The ids that stand for a text: lower-cased first where the checkpoint says so, special tokens around it, cut at `max_seq_length`."""
        if self.recipe.lower_case:
            text = Lowercase().normalize_str(text)
        return self.tokenizer.encode(text, parse_special=True, max_length=self.max_seq_length)

    @staticmethod
    def similarity(left: Array, right: Array) -> Array:
        """Cosine similarity float32 [n, m] of embeddings [n, dimension] and [m, dimension]; that of a vector of zeros is 0.

        Raises `DTypeError` for what is no array of numbers, texts among them, and `ShapeError`.
        """
        sides: tuple[tuple[str, Any], ...] = (("left", left), ("right", right))
        for name, given in sides:
            if not isinstance(given, np.ndarray) or given.dtype.kind in "OSU":
                raise DTypeError(
                    f"{name}: expected a numpy array of numbers, found {type(given).__name__}",
                    hint="encode texts first: similarity(encode(a), encode(b))",
                )
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise ShapeError(
                f"expected [n, dimension] and [m, dimension], found {left.shape} and {right.shape}",
                hint="vectors of one model have one dimension; vector[None] makes one vector a table of one",
            )
        units = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (left, right)]
        result: Array = (units[0] @ units[1].T).astype(np.float32)
        return result

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        """The text to put in front; raises `ConfigError` for a name that the checkpoint does not have."""
        if name is not None and prompt is not None:
            raise ConfigError("a prompt and the name of one are given", hint="give one of them")
        chosen = self.recipe.default_prompt if name is None and prompt is None else name
        if chosen is not None:
            if chosen not in self.recipe.prompts:
                raise ConfigError(
                    f"the checkpoint has no prompt {chosen!r}",
                    node=str(self.model.checkpoint.path),
                    hint=f"it has {', '.join(self.recipe.prompts) or 'none'}; prompt= takes a text",
                )
            prompt = self.recipe.prompts[chosen]
        if not isinstance(prompt, str | None):
            raise ConfigError(f"the prompt is {prompt!r}, expected text")
        if prompt and not self.recipe.pools_prompt:
            raise ConfigError(
                "this checkpoint leaves the tokens of a prompt out of the pooling, which is not supported",
                node=str(self.model.checkpoint.path),
                hint='encode without a prompt (prompt="")',
            )
        return prompt or ""


def _listed(sentences: Any) -> list[str]:
    """Texts as a list; raises `DTypeError` naming the first thing that is no text."""
    if isinstance(sentences, bytes | bytearray | Mapping | Set) or not isinstance(sentences, Iterable):
        raise DTypeError(f"sentences are a {type(sentences).__name__}", hint="give a text or a list of texts")
    listed = list(sentences)
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise DTypeError(
                f"expected text, found {type(text).__name__} {text!r:.60}",
                node=f"sentences[{index}]",
                hint="give texts",
            )
    return [str(text) for text in listed]
