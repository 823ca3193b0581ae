"""Log probabilities of generated tokens against torch's log_softmax over the logits of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

import ostinato as ost
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_log_probabilities_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    from tests.parity.make_references import load_transformers  # needs torch

    config = small_config(family)
    write_hf_checkpoint(tmp_path, config, random_model(config, 5))
    llm = ost.LLM(tmp_path, max_num_seqs=2, context=64, threads=1)
    prompts = [[5, 6, 7], list(range(20, 45))]
    params = ost.SamplingParams(max_tokens=12, temperature=1.2, seed=9, ignore_eos=True, logprobs=5)
    theirs = load_transformers(tmp_path)
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([[*prompt, *output.token_ids]])).logits[0]
        expected = torch.log_softmax(logits[len(prompt) - 1 : -1].double(), dim=-1)
        assert output.logprobs is not None
        for row, token, entry in zip(expected, output.token_ids, output.logprobs, strict=True):
            ranks = torch.argsort(row, descending=True, stable=True).tolist()
            assert set(entry) == {token, *ranks[:5]}
            for found, choice in entry.items():
                assert choice.logprob == pytest.approx(float(row[found]), abs=1e-4)
                assert choice.rank == ranks.index(found) + 1
