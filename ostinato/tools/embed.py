"""`ostinato run` of an encoder: texts in, their vectors out, and how alike the texts are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from ostinato.embedder import Embedder
from ostinato.tools.console import table
from ostinato.tools.programs import device_of, precision_of
from ostinato.tools.schemas import EmbedReport

__all__ = ["embed", "show_embeddings"]

_NUMBERS = 8
"""Numbers in one line of a vector."""
_TEXT = 40
"""Characters of a text that a table shows."""


def embed(embedder: Embedder, model: str, prompts: Sequence[str], load_seconds: float) -> EmbedReport:
    """Embeds the prompts as the model's modules say. Raises what `Embedder.encode` raises."""
    begin = time.perf_counter()
    vectors = embedder.encode(list(prompts))
    seconds = time.perf_counter() - begin
    executable = embedder.executable
    return EmbedReport(
        model=model,
        mode=executable.mode,
        reason=executable.reason,
        device=device_of(executable),
        precision=precision_of(executable.program),
        threads=executable.device.threads,
        pooling=embedder.recipe.pooling,
        normalized=embedder.recipe.normalize,
        dimension=embedder.dimension,
        max_seq_length=embedder.max_seq_length,
        ignored_tensors=embedder.model.checkpoint.ignored_tensors,
        prompts=tuple(prompts),
        tokens=tuple(len(embedder.token_ids(text)) for text in prompts),
        embeddings=tuple(tuple(float(value) for value in vector) for vector in vectors),
        similarity=tuple(tuple(float(value) for value in row) for row in embedder.similarity(vectors, vectors)),
        load_seconds=load_seconds,
        seconds=seconds,
    )


def show_embeddings(report: EmbedReport, console: Console) -> None:
    """One text's vector, or the cosine similarities of several texts."""
    if len(report.prompts) == 1:
        (vector,) = report.embeddings
        for start in range(0, len(vector), _NUMBERS):
            console.print(" ".join(f"{value:12.8f}" for value in vector[start : start + _NUMBERS]))
        return
    names = [str(index + 1) for index in range(len(report.prompts))]
    rows = (
        (f"{name}  {_shortened(prompt)}", *(f"{value:.4f}" for value in values))
        for name, prompt, values in zip(names, report.prompts, report.similarity, strict=True)
    )
    console.print(table("cosine similarity", ("", *names), rows))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 3]}..."
