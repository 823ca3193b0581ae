"""One step is one native call that allocates nothing, on any thread: counted by a malloc interposer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.mark.skipif(sys.platform != "linux" or COMPILER is None, reason="needs Linux and a C compiler")
@pytest.mark.parametrize("threads", [1, 2])
def test_one_step_is_one_native_call_without_allocations(threads: int, tmp_path: Path) -> None:
    assert COMPILER is not None
    library = tmp_path / "interposer.so"
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", str(HERE / "interposer.c"), "-o", str(library), "-ldl"], check=True
    )
    config = small_config("qwen2")
    write_hf_checkpoint(tmp_path / "model", config, random_model(config, 1))
    result = subprocess.run(
        [sys.executable, "-m", "tests.runtime.count_allocations", str(tmp_path / "model"), str(threads)],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.split("\n")
    assert [line.endswith("calls 1 allocations 0") for line in lines if line] == [True, True], result.stdout
