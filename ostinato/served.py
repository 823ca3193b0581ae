"""What `LLM` and `Embedder` compile: the steps that serve texts, without tokenizer and template, so that a saved program can be compiled again alike."""

from __future__ import annotations

from typing import Unpack

from ostinato.compiler import Choices, load_entries
from ostinato.frontend.model import CacheShape, Model
from ostinato.ir.precision import PrecisionPolicy
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import Route
from ostinato.stages import Entries, trace

__all__ = ["decoder_entries", "encoder_entries", "serve_decoder", "serve_encoder"]

PREFILL_TOKENS = 512
"""Tokens of one prefill step; longer prompts are cut into chunks of this size."""
STEP_TOKENS = 512
"""Tokens of one step of an encoder, where the longest text has no more: enough to read the weights seldom, few enough for the activations to stay in the
cache."""
STEP_TEXTS = 256


def decoder_entries(model: Model, sequences: int, context: int, precision: str | PrecisionPolicy = "auto") -> Entries:
    """The graphs that an `LLM` of so many sequences of so many positions plans: a prefill step and a decode step."""
    cache = CacheShape(sequences, context, 1)
    prefill = trace(model, "step", cache=cache, precision=precision, sampling=True)
    decode = trace(model, "decode", cache=cache, precision=precision)
    tokens = min(PREFILL_TOKENS, context * sequences)
    return {
        **prefill.at({f"prefill[N={tokens},R={sequences}]": {"N": tokens, "R": sequences}}),
        **decode.at({f"decode[R={sequences}]": {"R": sequences}}),
    }


def encoder_entries(model: Model, longest: int, precision: str | PrecisionPolicy = "auto") -> Entries:
    """The graph that an `Embedder` of texts of up to `longest` tokens plans."""
    traced = trace(model, "embed", precision=precision)
    return traced.at({"embed": {"N": max(STEP_TOKENS, longest), "R": STEP_TEXTS}})


def serve_decoder(
    model: Model,
    route: Route,
    *,
    max_num_seqs: int,
    context: int,
    precision: str | PrecisionPolicy = "auto",
    **choices: Unpack[Choices],
) -> TextExecutable:
    """The executable of an `LLM`; the arguments are those of `ostinato.compile`. Raises what that raises."""
    entries = decoder_entries(model, max_num_seqs, context, precision)
    sizes = {"max_num_seqs": max_num_seqs, "context": context}
    return load_entries(entries, route, TextExecutable, "llm", sizes, precision=precision, **choices)


def serve_encoder(
    model: Model,
    route: Route,
    *,
    max_seq_length: int,
    precision: str | PrecisionPolicy = "auto",
    **choices: Unpack[Choices],
) -> EmbedExecutable:
    """The executable of an `Embedder`; the arguments are those of `ostinato.compile_encoder`. Raises what that raises."""
    entries, sizes = encoder_entries(model, max_seq_length, precision), {"max_seq_length": max_seq_length}
    return load_entries(entries, route, EmbedExecutable, "embedder", sizes, precision=precision, **choices)
