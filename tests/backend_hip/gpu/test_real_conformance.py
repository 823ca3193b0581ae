"""The self-test of a device on a card, where there is one. Run it alone on a machine with a card."""

from __future__ import annotations

import pytest

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.open import open_hip
from ostinato.ir.errors import OstinatoError
from ostinato.tools.conformance.command import run_conformance


@pytest.fixture
def card() -> HipDevice:
    try:
        return open_hip()
    except OstinatoError:
        pytest.skip("there is no card")


def test_the_card_conforms(card: HipDevice, seed: int) -> None:
    report = run_conformance(card, seed=seed)
    failed = [row for row in report.rows if row.verdict not in ("pass", "not accepted")]
    assert not failed
    assert not [check for check in (*report.runtime, *report.capture) if check.verdict == "fail"]
    assert report.ok
    assert not [quirk for quirk in report.quirks if quirk.present == "unknown"]
    assert all(graph.graph_nodes for graph in report.graphs)
