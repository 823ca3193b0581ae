"""Validation of rows for their own sake, without a program that wants them: each row on the classes of types that the samples of its operator have."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ostinato.backend_hip.evidence.calls import calls
from ostinato.backend_hip.evidence.records import Environment, ValidationRecord
from ostinato.backend_hip.evidence.rows import RowDevice
from ostinato.backend_hip.evidence.samples import LARGE
from ostinato.backend_hip.evidence.trials import trials
from ostinato.backend_hip.evidence.validate import prepare, validated
from ostinato.ir.ops import OP
from ostinato.ir.signature import signature_class
from ostinato.ir.target import CallSite, Impl, Level

__all__ = ["Advance", "dtypes_of", "sample_sites", "survey"]

Advance = Callable[[int, int, str], None]
"""Told of how many parts so many are done, and which one is next."""


def sample_sites(row: Impl, *, every: bool = False) -> list[CallSite]:
    """A site of each class of types that the samples of the operator give a row; without `every` one for each choice of dtypes, laid out as it comes."""
    found: dict[object, CallSite] = {}
    for sample in (*OP[row.op].samples(np.random.default_rng(0)), *LARGE.get(row.op, ())):
        if sample.error is None:
            for call in calls(row, sample):
                found.setdefault(signature_class(call.site) if every else dtypes_of(call.site), call.site)
    return list(found.values())


def dtypes_of(site: CallSite) -> tuple[str, ...]:
    """The dtypes of operands and results, "" for an absent operand."""
    return tuple("" if tensor is None else tensor.dtype.value for tensor in (*site.operands, *site.results))


def survey(
    devices: Sequence[tuple[RowDevice, Environment]],
    wanted: Iterable[tuple[Impl, CallSite]],
    advance: Advance = lambda done, total, what: None,
) -> Iterator[ValidationRecord]:
    """Validates rows on the classes of sites, each on every device, with the same fresh values. Rows of level `reference` are the oracle and left out."""
    parts = [(row, site) for row, site in wanted if row.level is not Level.REFERENCE]
    seeds = [secrets.randbits(32) for _ in parts]
    for device, _ in devices:
        advance(0, len(parts), "compiling kernels")
        prepare(device, [(row, site, seed) for (row, site), seed in zip(parts, seeds, strict=True)])
    for number, ((row, site), seed) in enumerate(zip(parts, seeds, strict=True)):
        advance(number, len(parts), f"{row.identity} {signature_class(site)}")
        tried = trials(row, site, seed)
        for device, environment in devices:
            yield validated(device, environment, row, site, tried, seed)
    advance(len(parts), len(parts), "")
