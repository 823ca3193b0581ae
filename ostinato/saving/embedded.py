"""A checkpoint inside an artifact: its weights as a safetensors file that is mapped where it lies, and what its other files said.

Tensors keep their names, their bytes and the order of their rows, so that a plan loads them as it loads the checkpoint's. The tokenizer is the library's own
JSON form of the one that the checkpoint's files made, whichever format these have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ostinato.frontend.checkpoints import Checkpoint, GenerationDefaults, ModelConfig, TensorSource
from ostinato.frontend.checkpoints.base import CheckpointFacts
from ostinato.frontend.checkpoints.embedding import EmbeddingRecipe
from ostinato.frontend.tokenizer import Tokenizer
from ostinato.ir.errors import ConfigError, OstinatoError, WeightsError
from ostinato.ir.safetensors import BLOCK_BYTES, TensorSpec, header_of
from ostinato.ir.types import Array, DType
from ostinato.saving.container import Content, Stored, damaged
from ostinato.saving.manifest import TOKENIZER, WEIGHTS, EmbeddedModel, EmbeddedTensor
from ostinato.saving.read import ArtifactFile, check_digest, digest_in_place

__all__ = ["EmbeddedCheckpoint", "embedded_contents", "embedded_model"]

_CONFIG: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
_GENERATION: TypeAdapter[GenerationDefaults] = TypeAdapter(GenerationDefaults)
_RECIPE: TypeAdapter[EmbeddingRecipe | None] = TypeAdapter(EmbeddingRecipe | None)
_ORDER = "row_order"


def embedded_model(checkpoint: Checkpoint, *, recipe: bool) -> EmbeddedModel:
    """What of a checkpoint goes into the manifest; `recipe`: how it pools too, which only encoders have. Raises what the checkpoint's tokenizer raises."""
    tokenizer = checkpoint.tokenizer() if checkpoint.has_tokenizer else None
    orders: dict[bytes, str] = {}
    tensors: dict[str, EmbeddedTensor] = {}
    for name, tensor in checkpoint.tensors.items():
        rows = None
        if tensor.row_order is not None:
            rows = orders.setdefault(tensor.row_order.tobytes(), f"{_ORDER}.{len(orders)}")
        tensors[name] = EmbeddedTensor(dtype=tensor.dtype.value, shape=tensor.shape, rows=rows, shift=tensor.shift)
    found = checkpoint.embedding_recipe() if recipe else None
    plain = None if found is None else replace(found, prompts=dict(found.prompts))
    return EmbeddedModel(
        config=_CONFIG.dump_python(checkpoint.config, mode="json"),
        generation=_GENERATION.dump_python(checkpoint.generation, mode="json"),
        recipe=_RECIPE.dump_python(plain, mode="json"),
        special_tokens=dict(checkpoint.special_tokens),
        chat_template=checkpoint.chat_template,
        end_token_ids=checkpoint.end_token_ids,
        has_tokenizer=tokenizer is not None,
        bos_token_id=None if tokenizer is None else tokenizer.bos_token_id,
        eos_token_id=None if tokenizer is None else tokenizer.eos_token_id,
        pad_token_id=None if tokenizer is None else tokenizer.pad_token_id,
        tensors=tensors,
    )


def embedded_contents(checkpoint: Checkpoint, model: EmbeddedModel) -> Iterator[Content]:
    """The members that go with it."""
    if model.has_tokenizer:
        yield Content.of(TOKENIZER, checkpoint.tokenizer().to_json().encode())
    yield Content(WEIGHTS, _blocks(checkpoint, model, header_of(_specs(model.tensors), {"format": "ostinato"})))


def _blocks(checkpoint: Checkpoint, model: EmbeddedModel, header: bytes) -> Iterator[bytes | memoryview]:
    yield header
    orders: dict[str, Array] = {}
    for name, tensor in model.tensors.items():
        data = checkpoint.map(name)
        for start in range(0, data.size, BLOCK_BYTES):
            yield data[start : start + BLOCK_BYTES].data
        checkpoint.release(name)
        order = checkpoint.tensor(name).row_order
        if tensor.rows is not None and order is not None:
            orders.setdefault(tensor.rows, order)
    for order in orders.values():
        yield np.ascontiguousarray(order, np.int64).view(np.uint8).data


def _specs(tensors: Mapping[str, EmbeddedTensor]) -> dict[str, TensorSpec]:
    """The tensors as safetensors has them, orders of rows behind the others. Raises an `OstinatoError` for what no tensor is."""
    specs: dict[str, TensorSpec] = {}
    orders: dict[str, TensorSpec] = {}
    for name, tensor in tensors.items():
        dtype = DType.parse(tensor.dtype)
        shape = tensor.shape
        if dtype.is_block and shape:
            rows = math.prod(shape[:-1])
            shape, dtype = (rows, DType.parse(tensor.dtype).nbytes(shape[-1])), DType.U8
        specs[name] = TensorSpec(dtype, shape)
        if tensor.rows is not None:
            if not tensor.shape:
                raise WeightsError("a number has no rows", node=name)
            spec = TensorSpec(DType.I64, tensor.shape[:1])
            if orders.setdefault(tensor.rows, spec) != spec or tensor.rows in tensors:
                raise WeightsError(f"the order of rows {tensor.rows} is of several lengths", node=name)
    return {**specs, **orders}


class EmbeddedCheckpoint(Checkpoint):
    """The checkpoint in an artifact, whose weights were held against their checksum. Raises `ConfigError` for one without weights in it, and
    `ArtifactError` where the parts do not belong together."""

    format: ClassVar[str] = "artifact"

    def __init__(self, artifact: ArtifactFile) -> None:
        model, place = artifact.manifest.embedded, artifact.places.get(WEIGHTS)
        if model is None or place is None:
            raise ConfigError(f"{artifact.path} has no weights in it", hint="save it with weights=True")
        self._model, self._artifact = model, artifact
        try:
            config = _CONFIG.validate_python(model.config)
            generation = _GENERATION.validate_python(model.generation)
            self._recipe = _RECIPE.validate_python(model.recipe)
            specs = _specs(model.tensors)
            header = header_of(specs, {"format": "ostinato"})
        except (ValidationError, OstinatoError) as error:
            reason = "a value has another type" if isinstance(error, ValidationError) else str(error)
            raise damaged(artifact.path, f"the model in it: {reason}") from None
        offsets = _offsets(artifact.path, place, header, specs)
        _check_weights(artifact, place, header)
        super().__init__(
            CheckpointFacts(
                path=artifact.path,
                config=config,
                tensors={
                    name: _source(artifact.path, name, tensor, specs[name], offsets)
                    for name, tensor in model.tensors.items()
                },
                special_tokens=dict(model.special_tokens),
                chat_template=model.chat_template,
                generation=generation,
            )
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self._model.end_token_ids

    @property
    def has_tokenizer(self) -> bool:
        return self._model.has_tokenizer

    def embedding_recipe(self) -> EmbeddingRecipe:
        if self._recipe is None:
            raise ConfigError(f"{self.path} says nothing of pooling", hint="it is of a decoder; save an Embedder")
        return self._recipe

    def _build_tokenizer(self) -> Tokenizer:
        if not self.has_tokenizer:
            raise WeightsError(f"{self.path} has no tokenizer", hint="save it from a checkpoint that has one")
        return Tokenizer.from_json(
            self._artifact.data(TOKENIZER).decode("utf-8", "replace"),
            str(self.path),
            bos_token_id=self._model.bos_token_id,
            eos_token_id=self._model.eos_token_id,
            pad_token_id=self._model.pad_token_id,
        )


def _offsets(path: Path, place: Stored, header: bytes, specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Where each tensor begins in the artifact; the member is exactly header and tensors."""
    offsets: dict[str, int] = {}
    position = place.offset + len(header)
    for name, spec in specs.items():
        offsets[name] = position
        position += spec.nbytes
    if position != place.offset + place.size:
        raise damaged(path, f"{WEIGHTS} has {place.size} bytes, its tensors take {position - place.offset}")
    return offsets


def _check_weights(artifact: ArtifactFile, place: Stored, header: bytes) -> None:
    try:
        with artifact.path.open("rb") as file:
            check_digest(artifact.path, WEIGHTS, digest_in_place(artifact.path, file, place), artifact.manifest)
            file.seek(place.offset)
            if file.read(len(header)) != header:
                raise damaged(artifact.path, f"the header of {WEIGHTS} is not that of its tensors")
    except OSError as error:
        raise damaged(artifact.path, f"it cannot be read any more: {error.strerror or error}") from None


def _source(
    path: Path, name: str, tensor: EmbeddedTensor, spec: TensorSpec, offsets: Mapping[str, int]
) -> TensorSource:
    order = None if tensor.rows is None else _row_order(path, name, tensor, offsets[tensor.rows])
    dtype = DType.parse(tensor.dtype)
    return TensorSource(
        name, name, tensor.shape, dtype, path, offsets[name], spec.nbytes, row_order=order, shift=tensor.shift
    )


def _row_order(path: Path, name: str, tensor: EmbeddedTensor, offset: int) -> Array:
    order: Array = np.fromfile(path, np.int64, tensor.shape[0], offset=offset)
    if not np.array_equal(np.sort(order), np.arange(tensor.shape[0])):
        raise damaged(path, f"the order of the rows of {name} names no row, or one twice")
    order.flags.writeable = False
    return order
