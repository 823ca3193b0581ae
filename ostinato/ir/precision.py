"""Policies of precision: in which dtype activations are made, where products accumulate, and for which projections that holds. They are named by a text.

| policy | float matrices and caches | enters a projection by such a matrix | comes out of it | sums |
| --- | --- | --- | --- | --- |
| `f32` | f32 | f32 | f32 | f32 |
| `bf16` | bf16 | bf16 | f32 | f32 |
| `bf16_results` | bf16 | bf16 | bf16 of q, k, v, gate and up without a bias, f32 of all else | f32 |

The residual stream, norms inside, scores, probabilities and logits are f32 under every policy; matrices in blocks (q8_0 and the others) keep their blocks and
multiply f32. In training a policy by which all projections narrow has q, k and v enter attention in bf16, and the context leave it so (`frontend/training.py`).
A policy may hold for some kinds of projections alone: "bf16[down,gate,up]". Others then read f32 beside their bf16 matrix, which is a product of
another kind, with rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ostinato.ir.checks import shown
from ostinato.ir.errors import ConfigError
from ostinato.ir.types import DType

__all__ = ["EVERY_PROJECTION", "POLICIES", "PROJECTIONS", "PrecisionPolicy", "precision_policy", "projection_kind"]

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down", "head")
"""Kinds of projections that a scope may name; "other" is what is none of these."""
EVERY_PROJECTION = frozenset((*PROJECTIONS, "other"))

_KINDS: Mapping[str, str] = MappingProxyType(
    {**{kind: kind for kind in PROJECTIONS}, "out": "o", "logits": "head", "scores": "head", "lm_head": "head"}
)
_INNER = frozenset({"q", "k", "v", "gate", "up"})
"""Projections whose results stay inside their part of a layer."""


@dataclass(frozen=True, slots=True)
class _Dtypes:
    matrices: DType
    results: frozenset[str] = frozenset()


POLICIES: Mapping[str, _Dtypes] = MappingProxyType(
    {"f32": _Dtypes(DType.F32), "bf16": _Dtypes(DType.BF16), "bf16_results": _Dtypes(DType.BF16, _INNER)}
)
"""The policies by name."""


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """A policy of that name (see the module text), for the kinds of projections in `scope` (all unless given).

    Raises `ConfigError` for a name or a kind that is unknown, for an empty scope, and for one of `f32`, which narrows nothing.
    """

    name: str = "f32"
    scope: frozenset[str] = EVERY_PROJECTION

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise ConfigError(f"unknown precision {shown(self.name)}", hint=f"known: {', '.join(POLICIES)}")
        scope = frozenset(self.scope)
        object.__setattr__(self, "scope", scope)
        if unknown := sorted(map(str, scope - EVERY_PROJECTION)):
            raise ConfigError(
                f"precision {self.name} is given for {', '.join(unknown)}, which is no kind of projection",
                hint=f"kinds: {', '.join((*PROJECTIONS, 'other'))}",
            )
        if not scope or (self.name == "f32" and scope != EVERY_PROJECTION):
            hint = 'use "f32" alone, or name the kinds of a policy that narrows something, like "bf16[gate,up]"'
            raise ConfigError(f"precision {self.name} is given for {len(scope)} kinds of projections", hint=hint)

    def __str__(self) -> str:
        """The text that `precision_policy` reads."""
        return self.name if self.scope == EVERY_PROJECTION else f"{self.name}[{','.join(sorted(self.scope))}]"

    @property
    def matrices(self) -> DType:
        """The dtype of float matrices and of caches."""
        return POLICIES[self.name].matrices

    def narrows(self, kind: str) -> bool:
        """Whether a projection of that kind by a bf16 matrix reads bf16."""
        return self.matrices is DType.BF16 and kind in self.scope

    def keeps(self, kind: str) -> bool:
        """Whether the result of a projection of that kind stays bf16."""
        return kind in POLICIES[self.name].results & self.scope


def precision_policy(policy: object) -> PrecisionPolicy:
    """The policy itself, or the one that a text like "bf16" or "bf16[gate,up]" names. Raises `ConfigError` for anything else."""
    if isinstance(policy, PrecisionPolicy):
        return policy
    if not isinstance(policy, str):
        raise ConfigError(f"precision is {shown(policy)}", hint=f"use {', '.join(POLICIES)}, or a PrecisionPolicy")
    name, bracket, rest = policy.partition("[")
    if not bracket:
        return PrecisionPolicy(name)
    if not rest.endswith("]"):
        raise ConfigError(f"precision {policy!r} has no end", hint='write kinds in brackets, like "bf16[gate,up]"')
    return PrecisionPolicy(name, frozenset(kind.strip() for kind in rest[:-1].split(",")))


def projection_kind(name: str) -> str:
    """The kind of a projection from the name of its node, such as `layers.0.attn.q`: its last part, as the model families here call it. One that is joined with
    others, `layers.0.attn.q.joint`, is of the kind of the first."""
    return _KINDS.get(name.removesuffix(".joint").rpartition(".")[2].removesuffix("_proj"), "other")
