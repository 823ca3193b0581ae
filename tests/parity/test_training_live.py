"""Training against torch autograd over transformers' own models: loss, the gradient of every parameter, and twenty AdamW steps, of every family.

Gains of Gemma are stored less 1, which does not change a gradient. Rows of a tensor that is read in pieces have a gradient each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import random_model, write_hf_checkpoint
from tests.parity.cases import CASES, Case

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = (
    "llama-gqa3-64",
    "llama-tied-bias-32",
    "llama-gelu",
    "qwen2-gqa7-32",
    "qwen3-gqa3-48",
    "mistral-window-4",
    "gemma-48",
    "gemma2-tight-caps",
    "gemma3-pattern-3",
    "phi3-fused",
    "rotary-llama3",
    "rotary-dynamic",
)
PICKED = [case for case in CASES if case.name in NAMES]
BATCH, SEQUENCE = 2, 21
WHOLE_GRAPH = 2e-3
"""The contract's gate for gradients of a whole graph, absolute and relative."""


def batch(case: Case, number: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([case.seed, number])
    ids = rng.integers(0, case.config["vocab_size"], (BATCH, SEQUENCE + 1), dtype=np.int32)
    target = ids[:, 1:].copy()
    target[0, :4] = -100
    return ids[:, :-1].copy(), target


def their_loss(model: Any, ids: Array, target: Array) -> Any:
    logits = model(input_ids=torch.from_numpy(ids.astype(np.int64)), use_cache=False).logits
    wanted = torch.from_numpy(target.astype(np.int64)).flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=-100)


@pytest.mark.parametrize("case", PICKED, ids=lambda case: case.name)
def test_loss_and_every_gradient_equal_torch_autograd(case: Case, tmp_path: Path) -> None:
    from tests.parity.make_references import load_transformers  # needs torch

    write_hf_checkpoint(tmp_path, case.config, random_model(case.config, case.seed, std=0.1))
    theirs = load_transformers(tmp_path)
    ids, target = batch(case, 0)
    loss = their_loss(theirs, ids, target)
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}

    step = ost.train_step(tmp_path, batch=(BATCH, SEQUENCE), optimizer=None, device="cpu", threads=1)
    assert step(ids, target).loss == pytest.approx(float(loss.detach()), rel=3e-5)
    seen = set()
    for name in step.gradient_names:
        whole, _, rows = name.partition(".rows_")
        start, stop = map(int, re.findall(r"\d+", rows)) if rows else (0, len(gradients[whole]))
        np.testing.assert_allclose(
            step.gradient(name), gradients[whole][start:stop], WHOLE_GRAPH, WHOLE_GRAPH * 0.05, err_msg=name
        )
        seen.add(whole)
    assert seen == set(gradients)


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("name", ["llama-gqa3-64", "qwen2-gqa7-32"])
def test_twenty_steps_of_adamw_equal_torch(name: str, clip: float, tmp_path: Path) -> None:
    from tests.parity.make_references import load_transformers  # needs torch

    (case,) = [case for case in CASES if case.name == name]
    write_hf_checkpoint(tmp_path, case.config, random_model(case.config, case.seed, std=0.1))
    theirs = load_transformers(tmp_path)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-6}
    optimizer = torch.optim.AdamW(groups, **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 5))
    ours = ost.AdamW(**settings, weight_decay=0.1, clip_norm=clip, warmup_steps=5)
    step = ost.train_step(tmp_path, batch=(BATCH, SEQUENCE), optimizer=ours, device="cpu", threads=1)
    for number in range(20):
        ids, target = batch(case, number)
        loss = their_loss(theirs, ids, target)
        loss.backward()
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        found = step(ids, target)
        assert found.loss == pytest.approx(float(loss.detach()), rel=3e-5), f"step {number}"
        if clip:
            assert found.gradient_norm == pytest.approx(float(norm), rel=1e-4)
    expected = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}
    for name, values in step.parameters().items():
        np.testing.assert_allclose(values, expected[name], 3e-5, 3e-5, err_msg=name)
