"""The passes, in order. The runner adds verification, dead-code removal, timing and texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ostinato.ir.checks import instance
from ostinato.ir.errors import ConfigError
from ostinato.ir.precision import POLICIES, PrecisionPolicy, precision_policy
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.base import Pass
from ostinato.passes.canonicalize import Canonicalize
from ostinato.passes.choice import RowChoice
from ostinato.passes.cse import Cse
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.fold_constants import FoldConstants
from ostinato.passes.fold_scale import FoldScale
from ostinato.passes.fuse_accumulate import FuseAccumulate
from ostinato.passes.fuse_add_norm import FuseAddNorm
from ostinato.passes.fuse_attention import FuseAttention
from ostinato.passes.fuse_copies import FuseCopies
from ostinato.passes.fuse_group import FuseGroup
from ostinato.passes.fuse_joint import FuseJoint
from ostinato.passes.fuse_norm_backward import FuseNormBackward
from ostinato.passes.fuse_products import FuseBias, FuseNorm, FuseResidual
from ostinato.passes.fuse_qkv import FuseQkv
from ostinato.passes.fuse_rope_bias import FuseRopeBias
from ostinato.passes.fuse_rope_store import FuseQkvRopeStore, FuseRopeStore
from ostinato.passes.fuse_saved_attention import FuseSavedAttention
from ostinato.passes.fuse_swiglu import FuseSwiglu
from ostinato.passes.fuse_updates import FuseUpdates
from ostinato.passes.gate import Gate
from ostinato.passes.policy import named_policy
from ostinato.passes.precision import Precision
from ostinato.passes.select_impl import SelectImpl
from ostinato.passes.sink_casts import SinkCasts
from ostinato.passes.unfuse_products import UnfuseProducts
from ostinato.passes.user_passes import inserted, user_passes

__all__ = ["PASSES", "PipelineOptions", "describe", "pipeline", "settled_options"]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What shapes a lowered graph beside its target.

    `precision`: policy of precision, by its text or as a value (kept as its text, see `ir/precision.py`). `disable`: optional passes to leave out, by name.
    `choice`: rows and levels by hand, and the policy of numerics. `fold`: the pass that computes on constants while compiling, with its limits. `passes`: the
    user's own, each with the stage that it stands behind.
    """

    precision: str | PrecisionPolicy = "f32"
    disable: frozenset[str] = frozenset()
    choice: RowChoice = field(default_factory=RowChoice)
    fold: FoldConstants = field(default_factory=FoldConstants)
    passes: tuple[tuple[str, Pass], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", str(precision_policy(self.precision)))

    def extended(self, levels: Any = None, disable: Any = (), policy: Any = None, passes: Any = ()) -> PipelineOptions:
        """These options with more rows or levels forced (`RowChoice.and_forced`), more passes left out, another policy of numerics (None: the same) and more
        passes of the user's (see `inserted`); raises `ConfigError` for values of other kinds."""
        if isinstance(disable, str) or not isinstance(disable, Iterable):
            raise ConfigError(f"disable is {disable!r}, expected a list of pass names")
        names = tuple(disable)
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"disable is {names!r}, expected names of passes")
        choice = self.choice.and_forced(levels)
        if policy is not None:
            choice = replace(choice, policy=named_policy(policy))
        more = (*self.passes, *user_passes(passes))
        inserted(pipeline(replace(self, passes=())), more)
        return replace(self, disable=self.disable | frozenset(names), choice=choice, passes=more)


def settled_options(
    options: PipelineOptions | None,
    precision: str,
    *,
    levels: Any = None,
    disable: Any = (),
    policy: Any = None,
    passes: Any = (),
) -> PipelineOptions:
    """The options for a graph traced with that precision, extended; raises `ConfigError` for options of another precision or another kind."""
    asked = instance(options, PipelineOptions, "options") or PipelineOptions(precision)
    if asked.precision != precision:
        raise ConfigError(
            f"options say precision {asked.precision!r}, the trace was made for {precision!r}",
            hint="give the precision to trace, and traced.precision to the options",
        )
    return asked.extended(levels, disable, policy, passes)


def pipeline(options: PipelineOptions = PipelineOptions()) -> tuple[Pass, ...]:
    """Every pass, in the order in which they run: the compiler's, which are these, and the user's between them."""
    ours: tuple[Pass, ...] = (
        Canonicalize(),  # one spelling per meaning before any matching
        Precision(str(options.precision)),  # dtypes are settled before anything is computed or compared by them
        options.fold,  # weight-only work leaves the step
        Cse(),  # after normal form, before fusion hides duplicates
        SinkCasts(options.choice),  # before fusion takes the producers of what is cast
        FoldScale(options.choice),
        FuseBias(options.choice),  # before projections are joined, which have a bias all or none
        FuseSwiglu(options.choice),  # before fuse_qkv, which would take gate and up as two projections of one x
        FuseQkv(choice=options.choice),
        FuseGroup(options.choice),  # takes the projections whose weights could not be joined
        FuseRopeStore(options.choice),  # before products are unfused, whose columns its rows take strided
        UnfuseProducts(options.choice),  # after fusion joined the weights that all entries share
        FuseQkvRopeStore(options.choice),  # after the vendor had its choice of products
        FuseResidual(options.choice),  # before fuse_add_norm, which would take the sum
        FuseNorm(options.choice),  # after projections are joined, whose norm is one
        FuseAddNorm(options.choice),  # takes the sums and norms that no projection took
        FuseJoint(options.choice),  # before fuse_rope_bias, which would take the rotations
        FuseRopeBias(options.choice),  # before fuse_attention, which reads heads in the order that this gives them
        FuseAttention(options.choice),
        FuseSavedAttention(options.choice),  # after fuse_attention, which makes attention of its parts
        FuseNormBackward(options.choice),  # before fuse_accumulate, which would take the sum
        FuseAccumulate(options.choice),  # takes the sums of gradients that are left
        FuseCopies(options.choice),  # after everything that changes who makes a gradient
        FuseUpdates(choice=options.choice),  # waits for none: an update has no reader
        AssignLayout(options.choice),  # after fusion fixed the producers
        SelectImpl(options.choice),  # needs final operators, dtypes, layouts and the target
        Gate(),
    )
    return inserted(ours, options.passes) if options.passes else ours


def describe(item: Pass) -> str:
    """A pass and its options in one line, such as `fuse_qkv{most=3}`; part of a plan's identity."""
    assert dataclasses.is_dataclass(item)
    options = ", ".join(f"{spec.name}={_option(getattr(item, spec.name))}" for spec in dataclasses.fields(item))
    return f"{item.name}{{{options}}}" if options else item.name


def _option(value: object) -> str:
    return f"{sorted(value)}" if isinstance(value, frozenset) else str(value)


PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        **{item.name: item for item in (*pipeline(), DeadCode())},
        **{describe(item): item for item in map(Precision, POLICIES)},
    }
)
"""Passes by name, as tests and tools ask for them, and `precision{policy=...}` for each policy."""
