"""Operators as functions over symbolic tensors: the vocabulary that model files are written in.

Each function adds one node of the operator table. Shapes and rules are the operators'; see `docs/OPERATORS.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.frontend.trace import Tensor
from ostinato.ir.errors import ShapeError
from ostinato.ir.types import DType

__all__ = [
    "add_at_tokens",
    "add_bias",
    "advance",
    "attention_bidirectional",
    "attention_causal",
    "attention_packed",
    "broadcast_scalar",
    "cast",
    "causal_softmax",
    "concat",
    "contiguous",
    "dropout",
    "embedding",
    "fill",
    "gather_rows",
    "gelu",
    "kv_store",
    "l2_normalize",
    "layer_norm",
    "linear",
    "masked_mean",
    "matmul",
    "penalize",
    "reduce_sum",
    "repeat_interleave",
    "reshape",
    "rms_norm",
    "rope_interleaved",
    "rope_split_half",
    "rope_split_half_bias_bthd",
    "rotary_table",
    "rotary_table_dynamic",
    "rotary_table_longrope",
    "sample",
    "scale",
    "slice_",
    "softmax",
    "swiglu",
    "tanh",
    "target_mean",
    "token_cross_entropy",
    "transpose",
]


def embedding(ids: Tensor, weight: Tensor, *, axis: str = "C", name: str | None = None) -> Tensor:
    """Rows of `weight` [V,C] at int32 `ids`: shape ids + [C], float32."""
    return ids.builder.apply("embedding", (ids, weight), {"axis": axis}, name)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, axis: str = "", name: str | None = None) -> Tensor:
    """x [..., K] times `weight` [M, K] transposed, plus `bias` [M]: [..., M]; `axis` names the new last axis."""
    return x.builder.apply("linear", (x, weight, bias), {"axis": axis}, name)


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    scale: float = 1.0,
    name: str | None = None,
) -> Tensor:
    """scale * a [..., M, K] @ b [..., K, N] with identical batch axes; a flag says that the last two axes of an operand are the other way round."""
    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b, "scale": scale}
    return a.builder.apply("matmul", (a, b), attrs, name)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float, name: str | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019)."""
    return x.builder.apply("rms_norm", (x, gain), {"eps": eps}, name)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None = None, *, eps: float, name: str | None = None) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gain + bias over the last axis (Ba, Kiros and Hinton 2016)."""
    return x.builder.apply("layer_norm", (x, gain, bias), {"eps": eps}, name)


def l2_normalize(x: Tensor, *, eps: float = 1e-12, name: str | None = None) -> Tensor:
    """x / max(|x|, eps) over the last axis."""
    return x.builder.apply("l2_normalize", (x,), {"eps": eps}, name)


def gelu(x: Tensor, *, approximate: str = "none", name: str | None = None) -> Tensor:
    """x times the normal cumulative function (Hendrycks and Gimpel 2016): exact, or their form by tanh with approximate="tanh"."""
    return x.builder.apply("gelu", (x,), {"approximate": approximate}, name)


def tanh(x: Tensor, *, name: str | None = None) -> Tensor:
    """The hyperbolic tangent."""
    return x.builder.apply("tanh", (x,), None, name)


def swiglu(gate: Tensor, up: Tensor, *, name: str | None = None) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    return gate.builder.apply("swiglu", (gate, up), None, name)


def scale(x: Tensor, factor: float, *, name: str | None = None) -> Tensor:
    """x times a constant, which is rounded to float32 first."""
    return x.builder.apply("scale", (x,), {"factor": factor}, name)


def rotary_table(position: Tensor, inverse_frequency: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * inverse_frequency, times `scale`: two tensors of shape position + [half]."""
    operands, attrs = (position, inverse_frequency), {"scale": scale}
    cos, sin = position.builder.apply_many("rotary_table", operands, attrs, ("cos", "sin"))
    return cos, sin


def rotary_table_dynamic(
    position: Tensor,
    length: Tensor,
    *,
    theta: float,
    width: int,
    factor: float,
    original_positions: int,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The tables of a base that grows with each token's sequence `length` past `original_positions`: two tensors of shape position + [width / 2]."""
    attrs = {
        "theta": theta,
        "width": width,
        "factor": factor,
        "original_positions": original_positions,
        "scale": scale,
    }
    cos, sin = position.builder.apply_many("rotary_table_dynamic", (position, length), attrs, ("cos", "sin"))
    return cos, sin


def rotary_table_longrope(
    position: Tensor, length: Tensor, short: Tensor, long: Tensor, *, original_positions: int, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The tables of the frequencies `long` [half] where a token's sequence `length` is past `original_positions`, of `short` [half] elsewhere."""
    operands, attrs = (position, length, short, long), {"original_positions": original_positions, "scale": scale}
    cos, sin = position.builder.apply_many("rotary_table_longrope", operands, attrs, ("cos", "sin"))
    return cos, sin


def rope_split_half(x: Tensor, cos: Tensor, sin: Tensor, *, name: str | None = None) -> Tensor:
    """Rotary embedding of x [..., H, D] by cos and sin [..., half] with pairs (i, i + half), the others pass (Su et al. 2021, split-half form)."""
    return x.builder.apply("rope_split_half", (x, cos, sin), None, name)


def rope_interleaved(x: Tensor, cos: Tensor, sin: Tensor, *, name: str | None = None) -> Tensor:
    """Rotary embedding of x [..., H, D] by cos and sin [..., half] with pairs (2i, 2i + 1), the others pass (Su et al. 2021)."""
    return x.builder.apply("rope_interleaved", (x, cos, sin), None, name)


def add_bias(x: Tensor, bias: Tensor, *, name: str | None = None) -> Tensor:
    """x [..., D] plus float32 bias [D]."""
    return x.builder.apply("add_bias", (x, bias), None, name)


def fill(x: Tensor, value: float, *, name: str | None = None) -> Tensor:
    """A tensor like x with `value`, rounded to float32 first, in every element."""
    return x.builder.apply("fill", (x,), {"value": value}, name)


def softmax(x: Tensor, *, name: str | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) over the last axis; a row of -inf gives zeros."""
    return x.builder.apply("softmax", (x,), None, name)


def causal_softmax(x: Tensor, *, name: str | None = None) -> Tensor:
    """softmax of x [..., T, T] where row i sees the entries up to i; the others are exactly 0."""
    return x.builder.apply("causal_softmax", (x,), None, name)


def concat(parts: Sequence[Tensor], axis: int, *, axis_name: str = "", name: str | None = None) -> Tensor:
    """Two to eight tensors one after another along `axis`, counted from 0; `axis_name` names the joined axis."""
    if not parts:
        raise ShapeError("concat: expected two or more tensors, found none", hint="join what there is")
    return parts[0].builder.apply("concat", tuple(parts), {"axis": axis, "name": axis_name}, name)


def repeat_interleave(x: Tensor, axis: int, repeats: int, *, axis_name: str = "", name: str | None = None) -> Tensor:
    """Every element along `axis`, counted from 0, `repeats` times in a row; `axis_name` names the axis that this makes."""
    return x.builder.apply("repeat_interleave", (x,), {"axis": axis, "repeats": repeats, "name": axis_name}, name)


def broadcast_scalar(x: Tensor, shape: Sequence[int], *, axes: str = "", name: str | None = None) -> Tensor:
    """The one element of x in every place of `shape`; `axes` names them ("_" for none)."""
    return x.builder.apply("broadcast_scalar", (x,), {"shape": tuple(shape), "axes": axes}, name)


def reduce_sum(x: Tensor, *, name: str | None = None) -> Tensor:
    """Sum of all elements of float32 x: a scalar."""
    return x.builder.apply("reduce_sum", (x,), None, name)


def masked_mean(x: Tensor, start: Tensor, length: Tensor, *, name: str | None = None) -> Tensor:
    """Mean over the tokens start[r] .. start[r] + length[r] - 1 of packed x [N,C] for each row: [R,C]; length 0 gives zeros."""
    return x.builder.apply("masked_mean", (x, start, length), None, name)


def rope_split_half_bias_bthd(x: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, *, name: str | None = None) -> Tensor:
    """x [B,T,H,D] plus bias [H*D], rotated by cos and sin [B,T,half] in pairs (i, half + i), as [B,H,T,D]."""
    return x.builder.apply("rope_split_half_bias_bthd", (x, bias, cos, sin), None, name)


def cast(x: Tensor, dtype: DType, *, name: str | None = None) -> Tensor:
    """x in another dtype, rounded once to nearest even. A policy of precision leaves it alone."""
    return x.builder.apply("cast", (x,), {"dtype": dtype.value}, name)


def reshape(x: Tensor, shape: Sequence[int], axes: str, *, name: str | None = None) -> Tensor:
    """View with another shape: 0 keeps the extent at that index, -1 takes the rest; `axes` names them ("_" for none)."""
    return x.builder.apply("reshape", (x,), {"shape": tuple(shape), "axes": axes}, name)


def contiguous(x: Tensor, *, name: str | None = None) -> Tensor:
    """The same elements one after another, as a reshape needs them: a copy where they lie otherwise and no pass finds a way around it."""
    return x.builder.apply("contiguous", (x,), None, name)


def transpose(x: Tensor, order: Sequence[int], *, name: str | None = None) -> Tensor:
    """View with the dimensions in another order, all of them named once, counted from 0."""
    return x.builder.apply("transpose", (x,), {"order": tuple(order)}, name)


def slice_(x: Tensor, axis: int, start: int, stop: int, *, step: int = 1, name: str | None = None) -> Tensor:
    """View of the entries start, start + step, ... before stop along `axis`, counted from 0."""
    return x.builder.apply("slice", (x,), {"axis": axis, "start": start, "stop": stop, "step": step}, name)


def dropout(
    x: Tensor, seed: Tensor, counter: Tensor, *, rate: float, place: int = 0, name: str | None = None
) -> Tensor:
    """x with a share `rate` of its elements zero and the others divided by 1 - rate (Srivastava et al. 2014).

    Which ones is a pure function of int64 `seed` [1], int32 `counter` [1], `place` and the element's number.
    """
    return x.builder.apply("dropout", (x, seed, counter), {"rate": rate, "place": place}, name)


def token_cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """logsumexp(logits) - logits[target] of every row of logits S + [V], 0 where the int32 target is -100, and the logsumexp: both of shape S."""
    loss, log_sum = logits.builder.apply_many("token_cross_entropy", (logits, target), None, ("losses", "log_sum"))
    return loss, log_sum


def target_mean(x: Tensor, target: Tensor, *, name: str | None = None) -> Tensor:
    """The mean of x over the places whose int32 target is not -100: a scalar."""
    return x.builder.apply("target_mean", (x, target), None, name)


def attention_causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Causal grouped-query attention over whole sequences: q [B,T,H,D], k and v [B,T,G,D] -> [B,T,H,D].

    `window` W > 0 leaves token i the keys i - W + 1 to i; `soft_cap` c > 0 bounds scores by c * tanh(score / c) before the mask.
    """
    attrs = {"scale": scale, "window": window, "soft_cap": soft_cap}
    return q.builder.apply("attention_causal", (q, k, v), attrs, name)


def attention_packed(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    row_of_token: Tensor,
    position: Tensor,
    block_table: Tensor,
    length: Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Attention of packed tokens q [N,H,D] over cached keys j <= position, j < length of each token's row -> [N,H,D].

    `window` and `soft_cap` as in `attention_causal`.
    """
    operands = (q, k_cache, v_cache, row_of_token, position, block_table, length)
    attrs = {"scale": scale, "window": window, "soft_cap": soft_cap}
    return q.builder.apply("attention_packed", operands, attrs, name)


def attention_bidirectional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_of_token: Tensor,
    start: Tensor,
    length: Tensor,
    *,
    scale: float,
    name: str | None = None,
) -> Tensor:
    """Attention of packed tokens q [N,H,D], k and v [N,G,D] over all of their own row, tokens start[r] to start[r] + length[r] - 1 -> [N,H,D]."""
    operands = (q, k, v, row_of_token, start, length)
    return q.builder.apply("attention_bidirectional", operands, {"scale": scale}, name)


def kv_store(
    k: Tensor, v: Tensor, row_of_token: Tensor, position: Tensor, block_table: Tensor, k_cache: Tensor, v_cache: Tensor
) -> tuple[Tensor, Tensor]:
    """Stores k and v [N,G,D] into the caches at each token's row and position; returns the caches' new values."""
    operands = (k, v, row_of_token, position, block_table, k_cache, v_cache)
    new_k, new_v = k.builder.apply_many("kv_store", operands, None, ("k_stored", "v_stored"))
    return new_k, new_v


def gather_rows(x: Tensor, index: Tensor, *, name: str | None = None) -> Tensor:
    """Rows of x (leading axes flattened) [..., C] at int32 index [R] -> [R, C]."""
    return x.builder.apply("gather_rows", (x, index), None, name)


def add_at_tokens(logits: Tensor, tokens: Tensor, bias: Tensor, pairs: Tensor, *, name: str | None = None) -> Tensor:
    """Logits [R,V] with bias [R,B] added at int32 tokens [R,B], the first pairs[r] of each row."""
    return logits.builder.apply("add_at_tokens", (logits, tokens, bias, pairs), None, name)


def penalize(
    logits: Tensor,
    tokens: Tensor,
    prompt_length: Tensor,
    length: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
    *,
    name: str | None = None,
) -> Tensor:
    """Logits [R,V] after the penalties of the first `length` tokens of tokens [R,S], `prompt_length` of them the prompt's, in vLLM's order."""
    operands = (logits, tokens, prompt_length, length, repetition, presence, frequency)
    return logits.builder.apply("penalize", operands, None, name)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    *,
    name: str | None = None,
) -> Tensor:
    """One token a row of logits [R,V]: greedy at temperature 0, else temperature, top-k, top-p, min-p and Philox4x32-10 keyed by seed and index."""
    return logits.builder.apply("sample", (logits, temperature, top_k, top_p, min_p, seed, index), None, name)


def advance(
    token: Tensor,
    input_ids: Tensor,
    position: Tensor,
    length: Tensor,
    sample_index: Tensor,
    history: Tensor,
    history_length: Tensor,
    rotary_length: Tensor | None = None,
    *,
    context: int,
) -> None:
    """Moves the inputs of a step of one token a row on to the next one, in place: those of each row r that `token` [R] has a token for and that has room."""
    updated = (input_ids, position, length, sample_index, history, history_length, rotary_length)
    given = [tensor for tensor in updated if tensor is not None]
    names = [f"{tensor.name}.next" for tensor in given]
    token.builder.apply_many("advance", (token, *given), {"context": context}, names)
