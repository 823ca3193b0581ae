"""Early starts and screenings on a card where there is one. Run alone on a machine with a card.

What a driver does with early launches is seen in what it records: which edges of a graph start their kernel early, its own products' among them.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.ledger import FOLDER_VARIABLE
from ostinato.backend_hip.impls.hip.vendor import NO_BIAS, GemmParams
from ostinato.backend_hip.kernel_source import Instance, KernelName, compile_options, expanded
from ostinato.backend_hip.vendor_choices import VendorChoices
from ostinato.backend_hip.vendor_screen import Product, screen
from ostinato.ir.types import DType
from tests.backend_hip.gpu.machine import Memory
from tests.backend_hip.gpu.real_card import real_card

SIZE, LENGTH = 1 << 18, 24
_BODIES = {
    "plain": ("Status", "y[at] = w[at] + 3.0f * x[at] / 4.0f;"),
    "ahead": (
        "Start start",
        "const f32 mine = w[at]; allow_later(); start.wait(); y[at] = mine + 3.0f * x[at] / 4.0f;",
    ),
}


@pytest.fixture(scope="module")
def card() -> _native.GpuDevice:
    return real_card()


def functions(card: _native.GpuDevice) -> dict[str, _native.GpuFunction]:
    text = expanded("device.h")
    for name, (start, body) in _BODIES.items():
        text += f"DEVICE void {name}(const f32* w, const f32* x, f32* y, {start}) {{ const i64 at = first_element(); {body} }}\n"
    lines = [Instance(KernelName("tests/early", name), 3, "", 256).text for name in _BODIES]
    options = compile_options(card.gpu.platform, card.architecture)
    module = _native.GpuModule(card, card.gpu.compile("\n".join([text, *lines, ""]), "early.hip", list(options)))
    return {name: module.function(name, "ppppu") for name in _BODIES}


@pytest.mark.parametrize("kernel", _BODIES)
def test_chains_that_start_early_have_the_bits_of_those_that_do_not(
    kernel: str, card: _native.GpuDevice, rng: np.random.Generator
) -> None:
    function = functions(card)[kernel]
    weights = [Memory(card, rng.standard_normal(SIZE).astype(np.float32)) for _ in range(LENGTH)]
    values = [Memory(card, rng.standard_normal(SIZE).astype(np.float32)) for _ in range(2)]
    start, stream = values[0].read(), _native.Stream(card, non_blocking=True)
    results: set[bytes] = set()
    for early in (False, True):
        steps = [
            _native.GpuStep.launch(
                kernel,
                function,
                (SIZE // 256, 1, 1),
                (256, 1, 1),
                0,
                [weight.address, values[number % 2].address, values[1 - number % 2].address],
                [],
                early,
            )
            for number, weight in enumerate(weights)
        ]
        table = _native.GpuTable(card, stream, steps)
        graph = _native.HipGraphExecutable.capture(stream, table.enqueue, record=True)
        expected = LENGTH - 1 if early and card.early_starts else 0
        assert len(graph.edges) == LENGTH - 1
        assert len(graph.early_edges) == expected
        for _ in range(100):
            for run in (table.enqueue, functools.partial(graph.launch, stream)):
                values[0].write(start)
                run()
                table.finish()
                results.add(values[0].read().tobytes())
    assert len(results) == 1
    wanted = start
    for weight in weights:
        wanted = weight.values + np.float32(3.0) * wanted / np.float32(4.0)
    assert results == {wanted.tobytes()}


F32, BF16 = DType.F32.number, DType.BF16.number


def product(m: int, n: int, k: int, *, residual: bool = False, result: int = BF16) -> GemmParams:
    """x [n, k] by a weight [m, k], as a `linear` has it."""
    return GemmParams(
        m, n, k, 1, 1, 0, BF16, BF16, result, result, NO_BIAS, k, k, m, m, 0, 0, 0, 0, 1.0, float(residual)
    )


PRODUCTS = {
    "plain": product(896, 512, 896),
    "a residual": product(896, 512, 4864, residual=True),
    "f32": product(1152, 512, 896, result=F32),
    "few rows": product(4864, 16, 896, residual=True, result=F32),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_screening_finds_algorithms_that_are_right(
    name: str, card: _native.GpuDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    found = screen(card, Product(PRODUCTS[name], 4 << 20), candidates=16)
    right = [one for one in found.solutions if not one.refused]
    print(name, f"{len(right)} of {len(found.solutions)} right, {found.gain:.3f}x")
    assert found.gain >= 1.0
    assert not found.unkept
    later = VendorChoices(card, tmp_path)
    chosen = later.gemm(PRODUCTS[name], 4 << 20)
    assert later.counters.screened == 1
    assert chosen.node_count >= 1
