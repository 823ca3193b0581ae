"""Models of quantised files: the reference computes with the values the `gguf` package gives, bit for bit, and the kernels stay near it; types mix freely."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array, DType
from tests.frontend.make_checkpoints import random_model, small_config, stored_as, write_gguf

IDS = [5, 17, 3, 92, 41, 8, 5, 60, 17, 2, 33, 71]
CONFIG = small_config("qwen2", hidden_size=256, intermediate_size=512)
SUFFIXES = {
    "q_proj.weight": DType.Q4_K,
    "k_proj.weight": DType.Q4_K,
    "v_proj.weight": DType.Q6_K,
    "o_proj.weight": DType.Q5_K,
    "gate_proj.weight": DType.Q4_K,
    "up_proj.weight": DType.Q5_0,
    "down_proj.weight": DType.Q6_K,
    "embed_tokens.weight": DType.IQ4_NL,
    "lm_head.weight": DType.Q6_K,
}
"""One model of many types, as quantisers mix them."""


def logits_of(path: Path, mode: str = "planned") -> Array:
    executable = ost.compile(
        ost.load(path), buckets={"B": [1], "T": [16]}, context=64, logits="all", threads=2, mode=mode
    )
    logits: Array = executable(input_ids=[IDS])["logits"]
    return logits


def files(directory: Path, seed: int, types: DType | None) -> tuple[Path, Path]:
    """A file of that type, or of mixed types, and one of the float32 values that the package gives for its blocks."""
    tensors = random_model(CONFIG, seed)
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    chosen = {name: types or next(SUFFIXES[end] for end in SUFFIXES if name.endswith(end)) for name in matrices}
    quantised = write_gguf(directory / "quantised.gguf", CONFIG, tensors, chosen)
    values = dict(tensors)
    for name, dtype in chosen.items():
        blocks = stored_as(tensors[name], dtype)
        values[name] = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[dtype.value.upper()])
    return quantised, write_gguf(directory / "values.gguf", CONFIG, values)


@pytest.mark.parametrize(
    "types", [None, *(dtype for dtype in DType if dtype.is_block)], ids=lambda t: t.value if t else "mixed"
)
def test_the_reference_sees_the_packages_values_and_the_kernels_stay_near(
    types: DType | None, tmp_path: Path, seed: int
) -> None:
    quantised, values = files(tmp_path, seed, types)
    reference, exact = logits_of(quantised, mode="reference"), logits_of(values, mode="reference")
    if types is not None:
        np.testing.assert_array_equal(reference, exact)
    else:  # float32 values are fused where mixed types are not, and numpy sums differently over other shapes
        np.testing.assert_allclose(reference, exact, rtol=0, atol=1e-5 * float(exact.std()))
    planned = logits_of(quantised)
    assert np.abs(planned - reference).max() < 2e-4 * reference.std()
    np.testing.assert_array_equal(planned, logits_of(quantised, mode="eager"))
