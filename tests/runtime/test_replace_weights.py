"""Replacing weights in place: the same bits as a fresh executable of a checkpoint with the new tensors, through packing, concatenation and row reordering."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array, DType
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf, write_hf_checkpoint

SEED = 11
IDS = np.array([[3, 1, 4, 1, 5, 9, 2]], np.int32)
LAYER = "model.layers.1"
NAMES = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    f"{LAYER}.input_layernorm.weight",
    f"{LAYER}.self_attn.q_proj.weight",
    f"{LAYER}.self_attn.k_proj.weight",
    f"{LAYER}.self_attn.v_proj.weight",
    f"{LAYER}.self_attn.o_proj.weight",
    f"{LAYER}.mlp.gate_proj.weight",
    f"{LAYER}.mlp.up_proj.weight",
    f"{LAYER}.mlp.down_proj.weight",
)


def compiled(path: Path, **options: Any) -> ost.TextExecutable:
    return ost.compile(str(path), buckets={"B": [1], "T": [8]}, context=32, threads=1, **options)


def logits(executable: ost.TextExecutable) -> Array:
    executable.reset_state()
    result: Array = executable(input_ids=IDS)["logits"]
    return result


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return small_config("llama")


@pytest.fixture(scope="module")
def old(config: Mapping[str, Any]) -> dict[str, Array]:
    return dict(random_model(config, SEED))


@pytest.fixture(scope="module")
def new(config: Mapping[str, Any]) -> dict[str, Array]:
    return dict(random_model(config, SEED + 1))


@pytest.mark.parametrize("name", NAMES)
def test_one_replaced_tensor_equals_a_checkpoint_that_has_it(
    name: str, config: dict[str, Any], old: dict[str, Array], new: dict[str, Array], tmp_path: Path
) -> None:
    executable = compiled(write_hf_checkpoint(tmp_path / "old", config, old))
    before = logits(executable)
    executable.replace_weights({name: new[name]})
    expected = logits(compiled(write_hf_checkpoint(tmp_path / "new", config, {**old, name: new[name]})))
    np.testing.assert_array_equal(logits(executable), expected, err_msg=f"seed {SEED}")
    assert not np.array_equal(before, expected)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mode", ["reference", "eager", "planned"])
def test_all_tensors_of_a_model_in_every_mode(
    mode: str, precision: str, config: dict[str, Any], old: dict[str, Array], new: dict[str, Array], tmp_path: Path
) -> None:
    executable = compiled(write_hf_checkpoint(tmp_path / "old", config, old), mode=mode, precision=precision)
    logits(executable)  # the reference has read its weights by now
    executable.replace_weights(new)
    fresh = compiled(write_hf_checkpoint(tmp_path / "new", config, new), mode=mode, precision=precision)
    np.testing.assert_array_equal(logits(executable), logits(fresh), err_msg=f"seed {SEED}")


def test_rows_that_the_file_reorders_and_blocks_by_their_own_dtype(
    config: dict[str, Any], old: dict[str, Array], new: dict[str, Array], tmp_path: Path
) -> None:
    """GGUF stores Q and K with interleaved rows: a replacement is in the original order. Quantised rows come as bytes."""
    query, down = f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.mlp.down_proj.weight"
    types = {name: DType.Q8_0 if name == down else DType.F32 for name in old}
    executable = compiled(write_gguf(tmp_path / "old.gguf", config, old, types))
    source = ost.load(
        str(write_gguf(tmp_path / "new.gguf", config, {**old, query: new[query], down: new[down]}, types))
    )
    expected = logits(ost.compile(source, buckets={"B": [1], "T": [8]}, context=32, threads=1))
    blocks = source.checkpoint.map(down).reshape(new[down].shape[0], -1)
    executable.replace_weights({query: new[query], down: blocks})
    np.testing.assert_array_equal(logits(executable), expected, err_msg=f"seed {SEED}")
    reference = logits(executable.clone(mode="reference"))
    np.testing.assert_allclose(reference, expected, atol=1e-3)
    with pytest.raises(ost.DTypeError, match="expected rows of q8_0 blocks as uint8"):
        executable.replace_weights({down: new[down]})


def test_clones_and_bound_runs_see_the_new_values_at_the_old_addresses(
    config: dict[str, Any], old: dict[str, Array], new: dict[str, Array], tmp_path: Path
) -> None:
    executable = compiled(write_hf_checkpoint(tmp_path / "old", config, old))
    clone = executable.clone()
    address = executable.regions.shared.weights.address
    before = logits(clone)
    executable.replace_weights(new)
    assert executable.regions.shared.weights.address == address
    assert not np.array_equal(logits(clone), before)
    np.testing.assert_array_equal(logits(clone), logits(executable))


def test_a_bad_tensor_changes_nothing(
    config: dict[str, Any], old: dict[str, Array], new: dict[str, Array], tmp_path: Path
) -> None:
    executable = compiled(write_hf_checkpoint(tmp_path / "old", config, old))
    before = logits(executable)
    good, norm = f"{LAYER}.mlp.up_proj.weight", "model.norm.weight"
    bad: dict[str, tuple[Any, type[Exception], str]] = {
        norm: (new[norm][:-1], ost.ShapeError, r"expected shape \[64\], found \[63\]"),
        f"{LAYER}.mlp.down_proj.weight": (new[f"{LAYER}.mlp.down_proj.weight"].T.copy().T, ost.LayoutError, "strides"),
        "model.embed_tokens.weight": (new["model.embed_tokens.weight"].astype(np.int8), ost.DTypeError, "int8"),
        f"{LAYER}.self_attn.q_proj.weight": (old[f"{LAYER}.self_attn.q_proj.weight"].astype(np.float64), ost.DTypeError, "float64"),
        "model.layers.9.mlp.up_proj.weight": (new[good], ost.WeightsError, "no weight is made of model.layers.9"),
    }  # fmt: skip
    for name, (value, kind, text) in bad.items():
        with pytest.raises(kind, match=text):
            executable.replace_weights({good: new[good], name: value})
        np.testing.assert_array_equal(logits(executable), before)
    with pytest.raises(ost.WeightsError, match="tensors are a list"):
        executable.replace_weights([new[good]])  # type: ignore[arg-type]


def test_weights_are_not_replaced_under_a_run(
    config: dict[str, Any], old: dict[str, Array], new: dict[str, Array], tmp_path: Path
) -> None:
    executable = compiled(write_hf_checkpoint(tmp_path / "old", config, old))
    clone = executable.clone()
    before = logits(executable)
    with clone.exclusive(), pytest.raises(ost.LifecycleError, match="is running"):
        executable.replace_weights(new)
    np.testing.assert_array_equal(logits(executable), before)
    refused: list[BaseException] = []

    def run() -> None:
        try:
            logits(clone)
        except ost.LifecycleError as error:
            refused.append(error)

    with executable.regions.shared.use.changing():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert "being replaced" in str(refused[0])
    executable.replace_weights(new)  # and works again


def test_warm_up_leaves_no_trace(config: dict[str, Any], old: dict[str, Array], tmp_path: Path) -> None:
    path = write_hf_checkpoint(tmp_path / "old", config, old)
    for mode in ("reference", "eager", "planned"):
        warm, cold = compiled(path, mode=mode), compiled(path, mode=mode)
        first, expected = warm(input_ids=IDS), cold(input_ids=IDS)
        np.testing.assert_array_equal(first["logits"], expected["logits"])
        state = warm.regions.state.read(np.uint8, (warm.memory.state,))
        warm.warm_up()
        np.testing.assert_array_equal(warm.regions.state.read(np.uint8, (warm.memory.state,)), state)
        np.testing.assert_array_equal(logits(warm), logits(cold))


def test_warm_up_before_the_first_run_leaves_no_trace_in_the_reference_mode(
    config: dict[str, Any], old: dict[str, Array], tmp_path: Path
) -> None:
    warm = compiled(write_hf_checkpoint(tmp_path / "old", config, old), mode="reference")
    warm.warm_up()
    assert warm._state.reference
    assert not any(array.any() for array in warm._state.reference.values())
