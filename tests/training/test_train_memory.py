"""The memory of a training step: what is allocated is what was predicted, and a limit is kept by computing again what is the same to the bit."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.host_memory import HostBuffer
from ostinato.frontend.training import TrainingShape
from ostinato.ir.errors import CapacityError
from ostinato.ir.step import REGION_KINDS, Region
from ostinato.ir.target import Target
from ostinato.ir.types import Array
from ostinato.planner.memory_report import memory_answer
from ostinato.planner.problem import align_up
from ostinato.planner.recompute.fit import least_arena
from ostinato.stages import Lowered
from ostinato.training import PlannedTraining, Recipe, TracedTraining, plan_training
from tests.training.steps import state_of
from tests.training.tiny import BATCH, LENGTH, batch, checkpoint, make

LONG = (2, 48)
DEEP: Mapping[str, Any] = {"num_hidden_layers": 4, "vocab_size": 160}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, in which activations outweigh the rest."""
    return checkpoint("llama", tmp_path_factory.mktemp("deep"), **DEEP)


class Counting(HostDevice):
    """A device that counts what it gives."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.given: list[int] = []

    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> HostBuffer:
        self.given.append(nbytes)
        return super().allocate(nbytes, alignment, zeroed=zeroed)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_what_is_allocated_is_what_was_predicted_and_steps_allocate_nothing(
    family: str, precision: str, tmp_path: Path
) -> None:
    folder, device = checkpoint(family, tmp_path), Counting()
    shape = TrainingShape(BATCH, LENGTH, micro_batches=2)
    planned = plan_training(folder, Recipe(shape, precision=precision, dropout=0.1, keep_gradients=True))
    assert not device.given
    predicted = planned.memory()
    exe = planned.load(device, "planned")
    plan = planned.planned.program
    assert sorted(device.given) == sorted(plan.size_of(Region(device.name, kind)) for kind in REGION_KINDS)
    loaded = sum(device.given)
    for number in range(3):
        exe(*batch(number))
        exe.gradient(exe.gradient_names[0])
    assert sum(device.given) == loaded == predicted.total == exe.memory.total
    assert exe.memory.arena == predicted.arena == predicted.lower_bound
    assert predicted.status == "optimal"
    trained = sum(array.nbytes for array in exe.parameters().values())
    assert predicted.parameters - predicted.mirrors == trained
    assert (predicted.mirrors > 0) == (precision == "bf16")
    assert predicted.optimizer_state >= sum(array.nbytes for array in exe.optimizer_state().values())
    assert predicted.gradients == predicted.gradients_kept == trained
    used = max(item.end for item in _arena_ranges(planned))
    assert align_up(used, exe.program.target.alignment) == exe.memory.arena, "a step uses its last bytes"


def _arena_ranges(planned: PlannedTraining) -> list[Any]:
    (entry,) = planned.planned.program.entries.values()
    return [
        operand.range
        for step in entry.steps
        for operand in step.operands
        if operand is not None and operand.range.region.kind == "arena"
    ]


def _learn(exe: ost.TrainStep, steps: int) -> tuple[list[float], dict[str, bytes]]:
    losses = [exe(*_long(number)).loss for number in range(steps)]
    return losses, state_of(exe)


def _long(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([6, seed])
    ids, target = (rng.integers(0, DEEP["vocab_size"], LONG, dtype=np.int32) for _ in range(2))
    return ids, target


def _deep(folder: Path, **options: Any) -> ost.TrainStep:
    given = {"optimizer": ost.AdamW(lr=3e-3, clip_norm=1.0), "device": "cpu", "threads": 1, **options}
    return ost.train_step(folder, batch=LONG, **given)


@pytest.mark.parametrize("chunks", [1, 4])
def test_sixty_percent_of_the_arena_gives_the_same_bits(chunks: int, deep: Path) -> None:
    """What is computed again is computed alike, whatever dropout left out of it; the checker has proven that the clones are clones."""
    free = _deep(deep, chunks=chunks, dropout=0.1, seed=4)
    expected = _learn(free, 5)
    limit = int(free.memory.arena * 0.6)
    tight = _deep(deep, chunks=chunks, dropout=0.1, seed=4, memory_limit=limit)
    assert tight.memory.arena <= limit
    assert tight.plan.stats.recomputed > 0
    assert tight.plan.stats.extra_work < 0.4
    assert _learn(tight, 5) == expected
    for mode in ("eager", "guarded"):
        assert _learn(tight.clone(mode), 5) == expected
    assert tight.submissions == 1
    answer = memory_answer(tight.program.plan, tight.program.graphs["train"])
    assert answer.recomputed == tight.plan.stats.recomputed
    whole = memory_answer(free.program.plan, free.program.graphs["train"])
    assert answer.saved < whole.saved
    assert (answer.parameters, answer.optimizer_state) == (whole.parameters, whole.optimizer_state)


def test_the_head_is_cut_into_pieces_where_computing_again_is_not_enough(tmp_path: Path) -> None:
    """Every piece reads and writes the gradient of the head, which costs more than a few activations."""
    folder = checkpoint("llama", tmp_path, vocab_size=512)
    options: dict[str, Any] = {"optimizer": ost.AdamW(lr=3e-3)}
    free = _deep(folder, **options)
    least = least_arena(free.program.graphs["train"], free.program.target)
    limit = (least + free.memory.arena) // 2
    near, below = _deep(folder, memory_limit=limit, **options), _deep(folder, memory_limit=least - 256, **options)
    assert not any("chunk" in step.node for step in near.plan.steps)
    assert any("chunk1" in step.node for step in below.plan.steps)
    assert not any("chunk8" in step.node for step in below.plan.steps)
    assert below.memory.arena < least <= near.memory.arena <= limit
    losses, states = _learn(free, 4)
    assert _learn(near, 4) == (losses, states)
    found, theirs = _learn(below, 4)
    assert found == pytest.approx(losses, rel=1e-5)
    for name, values in free.parameters().items():
        np.testing.assert_allclose(below.read_state(name), values, 1e-4, 1e-4, err_msg=name)
    assert theirs.keys() == states.keys()
    with pytest.raises(CapacityError, match="no plan needs less"):
        _deep(folder, memory_limit=least - 256, chunks=1, **options)


def test_pieces_of_the_head_are_done_one_after_the_other(deep: Path) -> None:
    """Each forward and backward before the next, so that the logits of one piece are alive at a time."""
    logits = {}
    for chunks in (1, 8):
        exe = _deep(deep, chunks=chunks)
        alive = [
            sum(slot.range.size for slot in exe.plan.tenants(step) if any("logits" in name for name in slot.values))
            for step in range(len(exe.plan.steps))
        ]
        logits[chunks] = max(alive)
    tied = DEEP["vocab_size"] * 32 * 4  # the gradient of the head, which all of them add to
    assert logits[8] - tied <= (logits[1] - tied) / 4


def test_micro_batches_keep_the_activations_of_one(deep: Path) -> None:
    """Kept gradients lie elsewhere: the arena holds what is saved of one micro-batch."""
    one, two = (_deep(deep, micro_batches=parts, keep_gradients=True).memory.arena for parts in (1, 2))
    print(one, two)
    assert two < 0.6 * one


def test_a_limit_is_kept_with_gradients_of_the_caller(tmp_path: Path) -> None:
    """Kept gradients lie outside of the arena: a limit of it does not count them."""
    folder = checkpoint("llama", tmp_path)
    free = make(folder, keep_gradients=True)
    tight = make(folder, keep_gradients=True, chunks=1, memory_limit=int(free.memory.arena * 0.8))
    for number in range(3):
        assert tight(*batch(number)).loss == free(*batch(number)).loss
    for name in free.gradient_names:
        np.testing.assert_array_equal(tight.gradient(name), free.gradient(name), err_msg=name)
    assert state_of(tight) == state_of(free)


def test_a_higher_limit_has_no_more_pieces_and_in_as_many_no_more_work(tmp_path: Path, seed: int) -> None:
    folder = checkpoint("llama", tmp_path, vocab_size=256, num_hidden_layers=1)
    recipe = Recipe(TrainingShape(1, 8))
    rng, arena = random.Random(seed), plan_training(folder, recipe).memory().arena
    found: list[tuple[int, float] | None] = []
    for limit in (arena * part // 100 + rng.randrange(arena // 50) for part in (40, 80, 86, 94)):
        try:
            planned = plan_training(folder, recipe, memory_limit=limit)
        except CapacityError:
            found.append(None)
            continue
        assert planned.memory().arena <= limit
        found.append((planned.step.recipe.shape.pieces, planned.planned.plan.stats.extra_work))
    kept = [item for item in found if item is not None]
    assert found == [None] * (len(found) - len(kept)) + sorted(kept, reverse=True)
    assert len(kept) > 1


def test_a_hopeless_limit_is_refused_after_the_fewest_and_the_most_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the refusal names is kept."""
    lowered: list[int] = []
    lower = TracedTraining.lower

    def counted(step: TracedTraining, target: Target, **options: Any) -> Lowered:
        lowered.append(step.recipe.shape.pieces)
        return lower(step, target, **options)

    monkeypatch.setattr(TracedTraining, "lower", counted)
    folder = checkpoint("llama", tmp_path, vocab_size=512, num_hidden_layers=1)
    recipe = Recipe(TrainingShape(1, 16))
    with pytest.raises(CapacityError) as caught:
        plan_training(folder, recipe, memory_limit=1000)
    assert lowered == [1, 16]
    told = re.search(r"raise memory_limit to (\d+)", str(caught.value))
    assert told is not None
    assert caught.value.missing_bytes == int(told[1]) - 1000
    assert plan_training(folder, recipe, memory_limit=int(told[1])).memory().arena <= int(told[1])
