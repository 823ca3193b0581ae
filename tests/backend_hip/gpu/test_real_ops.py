"""`ostinato.ops` on a card, where there is one: raw pointers, and tensors of torch on torch's own streams and in torch's own captures.

Run it alone on a machine with a card; what needs torch is skipped where torch sees none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import ops
from ostinato.ir.ops import OPS
from tests.backend_hip.gpu.device_memory import Call, OnDevice, opened, valid_samples
from tests.backend_hip.gpu.real_card import real_card
from tests.runtime.operator_samples import check_result


@pytest.fixture(scope="module")
def gpu() -> Iterator[OnDevice]:
    with opened(real_card()) as found:
        yield found


@pytest.fixture(scope="module")
def torch(gpu: OnDevice) -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch sees no card")
    return found


def test_every_operator_equals_its_reference(gpu: OnDevice, rng: np.random.Generator) -> None:
    failures = []
    gpu.load()
    for op in OPS:
        if op.is_view:
            continue
        for number, sample in enumerate(valid_samples(op, rng)):
            call = Call(gpu, op, sample, rng)
            call.run()
            ops.check(gpu.name)
            for tensor, actual, wanted in zip(call.results, call.found(), call.expected(), strict=True):
                if problem := check_result(op, tensor, actual, wanted):
                    failures.append(f"{op.name}, sample {number}, {sample.attrs} -> {tensor}: {problem}")
    assert not failures, "\n".join(failures[:10])


def test_a_call_allocates_nothing(gpu: OnDevice) -> None:
    x, y = gpu.put(np.ones(1 << 20, np.float32)), gpu.empty(1 << 20)
    stream = ost.Stream(gpu.name, non_blocking=True)
    ops.scale(x, factor=2.0, out=y, stream=stream)
    stream.synchronize()
    free, counters = gpu.device.native.memory_info[0], gpu.device.native.counters.backend_allocations
    for _ in range(1000):
        ops.scale(x, factor=2.0, out=y, stream=stream)
    stream.synchronize()
    assert gpu.device.native.memory_info[0] == free
    assert gpu.device.native.counters.backend_allocations == counters
    assert (gpu.get(y) == 2).all()


def test_an_index_out_of_range_is_told_by_whoever_waits(gpu: OnDevice) -> None:
    table, out = gpu.put(np.ones((8, 4), np.float32)), gpu.empty(3, 4)
    ops.embedding(gpu.put(np.array([1, 99, 7], np.int32)), table, out=out)
    with pytest.raises(ost.BoundsError, match="embedding: an index in device memory was out of range"):
        ops.check(gpu.name)
    ops.check(gpu.name)


def test_tensors_of_torch_are_used_where_they_lie(torch: Any, gpu: OnDevice) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(32, 512, device="cuda:0", dtype=dtype)
        gain, out = torch.randn(512, device="cuda:0"), torch.empty_like(x)
        wide = x.float()
        expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * gain
        allocated = torch.cuda.memory_allocated()
        assert ops.rms_norm(x, gain, eps=1e-6, out=out) is out
        assert torch.cuda.memory_allocated() == allocated
        torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    with pytest.raises(ost.ConfigError, match="a is on hip:0, b on cpu"):
        ops.add(x, x.cpu(), out=out)
    with pytest.raises(ost.LayoutError, match="make a dense copy of x first"):
        ops.silu(x.T, out=x.T.contiguous())
    with pytest.raises(ost.InputError, match="where numpy does not reach"):
        ost.TensorView.of(x).numpy()


def test_calls_go_to_the_stream_of_torch(torch: Any, gpu: OnDevice) -> None:
    side = torch.cuda.Stream()
    x, y = torch.ones(1 << 22, device="cuda:0"), torch.zeros(1 << 22, device="cuda:0")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        stream = ost.Stream.external("cuda:0", side.cuda_stream)
        for _ in range(50):
            x.mul_(1.5)
            ops.scale(x, factor=1 / 1.5, out=y, stream=stream)
            x.copy_(y)
    stream.synchronize()
    torch.testing.assert_close(y, torch.ones_like(y))


def test_torch_captures_our_calls(torch: Any, gpu: OnDevice) -> None:
    side = torch.cuda.Stream()
    stream = ost.Stream.external("cuda:0", side.cuda_stream)
    x, y = torch.ones(4096, device="cuda:0"), torch.zeros(4096, device="cuda:0")
    ops.scale(x, factor=3.0, out=y, stream=stream)  # ready before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        x.add_(1)
        ops.scale(x, factor=3.0, out=y, stream=stream)
    for turn in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert (y == 3 * (turn + 2)).all().item()


def test_we_capture_calls_on_tensors_of_torch(torch: Any, gpu: OnDevice) -> None:
    stream = ost.Stream("hip:0", non_blocking=True)
    x, y, z = (torch.full((4096,), value, device="cuda:0") for value in (1.0, 0.0, 0.0))
    torch.cuda.synchronize()

    def submit() -> None:
        ops.scale(x, factor=3.0, out=y, stream=stream)
        ops.add(x, y, out=z, stream=stream)

    submit()
    graph = ost.hip.HipGraphExecutable.capture(stream.native, submit)
    assert graph.node_count == 2
    x.fill_(2.0)
    torch.cuda.synchronize()
    graph.launch(stream.native)
    stream.synchronize()
    assert (z == 8).all().item()


def test_dlpack_and_the_cuda_array_interface_carry_their_order(torch: Any, gpu: OnDevice) -> None:
    class Exported:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    class Described:
        def __init__(self, tensor: Any, stream: int) -> None:
            self.tensor, self.stream = tensor, stream

        @property
        def __cuda_array_interface__(self) -> Any:
            return {**self.tensor.__cuda_array_interface__, "version": 3, "stream": self.stream}

    side, mine = torch.cuda.Stream(), ost.Stream("hip:0", non_blocking=True)
    y = torch.empty(1 << 22, device="cuda:0")
    x = torch.zeros(1 << 22, device="cuda:0")
    torch.cuda.synchronize()
    for turn in range(1, 20):
        with torch.cuda.stream(side):
            x.add_(1)
            ops.scale(Exported(x), factor=2.0, out=y, stream=mine)
        mine.synchronize()
        assert (y == 2 * (2 * turn - 1)).all().item()
        with torch.cuda.stream(side):
            x.add_(1)
        ops.scale(Described(x, side.cuda_stream), factor=2.0, out=y, stream=mine)
        mine.synchronize()
        assert (y == 4 * turn).all().item()
        side.wait_stream(torch.cuda.default_stream())
    view = ost.TensorView(y.data_ptr(), y.nbytes, tuple(y.shape), None, "f32", "cuda:0", y)
    assert torch.as_tensor(view, device="cuda:0").data_ptr() == y.data_ptr()
    assert torch.from_dlpack(view).data_ptr() == y.data_ptr()


def test_torch_reads_memory_of_ours(torch: Any, gpu: OnDevice) -> None:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    x, y = gpu.put(values), gpu.empty(8, 8, dtype="bf16")
    ops.cast(x, dtype="bf16", out=y)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        part, rounded = torch.from_dlpack(x.transpose()), torch.from_dlpack(y)
        assert rounded.dtype is torch.bfloat16
        del x, y
        assert (part.sum() + rounded.float().sum()).item() == 2 * values.sum()
