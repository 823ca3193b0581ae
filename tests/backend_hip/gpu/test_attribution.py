"""Allocation and copy diagnostics, a test for each sentence of their contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ostinato.backend_hip import _native
from ostinato.ir.errors import CapacityError, ConfigError
from tests.backend_hip.gpu.child import run_child


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    _native.clear_diagnostics()
    yield
    _native.set_allocation_diagnostics(False)
    _native.set_copy_diagnostics(False)
    _native.clear_diagnostics()


def test_sources_are_a_fixed_list() -> None:
    assert _native.sources() == [
        "unspecified",
        "model_embedding",
        "model_final_norm",
        "model_output",
        "attention_norm",
        "attention_projection",
        "attention_layout",
        "attention_core",
        "attention_output",
        "attention_residual",
        "ffn_norm",
        "ffn",
        "ffn_residual",
    ]
    with pytest.raises(ConfigError, match="no source"):
        _native.SourceScope("attention")


def test_tags_are_the_thread_s_own_and_come_back() -> None:
    _native.set_allocation_diagnostics(True)
    seen: list[str] = []
    with _native.SourceScope("attention_core"):
        with _native.SourceScope("ffn"):
            assert _native.current_source() == "ffn"
            thread = threading.Thread(target=lambda: seen.append(_native.current_source()))
            thread.start()
            thread.join()
        assert _native.current_source() == "attention_core"
    assert _native.current_source() == "unspecified"
    assert seen == ["unspecified"]


def test_a_scope_that_fails_gives_its_tag_back() -> None:
    _native.set_copy_diagnostics(True)
    with pytest.raises(ZeroDivisionError), _native.SourceScope("ffn"):
        _ = 1 // 0
    assert _native.current_source() == "unspecified"


def test_while_both_are_off_nothing_is_set_and_nothing_kept(device: _native.GpuDevice) -> None:
    with _native.SourceScope("ffn"):
        assert _native.current_source() == "unspecified"
        device.free(device.allocate(64))
        _native.note_strided_copy(4, (2, 3), (1, 2))
    assert _native.allocation_records() == []
    assert _native.copy_records() == []


def test_each_is_turned_on_by_itself(device: _native.GpuDevice) -> None:
    _native.set_allocation_diagnostics(True)
    device.free(device.allocate(64))
    _native.note_strided_copy(4, (2,), (2,))
    assert len(_native.allocation_records()) == 1
    assert _native.copy_records() == []
    _native.set_allocation_diagnostics(False)
    _native.set_copy_diagnostics(True)
    device.free(device.allocate(64))
    _native.note_strided_copy(4, (2,), (2,))
    assert [record[3] for record in _native.allocation_records()] == [1]
    assert len(_native.copy_records()) == 1


def test_requests_are_recorded_by_source_device_and_exact_size_cache_hits_included(device: _native.GpuDevice) -> None:
    _native.set_allocation_diagnostics(True)
    device.pool_enabled = True
    backend = device.counters.backend_allocations
    for source, nbytes in (("ffn", 64), ("ffn", 64), ("ffn", 65), ("attention_core", 64)):
        with _native.SourceScope(source):
            device.free(device.allocate(nbytes))
    assert device.counters.backend_allocations == backend + 2, "two of the four came from the pool"
    assert _native.allocation_records() == [("attention_core", 0, 64, 1), ("ffn", 0, 64, 2), ("ffn", 0, 65, 1)]


def test_strided_copies_are_recorded_with_their_layout() -> None:
    _native.set_copy_diagnostics(True)
    with _native.SourceScope("attention_layout"):
        for _ in range(3):
            _native.note_strided_copy(2, (4, 5), (1, 4))
    _native.note_strided_copy(4, (4, 5), (1, 4))
    assert _native.copy_records() == [
        ("unspecified", 4, (4, 5), (1, 4), 1, 20, 80),
        ("attention_layout", 2, (4, 5), (1, 4), 3, 60, 120),
    ]


def test_impossible_strided_copies_are_refused() -> None:
    with pytest.raises(CapacityError, match="do not fit 64 bits"):
        _native.note_strided_copy(4, (1 << 40, 1 << 40), (1, 1))
    with pytest.raises(CapacityError, match="bytes of a strided copy"):
        _native.note_strided_copy(8, (1 << 62,), (1,))
    with pytest.raises(ConfigError, match="negative"):
        _native.note_strided_copy(4, (-1,), (1,))
    with pytest.raises(ConfigError, match="as many strides"):
        _native.note_strided_copy(4, (1, 2), (1,))


def test_three_processes_give_the_same_records() -> None:
    records = {run_child("diagnostics") for _ in range(3)}
    assert records == {"[('ffn', 0, 64, 2), ('ffn', 0, 4096, 1)] [('ffn', 4, (2, 3), (1, 2), 1, 6, 24)]"}
