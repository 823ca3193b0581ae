"""What is no graph, tensor or driver of torch's, and graphs with many tensors: an error that says which, or an answer in little time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import ostinato as ost
from ostinato.audit import torch_graph
from ostinato.ir.foreign import ForeignGraph
from ostinato.runtime.foreign.torch_audit import NamedBytes, _Names
from tests.tools.audit.fakes import FakeAllocator, FakeDriver, FakeGraph, FakeTensor, audited, chain, kernel


class _Module:
    def named_parameters(self) -> list[tuple[str, Any]]:
        raise AssertionError("a class is no module")


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (FakeGraph, "no raw_cuda_graph"),  # the class in place of a graph
        (SimpleNamespace(raw_cuda_graph=5), "no raw_cuda_graph"),
        (SimpleNamespace(raw_cuda_graph=lambda: None), "is no handle"),
        (SimpleNamespace(raw_cuda_graph=lambda: "graph"), "is no handle"),
    ],
)
def test_what_is_no_graph(graph: Any, problem: str) -> None:
    driver = FakeDriver({1: chain()})
    with pytest.raises(ost.InputError, match=problem):
        torch_graph(graph, snapshot=[], driver=driver)
    with pytest.raises(ost.InputError, match=problem):
        torch_graph(FakeGraph(1), against=graph, snapshot=[], driver=driver)


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (5, "driver is 5"),
        (SimpleNamespace(read=lambda handle: chain()), "driver is"),
        (SimpleNamespace(read=lambda handle: None, memory_kind=lambda address: ""), "the driver tells None"),
        (FakeDriver({1: ForeignGraph((kernel("k"),), ((0, 5),))}), r"edge \(0, 5\) of 1 nodes"),
        (FakeDriver({1: ForeignGraph((kernel("k"),), ((-1, 0),))}), r"edge \(-1, 0\) of 1 nodes"),
    ],
)
def test_what_is_no_driver(driver: Any, problem: str) -> None:
    with pytest.raises(ost.InputError, match=problem) as refused:
        torch_graph(FakeGraph(1), snapshot=[], driver=driver)
    assert refused.value.hint


def test_a_class_in_place_of_a_module_is_none() -> None:
    with pytest.raises(ost.InputError, match="named is"):
        torch_graph(FakeGraph(1), snapshot=[], driver=FakeDriver({1: chain()}), named=_Module)


def test_of_tensors_that_share_bytes_the_first_that_was_given_has_them() -> None:
    named = [
        NamedBytes("part", 40, 20),
        NamedBytes("whole", 0, 100),
        NamedBytes("empty", 10, 0),
        NamedBytes("late", 90, 30),
    ]
    names = _Names(named)
    for address in range(-5, 130):
        holding = (each.name for each in named if each.address <= address < each.end)
        assert names.of(address) == next(holding, ""), address
    assert _Names([]).of(5) == ""


def test_a_tensor_is_used_where_any_of_its_bytes_are() -> None:
    memory = FakeAllocator()
    used, beside = memory.take(256), memory.take(256)
    graph = chain(kernel("k", used + 252, used + 8))
    report = audited(
        graph, memory, named={"used": FakeTensor(used), "beside": FakeTensor(beside), "none": FakeTensor(beside, (0,))}
    )
    assert [(finding.kind, finding.message.split()[3]) for finding in report.findings] == [("unused tensor", "beside")]
