"""Writes `references.npz`: what transformers says about the cases of `cases.py`. Needs torch and transformers.

    python -m tests.parity.make_references

The live parity tests call `family_reference` and `smollm2_reference` too, so the stored file and the real thing are produced by the same code.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

from ostinato.frontend.checkpoints import open_checkpoint
from ostinato.frontend.models import FAMILIES
from ostinato.ir.types import Array
from tests.frontend.make_checkpoints import random_model, write_hf_checkpoint
from tests.parity.cases import CASES, DECODE_STEPS, SMOLLM2_PROMPTS, SMOLLM2_TOKENS, Case
from tests.parity.harness import Reference

REFERENCES = Path(__file__).with_name("references.npz")
transformers.utils.logging.disable_progress_bar()


def family_reference(case: Case, directory: Path) -> Reference:
    """What transformers gives for a case in fp32, from the checkpoint written into `directory`; a fresh model a sequence, since some remember lengths."""
    write_hf_checkpoint(directory, case.config, random_model(case.config, case.seed))
    whole = _logits(directory, case.tokens)
    if not case.depends_on_length:
        return Reference.of_whole(case, whole)
    rows = np.stack([_logits(directory, case.tokens[:length])[-1] for length in case.lengths])
    return Reference(whole, _decoded(directory, case.tokens, case.prompt), rows)


def load_transformers(directory: Path) -> Any:
    """The model that transformers itself makes of a directory, in fp32 and with its plain attention."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise RuntimeError(f"{directory}: {report}")
    return model.eval()


def _logits(directory: Path, tokens: Array) -> Array:
    """float32 [tokens, vocab] of the sequence in one go."""
    with torch.no_grad():
        output = load_transformers(directory)(input_ids=torch.from_numpy(tokens.astype(np.int64))[None])
    logits: Array = output.logits[0].float().numpy()
    return logits


def _decoded(directory: Path, tokens: Array, prompt: int) -> Array:
    """float32 [1 + 32, vocab]: after the prompt, and after each further token fed to a cache."""
    model, ids = load_transformers(directory), torch.from_numpy(tokens.astype(np.int64))[None]
    cache, found = transformers.DynamicCache(), []
    for start, stop in [(0, prompt), *((at, at + 1) for at in range(prompt, prompt + DECODE_STEPS))]:
        with torch.no_grad():
            output = model(input_ids=ids[:, start:stop], cache=cache, use_cache=True, logits_to_keep=1)
        found.append(output.logits[0, -1].float().numpy())
    return np.stack(found)


def smollm2_reference() -> dict[str, Array]:
    """For each prompt: ids, logits of the last prompt position, and greedy tokens that ignore the end token, on dequantised weights."""
    model = smollm2_model()
    tokenizer = open_checkpoint("smollm2", FAMILIES).tokenizer()
    found: dict[str, Array] = {}
    for index, prompt in enumerate(SMOLLM2_PROMPTS):
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.no_grad():
            found[f"smollm2.{index}.logits"] = model(input_ids=ids).logits[0, -1].float().numpy()
            cache, step, tokens = None, ids, []
            for _ in range(SMOLLM2_TOKENS):
                output = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                step = output.logits[:, -1].argmax(-1, keepdim=True)
                tokens.append(int(step))
        found[f"smollm2.{index}.ids"] = ids[0].numpy().astype(np.int32)
        found[f"smollm2.{index}.tokens"] = np.array(tokens, np.int32)
    return found


def smollm2_model() -> Any:
    """transformers' LlamaForCausalLM with the package's weights, dequantised to fp32; Q and K rows put back in split-half order."""
    checkpoint = open_checkpoint("smollm2", FAMILIES)
    c = checkpoint.config
    names = {source.source_name: source for source in checkpoint.tensors.values()}
    state = {}
    for tensor in GGUFReader(str(checkpoint.path)).tensors:
        source = names[tensor.name]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(source.shape)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            heads = c.num_heads if tensor.name.endswith("attn_q.weight") else c.num_kv_heads
            values = values.reshape(heads, c.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        state[source.name] = torch.from_numpy(np.ascontiguousarray(values))
    assert c.rotary is not None
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rotary.theta},
        max_position_embeddings=c.max_position_embeddings,
        tie_word_embeddings=c.tie_word_embeddings,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise RuntimeError(f"missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def main() -> None:
    torch.manual_seed(0)
    found: dict[str, Array] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as directory:
            found |= family_reference(case, Path(directory)).arrays(case)
    found |= smollm2_reference()
    np.savez_compressed(REFERENCES, **found)  # type: ignore[arg-type]  # numpy types the keywords as its own option
    print(f"{REFERENCES.name}: {len(found)} arrays, torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
