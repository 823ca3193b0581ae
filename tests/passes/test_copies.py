"""No strided copy is left around attention: every family, prefill, chunks, decode, whole sequences and texts, on the CPU and on GPUs; what is left elsewhere
says where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.backend_hip.target import host_target, named_target
from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.model import CacheShape
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.graph import Graph
from ostinato.ir.target import Target
from ostinato.ir.types import DType, TensorType
from ostinato.ir.weights import WeightPart
from ostinato.passes.copies import copies_of
from ostinato.passes.runner import run_pipeline
from ostinato.planner.lower import plan_entry
from ostinato.stages import Lowered, trace
from tests.frontend.small_families import SMALL_FAMILIES, small_model

TARGETS = ("host", "sm_90", "gfx942", "gfx1100")
ENTRIES = {
    "prefill": ("step", {"N": 24, "R": 1}),
    "chunks and decode": ("step", {"N": 24, "R": 3}),
    "decode": ("decode", {"R": 2}),
    "forward": ("forward", {"B": 2, "T": 17}),
}


def lowered(model: ost.Model, target: Target, precision: str) -> Iterator[tuple[str, Lowered]]:
    if model.family.encoder is not None:
        yield "embed", trace(model, "embed", precision=precision).lower(target, dims={"N": 24, "R": 3})
        return
    for name, (entry, dims) in ENTRIES.items():
        yield name, trace(model, entry, cache=CacheShape(4, 32, 1), precision=precision).lower(target, dims=dims)


@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_nothing_is_copied_around_attention(family: str, tmp_path: Path, seed: int) -> None:
    model = small_model(family, tmp_path, seed)
    for target in map(named_target, TARGETS):
        for entry, found in lowered(model, target, "f32" if target.name == "host" else "bf16"):
            assert not found.copies, (entry, target.name, *map(str, found.copies))
            if target.name in ("host", "sm_90"):
                assert found.fit_entry()[1].stats.strided_copies == 0, (entry, target.name)


def softly_copied() -> Graph:
    """An output that is a strided view, and a norm over one."""
    builder = GraphBuilder("views")
    x = builder.input("x", TensorType((2, 3, 4, 8), DType.F32, tuple("BTHD")))
    gain = builder.weight("gain", TensorType((8,), DType.F32), (WeightPart("gain", 0, 8),))
    turned = F.transpose(x, (0, 2, 1, 3), name="turned")
    return builder.finish((F.rms_norm(turned, gain, eps=1e-5, name="norm"), F.transpose(x, (1, 0, 2, 3), name="out")))


def test_what_is_left_says_which_view_which_reader_which_line_and_why() -> None:
    target = host_target()
    graph = run_pipeline(softly_copied(), target).graph
    norm, output = sorted(copies_of(graph, target), key=lambda copy: copy.readers)
    assert (norm.kind, norm.value, norm.readers, norm.strides) == ("view", "turned", ("norm",), (96, 8, 32, 1))
    assert norm.nbytes == 2 * 3 * 4 * 8 * 4
    assert norm.location is not None
    assert norm.location.file.endswith("test_copies.py")
    assert dict(norm.reasons)["host"].startswith("x must be contiguous, found f32[B:2,H:4,T:3,D:8]")
    assert (output.node, output.value, output.readers) == ("out", "out.view", ("return",))
    assert output.reasons == (("return", "an output lies in its logical order"),)
    text = str(norm)
    assert f"gathers strides [96, 8, 32, 1] of %turned: {norm.type}, 768 bytes, for %norm at" in text
    plan = plan_entry(graph, target, name="views")
    assert plan.stats.strided_copies == len(copies_of(graph, target))
    steps = {step.node for step in plan.steps}
    assert all(copy.node in steps for copy in copies_of(graph, target))
