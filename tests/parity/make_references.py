"""Writes `references.npz`: what transformers says about the cases of `cases.py`. Needs torch and transformers.

    python -m tests.parity.make_references

The live parity tests call `family_logits` and `smollm2_reference` too, so the stored file and the real thing are produced by the same code.
"""

from __future__ import annotations

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
from tests.frontend.make_checkpoints import random_model
from tests.parity.cases import CASES, SMOLLM2_PROMPTS, SMOLLM2_TOKENS, Case

REFERENCES = Path(__file__).with_name("references.npz")


def family_logits(case: Case) -> Array:
    """Logits float32 [tokens, vocab] of the whole sequence from transformers in fp32."""
    model = _model(
        case.config, {name: torch.from_numpy(array) for name, array in random_model(case.config, case.seed).items()}
    )
    with torch.no_grad():
        output = model(input_ids=torch.from_numpy(case.tokens.astype(np.int64))[None])
    logits: Array = output.logits[0].float().numpy()
    return logits


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
    config = {
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "max_position_embeddings": c.max_position_embeddings,
        "tie_word_embeddings": c.tie_word_embeddings,
    }
    return _model(config, state)


def _model(config: dict[str, Any], state: dict[str, Any]) -> Any:
    known = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    qwen = config["model_type"] == "qwen2"
    made = (transformers.Qwen2Config if qwen else transformers.LlamaConfig)(**known, rope_parameters=rope)
    if qwen:
        made.head_dim = config["head_dim"]
    model = (transformers.Qwen2ForCausalLM if qwen else transformers.LlamaForCausalLM)(made).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    allowed = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    if set(missing) - allowed or unexpected:
        raise RuntimeError(f"missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def main() -> None:
    torch.manual_seed(0)
    found = {f"family.{case.name}": family_logits(case) for case in CASES}
    found |= smollm2_reference()
    np.savez_compressed(REFERENCES, **found)  # type: ignore[arg-type]  # numpy types the keywords as its own option
    print(f"{REFERENCES.name}: {len(found)} arrays, torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
