"""Step tables, graphs, weights and kernels compiled on the spot, on a card where there is one. Run alone on a machine with a card."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.code_cache import CodeCache
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.ir.errors import BoundsError
from ostinato.ir.step import KernelCall, Launch, StepKind
from ostinato.ir.types import DType, TensorType
from ostinato.ir.weights import PackSource
from ostinato.runtime.device import ResolvedStep
from tests.backend_hip.gpu.programs import decoder_on
from tests.backend_hip.gpu.real_card import real_card
from tests.kernels.test_hip_plans import CONFIGS

ONE_BLOCK = Launch((1, 1, 1), (256, 1, 1))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> HipDevice:
    return HipDevice(real_card(), cache=CodeCache(tmp_path_factory.mktemp("kernels")))


def look_up(node: str, ids: int, table: int, y: int) -> ResolvedStep:
    """Two rows of a table of 4 rows of 8 floats."""
    operands = ((ids, 8), (table, 128), (0, 0), (y, 64))
    kernel = "linear/embedding:embedding<f32,f32>"
    return ResolvedStep(node, StepKind.LAUNCH, kernel, operands, (2, 1, 4, 8), launch=ONE_BLOCK)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_planned_decoder_equals_the_interpreter(name: str, gpu: HipDevice, rng: np.random.Generator) -> None:
    found = decoder_on(gpu, CONFIGS[name], rng)
    np.testing.assert_allclose(found.planned, found.expected, rtol=0, atol=1e-2 * float(np.std(found.expected)))
    assert found.planned.tobytes() == found.replayed.tobytes(), "replays and steps are bit-equal"


def test_an_index_out_of_range_is_told_once_by_table_replay_and_launch(gpu: HipDevice) -> None:
    table = np.arange(32, dtype=np.float32).reshape(4, 8)
    weight, ids, y, stream = gpu.allocate(128), gpu.allocate(8), gpu.allocate(64), gpu.open_stream()
    weight.write(table)
    steps = [look_up(node, ids.address, weight.address, y.address) for node in ("first", "second")]
    loaded = gpu.make_table(steps, stream)
    graph = loaded.capture()
    call = KernelCall("alone", steps[0].kernel, steps[0].params, 4, launch=ONE_BLOCK)
    launch = gpu.make_launch(call)
    for bad in (True, False, True):
        ids.write(np.array([3, 9 if bad else 1], np.int32))
        for submit in (loaded.enqueue, graph.enqueue):
            submit()
            if not bad:
                loaded.finish()
                assert (y.read(np.float32, (2, 8)) == table[[3, 1]]).all()
                continue
            with pytest.raises(BoundsError) as caught:
                loaded.finish()
            assert caught.value.node == "first"
        launch.run(steps[0].operands, stream)
        if bad:
            with pytest.raises(BoundsError) as caught:
                gpu.finish(stream)
            assert caught.value.node == "alone"
        else:
            gpu.finish(stream)


def test_a_window_and_a_table_go_in_the_order_of_a_stream(gpu: HipDevice) -> None:
    stream, buffer = gpu.open_stream(), gpu.allocate(8 << 20)
    window = buffer.window(stream)
    view, half = window.view(np.uint32, (1 << 20,)), 4 << 20
    copy = ResolvedStep("copy", StepKind.COPY, "", ((buffer.address, half), (buffer.address + half, half)), ())
    table = gpu.make_table([copy, ResolvedStep("fill", StepKind.FILL, "", ((buffer.address, half),), (0x5A,))], stream)
    for value in range(5):
        view[:] = value
        window.upload(0, half)
        table.enqueue()
        window.download(0, 2 * half)
        table.finish()
        assert (view == 0x5A5A5A5A).all()
        assert (window.view(np.uint32, (1 << 20,), half) == value).all()


def test_weights_go_to_the_device_and_back(gpu: HipDevice, rng: np.random.Generator) -> None:
    tensor = TensorType((20000, 512), DType.BF16)
    values, order = rng.standard_normal((20000, 512), np.float32), rng.permutation(20000).astype(np.int64)
    buffer = gpu.allocate(tensor.nbytes)
    gpu.pack(tensor, buffer.address, PackSource(values.reshape(-1).view(np.uint8), DType.F32, order), 0)
    expected = values[order].astype(DType.BF16.numpy)
    assert (buffer.read(DType.BF16.numpy, (20000, 512)) == expected).all()
    assert (gpu.unpack(tensor, buffer.address) == expected.astype(np.float32)).all()


def test_kernels_compile_side_by_side_and_are_found_again(tmp_path: Path, gpu: HipDevice) -> None:
    calls = [
        KernelCall("n", f"elementwise/elementwise:{name}<{dtype}>", (1, 64), operands, launch=ONE_BLOCK)
        for name, operands in (("silu", 3), ("add", 4), ("multiply", 4))
        for dtype in ("f32", "f16")
    ]
    for found in ((6, 0), (0, 6)):
        cache = CodeCache(tmp_path)
        HipDevice(gpu.native, cache=cache).prepare(calls)
        assert (cache.counters.misses, cache.counters.hits) == found


def test_threads_capture_while_others_run(gpu: HipDevice, rng: np.random.Generator) -> None:
    config, wrong = CONFIGS["dense"], []

    def work(seed: int) -> None:
        try:
            found = decoder_on(gpu, config, np.random.default_rng(seed))
            if found.planned.tobytes() != found.replayed.tobytes():
                wrong.append(f"thread {seed} differs")
        except BaseException as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
