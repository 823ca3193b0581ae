"""What `ostinato.train_step` refuses, by the behaviour: arguments before anything is planned, limits before anything is allocated, batches before anything of
a step has run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.host_memory import HostBuffer
from ostinato.ir.errors import (
    BoundsError,
    CapacityError,
    ConfigError,
    DTypeError,
    InputError,
    LifecycleError,
    OstinatoError,
    ShapeError,
)
from tests.frontend.make_encoders import write_encoder
from tests.training.steps import state_of
from tests.training.tiny import BATCH, EMBED, LENGTH, VOCABULARY, batch, checkpoint, make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def exe(folder: Path) -> ost.TrainStep:
    """A step that has been applied once: what refuses must not change it."""
    made = make(folder)
    made(*batch(0))
    return made


class Untouched(HostDevice):
    """A device that gives no memory."""

    def allocate(self, nbytes: int, alignment: int = 256, *, zeroed: bool = True) -> HostBuffer:
        raise AssertionError(f"{nbytes} bytes are allocated")


ARGUMENTS: list[tuple[dict[str, Any], type[OstinatoError], str]] = [
    ({"batch": 4}, ConfigError, "batch is 4"),
    ({"batch": "48"}, ConfigError, "batch is '48'"),
    ({"batch": (4, 6, 1)}, ConfigError, r"batch is \(4, 6, 1\)"),
    ({"batch": (0, 6)}, ConfigError, "batch is 0"),
    ({"batch": (4, 6.5)}, ConfigError, "sequence is 6.5"),
    ({"batch": (4, 257)}, BoundsError, "sequences of 257 tokens, the model has 256 positions"),
    ({"micro_batches": 3}, ShapeError, "3 micro-batches do not share out a batch of 4"),
    ({"micro_batches": 0}, ConfigError, "micro_batches is 0"),
    ({"batch": (1024, 6), "micro_batches": 1024}, BoundsError, "1024 micro-batches, a step takes 512"),
    ({"chunks": 25}, BoundsError, "has 24 tokens, found 25 chunks"),
    ({"chunks": 0}, ConfigError, "chunks is 0"),
    ({"dropout": 1.0}, ConfigError, "dropout is 1.0"),
    ({"dropout": "0.1"}, ConfigError, "dropout is '0.1' of type str"),
    ({"dropout": 0.9999999999}, ConfigError, "from 0 to below 1"),
    ({"optimizer": "adamw"}, ConfigError, "optimizer is 'adamw'"),
    ({"optimizer": ost.AdamW}, ConfigError, "optimizer is <class"),
    ({"keep_gradients": "no"}, ConfigError, "keep_gradients is 'no'"),
    ({"batch": (2**40, 6)}, BoundsError, "a step takes 16777216 tokens at most"),
    ({"frozen": "model.embed*"}, ConfigError, "frozen is 'model.embed"),
    ({"frozen": (5,)}, ConfigError, "frozen is"),
    ({"loss": "mse"}, ConfigError, "loss is 'mse'"),
    ({"frozen": ("model.embedding",)}, ConfigError, "no weight is called like model.embedding"),
    ({"frozen": ("*",)}, ConfigError, "all weights are frozen"),
    ({"memory_limit": "much"}, ConfigError, "memory_limit"),
    ({"memory_limit": -1}, ConfigError, "memory_limit"),
    ({"on_nan": "ignore"}, ConfigError, "on_nan is 'ignore'"),
    ({"mode": "fast"}, ConfigError, "fast"),
    ({"precision": "f8"}, ConfigError, "f8"),
    ({"seed": 1.5}, ConfigError, "seed"),
]


@pytest.mark.parametrize(("given", "error", "words"), ARGUMENTS, ids=[str(row[0]) for row in ARGUMENTS])
def test_arguments_that_cannot_be_used(
    given: dict[str, Any], error: type[OstinatoError], words: str, folder: Path
) -> None:
    with pytest.raises(error, match=words):
        ost.train_step(
            folder, **{"batch": (BATCH, LENGTH), "optimizer": ost.AdamW(), "device": Untouched(threads=1), **given}
        )


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train a decoder"):
        make(write_encoder(tmp_path / "encoder", seed=5))


def test_a_limit_that_nothing_keeps_names_bytes_step_and_tensors_with_their_lines(folder: Path) -> None:
    with pytest.raises(CapacityError) as caught:
        make(folder, memory_limit="1K", device=Untouched(threads=1))
    text = str(caught.value)
    assert "memory_limit is 1024 bytes of arena" in text
    assert caught.value.missing_bytes is not None
    assert f"{caught.value.missing_bytes} bytes are missing" in text
    assert "at its peak, step " in text
    assert text.count("ostinato/frontend/") >= 4
    assert "raise memory_limit" in text or "no plan needs less" in text


def test_weights_and_settings_that_do_not_fit_change_nothing(exe: ost.TrainStep) -> None:
    before = state_of(exe)
    with pytest.raises(ConfigError, match="was compiled for adamw"):
        exe.optimizer = ost.SGD(lr=0.1)
    with pytest.raises(ConfigError, match="was compiled for adamw"):
        exe.optimizer = ost.AdamW(lr=0.1)  # it does not clip
    with pytest.raises(InputError, match="of another step: missing"):
        exe.load({}, exe.optimizer_state())
    with pytest.raises(ConfigError, match="optimizer is 'sgd'"):
        exe.optimizer = "sgd"  # type: ignore[assignment]
    with pytest.raises(InputError, match="of another step: missing"):
        exe.load(None, exe.optimizer_state())  # type: ignore[arg-type]
    for steps in (-1, 2**31 - 1):  # no step is behind the one, and none can follow the other
        with pytest.raises(BoundsError, match="steps, expected 0 to"):
            exe.write_state("step", np.array([steps], np.int32))
    with pytest.raises(BoundsError, match="settings: not every value is a finite number"):
        exe.step(dict(zip(("input_ids", "target"), batch(1), strict=True)), settings=np.full(9, np.nan, np.float32))
    with pytest.raises(ConfigError, match="number is 4294967296"):
        exe.number = 2**32
    with pytest.raises(LifecycleError, match="compile the step with keep_gradients=True"):
        exe.gradient(EMBED)
    with pytest.raises(ConfigError, match="has no optimizer"):
        make_without_optimizer(exe).optimizer = ost.AdamW()
    assert state_of(exe) == before


def make_without_optimizer(exe: ost.TrainStep) -> ost.TrainStep:
    other = exe.clone()
    other._optimizer = None
    return other


def _batches() -> list[tuple[str, Any, Any, type[OstinatoError], str]]:
    ids, target = batch(1)
    none, past = np.full_like(target, -100), ids.copy()
    past[1, 2] = VOCABULARY
    negative, mask = ids.copy(), target.copy()
    negative[0, 0] = -1
    mask[2, 3] = -1  # a mask that uses another number for what is not learned
    return [
        ("no valid target", ids, none, BoundsError, "all targets are -100: there is nothing to learn from"),
        ("id past the vocabulary", past, target, BoundsError, f"the table has rows 0 to {VOCABULARY - 1}"),
        ("negative id", negative, target, BoundsError, "values from -1 to"),
        ("wrong mask", ids, mask, BoundsError, "and -100 for tokens that are not learned"),
        ("target past the vocabulary", ids, past, BoundsError, "rows 0 to"),
        ("one sequence short", ids[:-1], target[:-1], ShapeError, "expected shape"),
        ("one token short", ids[:, :-1], target, ShapeError, "expected shape"),
        ("flat", ids.reshape(-1), target.reshape(-1), ShapeError, "expected shape"),
        ("floats", ids.astype(np.float32), target, DTypeError, "expected i32"),
        ("a boolean mask", ids, target > 0, DTypeError, "expected i32"),
        ("beyond 32 bits", ids.astype(np.int64) + 2**33, target, BoundsError, "do not fit int32"),
        ("nothing", None, target, ShapeError, "expected shape"),
        ("text", "hello", target, ShapeError, "expected shape"),
        ("lists of unequal length", [[1, 2], [3]], target, DTypeError, "list is no array"),
    ]


@pytest.mark.parametrize(
    ("ids", "target", "error", "words"), [row[1:] for row in _batches()], ids=[row[0] for row in _batches()]
)
def test_a_batch_that_cannot_be_learned_from_changes_nothing(
    ids: Any, target: Any, error: type[OstinatoError], words: str, exe: ost.TrainStep
) -> None:
    before, number = state_of(exe), exe.number
    with pytest.raises(error, match=words):
        exe(ids, target)
    assert state_of(exe) == before
    assert exe.number == number


def test_the_next_good_step_goes_on_as_if_nothing_had_been_refused(exe: ost.TrainStep, folder: Path) -> None:
    plain = make(folder)
    plain(*batch(0))
    strided = tuple(np.asfortranarray(array) for array in batch(1))  # a layout is the caller's business
    assert exe(*strided).loss == plain(*batch(1)).loss
    wide = tuple(array.astype(np.int64) for array in batch(2))
    assert exe(*wide).loss == plain(*batch(2)).loss
    assert state_of(exe) == state_of(plain)
