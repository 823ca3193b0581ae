"""The passes, in order. The runner adds verification, dead-code removal, timing and texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ostinato.ir.checks import instance
from ostinato.ir.errors import ConfigError
from ostinato.passes.assign_layout import AssignLayout
from ostinato.passes.base import Pass
from ostinato.passes.canonicalize import Canonicalize
from ostinato.passes.choice import RowChoice
from ostinato.passes.cse import Cse
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.fold_constants import FoldConstants
from ostinato.passes.fuse_add_norm import FuseAddNorm
from ostinato.passes.fuse_qkv import FuseQkv
from ostinato.passes.fuse_swiglu import FuseSwiglu
from ostinato.passes.gate import Gate
from ostinato.passes.precision import POLICIES, Precision
from ostinato.passes.select_impl import SelectImpl
from ostinato.passes.unfuse_products import UnfuseProducts

__all__ = ["PASSES", "PipelineOptions", "describe", "pipeline", "settled_options"]


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What shapes a lowered graph beside its target.

    `precision`: dtype policy of activations, "f32" or "bf16". `disable`: optional passes to leave out, by name. `choice`: rows and levels by hand. `fold`:
    the pass that computes on constants while compiling, with its limits.
    """

    precision: str = "f32"
    disable: frozenset[str] = frozenset()
    choice: RowChoice = field(default_factory=RowChoice)
    fold: FoldConstants = field(default_factory=FoldConstants)

    def extended(self, levels: Any, disable: Any) -> PipelineOptions:
        """These options with more rows or levels forced (`RowChoice.and_forced`) and more passes left out; raises `ConfigError` for values of other kinds."""
        if isinstance(disable, str) or not isinstance(disable, Iterable):
            raise ConfigError(f"disable is {disable!r}, expected a list of pass names")
        names = tuple(disable)
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"disable is {names!r}, expected names of passes")
        return replace(self, disable=self.disable | frozenset(names), choice=self.choice.and_forced(levels))


def settled_options(
    options: PipelineOptions | None, precision: str, levels: Any = None, disable: Any = ()
) -> PipelineOptions:
    """The options for a graph traced with that precision, extended; raises `ConfigError` for options of another precision or another kind."""
    asked = instance(options, PipelineOptions, "options") or PipelineOptions(precision)
    if asked.precision != precision:
        raise ConfigError(
            f"options say precision {asked.precision!r}, the trace was made for {precision!r}",
            hint="give the precision to trace, and traced.precision to the options",
        )
    return asked.extended(levels, disable)


def pipeline(options: PipelineOptions = PipelineOptions()) -> tuple[Pass, ...]:
    """Every pass of the compiler, in the order in which they run."""
    return (
        Canonicalize(),  # one spelling per meaning before any matching
        Precision(options.precision),  # dtypes are settled before anything is computed or compared by them
        options.fold,  # weight-only work leaves the step
        Cse(),  # after normal form, before fusion hides duplicates
        FuseAddNorm(),
        FuseSwiglu(),  # before fuse_qkv, which would take gate and up as two projections of one x
        FuseQkv(),
        UnfuseProducts(options.choice),  # after fusion joined the weights that all entries share
        AssignLayout(options.choice),  # after fusion fixed the producers
        SelectImpl(options.choice),  # needs final operators, dtypes, layouts and the target
        Gate(),
    )


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
"""Passes by name, as tests and tools ask for them, and `precision{dtype=...}` for each policy."""
