"""`ostinato.audit.torch_graph` over a fake torch and driver: each fault of a captured graph is named, and a good graph has none."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import Any

import pytest

import ostinato as ost
from ostinato.audit import TorchGraphReport, torch_graph
from ostinato.ir.foreign import ForeignGraph, ForeignNode, short_name
from tests.tools.audit.fakes import (
    OTHER_POOL,
    POOL,
    FakeAllocator,
    FakeDriver,
    FakeGraph,
    FakeTensor,
    audited,
    chain,
    kernel,
)


@pytest.fixture
def memory() -> FakeAllocator:
    return FakeAllocator()


def kinds(report: TorchGraphReport) -> list[tuple[str, str]]:
    return [(finding.severity, finding.kind) for finding in report.findings]


def test_a_good_graph_has_no_findings(memory: FakeAllocator) -> None:
    x, weight = memory.take(), memory.take(1024, line="model.py:7")
    between, y = memory.take(pool=POOL), memory.take(pool=POOL)
    memory.free(between)  # a temporary: the graph's own pool keeps its bytes
    graph = chain(
        ForeignNode("memset", to=between, nbytes=256),
        kernel("gemm", x, weight, between, 64, 0.5),
        kernel("void at::native::relu<float, 4>(float*, float*, int)", between, y, 64),
    )
    report = audited(graph, memory, named={"x": FakeTensor(x), "weight": FakeTensor(weight, (4, 64))})
    assert report.ok
    assert not report.findings
    assert report.counts == {"memset": 1, "kernel": 2}
    assert (report.pool, report.pool_bytes, report.edges) == (POOL, 512, 2)
    places = {
        pointer.address: (pointer.where, pointer.name, pointer.allocated_at) for pointer in report.nodes[1].pointers
    }
    assert places == {
        x: ("live", "x", ""),
        weight: ("live", "weight", "model.py:7"),
        between: ("own pool", "", ""),
    }
    assert [(scalar.integer, scalar.nbytes) for scalar in report.nodes[1].scalars] == [(64, 4), (0x3F000000, 4)]
    assert report.nodes[1].scalars[1].real == 0.5


@pytest.mark.parametrize("state", ["inactive", "active_pending_free", "active_awaiting_free"])
def test_a_freed_input_is_an_error_with_its_line(state: str, memory: FakeAllocator) -> None:
    x, y = memory.take(line="train.py:41"), memory.take(pool=POOL)
    graph = chain(kernel("first", x, y), kernel("second", y), kernel("third", y, x + 128))
    assert audited(graph, memory).ok
    memory.free(x, state)
    (finding,) = audited(graph, memory).findings
    assert (finding.severity, finding.kind, finding.nodes) == ("error", "freed memory", (0, 2))
    assert f"{x:#x}" in finding.message
    assert "train.py:41" in finding.message
    assert "copy_" in finding.hint


def test_pointers_inside_of_structures_are_found(memory: FakeAllocator) -> None:
    """Elementwise kernels of torch get their pointers as an array by value, behind a number."""
    x, y = memory.take(), memory.take(pool=POOL)
    array = b"".join(address.to_bytes(8, "little") for address in (y, x))
    graph = chain(kernel("vectorized_elementwise_kernel", 64, 2.0, array))
    memory.free(x)
    report = audited(graph, memory)
    assert kinds(report) == [("error", "freed memory")]
    assert [(pointer.argument, pointer.offset) for pointer in report.nodes[0].pointers] == [(2, 0), (2, 8)]


def test_a_segment_that_was_given_back_is_told_as_far_as_it_can_be(memory: FakeAllocator) -> None:
    x, y = memory.take(), memory.take(pool=POOL)
    graph = chain(kernel("first", x, y, (1 << 40) + 3))
    memory.release((0, 0))
    report = audited(graph, memory)
    assert kinds(report) == [("warning", "unmapped address")]
    assert [scalar.integer for scalar in report.nodes[0].scalars] == [(1 << 40) + 3], "a large number is no address"


def test_a_temporary_of_another_graph_is_an_error_and_its_live_output_is_not(memory: FakeAllocator) -> None:
    temporary, output = memory.take(pool=OTHER_POOL), memory.take(pool=OTHER_POOL)
    graph = chain(kernel("reads", temporary, output))
    memory.free(temporary)
    report = audited(graph, memory)
    assert kinds(report) == [("error", "another graph's memory")]
    assert [pointer.where for pointer in report.nodes[0].pointers] == ["other pool", "live"]


def test_memory_of_other_allocators_is_a_note(memory: FakeAllocator) -> None:
    y = memory.take(pool=POOL)
    library, managed = 0x7E00_0000_0000, 0x7D00_0000_0000
    graph = chain(kernel("nccl", library, managed, y))
    report = audited(graph, memory, kinds={library: "device", managed: "managed"})
    assert kinds(report) == [("note", "memory of another allocator")] * 2
    assert report.ok


def test_copies_from_ordinary_host_memory_are_errors_and_pinned_ones_notes(memory: FakeAllocator) -> None:
    y = memory.take(pool=POOL)
    pageable, pinned = 0x5555_0000_1000, 0x5555_0000_2000
    graph = chain(
        ForeignNode("memcpy", source=pageable, to=y, nbytes=64),
        ForeignNode("memcpy", source=pinned, to=y, nbytes=64),
        ForeignNode("memcpy", source=y, to=pinned, nbytes=64),
    )
    report = audited(graph, memory, kinds={pinned: "pinned"})
    assert kinds(report) == [("error", "pageable host memory"), ("note", "pinned host memory")]
    assert report.findings[0].nodes == (0,)
    assert report.findings[1].nodes == (1, 2)
    assert "pin_memory" in report.findings[0].hint


def test_nodes_that_do_more_than_work_are_warnings(memory: FakeAllocator) -> None:
    made = 0x7E00_0000_0000
    graph = chain(
        ForeignNode("mem alloc", to=made, nbytes=512),
        kernel("uses", made + 256),
        ForeignNode("mem free", to=made),
        ForeignNode("host", "0x1234"),
        ForeignNode("event wait"),
        ForeignNode("conditional"),
    )
    report = audited(graph, memory)
    assert kinds(report) == [
        ("warning", "allocation inside of the graph"),
        ("warning", "host function"),
        ("warning", "waits for something outside"),
        ("note", "not looked into"),
    ]
    assert report.findings[0].nodes == (0, 2)
    assert report.nodes[1].pointers[0].where == "own pool", "the graph's own allocation"


def test_kernels_whose_arguments_are_not_told_are_said_to_be_unread(memory: FakeAllocator) -> None:
    report = audited(chain(kernel("secret", hidden=True), kernel("plain")), memory)
    assert kinds(report) == [("note", "unreadable arguments")]
    assert [node.readable for node in report.nodes] == [False, True]
    assert "1 kernels hide theirs" in str(report)


# order


def fork(first: ForeignNode, left: ForeignNode, right: ForeignNode, *joins: tuple[int, int]) -> ForeignGraph:
    """Two branches behind a first node."""
    return ForeignGraph((first, left, right), ((0, 1), (0, 2), *joins))


def test_two_writers_without_an_order_are_an_error(memory: FakeAllocator) -> None:
    y = memory.take(pool=POOL)
    fill = ForeignNode("memset", to=y, nbytes=128)
    copy = ForeignNode("memcpy", source=memory.take(), to=y + 64, nbytes=64)
    graph = fork(kernel("first"), fill, copy)
    report = audited(graph, memory)
    (finding,) = report.findings
    assert (finding.severity, finding.kind, finding.nodes) == ("error", "missing edge", (1, 2))
    assert f"write/write at {y + 64:#x}" in finding.message
    assert "wait_stream" in finding.hint
    assert audited(fork(kernel("first"), fill, copy, (1, 2)), memory).ok
    apart = ForeignNode("memcpy", source=memory.take(), to=y + 128, nbytes=64)
    assert not audited(fork(kernel("first"), fill, apart), memory).findings


def test_a_kernel_beside_a_copy_into_what_it_uses_is_an_error(memory: FakeAllocator) -> None:
    y = memory.take(pool=POOL)
    graph = fork(kernel("first"), ForeignNode("memcpy", source=memory.take(), to=y, nbytes=64), kernel("uses", y))
    (finding,) = audited(graph, memory).findings
    assert (finding.kind, finding.nodes) == ("missing edge", (1, 2))
    assert "read/write" in finding.message


def test_two_kernels_of_one_block_without_an_order_are_unknown(memory: FakeAllocator) -> None:
    weight = memory.take()
    graph = fork(kernel("first"), kernel("left", weight), kernel("right", weight + 64))
    report = audited(graph, memory)
    assert kinds(report) == [("note", "unknown order")]
    assert report.ok, "they may both only read"
    assert "unknown" in report.findings[0].message
    memory.segments[0]["segment_pool_id"] = POOL
    memory.free(weight)  # what is left of temporaries: other addresses were other tensors
    assert not audited(graph, memory).findings
    same = fork(kernel("first"), kernel("left", weight), kernel("right", weight))
    assert kinds(audited(same, memory)) == [("note", "unknown order")]


def test_paths_through_other_nodes_are_orders(memory: FakeAllocator) -> None:
    y = memory.take(pool=POOL)
    nodes = (ForeignNode("memset", to=y, nbytes=64), ForeignNode("empty"), kernel("uses", y))
    assert audited(ForeignGraph(nodes, ((0, 1), (1, 2))), memory).ok
    assert not audited(ForeignGraph(nodes, ((0, 1),)), memory).ok


def test_a_cycle_is_said_to_be_one(memory: FakeAllocator) -> None:
    report = audited(ForeignGraph((kernel("a"), kernel("b")), ((0, 1), (1, 0))), memory)
    assert kinds(report) == [("error", "cycle")]


def test_many_parallel_readers_are_one_note(memory: FakeAllocator) -> None:
    weight = memory.take()
    count = 400
    nodes = (kernel("first"), *(kernel(f"reader_{index}", weight) for index in range(count)))
    report = audited(ForeignGraph(nodes, tuple((0, 1 + index) for index in range(count))), memory)
    assert kinds(report) == [("note", "unknown order")]


# names


def test_a_replaced_weight_is_found_by_name(memory: FakeAllocator) -> None:
    """`model.weight = torch.nn.Parameter(new)` after the capture: the graph has the old one's address."""
    x, old = memory.take(), memory.take()
    graph = chain(kernel("gemm", x, old))
    new = memory.take()
    memory.free(old)
    report = audited(graph, memory, named={"x": FakeTensor(x), "weight": FakeTensor(new)})
    assert kinds(report) == [("error", "freed memory"), ("warning", "unused tensor")]
    assert "weight" in report.findings[1].message
    assert "weight.data.copy_(new)" in report.findings[1].hint


def test_a_freed_address_that_another_tensor_got_is_found_by_name(memory: FakeAllocator) -> None:
    x, weight = memory.take(), memory.take()
    graph = chain(kernel("gemm", x, weight))
    memory.free(x)
    memory.free(x, "active_allocated")  # somebody else's now
    assert audited(graph, memory).ok, "the allocator cannot tell"
    report = audited(graph, memory, named={"weight": FakeTensor(weight)})
    assert kinds(report) == [("warning", "unnamed tensor")]
    workspace = memory.take(pool=OTHER_POOL)
    more = audited(chain(kernel("gemm", weight, workspace)), memory, named={"weight": FakeTensor(weight)})
    assert kinds(more) == [("note", "unnamed tensor")], (
        "libraries keep their workspaces in the pool of the first capture"
    )


def test_a_module_names_its_parameters_and_buffers(memory: FakeAllocator) -> None:
    class Module:
        def named_parameters(self) -> list[tuple[str, Any]]:
            return [("layer.weight", FakeTensor(weight, (8, 16)))]

        def named_buffers(self) -> list[tuple[str, Any]]:
            return [("running", FakeTensor(running))]

    weight, running = memory.take(1024), memory.take()
    report = audited(chain(kernel("gemm", weight + 508, running)), memory, named=Module())
    assert [pointer.name for pointer in report.nodes[0].pointers] == ["layer.weight", "running"]
    assert report.ok


# two captures


def test_numbers_that_differ_between_two_captures_are_frozen(memory: FakeAllocator) -> None:
    x, mine, theirs = memory.take(), memory.take(pool=POOL), memory.take(pool=OTHER_POOL)
    graph = chain(kernel("adam", x, mine, 1e-3, 7), kernel("other", mine, 64))
    again = chain(kernel("adam", x, theirs, 5e-4, 8), kernel("other", theirs, 64))
    report = audited(graph, memory, against=again)
    assert kinds(report) == [("warning", "frozen scalar")] * 2
    assert "argument 2 has 0.001 at byte 0 in one capture and 0.0005 in the other" in report.findings[0].message
    assert "argument 3 has 7 at byte 0 in one capture and 8 in the other" in report.findings[1].message
    assert audited(graph, memory, against=chain(kernel("adam", x, theirs, 1e-3, 7), kernel("other", theirs, 64))).ok


@pytest.mark.parametrize(
    ("mine", "theirs", "shown"),
    [
        (
            struct.pack("<ff", 1.0, -1e-3),
            struct.pack("<ff", 1.0, -5e-4),
            "has -0.001 at byte 0 in one capture and -0.0005",
        ),
        (struct.pack("<d", 0.1), struct.pack("<d", 0.2), "has 0.1 at byte 0 in one capture and 0.2"),
        (struct.pack("<q", 7), struct.pack("<q", -8), "has 7 at byte 0 in one capture and -8"),
        (struct.pack("<ii", 4, 5), struct.pack("<ii", 4, 6), "has 5 at byte 0 in one capture and 6"),
        (b"\x01", b"\x02", "has 1 at byte 0 in one capture and 2"),
    ],
)
def test_numbers_are_spelled_as_what_they_seem_to_be(mine: bytes, theirs: bytes, shown: str) -> None:
    report = audited(chain(kernel("k", mine)), FakeAllocator(), against=chain(kernel("k", theirs)))
    assert kinds(report) == [("warning", "frozen scalar")]
    assert shown in report.findings[0].message


def test_what_differs_inside_of_a_large_structure_may_be_padding() -> None:
    mine, theirs = b"\x00" * 32 + b"\x01" * 8, b"\x00" * 32 + b"\x02" * 8
    report = audited(chain(kernel("k", mine)), FakeAllocator(), against=chain(kernel("k", theirs)))
    assert kinds(report) == [("note", "frozen scalar")]
    assert "padding" in report.findings[0].message


def test_addresses_that_tensor_maps_hide_make_an_unused_tensor_a_note(memory: FakeAllocator) -> None:
    x = FakeTensor(memory.take())
    for maps in (1, 3):
        found = audited(chain(kernel("gemm", bytes(128 * maps))), memory, named={"x": x})
        assert kinds(found) == [("note", "unused tensor")]
    assert kinds(audited(chain(kernel("gemm", bytes(64))), memory, named={"x": x})) == [("warning", "unused tensor")]


def test_a_copy_from_a_segment_that_was_given_back_is_no_copy_of_the_host(memory: FakeAllocator) -> None:
    x, y = memory.take(), memory.take(pool=POOL)
    memory.release((0, 0))
    report = audited(chain(ForeignNode("memcpy", source=x, to=y, nbytes=64)), memory)
    assert kinds(report) == [("warning", "unmapped address")]


def test_an_input_that_was_replaced_between_two_captures(memory: FakeAllocator) -> None:
    x, new = memory.take(), memory.take()
    report = audited(chain(kernel("gemm", x)), memory, against=chain(kernel("gemm", new)))
    assert kinds(report) == [("warning", "other address")]
    assert f"{x:#x}" in report.findings[0].message
    assert f"{new:#x}" in report.findings[0].message


def test_other_launches_and_other_nodes(memory: FakeAllocator) -> None:
    first = chain(kernel("a"), kernel("b"), kernel("c"))
    wide = ForeignNode("kernel", "a", (), (8, 1, 1), (128, 1, 1))
    report = audited(first, memory, against=chain(wide, kernel("x"), kernel("y"), kernel("c")))
    assert kinds(report) == [("warning", "other launch"), ("warning", "other nodes")]
    assert "2 (x, y)" in report.findings[1].message


# the report, and what cannot be audited


def test_the_report_prints_as_markdown_and_saves_as_json(memory: FakeAllocator) -> None:
    x, y = memory.take(line="a|b.py:3"), memory.take(pool=POOL)
    graph = chain(kernel("void at::native::(anonymous namespace)::go<int, 3>(int)", x, y), *[kernel("k", y)] * 60)
    memory.free(x)
    report = audited(graph, memory)
    text = report.markdown()
    assert "## Findings" in text
    assert "a\\|b.py:3" in text
    assert "at::native::go" in text
    assert "and 21 more" in text
    assert TorchGraphReport.model_validate_json(report.to_json()) == report
    assert json.loads(report.to_json())["kind"] == "torch_graph"
    assert "1 errors" in str(report)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, F<float>>(int, F<float>)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("sm90_xmma_gemm_f32", "sm90_xmma_gemm_f32"),
        ("void (anonymous namespace)::softmax<10>(float*)", "softmax"),
        ("x" * 80, "x" * 57 + "..."),
    ],
)
def test_names_of_kernels_are_shortened(name: str, short: str) -> None:
    assert short_name(name) == short


def test_what_cannot_be_audited() -> None:
    class NotKept:
        def raw_cuda_graph(self) -> int:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )

    driver = FakeDriver({1: chain()})
    with pytest.raises(ost.LifecycleError, match="does not give the graph: You cannot access") as refused:
        torch_graph(NotKept(), snapshot=[], driver=driver)
    assert "keep_graph=True" in str(refused.value)
    with pytest.raises(ost.LifecycleError, match="nothing was captured"):
        torch_graph(FakeGraph(0), snapshot=[], driver=driver)
    with pytest.raises(ost.InputError, match="no raw_cuda_graph"):
        torch_graph("graph", snapshot=[], driver=driver)
    with pytest.raises(ost.InputError, match="no snapshot"):
        torch_graph(FakeGraph(1), snapshot=[{"blocks": 3}], driver=driver)
    with pytest.raises(ost.InputError, match="named is"):
        torch_graph(FakeGraph(1), snapshot=[], driver=driver, named=3)
    with pytest.raises(ost.InputError, match="x: int is no tensor"):
        torch_graph(FakeGraph(1), snapshot=[], driver=driver, named={"x": 3})
    report = torch_graph(FakeGraph(1), snapshot=[], driver=driver)
    assert report.ok
    assert not report.nodes


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, ostinato; ostinato.audit.torch_graph; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
