"""The reader of captured CUDA graphs, over a driver compiled for the test: all kinds of nodes, arguments in both forms, embedded graphs, refusals."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ostinato as ost
from ostinato.audit import torch_graph
from ostinato.backend_hip.cuda_graphs import CudaGraphs
from ostinato.ir.foreign import ForeignArgument
from tests.tools.audit.fakes import FakeAllocator, FakeGraph

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(sys.platform != "linux" or COMPILER is None, reason="needs Linux and a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    made = tmp_path_factory.mktemp("driver") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return made


@pytest.fixture
def driver(library: Path) -> tuple[CudaGraphs, int]:
    """The reader, and the handle of the captured graph."""
    get = ctypes.CDLL(str(library)).fake_graph
    get.restype = ctypes.c_void_p
    return CudaGraphs(str(library)), int(get())


@needs_compiler
def test_every_kind_of_node_is_read(driver: tuple[CudaGraphs, int]) -> None:
    reader, handle = driver
    graph = reader.read(handle)
    fill, kernel, child, host, made, freed, copy, inner = graph.nodes
    assert [node.kind for node in graph.nodes[:6]] == ["memset", "kernel", "child", "host", "mem alloc", "mem free"]
    assert (fill.to, fill.nbytes, fill.value) == (0x7F12_0000_4000, 128, 0xFF)
    assert (kernel.grid, kernel.block, kernel.shared_bytes) == ((4, 5, 6), (32, 2, 1), 1024)
    assert kernel.name.startswith("at::native::relu(float*")
    pointer, factor = (0x7F12_0000_1000).to_bytes(8, "little"), b"\x00\x00\x00\x3f"
    pair = (0x7F12_0000_2000).to_bytes(8, "little")
    whole = pair + (42).to_bytes(8, "little")
    assert kernel.arguments == (ForeignArgument(0, pointer), ForeignArgument(8, factor), ForeignArgument(16, whole))
    assert host.name == "0xabc"
    assert (made.to, made.nbytes, freed.to) == (0x7F13_0000_0000, 512, 0x7F13_0000_0000)
    # the embedded graph, whose kernel has its arguments in one buffer
    assert (copy.kind, copy.child, child.child) == ("memcpy", True, False)
    assert (copy.source, copy.to, copy.nbytes) == (0x5555_0000_1010, 0x7F12_0000_3000, 2 * 256 + 64)
    assert inner.name == "triton_kernel"
    assert inner.arguments == (ForeignArgument(0, pointer), ForeignArgument(8, factor), ForeignArgument(16, pair))
    assert set(graph.edges) == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (6, 7), (2, 6), (7, 3)}


@needs_compiler
def test_what_addresses_are(driver: tuple[CudaGraphs, int]) -> None:
    reader, _ = driver
    assert [reader.memory_kind(address) for address in (0x7F12_0000_0000, 0x7F14_0000_0000, 0x1000)] == [
        "device",
        "managed",
        "",
    ]


@needs_compiler
def test_kernels_that_the_driver_describes_in_another_way_or_not_at_all(
    driver: tuple[CudaGraphs, int], library: Path
) -> None:
    get = ctypes.CDLL(str(library)).fake_odd_graph
    get.restype = ctypes.c_void_p
    hidden, bare, kernel = driver[0].read(int(get())).nodes
    assert hidden.arguments is None, "it has some, and is not taken for one without any"
    assert bare.arguments == ()
    assert kernel.name == "triton_kernel"
    assert [len(argument.data) for argument in kernel.arguments or ()] == [8, 4, 8]


@needs_compiler
def test_a_graph_that_the_driver_does_not_know(driver: tuple[CudaGraphs, int]) -> None:
    reader, _ = driver
    with pytest.raises(ost.BackendError, match="cuGraphGetNodes: CUDA_ERROR_INVALID_VALUE"):
        reader.read(0x10)


def test_without_a_driver() -> None:
    with pytest.raises(ost.DeviceUnavailable, match="no NVIDIA driver"):
        CudaGraphs("libno-such-driver.so.1")


# with torch as it would be


def fake_torch(monkeypatch: pytest.MonkeyPatch, *, snapshot: Any = None, hip: str | None = None) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: snapshot is not None, memory_snapshot=lambda: snapshot)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip)))


@needs_compiler
def test_the_whole_way_from_a_graph_of_torch_to_findings(
    driver: tuple[CudaGraphs, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, handle = driver
    memory = FakeAllocator()
    segment = {"device": 0, "address": 0x7F12_0000_0000, "segment_pool_id": (0, 1), "total_size": 1 << 16}
    state = {"size": 0x2000, "state": "active_allocated"}
    memory.segments = [{**segment, "blocks": [state, {"size": 0x1000, "state": "inactive"}, {**state, "size": 0x3000}]}]
    fake_torch(monkeypatch, snapshot=memory.segments)
    monkeypatch.setattr("ostinato.audit.CudaGraphs", lambda: reader)
    report = torch_graph(FakeGraph(handle))
    found = {finding.kind for finding in report.findings}
    assert found == {"pageable host memory", "allocation inside of the graph", "host function"}
    memory.segments[0]["segment_pool_id"] = (0, 0)
    (freed,) = torch_graph(FakeGraph(handle)).of("freed memory")
    assert freed.nodes == (1, 7), "the pair's first half"


def test_torch_that_has_no_gpu_is_of_amd_or_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    with pytest.raises(ost.LifecycleError, match="has not used a GPU"):
        torch_graph(FakeGraph(1))
    fake_torch(monkeypatch, snapshot=[], hip="7.0")
    with pytest.raises(ost.NotYetAvailable, match="ROCm"):
        torch_graph(FakeGraph(1))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ost.ConfigError, match="torch is not installed"):
        torch_graph(FakeGraph(1))
