"""The script that audits real graphs of torch: what it says without a card, and how it judges."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from benchmarks.audit_torch import CASES, as_planted, main
from tests.tools.audit.fakes import POOL, FakeAllocator, audited, chain, kernel


def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["nothing"]) == 2
    assert "frozen_scalar" in capsys.readouterr().out
    no_card = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(hip=None))
    monkeypatch.setitem(sys.modules, "torch", no_card)
    assert main([]) == 3
    assert "no NVIDIA card" in capsys.readouterr().out
    assert {"good", "freed_input", "replaced_weight", "frozen_scalar"} <= set(CASES)


def test_a_case_is_as_planted_when_its_fault_is_found_and_a_good_one_when_nothing_is() -> None:
    memory = FakeAllocator()
    x, y = memory.take(), memory.take(pool=POOL)
    graph = chain(kernel("first", x, y))
    assert as_planted(audited(graph, memory), frozenset())
    assert not as_planted(audited(graph, memory), frozenset({"freed memory"}))
    memory.free(x)
    assert as_planted(audited(graph, memory), frozenset({"freed memory"}))
    assert not as_planted(audited(graph, memory), frozenset())
