"""The Phi-3 family (Abdin et al. 2024, arXiv:2404.14219): Phi-3, Phi-3.5 and Phi-4 language models.

A Llama decoder whose files hold Q, K and V in one tensor and gate and up in another: each projection is a range of rows of it. Long-context models use
longrope (called "su" or "yarn" in older files), Phi-4-mini turns a part of each head only. `sliding_window` holds for all layers and is off unless given.
"""

from __future__ import annotations

from functools import partial

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.decoder import decoder, pre_norm
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    MetadataReader,
    ModelConfig,
    decoder_from_gguf,
    decoder_from_huggingface,
    windows_from_huggingface,
)
from ostinato.frontend.layers import ModelInputs
from ostinato.frontend.trace import Tensor

__all__ = ["PHI3"]


def phi3(m: ModelInputs) -> Tensor:
    """Logits [..., V] of the tokens that `m.select` keeps."""
    return decoder(m, partial(pre_norm, project=project))


def project(m: ModelInputs, layer: int, name: str, x: Tensor) -> Tensor:
    """The projection of that name: its rows of the tensor that holds it."""
    c = m.config
    q, kv, inner = c.query_width, c.kv_width, c.intermediate_size
    module, height, rows, axis = {
        "q": ("self_attn.qkv_proj", q + 2 * kv, (0, q), ""),
        "k": ("self_attn.qkv_proj", q + 2 * kv, (q, q + kv), ""),
        "v": ("self_attn.qkv_proj", q + 2 * kv, (q + kv, q + 2 * kv), ""),
        "gate": ("mlp.gate_up_proj", 2 * inner, (0, inner), "F"),
        "up": ("mlp.gate_up_proj", 2 * inner, (inner, 2 * inner), "F"),
    }[name]
    fused = f"model.layers.{layer}.{module}.weight"
    weight = m.weights.matrix(fused, (height, c.hidden_size), (axis, "C"), rows=rows)
    return F.linear(x, weight, axis=axis, name=name)


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """The common keys; absent key/value heads mean as many as there are heads."""
    return decoder_from_huggingface(
        read,
        positions=4096,
        windows=windows_from_huggingface(read, size=None, alike=True),
        kv_heads_required=False,
        partial_rotary=True,
        renamed_rotary={"su": "longrope", "yarn": "longrope"},
    )


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The common keys."""
    return decoder_from_gguf(read, partial_rotary=True)


PHI3 = Family(
    name="phi3",
    function=phi3,
    huggingface=(HuggingFaceSpelling(model_type="phi3", classes=("Phi3ForCausalLM",), config=from_huggingface),),
    gguf=(
        GgufSpelling(
            architecture="phi3",
            config=from_gguf,
            names={
                "blk.*.attn_qkv": "model.layers.*.self_attn.qkv_proj",
                "blk.*.ffn_up": "model.layers.*.mlp.gate_up_proj",
            },
        ),
    ),
    also=("Phi-3.5", "Phi-4-mini"),
)
