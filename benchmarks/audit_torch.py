"""Real graphs of torch on a card, each with a fault or none, and what `ostinato.audit.torch_graph` finds: `python -m benchmarks.audit_torch [CASE ...]`.

Needs torch 2.8 or later for CUDA and a card. Prints the findings of each case beside what it planted; exit code 0 where every planted fault was found and the
good graphs have no error and no warning, 1 otherwise, 2 for a case that does not exist, 3 without a card.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ostinato.audit import TorchGraphReport, torch_graph

__all__ = ["CASES", "Case", "main"]


@dataclass
class Case:
    """A captured graph, what the caller would name of it, another capture of the same work, and what has to live until it was audited."""

    graph: Any
    expected: frozenset[str] = frozenset()
    """Kinds of findings that must be there; none: there must be no error and no warning."""
    named: Any = None
    against: Any = None
    alive: list[Any] = field(default_factory=list)


@contextmanager
def captured(torch: Any, warm_up: Callable[[], Any]) -> Iterator[Any]:
    """A kept graph, whose work was done once before on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm_up()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        yield graph


def model_of(torch: Any) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, torch.randn(16, 256, device="cuda")


def good(torch: Any) -> Case:
    """A model over a static input, everything named."""
    model, x = model_of(torch)
    with captured(torch, lambda: model(x)) as graph:
        y = model(x)
    return Case(graph, named={"x": x, "y": y, **dict(model.named_parameters())}, alive=[model, x, y])


def freed_input(torch: Any) -> Case:
    """The static input goes out of scope."""
    model, *held = model_of(torch)
    with captured(torch, lambda: model(*held)) as graph:
        y = model(*held)
    held.clear()
    torch.cuda.synchronize()
    return Case(graph, frozenset({"freed memory"}), alive=[model, y])


def returned_segment(torch: Any) -> Case:
    """The same, and the allocator gives its segment back."""
    held = [torch.randn(1 << 22, device="cuda")]
    with captured(torch, lambda: held[0] + 1) as graph:
        y = held[0] + 1
    held.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return Case(graph, frozenset({"unmapped address"}), alive=[y])


def replaced_weight(torch: Any) -> Case:
    """A parameter is assigned anew after the capture."""
    model, x = model_of(torch)
    with captured(torch, lambda: model(x)) as graph:
        y = model(x)
    model[0].weight = torch.nn.Parameter(torch.zeros_like(model[0].weight), requires_grad=False)
    torch.cuda.synchronize()
    named = {"x": x, "y": y, **dict(model.named_parameters())}
    return Case(graph, frozenset({"unused tensor"}), named=named, alive=[model, x, y])


def frozen_scalar(torch: Any) -> Case:
    """A learning rate that the host gives: two captures tell."""
    weight, gradient = (torch.randn(4096, device="cuda") for _ in range(2))
    graphs = []
    for rate in (1e-3, 5e-4):
        with captured(torch, lambda: weight.add_(gradient, alpha=0.0)) as graph:
            weight.add_(gradient, alpha=-rate)
        graphs.append(graph)
    return Case(graphs[0], frozenset({"frozen scalar"}), against=graphs[1], alive=[weight, gradient])


def missing_edge(torch: Any) -> Case:
    """Two streams of one capture write one tensor: a fill and a copy that nothing orders."""
    y, x = (torch.zeros(1 << 16, device="cuda") for _ in range(2))
    left, right = torch.cuda.Stream(), torch.cuda.Stream()
    with captured(torch, lambda: y.copy_(x)) as graph:
        main = torch.cuda.current_stream()
        for stream in (left, right):
            stream.wait_stream(main)
        with torch.cuda.stream(left):
            y.zero_()
        with torch.cuda.stream(right):
            y.copy_(x)
        for stream in (left, right):
            main.wait_stream(stream)
    return Case(graph, frozenset({"missing edge"}), alive=[y, x, left, right])


def another_graphs_temporary(torch: Any) -> Case:
    """A graph reads the output of another one, which was dropped."""
    x = torch.randn(4096, device="cuda")
    with captured(torch, lambda: x * 2) as first:
        held = [x * 2]
    with captured(torch, lambda: held[0] + 1) as second:
        y = held[0] + 1
    held.clear()
    torch.cuda.synchronize()
    return Case(second, frozenset({"another graph's memory"}), alive=[first, x, y])


def pinned_copy(torch: Any) -> Case:
    """A copy from pinned memory is a note: nobody can see whether its tensor lives."""
    host, x = torch.zeros(4096).pin_memory(), torch.zeros(4096, device="cuda")
    with captured(torch, lambda: x.copy_(host, non_blocking=True)) as graph:
        x.copy_(host, non_blocking=True)
    return Case(graph, alive=[host, x])


CASES: dict[str, Callable[[Any], Case]] = {
    case.__name__: case
    for case in (
        good,
        freed_input,
        returned_segment,
        replaced_weight,
        frozen_scalar,
        missing_edge,
        another_graphs_temporary,
        pinned_copy,
    )
}


def main(names: list[str]) -> int:
    """Runs the cases of these names, all where there are none."""
    if unknown := [name for name in names if name not in CASES]:
        print(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
        return 2
    try:
        import torch
    except ImportError:
        print("torch is not installed")
        return 3
    if not torch.cuda.is_available() or torch.version.hip:
        print("torch sees no NVIDIA card here")
        return 3
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    wrong = sum(not run(torch, name) for name in names or CASES)
    return int(wrong > 0)


def run(torch: Any, name: str) -> bool:
    """Audits a case and says whether what it planted was found, and nothing else where it planted nothing."""
    case = CASES[name](torch)
    begin = time.perf_counter()
    report = torch_graph(case.graph, named=case.named, against=case.against)
    seconds = time.perf_counter() - begin
    right = as_planted(report, case.expected)
    print(f"\n== {name}: {'as planted' if right else 'NOT AS PLANTED'} ({CASES[name].__doc__}) {seconds * 1e3:.1f} ms")
    print(report)
    return right


def as_planted(report: TorchGraphReport, expected: frozenset[str]) -> bool:
    """Whether the kinds expected are among the findings; without any, whether the graph is well."""
    return report.ok if not expected else expected <= {finding.kind for finding in report.findings}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
