"""The metadata of a GGUF file to `ModelConfig`: what the decoder families of the format spell alike.

Biases and a tied head are not metadata: the file says them by having the tensors or leaving them out. Everything that changes the mathematics and is not
implemented (experts, heads of different widths) is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from ostinato.frontend.checkpoints.base import EMBEDDING, HEAD
from ostinato.frontend.checkpoints.config import MAX_LAYERS, ModelConfig
from ostinato.frontend.checkpoints.gguf_rotary import local_rotary_from_gguf, rotary_from_gguf
from ostinato.frontend.checkpoints.reader import MetadataReader, shortest_decimal
from ostinato.ir.types import DType

__all__ = ["decoder_from_gguf"]

_FIRST_LAYER = "model.layers.0."


def decoder_from_gguf(
    read: MetadataReader,
    *,
    window: int = 0,
    windowed: Callable[[int], bool] = lambda layer: True,
    activation: str = "silu",
    local_theta: float | None = None,
    partial_rotary: bool = False,
) -> ModelConfig:
    """The configuration of a decoder. A family replaces the fields that it reads otherwise.

    The rest is the family's: `window` where the file states none, `windowed` (which layers have it where the file has no pattern of them), `activation`,
    `local_theta` (the rotary base of layers with a window) and `partial_rotary`.
    Raises `ConfigError` for missing, malformed or unsupported values, `WeightsError` without an embedding.
    """
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    head_dim = _head_dim(read, hidden, heads)
    if read.integer("expert_count", default=0) > 0:
        raise read.refuse("mixture-of-experts models are not supported")
    positions, windows = read.integer("context_length"), _windows(read, window, windowed)
    embedding = read.tensor(EMBEDDING)
    vocab_size = embedding.shape[0]
    declared = read.integer("vocab_size", default=vocab_size)
    if declared != vocab_size:
        raise read.refuse(
            f"vocab_size is {declared}, {embedding.name} has {vocab_size} rows", hint="convert the model again"
        )
    return ModelConfig(
        architecture=read.architecture,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        num_layers=read.integer("block_count"),
        num_heads=heads,
        num_kv_heads=read.integer("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        norm_eps=shortest_decimal(read.number("attention.layer_norm_rms_epsilon")),
        rotary=rotary_from_gguf(read, head_dim=head_dim, positions=positions, partial=partial_rotary),
        local_rotary=None
        if local_theta is None or not any(windows)
        else local_rotary_from_gguf(read, head_dim=head_dim, theta=local_theta),
        max_position_embeddings=positions,
        windows=windows,
        activation=activation,
        tie_word_embeddings=HEAD not in read.tensors,
        attention_bias=f"{_FIRST_LAYER}self_attn.q_proj.bias" in read.tensors,
        attention_output_bias=f"{_FIRST_LAYER}self_attn.o_proj.bias" in read.tensors,
        mlp_bias=f"{_FIRST_LAYER}mlp.down_proj.bias" in read.tensors,
        bos_token_id=read.token("bos"),
        eos_token_ids=tuple(
            dict.fromkeys(token for role in ("eos", "eot", "eom") if (token := read.token(role)) is not None)
        ),
        pad_token_id=read.token("padding"),
        dtype=embedding.dtype if embedding.dtype in (DType.F32, DType.F16, DType.BF16) else None,
    )


def _head_dim(read: MetadataReader, hidden: int, heads: int) -> int:
    if heads <= 0:
        raise read.refuse(
            f"attention.head_count is {heads}, expected a positive number", hint="convert the model again"
        )
    width = read.integer("attention.key_length", default=hidden // heads if hidden % heads == 0 else 0)
    if width <= 0:
        raise read.refuse(
            f"embedding_length {hidden} is not a multiple of {heads} heads and attention.key_length is not given",
            hint="convert the model again",
        )
    if read.integer("attention.value_length", default=width) != width:
        raise read.refuse("key and value heads of different widths are not supported")
    return width


def _windows(read: MetadataReader, window: int, windowed: Callable[[int], bool]) -> tuple[int, ...]:
    """The window of each layer, () for none. The file's pattern is one truth value a layer, or every how many layers one has full attention."""
    size = read.integer("attention.sliding_window", default=window)
    layers = read.integer("block_count", most=MAX_LAYERS)
    if size == 0:
        return ()
    pattern = read.raw.get(f"{read.prefix}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(isinstance(item, bool) for item in pattern):
            raise read.refuse(
                f"attention.sliding_window_pattern has {len(pattern)} entries for {layers} layers, expected true or false for each",
                hint="convert the model again",
            )
        chosen = pattern
    else:
        every = read.integer("attention.sliding_window_pattern", default=0)
        chosen = [bool((layer + 1) % every) if every > 0 else windowed(layer) for layer in range(layers)]
    return tuple(size if one else 0 for one in chosen) if any(chosen) else ()
