"""Writes `encoder_references.npz`: what transformers says about the cases of `encoders.py`. Needs torch, transformers and the package of MiniLM.

    python -m tests.parity.make_encoder_references

The live parity tests call the same functions. Batches are padded and masked here, which the package never does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ostinato.frontend.checkpoints.packages import find_model_package
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import write_hf_checkpoint
from tests.frontend.make_encoders import random_encoder
from tests.parity.encoders import ENCODERS, SENTENCES, Encoder

REFERENCES = Path(__file__).with_name("encoder_references.npz")
transformers.utils.logging.disable_progress_bar()


def encoder_reference(case: Encoder, directory: Path) -> dict[str, Array]:
    """Vectors float32 [rows, hidden] by pooling, of a padded batch."""
    write_hf_checkpoint(directory, case.config, random_encoder(case.config, case.seed))
    model = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False, dtype=torch.float32).eval()
    ids, mask = _padded(case.rows)
    types, _ = _padded(case.types)
    with torch.no_grad():
        states = model(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
    last = mask.sum(1) - 1
    return {
        "mean": _mean(states, mask).numpy(),
        "cls": states[:, 0].numpy(),
        "lasttoken": states[torch.arange(len(last)), last].numpy(),
    }


def minilm_reference() -> tuple[Array, list[Array]]:
    """Mean-pooled, normalised vectors float32 [32, 384] of the sentences, and their token ids."""
    folder = find_model_package("minilm")
    assert folder is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [np.array(tokenizer(text, truncation=True, max_length=256)["input_ids"], np.int32) for text in SENTENCES]
    ids, mask = _padded(rows)
    with torch.no_grad():
        pooled = _mean(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)
    return torch.nn.functional.normalize(pooled, dim=-1).numpy(), rows


def _padded(rows: Sequence[Array]) -> tuple[Any, Any]:
    """int64 [B, T] of rows filled up with zeros, and the mask of what they hold."""
    longest = max(map(len, rows))
    filled = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(filled)
    for index, row in enumerate(rows):
        filled[index, : len(row)], mask[index, : len(row)] = row, 1
    return torch.from_numpy(filled), torch.from_numpy(mask)


def _mean(states: Any, mask: Any) -> Any:
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def main() -> None:
    found: dict[str, Array] = {}
    for case in ENCODERS:
        with tempfile.TemporaryDirectory() as folder:
            vectors = encoder_reference(case, Path(folder))
        found |= {f"{case.name}.{pooling}": array for pooling, array in vectors.items()}
    found["minilm"], ids = minilm_reference()
    found |= {f"minilm.ids.{index}": row for index, row in enumerate(ids)}
    np.savez_compressed(REFERENCES, **found)  # type: ignore[arg-type]  # numpy types the keywords as its own option
    print(f"{REFERENCES.name}: {len(found)} arrays, torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
