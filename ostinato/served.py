"""What `LLM` and `Embedder` compile: the steps that serve texts, without tokenizer and template, so that a saved program can be compiled again alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ostinato.compiler import load_entries
from ostinato.frontend.model import CacheShape, Model
from ostinato.ir.precision import PrecisionPolicy
from ostinato.passes.pipeline import settled_options
from ostinato.passes.policy import Policy
from ostinato.runtime.encode import EmbedExecutable
from ostinato.runtime.forward import TextExecutable
from ostinato.runtime.options import Route
from ostinato.runtime.weights import Progress
from ostinato.saving.request import request_of
from ostinato.stages import Entries, Passes, plan_settings, trace

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
    mode: str = "auto",
    memory_limit: int | str | None = None,
    reuse: bool = True,
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
    validate: str | None = None,
    progress: Progress | None = None,
) -> TextExecutable:
    """The executable of an `LLM`; the arguments are those of `ostinato.compile`. Raises what that raises."""
    entries = decoder_entries(model, max_num_seqs, context, precision)
    traced, _ = next(iter(entries.values()))
    options = settled_options(None, traced.precision, levels=levels, disable=disable, policy=policy, passes=passes)
    settings = plan_settings(memory_limit, reuse, mode)
    more = {"max_num_seqs": max_num_seqs, "context": context}
    asked = request_of("llm", model.family, precision, mode, options, settings, route, **more)
    return load_entries(
        entries, route, options, settings, asked, validate=validate, progress=progress, kind=TextExecutable
    )


def serve_encoder(
    model: Model,
    route: Route,
    *,
    max_seq_length: int,
    precision: str | PrecisionPolicy = "auto",
    mode: str = "auto",
    memory_limit: int | str | None = None,
    reuse: bool = True,
    levels: Mapping[str, str] | None = None,
    disable: Iterable[str] = (),
    policy: Policy | str = "balanced",
    passes: Passes = (),
    validate: str | None = None,
    progress: Progress | None = None,
) -> EmbedExecutable:
    """The executable of an `Embedder`; the arguments are those of `ostinato.compile_encoder`. Raises what that raises."""
    entries = encoder_entries(model, max_seq_length, precision)
    traced, _ = next(iter(entries.values()))
    options = settled_options(None, traced.precision, levels=levels, disable=disable, policy=policy, passes=passes)
    settings = plan_settings(memory_limit, reuse, mode)
    more = {"max_seq_length": max_seq_length}
    asked = request_of("embedder", model.family, precision, mode, options, settings, route, **more)
    return load_entries(
        entries, route, options, settings, asked, validate=validate, progress=progress, kind=EmbedExecutable
    )
