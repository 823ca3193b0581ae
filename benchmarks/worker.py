"""One contender in its own process: answers one JSON request a line on standard input with one JSON line.

    python -m benchmarks.worker ours|torch|exact MODEL DTYPE THREADS

`exact` is torch computing in fp32 on the weights of DTYPE: what both sides are held against before they are timed.

Requests: logits (for the correctness gate), prefill, decode, memory, quit. With one thread, times are CPU time of the process, which leaves out moments
when others held the core; with more they are wall time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.models import PACKAGED, checkpoint

CONTEXT = 512
PROMPT = 128


class Contender(Protocol):
    """What both sides do: `prefill` returns last-token logits; `decode` one greedy step and the chosen token."""

    def prefill(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]: ...
    def decode(self, token: int, position: int) -> int: ...


class Ours:
    def __init__(self, model: str, dtype: str, threads: int) -> None:
        import ostinato as ost  # each contender imports only its own library

        self._exe = ost.compile(
            checkpoint(model, dtype),
            buckets={"B": [1], "T": [1, PROMPT]},
            context=CONTEXT,
            threads=threads,
            precision=dtype,
        )

    def prefill(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._run(tokens, 0)

    def decode(self, token: int, position: int) -> int:
        return int(self._run(np.array([token], np.int32), position).argmax())

    def _run(self, tokens: np.ndarray[Any, Any], start: int) -> np.ndarray[Any, Any]:
        from ostinato.runtime.batch import Piece, pack

        plan = self._exe.bucket(len(tokens), 1)
        inputs, _ = pack(plan, [Piece(0, tokens, start, True)], self._exe.block_table())
        logits: np.ndarray[Any, Any] = self._exe.run(plan.name, inputs, ("logits",))["logits"][0]
        return logits


class Torch:
    """Hugging Face on torch eager: sdpa attention, static cache."""

    def __init__(self, model: str, dtype: str, threads: int, precision: str | None = None) -> None:
        import torch  # each contender imports only its own library
        import transformers

        torch.set_num_threads(threads)
        self._torch = torch
        if model == PACKAGED:
            from tests.parity.make_references import smollm2_model  # dequantises the package's weights

            self._model = smollm2_model()
        else:
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint(model, dtype),
                dtype={"f32": torch.float32, "bf16": torch.bfloat16}[precision or dtype],
                attn_implementation="sdpa",
            ).eval()
        self._cache = self._new_cache()

    def _new_cache(self) -> Any:
        import transformers  # loaded by __init__

        return transformers.StaticCache(config=self._model.config, max_cache_len=CONTEXT)

    def prefill(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self._cache = self._new_cache()
        logits: np.ndarray[Any, Any] = (
            self._forward(self._torch.from_numpy(tokens.astype(np.int64))[None], 0).float().numpy()
        )
        return logits

    def decode(self, token: int, position: int) -> int:
        return int(self._forward(self._torch.tensor([[token]]), position).argmax())

    def _forward(self, ids: Any, start: int) -> Any:
        position = self._torch.arange(start, start + ids.shape[1])[None]
        with self._torch.no_grad():
            output = self._model(
                input_ids=ids, past_key_values=self._cache, position_ids=position, use_cache=True, logits_to_keep=1
            )
        return output.logits[0, -1]


def main() -> None:
    kind, model, dtype, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not disturb the protocol

    clock: Callable[[], float] = time.process_time if threads == 1 else time.perf_counter
    started = time.perf_counter()
    kinds: dict[str, Callable[[str, str, int], Contender]] = {
        "ours": Ours,
        "torch": Torch,
        "exact": partial(Torch, precision="f32"),
    }
    contender = kinds[kind](model, dtype, threads)
    loaded = time.perf_counter() - started
    tokens = np.random.default_rng(1).integers(3, 32000, PROMPT, dtype=np.int32)
    position = PROMPT

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    answer(load_seconds=loaded)
    for line in sys.stdin:
        request = json.loads(line)
        times = []
        if request["op"] == "logits":
            answer(logits=contender.prefill(tokens).astype(float).tolist())
            position = PROMPT
        elif request["op"] == "prefill":
            for _ in range(request["n"]):
                start = clock()
                contender.prefill(tokens)
                times.append((clock() - start) * 1e3)
            position = PROMPT
            answer(ms=times)
        elif request["op"] == "decode":
            token = 5
            for _ in range(request["n"]):
                if position >= CONTEXT:
                    contender.prefill(tokens)
                    position = PROMPT
                start = clock()
                token = contender.decode(token, position)
                times.append((clock() - start) * 1e3)
                position += 1
            answer(ms=times)
        elif request["op"] == "memory":
            fields = dict(
                part.split(":", 1) for part in Path("/proc/self/status").read_text().splitlines() if ":" in part
            )
            answer(peak_mib=int(fields["VmHWM"].split()[0]) / 1024)
        else:
            break


if __name__ == "__main__":
    main()
