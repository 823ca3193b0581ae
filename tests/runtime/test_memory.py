"""Loading never holds two copies: the peak of a process, mapped pages included, is the weights and little more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

SLACK = 48 << 20
"""Bytes: pages of the file in flight (16 MiB), the head's logits, the caches, and what Python takes meanwhile."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("shards", [1, 3])
def test_peak_of_loading_is_the_weights_and_little_more(shards: int, tmp_path: Path) -> None:
    config = small_config(
        "llama",
        vocab_size=20_000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    large = tmp_path / "large"
    write_hf_checkpoint(large, config, random_model(config, 2), shards=shards)
    result = subprocess.run(
        [sys.executable, "-m", "tests.runtime.measure_load", str(tmp_path / "small"), str(large)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    weights, grown = map(int, result.stdout.split())
    assert weights > 300 << 20
    assert grown <= weights + SLACK, f"{(grown - weights) >> 20} MiB more than the weights"
