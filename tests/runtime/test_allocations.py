"""One step, and one operator, is one native call that allocates nothing, on any thread: counted by a malloc interposer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.backend_hip.target import host_target
from ostinato.ir.target import Level
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.make_encoders import encoder_config, random_encoder

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(sys.platform != "linux" or COMPILER is None, reason="needs Linux and a C compiler")


def counts(folder: Path, *arguments: str) -> list[str]:
    """What `count_allocations` prints under the interposer, line by line."""
    assert COMPILER is not None
    library = folder / "interposer.so"
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", str(HERE / "interposer.c"), "-o", str(library), "-ldl"], check=True
    )
    result = subprocess.run(
        [sys.executable, "-m", "tests.runtime.count_allocations", *arguments],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_one_step_is_one_native_call_without_allocations(threads: str, tmp_path: Path) -> None:
    config = small_config("qwen2")
    write_hf_checkpoint(tmp_path / "model", config, random_model(config, 1))
    lines = counts(tmp_path, threads, str(tmp_path / "model"))
    assert [line.endswith("calls 1 allocations 0") for line in lines] == [True, True, True], lines


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_training_step_is_one_native_call_without_allocations(threads: str, tmp_path: Path) -> None:
    config = small_config("llama", num_hidden_layers=1, hidden_size=32, intermediate_size=48, tie_word_embeddings=True)
    write_hf_checkpoint(tmp_path / "model", config, random_model(config, 1))
    lines = counts(tmp_path, threads, str(tmp_path / "model"), "train")
    assert [line.endswith("calls 1 allocations 0") for line in lines] == [True, True, True], lines


@pytest.mark.parametrize("threads", ["1", "2"])
def test_embedding_is_one_native_call_without_allocations(threads: str, tmp_path: Path) -> None:
    config = encoder_config()
    write_hf_checkpoint(tmp_path / "model", config, random_encoder(config, 1))
    lines = counts(tmp_path, threads, str(tmp_path / "model"))
    assert [line.endswith("calls 1 allocations 0") for line in lines] == [True, True], lines


@pytest.mark.parametrize("threads", ["1", "2"])
def test_one_operator_is_one_native_call_without_allocations(threads: str, tmp_path: Path) -> None:
    lines = counts(tmp_path, threads)
    kernels = {row.op for row in host_target().rows if row.level is not Level.REFERENCE}
    assert len(lines) == len(kernels)
    assert [line for line in lines if not line.endswith("calls 1 allocations 0")] == []
