"""Regions and byte ranges of the step record."""

from __future__ import annotations

import pytest

from ostinato.ir.errors import PlanError
from ostinato.ir.step import REGION_KINDS, RESERVED_KINDS, ByteRange, Region


@pytest.mark.parametrize("kind", [*REGION_KINDS, *RESERVED_KINDS])
def test_a_region_prints_as_device_and_kind(kind: str) -> None:
    assert str(Region("hip:1", kind)) == f"hip:1/{kind}"
    assert str(ByteRange(Region("host:0", kind), 16, 8)) == f"host:0/{kind}[16:24]"


@pytest.mark.parametrize(
    ("device", "kind", "message"),
    [
        ("host:0", "heap", "no kind of region 'heap'"),
        ("host:0", "", "arena, weights, state, io, constants; reserved: symmetric"),
        ("host", "arena", "'host' is none"),
        ("", "arena", "'' is none"),
        ("host:0/arena", "arena", "is none"),
        ("Host:0", "arena", "is none"),
        ("host:0\n", "arena", "is none"),
    ],
)
def test_a_region_is_of_a_known_kind_on_a_device(device: str, kind: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Region(device, kind)


def test_ranges_of_different_regions_never_meet() -> None:
    here = ByteRange(Region("host:0", "arena"), 0, 16)
    for other in (Region("host:1", "arena"), Region("host:0", "io")):
        there = ByteRange(other, 0, 16)
        assert not here.overlaps(there)
        assert not here.contains(there)
        assert here != there
    assert here.overlaps(ByteRange(Region("host:0", "arena"), 15, 1))
