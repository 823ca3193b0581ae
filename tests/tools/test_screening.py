"""`ostinato evidence screen`: what is made of the products of a model's programs. How one is screened is tested where that is done, on a card."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.target import named_target
from ostinato.backend_hip.vendor_screen import Product, Screening, Solution
from ostinato.ir.errors import BackendError
from ostinato.ir.target import Target
from ostinato.tools.evidence import command, screening
from ostinato.tools.evidence.report import EvidenceScreenReport
from tests.tools.conftest import Run


class Card(HipDevice):
    """The rows of a card, and its name; nothing can run on it."""

    def __init__(self) -> None:
        self.native = cast(Any, SimpleNamespace(name="A card"))

    @property
    def target(self) -> Target:
        return named_target("sm_90")


@pytest.fixture
def screened(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """Stands in for the vendor: the second proposal is right, the third the fastest; a product of more than 100 columns has none."""
    seen: list[Product] = []

    def screen(device: object, product: Product, *, candidates: int, seed: int) -> Screening:
        del device
        seen.append(product)
        if product.params.m > 100:
            raise BackendError("no algorithm is right")
        wrong = Solution(0, 0, refused="off by 3")
        return Screening(product, (wrong, Solution(1, 0, 2e-5), Solution(2, 64, 1e-5))[:candidates], 1, 2, "")

    monkeypatch.setattr(screening, "screen", screen)
    monkeypatch.setattr(command, "open_device", lambda *_: Card())
    return seen


def test_each_product_is_screened_once(ostinato: Run, tiny: Path, screened: list[Product]) -> None:
    result = ostinato("evidence", "screen", str(tiny), "--workloads", "d1,p64,p128", "--dtype", "bf16", "--json")
    report = result.report()
    assert isinstance(report, EvidenceScreenReport)
    assert report.device == "A card"
    assert len(report.products) == len(screened) == len(set(screened)) > 0
    assert {entry for each in report.products for entry in each.workloads} <= {"d1", "p64", "p128"}
    bad = [each for each in report.products if each.problem]
    good = [each for each in report.products if not each.problem]
    assert bad, "the product to the columns of the inner layer is wider"
    assert good
    assert (result.code, report.ok) == (1, False)
    for each in good:
        assert (each.candidates, each.right) == (3, 2)
        assert each.gain == pytest.approx(2.0)
    text = ostinato("evidence", "screen", str(tiny), "--workloads", "p64", "--dtype", "bf16").out
    assert "no algorithm is right" in text
    assert "2.000x" in text


def test_a_cpu_has_nothing_to_screen(ostinato: Run, tiny: Path) -> None:
    result = ostinato("evidence", "screen", str(tiny), "--device", "cpu")
    assert result.code == 2
    assert "vendor's library" in result.err
