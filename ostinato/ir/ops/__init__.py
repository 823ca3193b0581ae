"""The operator table: every operator there is, by family, and those that a user adds to it for a while (`ostinato/extending.py`).

An operator is one `OpDef` in its family's file, which lists it; its implementations are rows of a backend; nothing else names it. Compose before adding.
Attributes are plain values, types carry no callables, and result types carry no layout (`rules.py`).

Families, a file each: projections by weights (`linear`) and products of activations (`matmul`), `norm`, rotary embedding (tables in `rotary`, `rope`,
`rope_bias`, `rope_joint`), `attention` (its products one by one in `attention_parts`) and its `cache`, both fused in `rope_store`, `softmax`, `activation`,
`elementwise`, `movement`, `reduce`, `view`, and what follows logits: `logit_bias`, `penalize`, `select`, `advance`, `loss`. Training adds `dropout`, losses
token by token (`token_loss`), backward operators (`norm_backward`, `column_sums`, and others called after the files of their forward operators), sums in place
(`accumulate`) and the `optimizer`, alone or for a group of parameters (`optimizer_group`); rules of derivatives stand with the forward operators, what they
share in `derivatives`. Room is kept for those to come, each a new file:
- collectives: `Effect.ORDERED`, with the group as an attribute;
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ostinato.ir.errors import ConfigError
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops.accumulate import ACCUMULATE_OPS
from ostinato.ir.ops.activation import ACTIVATION_OPS
from ostinato.ir.ops.activation_backward import ACTIVATION_BACKWARD_OPS
from ostinato.ir.ops.advance import ADVANCE_OPS
from ostinato.ir.ops.attention import ATTENTION_OPS
from ostinato.ir.ops.attention_backward import ATTENTION_BACKWARD_OPS
from ostinato.ir.ops.attention_bidirectional_backward import ATTENTION_BIDIRECTIONAL_BACKWARD_OPS
from ostinato.ir.ops.attention_parts import ATTENTION_PART_OPS
from ostinato.ir.ops.attention_parts_backward import ATTENTION_PART_BACKWARD_OPS
from ostinato.ir.ops.cache import CACHE_OPS
from ostinato.ir.ops.column_sums import COLUMN_SUM_OPS
from ostinato.ir.ops.dropout import DROPOUT_OPS
from ostinato.ir.ops.elementwise import ELEMENTWISE_OPS
from ostinato.ir.ops.embed import EMBED_OPS
from ostinato.ir.ops.embedding_backward import EMBEDDING_BACKWARD_OPS
from ostinato.ir.ops.linear import LINEAR_OPS
from ostinato.ir.ops.linear_group import LINEAR_GROUP_OPS
from ostinato.ir.ops.logit_bias import LOGIT_BIAS_OPS
from ostinato.ir.ops.loss import LOSS_OPS
from ostinato.ir.ops.matmul import MATMUL_OPS
from ostinato.ir.ops.movement import MOVEMENT_OPS
from ostinato.ir.ops.movement_backward import MOVEMENT_BACKWARD_OPS
from ostinato.ir.ops.norm import NORM_OPS
from ostinato.ir.ops.norm_backward import NORM_BACKWARD_OPS
from ostinato.ir.ops.optimizer import OPTIMIZER_OPS
from ostinato.ir.ops.optimizer_group import OPTIMIZER_GROUP_OPS
from ostinato.ir.ops.penalize import PENALIZE_OPS
from ostinato.ir.ops.reduce import REDUCE_OPS
from ostinato.ir.ops.rope import ROPE_OPS
from ostinato.ir.ops.rope_backward import ROPE_BACKWARD_OPS
from ostinato.ir.ops.rope_bias import ROPE_BIAS_OPS
from ostinato.ir.ops.rope_joint import ROPE_JOINT_OPS
from ostinato.ir.ops.rope_store import ROPE_STORE_OPS
from ostinato.ir.ops.select import SELECT_OPS
from ostinato.ir.ops.softmax import SOFTMAX_OPS
from ostinato.ir.ops.token_loss import TOKEN_LOSS_OPS
from ostinato.ir.ops.view import VIEW_OPS

__all__ = ["OP", "OPS", "add_operators", "added_operators", "remove_operators"]

OPS: tuple[OpDef, ...] = (
    *EMBED_OPS,
    *LINEAR_OPS,
    *LINEAR_GROUP_OPS,
    *MATMUL_OPS,
    *NORM_OPS,
    *ROPE_OPS,
    *ROPE_BIAS_OPS,
    *CACHE_OPS,
    *ROPE_STORE_OPS,
    *ATTENTION_OPS,
    *ATTENTION_PART_OPS,
    *SOFTMAX_OPS,
    *ACTIVATION_OPS,
    *ELEMENTWISE_OPS,
    *MOVEMENT_OPS,
    *REDUCE_OPS,
    *VIEW_OPS,
    *LOGIT_BIAS_OPS,
    *PENALIZE_OPS,
    *SELECT_OPS,
    *ADVANCE_OPS,
    *LOSS_OPS,
    *TOKEN_LOSS_OPS,
    *NORM_BACKWARD_OPS,
    *COLUMN_SUM_OPS,
    *ACTIVATION_BACKWARD_OPS,
    *EMBEDDING_BACKWARD_OPS,
    *ROPE_BACKWARD_OPS,
    *ROPE_JOINT_OPS,
    *ATTENTION_BACKWARD_OPS,
    *ATTENTION_BIDIRECTIONAL_BACKWARD_OPS,
    *ATTENTION_PART_BACKWARD_OPS,
    *MOVEMENT_BACKWARD_OPS,
    *ACCUMULATE_OPS,
    *DROPOUT_OPS,
    *OPTIMIZER_OPS,
    *OPTIMIZER_GROUP_OPS,
)
"""All operators, in the order of the generated documentation."""

_TABLE = {op.name: op for op in OPS}
_OURS = frozenset(_TABLE)

OP: Mapping[str, OpDef] = MappingProxyType(_TABLE)
"""The same by name, and those that were added."""


def add_operators(ops: Iterable[OpDef]) -> None:
    """Adds operators to the table of this process, all or none. Raises `ConfigError` for a name that is taken, and for one that is no word."""
    added = tuple(ops)
    names = [op.name for op in added]
    for name in names:
        if name in _TABLE or names.count(name) > 1:
            raise ConfigError(f"there is an operator {name} already", hint="give yours another name")
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ConfigError(
                f"an operator is called {name!r}", hint="a name has small letters, digits and underscores"
            )
    _TABLE.update(zip(names, added, strict=True))


def remove_operators(ops: Iterable[OpDef]) -> None:
    """Takes out operators that were added."""
    for op in ops:
        if op.name not in _OURS and _TABLE.get(op.name) is op:
            del _TABLE[op.name]


def added_operators() -> tuple[OpDef, ...]:
    """The operators that were added, in order."""
    return tuple(op for name, op in _TABLE.items() if name not in _OURS)
