"""Policy `batch_invariant` on a card, where there is one: two layers of the shape of Qwen2.5-0.5B, a prompt alone and in twenty random batches of eight.

Run it alone on a machine with a card.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.hip_device import HipDevice
from tests.backend_hip.gpu.real_card import real_card
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.runtime.invariance import Row, company, logits_of

VOCABULARY = 16384
QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
LONGEST, BATCHES = 120, 20


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> HipDevice:
    return HipDevice(real_card(), cache=CodeCache(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("precision", ["bf16", "f32"])
def test_a_prompt_has_the_same_bits_alone_and_in_any_batch(
    precision: str, gpu: HipDevice, tmp_path: Path, seed: int
) -> None:
    config = small_config("qwen2", **QWEN)
    model = ost.load(write_hf_checkpoint(tmp_path, config, random_model(config, seed)))
    executable = ost.compile(
        model,
        buckets={"B": [1, 8], "T": [4, 32, 128]},
        context=256,
        logits="all",
        device=gpu,
        precision=precision,
        policy="batch_invariant",
    )
    rng = np.random.default_rng(seed)
    for prompt in (1, 37, LONGEST):
        row = Row(rng.integers(0, VOCABULARY, prompt + 6, dtype=np.int32), prompt)
        (alone,) = logits_of(executable, [row])
        assert np.isfinite(alone).all()
        assert alone.std() > 0
        for _ in range(BATCHES):
            rows, place = company(rng, row, VOCABULARY, LONGEST)
            assert logits_of(executable, rows)[place].tobytes() == alone.tobytes(), (prompt, place)
