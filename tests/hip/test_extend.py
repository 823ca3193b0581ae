"""An operator of one's own on a GPU: its kernel is compiled of the text that was given, and forced levels give the oracle's values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.extending import (
    Arrays,
    AttrSpec,
    CallSite,
    DType,
    Impl,
    Level,
    OpDef,
    OperandSpec,
    Site,
    TensorType,
    Tolerance,
    by_dtypes,
    cost_per_element,
    define,
    element_launch,
    normal,
    readable,
    valid,
)
from ostinato.ir.ops import OP
from ostinato.ir.text import parse_graph, print_graph
from ostinato.ir.verify import verify
from tests.one_operator import one_calls

SOURCE = """
#include "device.h"

template <class X>
DEVICE void bend(const X* x, const i32* count, X* y, i64 rows, i64 width, f64 knee, Status) {
    const i64 end = valid_rows(count, rows) * width;
    for (i64 i = first_element(); i < end; i += element_step())
        y[i] = x[i] / (1.0f + fabsf(x[i]) / static_cast<f32>(knee));
}
"""


def infer(site: Site) -> tuple[TensorType, ...]:
    return (site.operand(0).with_layout(None),)


def reference(call: Arrays) -> tuple[Any, ...]:
    x = call.wide(0)
    return ((x / (1.0 + np.abs(x) / call.real("knee"))).astype(np.float32),)


def samples(rng: np.random.Generator) -> Iterator[Any]:
    yield valid(normal((5, 7)), knee=1.0)
    yield valid(normal((3, 4, 2), axes="BTC"), knee=30.0)
    yield valid(normal((0, 4)), knee=0.5)


BEND = define(
    "bend",
    "x / (1 + |x| / knee).",
    (OperandSpec("x", frozenset({DType.F32})),),
    ("y",),
    infer,
    reference,
    samples,
    Tolerance(1e-6, 1e-5, "a few float32 roundings"),
    attrs=(AttrSpec("knee", float),),
    cost=cost_per_element(4),
)


def _params(site: CallSite) -> tuple[int | float, ...]:
    rows = site.operand(0).static_shape[0]
    return (rows, site.operand(0).elements // max(1, rows), site.real("knee"))


ON_GPUS = readable(
    "bend",
    ("x", "count", "y"),
    by_dtypes("mine/bend", "bend", 0),
    _params,
    lambda site: element_launch(site.operand(0).elements),
    lambda site: None,
    in_place=(("y", "x"),),
)


def test_an_operator_runs_by_its_reference_on_the_host_and_by_its_kernel_on_a_gpu(
    device: HipDevice, rng: np.random.Generator
) -> None:
    host = HostDevice(threads=1)
    with ost.extend(operators=[BEND], rows=[ON_GPUS], kernels={"mine/bend": SOURCE}):
        for call in one_calls(BEND, rng, 3):
            expected = call.expected()
            for where, level, exact in ((host, "reference", True), (device, "readable", False)):
                planned = call.loaded(where, level, "planned")
                found = call.run(planned)
                for name, array in found.items():
                    np.testing.assert_allclose(
                        array, expected[name], rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6
                    )
                for mode in ("eager", "guarded"):
                    again = call.run(planned.clone(mode))
                    assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in found.items()}
        with pytest.raises(ost.ConfigError, match="never runs in a plan of this device"):
            call.loaded(device, "reference", "planned")
    assert call.run(planned)[name].tobytes() == found[name].tobytes()  # what was compiled runs on


def test_text_verifier_and_operator_calls_know_it_until_it_is_removed() -> None:
    text = "graph @g {\n  input %x: f32[3]\n  %y: f32[3] = bend(%x) {knee=2.0}\n  return %y\n}\n"
    graph = parse_graph(text)
    with ost.extend(operators=[BEND]) as extension:
        verify(graph)
        assert print_graph(graph) == text
        x = np.array([-2, 0, 2], np.float32)
        assert ost.ops.bend(x, knee=2.0, out=np.empty_like(x)).tolist() == [-1, 0, 1]
        assert "knee: float" in (ost.ops.bend.__doc__ or "")
        assert extension.operators == (BEND,)
    assert "bend" not in OP
    with pytest.raises(ost.VerificationError, match="operator bend is not in the table"):
        verify(graph)
    with pytest.raises(AttributeError, match="no operator 'bend'"):
        ost.ops.bend  # noqa: B018
    extension.remove()  # a second time


def replaced(opdef: OpDef, name: str) -> OpDef:
    return replace(opdef, name=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operators": [replaced(BEND, "silu")]}, "there is an operator silu already"),
        ({"operators": [BEND, BEND]}, "there is an operator bend already"),
        ({"operators": [replaced(BEND, "Bend it")]}, "an operator is called 'Bend it'"),
        ({"operators": [3]}, "operators have 3, expected each to be a value of OpDef"),
        ({"rows": [ON_GPUS]}, "row bend@hip is of bend, which is no operator that runs"),
        ({"operators": [BEND], "rows": [ON_GPUS, ON_GPUS]}, "bend has a row hip already"),
        (
            {"operators": [BEND], "rows": [replace(ON_GPUS, level=Level.REFERENCE)]},
            "row bend@hip is of level reference",
        ),
        ({"kernels": {"mine/bend": "other"}}, "added with another text before"),
        ({"kernels": {"norm/norm": SOURCE}}, "is one of ours"),
        ({"kernels": {"bend": SOURCE}}, "'bend' is none"),
        ({"kernels": [SOURCE]}, "kernels are"),
    ],
)
def test_what_cannot_be_added_changes_nothing(arguments: dict[str, Any], message: str) -> None:
    before: Sequence[str] = tuple(OP)
    with ost.extend(kernels={"mine/bend": SOURCE}):
        with pytest.raises(ost.ConfigError, match=message):
            ost.extend(**arguments)
        assert tuple(OP) == before
    rows: Sequence[Impl] = HostDevice(threads=1).target.rows
    assert not [row for row in rows if row.op == "bend"]
