"""One contender of `encoder.py` in its own process: answers one JSON request a line on standard input with one JSON line.

    python -m benchmarks.encoder_worker ours|torch|exact MODEL DTYPE THREADS

`exact` is torch computing in fp32. Every text is full, so that torch's rectangle needs no padding; both sides start from token ids and end with mean-pooled,
normalised vectors in numpy memory. With one thread, times are CPU time of the process, which leaves out moments when others held the core; with more they are
wall time.

Requests: embed (vectors of a batch), time (n batches), quit. `texts` and `tokens` give the batch, whose ids follow from them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

Ids = np.ndarray[Any, Any]


class Contender(Protocol):
    """Embeddings float32 [B, C] of token ids int32 [B, T]."""

    def embed(self, ids: Ids) -> Ids: ...


class Ours:
    def __init__(self, model: str, dtype: str, threads: int) -> None:
        import ostinato as ost  # each contender imports only its own library

        self._embedder = ost.Embedder(model, threads=threads, precision=dtype)

    def embed(self, ids: Ids) -> Ids:
        found: Ids = self._embedder.executable(ids, normalize=True)["embedding"]
        return found


class Torch:
    """Hugging Face on torch eager: sdpa attention, no attention mask."""

    def __init__(self, model: str, dtype: str, threads: int, precision: str | None = None) -> None:
        import torch  # each contender imports only its own library
        import transformers

        from ostinato.frontend.checkpoints.packages import find_model_package

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        self._torch = torch
        self._model = transformers.BertModel.from_pretrained(
            find_model_package(model) or model,
            dtype={"f32": torch.float32, "bf16": torch.bfloat16}[precision or dtype],
            attn_implementation="sdpa",
        ).eval()

    def embed(self, ids: Ids) -> Ids:
        torch = self._torch
        with torch.inference_mode():
            states = self._model(input_ids=torch.from_numpy(ids.astype(np.int64))).last_hidden_state
            found: Ids = torch.nn.functional.normalize(states.float().mean(1), dim=-1).numpy()
        return found


def main() -> None:
    kind, model, dtype, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not disturb the protocol

    clock: Callable[[], float] = time.process_time if threads == 1 else time.perf_counter
    kinds: dict[str, Callable[[str, str, int], Contender]] = {
        "ours": Ours,
        "torch": Torch,
        "exact": partial(Torch, precision="f32"),
    }
    started = time.perf_counter()
    contender = kinds[kind](model, dtype, threads)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    answer(load_seconds=time.perf_counter() - started)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            break
        shape = (request["texts"], request["tokens"])
        ids = np.random.default_rng(1).integers(1000, 30000, shape, dtype=np.int32)
        if request["op"] == "embed":
            answer(vectors=contender.embed(ids).astype(float).tolist())
            continue
        times = []
        for _ in range(request["n"]):
            start = clock()
            contender.embed(ids)
            times.append((clock() - start) * 1e3)
        answer(ms=times)


if __name__ == "__main__":
    main()
