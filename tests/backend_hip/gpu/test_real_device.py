"""The table, the adaptors and the runtime objects on a card, where there is one: the sentences of their contracts that make sense there.

The emulated device covers the same objects everywhere; this file is for what only a real driver can tell. Run it alone on a machine with a card.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from ostinato.backend_hip import _native
from ostinato.ir.errors import BackendError, CapacityError, LifecycleError
from ostinato.ir.types import Array
from tests.backend_hip.gpu.real_card import real_card

capture = _native.HipGraphExecutable.capture

SOURCE = """
extern "C" __global__ void axpy(const float* x, float* y, double a, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < n) y[i] = static_cast<float>(a) * x[i] + y[i];
}
extern "C" __global__ void large(float* y, unsigned value) {
    extern __shared__ float memory[];
    memory[threadIdx.x] = value;
    __syncthreads();
    y[threadIdx.x] = memory[blockDim.x - 1 - threadIdx.x];
}
"""


class Card:
    """A device with its kernels, and memory that is written and read by blocking copies."""

    def __init__(self) -> None:
        self.device = real_card()
        self.gpu = self.device.gpu
        architecture = {"nvidia": "--gpu-architecture=", "amd": "--offload-arch="}[
            self.gpu.platform
        ] + self.device.architecture
        self.module = _native.GpuModule(self.device, self.gpu.compile(SOURCE, "card.hip", [architecture]))
        self.axpy = self.module.function("axpy", "ppdi")

    def put(self, values: Array) -> int:
        values = np.ascontiguousarray(values)
        address = self.device.allocate(values.nbytes)
        _native.copy_async(address, self.device, values.ctypes.data, None, values.nbytes)
        self.device.synchronize()
        return address

    def get(self, address: int, like: Array) -> Array:
        found = np.empty_like(like)
        _native.copy_async(found.ctypes.data, None, address, self.device, found.nbytes)
        self.device.synchronize()
        return found

    def add(self, x: int, y: int, count: int, stream: _native.Stream | None = None, factor: float = 1.0) -> None:
        self.axpy.launch(((count + 255) // 256, 1, 1), (256, 1, 1), 0, [x, y, factor, count], stream)


@pytest.fixture(scope="module")
def card() -> Card:
    return Card()


@pytest.fixture
def stream(card: Card) -> _native.Stream:
    return _native.Stream(card.device, non_blocking=True)


ONES = np.ones(1000, np.float32)


def test_the_card_describes_itself(card: Card) -> None:
    device = card.device
    assert device.name
    assert device.architecture.startswith({"nvidia": "sm_", "amd": "gfx"}[card.gpu.platform])
    assert device.wave in (32, 64)
    assert device.multiprocessors > 0
    assert device.threads_per_block >= 1024
    free, total = device.memory_info
    assert 0 < free <= total <= device.memory_bytes
    assert all(report.version for report in card.gpu.reports if report.finding == "found" and report.role != "blas")


def test_copies_fills_and_kernels_do_what_they_say(card: Card, rng: np.random.Generator) -> None:
    x, y = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    at_x, at_y = card.put(x), card.put(y)
    card.add(at_x, at_y, 1000, factor=0.5)
    assert (card.get(at_y, y) == np.float32(0.5) * x + y).all()
    _native.copy_async(at_y, card.device, at_x, card.device, 400)
    _native.fill_async(at_y + 400, card.device, 0, 3600)
    found = card.get(at_y, y)
    assert (found[:100] == x[:100]).all()
    assert (found[100:] == 0).all()
    card.device.free(at_x)
    card.device.free(at_y)


def test_kernels_tell_their_resources_and_may_ask_for_much_shared_memory(card: Card) -> None:
    facts = card.axpy.facts
    assert facts["threads_per_block"] >= 256
    assert facts["registers"] > 0
    assert facts["local_bytes"] == 0
    assert card.axpy.blocks_per_multiprocessor(256) >= 1
    limit = card.device.shared_bytes_per_block_limit
    large = card.module.function("large", "pu", dynamic_shared_bytes=limit)
    y = card.put(np.zeros(256, np.float32))
    large.launch((1, 1, 1), (256, 1, 1), limit, [y, 7])
    assert (card.get(y, np.zeros(256, np.float32)) == 7).all()
    with pytest.raises(BackendError):
        large.launch((1, 1, 1), (256, 1, 1), limit + (1 << 20), [y, 7])
    card.device.synchronize()
    card.device.free(y)


def test_a_missing_kernel_and_wrong_code_are_typed_errors(card: Card) -> None:
    with pytest.raises(BackendError, match="finding kernel nothing"):
        card.module.function("nothing", "p")
    with pytest.raises(BackendError, match="loading kernels"):
        _native.GpuModule(card.device, b"this is no code" * 100)


def test_events_order_streams_and_take_time(card: Card, stream: _native.Stream) -> None:
    other = _native.Stream(card.device, non_blocking=True)
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))
    start, middle, end = (_native.Event(card.device) for _ in range(3))
    start.record(stream)
    for _ in range(100):
        card.add(x, y, 1000, stream)
    middle.record(stream)
    middle.wait(other)
    card.add(x, y, 1000, other)
    end.record(other)
    end.synchronize()
    assert end.ready
    assert other.done
    assert 0 < start.milliseconds_to(middle) < start.milliseconds_to(end) < 1000
    assert (card.get(y, ONES) == 101).all()
    card.device.free(x)
    card.device.free(y)


def test_the_counters_are_what_the_driver_lost(card: Card) -> None:
    card.device.synchronize()
    free, before = card.device.memory_info[0], card.device.counters
    addresses = [card.device.allocate(64 << 20) for _ in range(3)]
    assert card.device.counters.reserved_bytes - before.reserved_bytes == 3 * (64 << 20)
    assert abs(free - card.device.memory_info[0] - 3 * (64 << 20)) <= 8 << 20
    for address in addresses:
        card.device.free(address)
    assert card.device.memory_info[0] >= free - (8 << 20)


def test_too_much_memory_is_no_room_and_the_card_still_works(card: Card) -> None:
    with pytest.raises(CapacityError, match="has no room for"):
        card.device.allocate(1 << 50)
    card.device.free(card.device.allocate(1 << 20))


def test_the_pool_reuses_until_a_stream_exists_and_again_after_a_handoff(card: Card) -> None:
    card.device.hand_off()
    card.device.pool_enabled = True
    first = card.device.allocate(4096)
    card.device.free(first)
    assert card.device.allocate(4096) == first
    card.device.free(first)
    _native.Stream(card.device)
    assert card.device.pool_banned
    card.device.hand_off()
    assert card.device.pool_enabled
    card.device.pool_enabled = False
    card.device.trim_pool()


def test_a_captured_graph_is_read_back_and_replayed(card: Card, stream: _native.Stream) -> None:
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))
    other, fork, join = (
        _native.Stream(card.device, non_blocking=True),
        _native.Event(card.device),
        _native.Event(card.device),
    )
    z = card.put(np.zeros(1000, np.float32))

    def submit() -> None:
        _native.fill_async(y, card.device, 0, 4000, stream)
        fork.record(stream)
        fork.wait(other)
        card.add(x, y, 1000, stream, 2.0)
        _native.copy_async(z, card.device, x, card.device, 4000, other)
        join.record(other)
        join.wait(stream)
        card.add(z, y, 1000, stream)

    graph = capture(stream, submit, record=True)
    assert graph.node_count == 4
    by_type = {
        kind: [i for i, node in enumerate(graph.nodes) if node.type == kind] for kind in ("fill", "copy", "kernel")
    }
    assert [len(by_type[kind]) for kind in ("fill", "copy", "kernel")] == [1, 1, 2]
    fill, copied = graph.nodes[by_type["fill"][0]], graph.nodes[by_type["copy"][0]]
    assert (fill.to, fill.nbytes, fill.value) == (y, 4000, 0)
    assert (copied.to, copied.source, copied.nbytes) == (z, x, 4000)
    kernels = [graph.nodes[i] for i in by_type["kernel"]]
    assert {b"".join(node.arguments or ()) for node in kernels} == {
        struct.pack("<QQdq", a, y, f, 1000) for a, f in ((x, 2.0), (z, 1.0))
    }
    assert all((node.function, node.grid, node.block) == (card.axpy.handle, (4, 1, 1), (256, 1, 1)) for node in kernels)
    assert len(graph.edges) == 4, "a fork and a join of two branches"
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert (card.get(y, ONES) == 3).all()
    for address in (x, y, z):
        card.device.free(address)


def test_an_update_changes_parameters_and_refuses_another_topology(card: Card, stream: _native.Stream) -> None:
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))

    def steps(factor: float, count: int) -> Callable[[], None]:
        def submit() -> None:
            for _ in range(count):
                card.add(x, y, 1000, stream, factor)

        return submit

    graph = capture(stream, steps(1.0, 2))
    assert graph.update(stream, steps(10.0, 2))
    assert not graph.update(stream, steps(1.0, 3))
    graph.launch(stream)
    stream.synchronize()
    assert (card.get(y, ONES) == 20).all()
    card.device.free(x)
    card.device.free(y)


def test_a_failed_capture_leaves_a_stream_that_runs_and_captures(card: Card, stream: _native.Stream) -> None:
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))

    class Mine(Exception):
        pass

    def fails() -> None:
        card.add(x, y, 1000, stream)
        raise Mine

    with pytest.raises(Mine):
        capture(stream, fails)
    with pytest.raises(LifecycleError, match="while this thread captures"):
        capture(stream, lambda: card.device.allocate(64))
    other, fork = _native.Stream(card.device, non_blocking=True), _native.Event(card.device)

    def unjoined() -> None:
        card.add(x, y, 1000, stream)
        fork.record(stream)
        fork.wait(other)
        card.add(x, y, 1000, other)

    with pytest.raises(BackendError, match="ending a capture"):
        capture(stream, unjoined)
    card.add(x, y, 1000, stream)
    stream.synchronize()
    graph = capture(stream, lambda: card.add(x, y, 1000, stream))
    graph.launch(stream)
    stream.synchronize()
    assert (card.get(y, ONES) == 2).all()
    card.device.free(x)
    card.device.free(y)


def test_calls_that_a_capture_forbids_never_reach_the_driver(card: Card, stream: _native.Stream) -> None:
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))
    event = _native.Event(card.device)
    event.record(stream)
    stream.synchronize()
    forbidden: tuple[Callable[[], object], ...] = (
        stream.synchronize,
        card.device.synchronize,
        lambda: stream.done,
        lambda: event.ready,
        lambda: _native.Stream(card.device),
        lambda: _native.HipActivationArena(stream, 64),
        lambda: _native.StreamOrderedHipBuffer(stream, 64),
    )

    def submit() -> None:
        card.add(x, y, 1000, stream)
        for call in forbidden:
            with pytest.raises(LifecycleError):
                call()
        card.device.free(x)  # held until the capture is over
        card.add(y, y, 1000, stream)

    assert capture(stream, submit).node_count == 2
    assert card.device.counters.pending_bytes == 0
    card.device.free(y)


def test_two_threads_capture_at_once(card: Card) -> None:
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))
    both, counts = threading.Barrier(2), {}

    def work(number: int) -> None:
        stream = _native.Stream(card.device, non_blocking=True)

        def submit() -> None:
            both.wait()
            for _ in range(number):
                card.add(x, y, 1000, stream)
            both.wait()

        counts[number] = capture(stream, submit).node_count

    threads = [threading.Thread(target=work, args=(number,)) for number in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {2: 2, 3: 3}
    card.device.free(x)
    card.device.free(y)


def test_a_thousand_replays_leave_memory_flat(card: Card, stream: _native.Stream) -> None:
    x, y = card.put(ONES), card.put(np.zeros(1000, np.float32))
    graph = capture(stream, lambda: card.add(x, y, 1000, stream))
    graph.launch(stream)
    stream.synchronize()
    free = card.device.memory_info[0]
    for _ in range(1000):
        graph.launch(stream)
    stream.synchronize()
    assert card.device.memory_info[0] == free
    assert (card.get(y, ONES) == 1001).all()
    card.device.free(x)
    card.device.free(y)


def test_deferred_memory_and_arenas_work_on_the_card(card: Card, stream: _native.Stream) -> None:
    arena = _native.HipActivationArena(stream, 1 << 20)
    assert arena.address % 256 == 0
    slices = [arena.allocate_slice(1000) for _ in range(3)]
    assert all(address % 256 == 0 for address in slices)
    with _native.ScopedDeferredHipStream(stream, 2) as scope:
        x = card.put(ONES)
        for address in slices:
            _native.fill_async(address, card.device, 0, 1000)
            card.add(x, address, 250)
        card.device.free(x)
        for _ in range(4):
            card.device.free(card.device.allocate(1000))
        assert (scope.counters.total_blocks, scope.counters.flushes) == (5, 2)
    assert all((card.get(address, ONES[:250]) == 1).all() for address in slices)
    assert card.device.counters.pending_bytes == 0


def test_stream_ordered_buffers_come_from_the_default_pool(card: Card, stream: _native.Stream) -> None:
    if not _native.StreamOrderedHipBuffer.supported(card.device):
        pytest.skip("this card has no stream-ordered memory")
    before = _native.StreamOrderedHipBuffer.usage(card.device)
    buffer = _native.StreamOrderedHipBuffer(stream, 1 << 20)
    _native.fill_async(buffer.address, card.device, 0, 1 << 20, stream)
    stream.synchronize()
    used = _native.StreamOrderedHipBuffer.usage(card.device)
    assert used["used"] == before["used"] + (1 << 20)
    assert used["reserved"] >= used["used"]
    buffer.release()
    stream.synchronize()
    assert _native.StreamOrderedHipBuffer.usage(card.device)["used"] == before["used"]
    _native.StreamOrderedHipBuffer.trim(card.device)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_vendor_products_equal_numpy_s_in_each_algorithm_eager_and_captured(
    kind: str, card: Card, stream: _native.Stream, rng: np.random.Generator
) -> None:
    import ml_dtypes

    if next(report for report in card.gpu.reports if report.role == "blas").finding != "found":
        pytest.skip("there is no vendor GEMM")
    dtype = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}[kind]
    m, n, k = 64, 48, 128
    weight, x = rng.integers(-3, 4, (m, k)).astype(dtype), rng.integers(-3, 4, (n, k)).astype(dtype)
    bias = rng.integers(-3, 4, m).astype(dtype)
    a, b, d, at_bias = card.put(weight), card.put(x), card.put(np.zeros((n, m), dtype)), card.put(bias)
    problem = _native.GemmProblem(m, n, k, (kind, kind, kind, kind), (k, k, m, m), transpose_a=True, bias=kind)
    expected = (x.astype(np.float32) @ weight.astype(np.float32).T + bias.astype(np.float32)).astype(dtype)
    limit = 32 << 20
    workspace = card.device.allocate(limit)
    choices = _native.gemm_choices(card.device, problem, limit)
    assert choices
    for choice in choices:
        again = _native.GemmChoice(choice.algorithm, choice.workspace_bytes)

        def run(chosen: _native.GemmChoice = again) -> None:
            _native.gemm(
                card.device,
                problem,
                chosen,
                a,
                b,
                d,
                d,
                bias=at_bias,
                workspace=workspace,
                workspace_bytes=limit,
                stream=stream,
            )

        run()
        stream.synchronize()
        assert (card.get(d, np.zeros((n, m), dtype)) == expected).all()
        graph = capture(stream, run, record=True)
        assert {node.type for node in graph.nodes} <= {"kernel", "fill", "copy"}, "no allocation nodes"
        _native.fill_async(d, card.device, 0xFF, expected.nbytes, stream)
        graph.launch(stream)
        stream.synchronize()
        assert (card.get(d, np.zeros((n, m), dtype)) == expected).all()
    for address in (a, b, d, at_bias, workspace):
        card.device.free(address)


def test_a_capture_on_a_cold_thread_is_refused_before_the_vendor_s_library_is_asked(
    card: Card, stream: _native.Stream
) -> None:
    if next(report for report in card.gpu.reports if report.role == "blas").finding != "found":
        pytest.skip("there is no vendor GEMM")
    failed: list[str] = []

    def work() -> None:
        own = _native.Stream(card.device, non_blocking=True)
        try:
            capture(own, lambda: _native.warm_vendor(card.device))
        except LifecycleError as error:
            failed.append(error.message)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == ["this thread has no handle of the vendor's GEMM and captures already"] or _native.vendor_is_warm(
        card.device
    )
