"""The program of the tutorial docs/wrong-tokens.md: its operator, its kernel and its model, taken from the page itself, on the emulated card."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato.backend_hip.emulator.machine import emulated_card

__all__ = ["SAMPLE", "WIDER_SAMPLE", "kernel_file", "wrong_tokens"]

SAMPLE, WIDER_SAMPLE = "normal((2, 12))", "normal((3, 100))"
"""What the page replaces, and by what."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "wrong-tokens.md"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}


def kernel_file(folder: Path, changes: Mapping[str, str] | None = None) -> Any:
    """The module that the page shows, from a file in `folder`, with texts of it replaced."""
    found = re.search(
        r'^```python title="(unit_rms.py)"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"{PAGE.name} shows no unit_rms.py"
    assert f'replace("{SAMPLE}", "{WIDER_SAMPLE}")' in PAGE.read_text(encoding="utf-8")
    text = found[2]
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    file = folder / found[1]
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("unit_rms", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def wrong_tokens(folder: Path) -> Iterator[ost.Executable]:
    """The executable whose tokens are wrong."""
    page = kernel_file(folder)  # lines of the model are shown as seen from the folder that one works in
    config = {"model_type": "llama", "max_position_embeddings": 64, **SIZES}
    ost.new_model(folder / "small", config).checkpoint.close()
    with page.add(), chdir(folder):
        model = ost.load("small", families=(page.UNIT_LLAMA,))
        yield ost.LLM(model, device=emulated_card(), max_num_seqs=1, context=16).executable
