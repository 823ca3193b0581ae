"""Real steps: a run that stopped, by itself or by a kill at any moment, ends with the very bytes of one that did not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontend.fresh import new_model
from ostinato.runtime.training.checkpoint import Checkpoints, Snapshot
from ostinato.runtime.training.dataset import TokenDataset
from ostinato.runtime.training.optimizer import SGD, AdamW, Optimizer
from ostinato.tools.cli import main
from ostinato.training import train_step
from tests.training.snapshots import same

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


class Training:
    """A few steps of a small model on counted tokens, and their checkpoints, in Python as a user writes it."""

    def __init__(self, model: ost.Model, folder: Path, optimizer: Optimizer) -> None:
        self.step = train_step(
            model, batch=(2, 8), optimizer=optimizer, dropout=0.1, seed=5, device="cpu", threads=1, mode="planned"
        )
        tokens = np.random.default_rng(3).integers(0, 257, 300, dtype=np.int32)
        self.data = TokenDataset(tokens, batch=2, sequence=8, vocab_size=257, seed=7)
        self.checkpoints, self.optimizer, self.done = Checkpoints(folder), optimizer, 0

    def run(self, to: int) -> list[float]:
        losses = []
        while self.done < to:
            losses.append(self.step(*next(self.data)).loss)
            self.done += 1
        return losses

    def snapshot(self) -> Snapshot:
        parameters, state = self.step.parameters(), self.step.optimizer_state()
        described, by = self.optimizer.described(), self.step.computed_by
        return Snapshot(self.done, parameters, state, described, seed=5, data=self.data.state(), computed_by=by)

    def restore(self) -> None:
        found = self.checkpoints.load(self.snapshot())
        assert found is not None
        assert found.data is not None
        self.data.load_state(found.data)
        self.step.load(found.parameters, found.state)
        self.done = found.step


@pytest.mark.parametrize(
    "optimizer",
    [
        AdamW(lr=1e-2, clip_norm=0.5, schedule="cosine", warmup_steps=3, total_steps=8),
        AdamW(lr=1e-2, moments="bf16"),
        SGD(lr=0.1, momentum=0.9),
    ],
    ids=["adamw", "bf16 moments", "sgd"],
)
def test_a_resumed_run_has_the_bytes_of_an_uninterrupted_one(optimizer: Optimizer, tmp_path: Path) -> None:
    model = new_model(tmp_path / "model", SMALL, seed=1)
    whole = Training(model, tmp_path / "whole", optimizer)
    losses = whole.run(8)
    assert len(set(losses)) == 8
    first = Training(model, tmp_path / "cut", optimizer)
    assert first.run(3) == losses[:3]
    first.checkpoints.save(first.snapshot())
    first.run(5)  # lost with the process
    second = Training(model, tmp_path / "cut", optimizer)
    second.run(1)
    second.restore()
    assert second.run(8) == losses[3:]
    assert same(second.snapshot(), whole.snapshot())
    one, other = (run.checkpoints.save(run.snapshot()) for run in (whole, second))
    for name in ("checkpoint.json", "parameters.safetensors", "state.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_step_says_what_its_last_bits_depend_on(tmp_path: Path) -> None:
    model = new_model(tmp_path / "model", SMALL, seed=1)
    options: dict[str, Any] = {"batch": (2, 8), "device": "cpu", "threads": 1, "mode": "planned"}
    plain, again = (train_step(model, **options).computed_by for _ in range(2))
    assert plain == again
    assert set(plain) == {"graph", "rows", "isa"}
    other = train_step(model, **options, levels={"silu": "reference", "swiglu": "reference"}).computed_by
    assert plain["rows"] != other["rows"]


CONFIG = """
[model.new]
config = { model_type = "llama", hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 1, max_position_embeddings = 64 }

[data]
stdlib = 6000
sequence = 8
batch = 2

[optimizer]
lr = 1e-3
clip_norm = 1.0

[train]
steps = STEPS
folder = "FOLDER"
checkpoint_every = 3
dropout = 0.1
device = "cpu"
threads = 1
"""
_COMMAND = "import sys; from ostinato.tools.cli import main; main(sys.argv[1:])"


def train_here(config: Path) -> int:
    """`ostinato train CONFIG --resume` in this process, to its end."""
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config), "--resume", "--json"])
    return int(caught.value.code or 0)


def train_and_kill(config: Path, seconds: float) -> int:
    """A process of the same, killed so many seconds after its first step is on record; its exit code."""
    command = [sys.executable, "-c", _COMMAND, "train", str(config), "--resume", "--json"]
    metrics = config.with_suffix("") / "metrics.jsonl"
    before = metrics.stat().st_size if metrics.exists() else -1
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size == before):
            time.sleep(0.002)
        time.sleep(seconds)
        process.kill()
        return process.wait()


def prove_kills(tmp_path: Path, seed: int, kills: int, steps: int) -> None:
    print("seed", seed)
    draw = random.Random(seed)
    for name in ("whole", "killed"):
        (tmp_path / f"{name}.toml").write_text(CONFIG.replace("FOLDER", name).replace("STEPS", str(steps)))
    assert train_here(tmp_path / "whole.toml") == 0
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    a_step = (lines[-1]["seconds"] - lines[0]["seconds"]) / (steps - 1)
    codes = [
        train_and_kill(tmp_path / "killed.toml", draw.uniform(0, 2 * a_step * steps / kills)) for _ in range(kills)
    ]
    assert -9 in codes, codes
    assert train_here(tmp_path / "killed.toml") == 0
    ends = [Checkpoints(tmp_path / name / "checkpoints").latest() for name in ("whole", "killed")]
    assert all(end is not None and end.name == f"step-{steps:08d}" for end in ends)
    for file in ("checkpoint.json", "parameters.safetensors", "state.safetensors"):
        assert len({(end / file).read_bytes() for end in ends if end is not None}) == 1, file
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
    for name in ("whole", "killed"):
        found = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [(line["step"], line["loss"]) for line in found] == [(line["step"], line["loss"]) for line in lines]


def test_a_kill_changes_nothing(tmp_path: Path, seed: int) -> None:
    prove_kills(tmp_path, seed, kills=1, steps=20)


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path: Path, seed: int) -> None:
    prove_kills(tmp_path, seed, kills=20, steps=120)
