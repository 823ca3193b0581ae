"""The operator table: every operator there is, by family.

An operator is one `OpDef` in its family's file and one line in `OPS`; its implementations are rows of a backend; nothing else names it. Compose before adding.
Attributes are plain values, types carry no callables, and result types carry no layout (`rules.py`).

Families: `embed`, `linear`, `norm`, `rope`, `attention`, `cache`, `elementwise`, `view`, `select`, `loss`. Room is kept for the ones to come, each a new file:
- primitive operators of imported programs (matmul over batch axes, reductions, broadcasts made explicit, concatenation): pure, anonymous axes;
- random numbers (dropout masks, initial values): `Effect.RANDOM`, words from `ir/random.py`, the key an operand like any other;
- collectives: `Effect.ORDERED`, with the group as an attribute;
- in-place updates of training: an `accumulate_into` beside `must_alias`, and derivative rules in `OpDef.derivative` (None until then).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.ir.opdef import OpDef
from ostinato.ir.ops.attention import ATTENTION_CAUSAL, ATTENTION_PACKED
from ostinato.ir.ops.cache import KV_STORE
from ostinato.ir.ops.elementwise import ADD, CAST, CONTIGUOUS, MUL, SCALE, SILU, SOFTMAX, SWIGLU
from ostinato.ir.ops.embed import EMBEDDING
from ostinato.ir.ops.linear import LINEAR, LINEAR_SPLIT, LINEAR_SWIGLU
from ostinato.ir.ops.loss import CROSS_ENTROPY
from ostinato.ir.ops.norm import ADD_RMS_NORM, RMS_NORM
from ostinato.ir.ops.rope import ROPE_SPLIT_HALF, ROTARY_TABLE
from ostinato.ir.ops.select import ARGMAX, GATHER_ROWS, SAMPLE
from ostinato.ir.ops.view import RESHAPE, SLICE, TRANSPOSE

__all__ = ["OP", "OPS"]

OPS: tuple[OpDef, ...] = (
    EMBEDDING,
    LINEAR,
    LINEAR_SPLIT,
    LINEAR_SWIGLU,
    RMS_NORM,
    ADD_RMS_NORM,
    ROTARY_TABLE,
    ROPE_SPLIT_HALF,
    KV_STORE,
    ATTENTION_PACKED,
    ATTENTION_CAUSAL,
    SOFTMAX,
    SILU,
    SWIGLU,
    ADD,
    MUL,
    SCALE,
    CAST,
    CONTIGUOUS,
    RESHAPE,
    TRANSPOSE,
    SLICE,
    GATHER_ROWS,
    ARGMAX,
    SAMPLE,
    CROSS_ENTROPY,
)
"""All operators, in the order of the generated documentation."""

OP: Mapping[str, OpDef] = MappingProxyType({op.name: op for op in OPS})
"""The same, by name."""
