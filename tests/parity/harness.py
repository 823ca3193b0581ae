"""What the stored and the live parity tests share: one check of one case against reference logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.runtime.batch import Piece, pack, schedule
from ostinato.runtime.forward import TextExecutable
from tests.frontend.make_checkpoints import random_model, write_hf_checkpoint
from tests.parity.cases import DECODE_STEPS, SMOLLM2_PROMPTS, SMOLLM2_TOKENS, Case

TOLERANCE = 2e-4
"""Of the logits' standard deviation."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Logits that another implementation gives: float32 [tokens, vocab] of the whole sequence in one go, [1 + 32, vocab] after the prompt and after each
    token fed to a cache, and [rows, vocab] of the last token of each row of the ragged batch."""

    whole: Array
    decoded: Array
    rows: Array

    @staticmethod
    def of_whole(case: Case, whole: Array) -> Reference:
        """The other two follow from the first where rotations do not depend on the length."""
        return Reference(whole, whole[case.prompt - 1 :], np.stack([whole[length - 1] for length in case.lengths]))

    @staticmethod
    def stored(case: Case, arrays: Mapping[str, Array]) -> Reference:
        """From the arrays of `references.npz`."""
        whole = arrays[f"family.{case.name}"]
        if not case.depends_on_length:
            return Reference.of_whole(case, whole)
        return Reference(whole, arrays[f"family.{case.name}.decoded"], arrays[f"family.{case.name}.rows"])

    def arrays(self, case: Case) -> dict[str, Array]:
        """As stored."""
        found = {f"family.{case.name}": self.whole}
        if case.depends_on_length:
            found |= {f"family.{case.name}.decoded": self.decoded, f"family.{case.name}.rows": self.rows}
        return found


def check_family(case: Case, reference: Reference, directory: Path, mode: str = "planned") -> None:
    """Prefill, chunked prefill, ragged batches and cached decode of one case against another implementation's logits."""
    write_hf_checkpoint(directory, case.config, random_model(case.config, case.seed))
    tokens = case.tokens
    model = ost.load(str(directory))

    whole = ost.compile(model, buckets={"B": [1], "T": [16, 96]}, context=96, logits="all", mode=mode)
    compare("prefill", whole(input_ids=tokens[None])["logits"][0], reference.whole)

    chunked = ost.compile(model, buckets={"B": [1], "T": [16]}, context=96, logits="all", mode=mode)
    compare("chunked prefill", chunked(input_ids=tokens[None])["logits"][0], reference.whole)

    ragged = ost.compile(model, buckets={"B": [1, 4], "T": [1, 16]}, context=96, mode=mode)
    rows = [tokens[:size] for size in case.lengths]
    compare("ragged batch", ragged(input_ids=[list(map(int, row)) for row in rows])["logits"], reference.rows)
    for row, logits in zip(rows, reference.rows, strict=True):
        compare(f"single row of {len(row)}", ragged(input_ids=row[None])["logits"][0], logits)

    compare("cached decode", decode(ragged, tokens, case.prompt), reference.decoded)


def check_dense(case: Case, reference: Reference, directory: Path) -> None:
    """The dense forward graph of one case, planned, against the same logits."""
    write_hf_checkpoint(directory, case.config, random_model(case.config, case.seed))
    model, tokens = ost.load(str(directory)), case.tokens
    size = len(tokens)
    executable = ost.trace(model, logits="all").lower(dims={"B": 1, "T": size}).plan().load()
    inputs = {"input_ids": tokens[None], "position": np.arange(size, dtype=np.int32)[None]}
    if case.depends_on_length:
        inputs["rotary_length"] = np.full((1, size), size, np.int32)
    compare("dense forward", executable.run(None, inputs)["logits"][0], reference.whole)


def decode(executable: TextExecutable, tokens: Array, prompt: int) -> Array:
    """Logits after the prompt and after each of the 32 further tokens, fed one by one."""
    table = executable.block_table()
    found = []
    for piece in [Piece(0, tokens[:prompt], 0, True)] + [
        Piece(0, tokens[at : at + 1], at, True) for at in range(prompt, prompt + DECODE_STEPS)
    ]:
        plan = executable.bucket(len(piece.tokens), 1)
        for step in schedule([piece], plan.dims["N"]):
            inputs, wanted = pack(plan, step, table)
            logits = executable.run(plan.name, inputs)["logits"]
            if wanted:
                found.append(logits[0])
    return np.stack(found)


def compare(what: str, actual: Array, reference: Array) -> None:
    """Fails beyond 2e-4 of the reference's standard deviation, naming the worst element."""
    assert actual.shape == reference.shape, f"{what}: shape {actual.shape}, expected {reference.shape}"
    difference = np.abs(actual.astype(np.float64) - reference)
    limit = TOLERANCE * float(reference.std())
    worst = np.unravel_index(int(np.argmax(difference)), difference.shape)
    assert np.isfinite(actual).all(), f"{what}: not finite"
    assert difference.max() <= limit, f"{what}: off by {difference.max():.3g} at {worst}, allowed {limit:.3g}"


def check_smollm2(reference: dict[str, Array], mode: str = "planned") -> None:
    """Three prompts: logits within 5e-4 and 64 greedy tokens identical."""
    llm = ost.LLM("smollm2", max_num_seqs=3, context=256, mode=mode)
    forward = ost.compile(llm.model, buckets={"B": [1], "T": [16]}, context=256, mode=mode)
    greedy = ost.SamplingParams(max_tokens=SMOLLM2_TOKENS, temperature=0.0, ignore_eos=True)
    outputs = llm.generate(list(SMOLLM2_PROMPTS), greedy)
    for index, output in enumerate(outputs):
        assert list(output.prompt_token_ids) == list(reference[f"smollm2.{index}.ids"])
        logits = forward(input_ids=reference[f"smollm2.{index}.ids"][None])["logits"][0]
        worst = float(np.abs(logits - reference[f"smollm2.{index}.logits"]).max())
        assert worst <= 5e-4, f"prompt {index}: logits off by {worst:.3g}"
        assert list(output.token_ids) == list(reference[f"smollm2.{index}.tokens"]), f"prompt {index}: other tokens"
    assert outputs[0].text.startswith(" Paris"), outputs[0].text
