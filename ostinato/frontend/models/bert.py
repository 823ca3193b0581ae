"""The BERT family of encoders (Devlin et al. 2019): BERT, MiniLM, and the sentence encoders made from them (all-MiniLM, BGE, E5, GTE, mxbai).

Post-norm encoder: word, token-type and absolute position embeddings are added and normalised; each layer adds its attention (both directions, all heads, all
biases) and its feed-forward part (one activation, no gate) to its input and normalises the sum. The function gives the states of the tokens; what becomes of
them is the recipe beside the model. The pooler and the heads of pre-training give no part of an embedding: they are reported as ignored. Relative positions
and decoders built from BERT are refused.
"""

from __future__ import annotations

from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.encoder import EncoderInputs
from ostinato.frontend.family import (
    ConfigReader,
    Family,
    GgufSpelling,
    HuggingFaceSpelling,
    MetadataReader,
    ModelConfig,
    declared_dtype,
    refuse_quantised,
    shortest_decimal,
)
from ostinato.frontend.trace import Tensor

__all__ = ["BERT"]

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_WORDS, _TYPES = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"


def bert(m: EncoderInputs) -> Tensor:
    """States [N, C] of the tokens after the last layer."""
    c, w = m.config, m.weights

    words = F.embedding(m.ids, w.matrix(_WORDS, (c.vocab_size, c.hidden_size), ("V", "C")), name="words")
    types = F.embedding(m.token_type, w.matrix(_TYPES, (c.type_vocab_size, c.hidden_size), ("", "C")), name="types")
    table = w.matrix("embeddings.position_embeddings.weight", (c.max_position_embeddings, c.hidden_size), ("", "C"))
    x = norm(m, "embeddings.LayerNorm", words + types + F.embedding(m.position, table, name="positions"), "embed")
    for layer in range(c.num_layers):
        with m.builder.scope(f"layers.{layer}"):
            prefix = f"encoder.layer.{layer}"
            x = norm(m, f"{prefix}.attention.output.LayerNorm", x + attention(m, prefix, x), "attn_norm")
            x = norm(m, f"{prefix}.output.LayerNorm", x + feed_forward(m, prefix, x), "ffn_norm")
    return x


def attention(m: EncoderInputs, prefix: str, x: Tensor) -> Tensor:
    """Self-attention of one layer: projections, attention, output projection."""
    c = m.config

    def project(name: str, axis: str) -> Tensor:
        y = linear(m, f"{prefix}.attention.self.{name}", x, (c.query_width, c.hidden_size), ("", "C"), name)
        return F.reshape(y, [0, c.num_heads, c.head_dim], f"N{axis}D", name=f"{name}_heads")

    with m.builder.scope("attn"):
        y = m.attend(project("query", "H"), project("key", "G"), project("value", "G"))
        y = F.reshape(y, [0, c.query_width], "N_", name="context")
        return linear(m, f"{prefix}.attention.output.dense", y, (c.hidden_size, c.query_width), ("C", ""), "out")


def feed_forward(m: EncoderInputs, prefix: str, x: Tensor) -> Tensor:
    """down(gelu(up(x))) of one layer."""
    c = m.config
    with m.builder.scope("ffn"):
        up = linear(m, f"{prefix}.intermediate.dense", x, (c.intermediate_size, c.hidden_size), ("F", "C"), "up")
        activated = F.gelu(up, approximate="tanh" if c.activation == "gelu_tanh" else "none", name="activated")
        return linear(m, f"{prefix}.output.dense", activated, (c.hidden_size, c.intermediate_size), ("C", "F"), "down")


def linear(
    m: EncoderInputs, module: str, x: Tensor, shape: tuple[int, int], axes: tuple[str, str], name: str
) -> Tensor:
    """The projection of that module, with its bias; `shape` and `axes` are [out, in]."""
    weight = m.weights.matrix(f"{module}.weight", shape, axes)
    return F.linear(x, weight, m.weights.vector(f"{module}.bias", shape[0], axes[0]), axis=axes[0], name=name)


def norm(m: EncoderInputs, module: str, x: Tensor, name: str) -> Tensor:
    """The layer normalisation of that module."""
    gain, bias = (m.weights.vector(f"{module}.{part}", m.config.hidden_size, "C") for part in ("weight", "bias"))
    return F.layer_norm(x, gain, bias, eps=m.config.norm_eps, name=name)


def from_huggingface(read: ConfigReader) -> ModelConfig:
    """Shapes, norm and activation. Raises `ConfigError` for what changes the mathematics and is not computed."""
    refuse_quantised(read)
    if (kind := read.raw.get("position_embedding_type", "absolute")) != "absolute":
        raise read.refuse(f"position_embedding_type {kind!r} is not supported", hint="supported: 'absolute'")
    for key in ("is_decoder", "add_cross_attention"):
        if read.flag(key):
            raise read.refuse(f"{key} is set: this is a decoder", hint="the family reads encoders")
    activation = read.raw.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise read.refuse(f"hidden_act {activation!r} is not supported", hint=f"supported: {', '.join(_ACTIVATIONS)}")
    heads, hidden = read.integer("num_attention_heads"), read.integer("hidden_size")
    if heads <= 0 or hidden % heads:
        raise read.refuse(f"hidden_size {hidden} is not a multiple of {heads} heads")
    return ModelConfig(
        architecture=read.architecture,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=read.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        norm_eps=read.number("layer_norm_eps", default=1e-12),
        rotary=None,
        max_position_embeddings=read.integer("max_position_embeddings", default=512),
        type_vocab_size=read.integer("type_vocab_size", default=2),
        activation=_ACTIVATIONS[activation],
        pad_token_id=read.token("pad_token_id"),
        dtype=declared_dtype(read),
    )


def from_gguf(read: MetadataReader) -> ModelConfig:
    """The metadata's shapes, and those of the embeddings. The format does not name the activation: the published models compute GELU by the error function."""
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    if heads <= 0 or hidden % heads:
        raise read.refuse(f"embedding_length {hidden} is not a multiple of {heads} heads")
    if read.raw.get(f"{read.prefix}.attention.causal", False):
        raise read.refuse("attention.causal is set: this is a decoder")
    words, types = read.tensor(_WORDS), read.tensor(_TYPES)
    return ModelConfig(
        architecture=read.architecture,
        vocab_size=words.shape[0],
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        num_layers=read.integer("block_count"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        norm_eps=shortest_decimal(read.number("attention.layer_norm_epsilon")),
        rotary=None,
        max_position_embeddings=read.integer("context_length"),
        type_vocab_size=types.shape[0],
        activation="gelu",
        pad_token_id=read.token("padding"),
    )


def tensor_name(stored: str) -> str | None:
    """Without the prefix that models with a head put in front; old checkpoints call gain and bias of a norm gamma and beta. None: not part of an encoder."""
    name = stored.removeprefix("bert.")
    if name == "embeddings.position_ids" or name.startswith(("pooler.", "cls.")):
        return None
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


BERT = Family(
    name="bert",
    encoder=bert,
    huggingface=(
        HuggingFaceSpelling(
            model_type="bert",
            classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
            config=from_huggingface,
            tensor_name=tensor_name,
        ),
    ),
    gguf=(
        GgufSpelling(
            architecture="bert",
            config=from_gguf,
            names={
                "token_embd": "embeddings.word_embeddings",
                "token_types": "embeddings.token_type_embeddings",
                "position_embd": "embeddings.position_embeddings",
                "token_embd_norm": "embeddings.LayerNorm",
                "blk.*.attn_q": "encoder.layer.*.attention.self.query",
                "blk.*.attn_k": "encoder.layer.*.attention.self.key",
                "blk.*.attn_v": "encoder.layer.*.attention.self.value",
                "blk.*.attn_output": "encoder.layer.*.attention.output.dense",
                "blk.*.attn_output_norm": "encoder.layer.*.attention.output.LayerNorm",
                "blk.*.ffn_up": "encoder.layer.*.intermediate.dense",
                "blk.*.ffn_down": "encoder.layer.*.output.dense",
                "blk.*.layer_output_norm": "encoder.layer.*.output.LayerNorm",
            },
        ),
    ),
    also=("MiniLM", "BGE", "E5", "GTE", "mxbai-embed"),
)
