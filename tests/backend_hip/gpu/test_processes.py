"""What happens to the GPU when a process ends or forks."""

from __future__ import annotations

from tests.backend_hip.gpu.child import run_child


def test_a_process_ends_well_with_live_graphs_memory_and_scopes() -> None:
    assert run_child("exit_with_live_objects") == "4"


def test_the_child_of_a_fork_is_told_at_once() -> None:
    assert run_child("fork") == "3", "each of three uses raised its typed error"


def test_operators_end_well_and_tell_of_a_fork() -> None:
    assert run_child("operators") == "4", "each of four uses raised its typed error, and the CPU's operators ran"
