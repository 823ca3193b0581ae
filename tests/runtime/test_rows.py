"""The row pool: the longest common beginning, what is thrown away, least recently used, and what other calls do to it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ostinato.ir.types import Array
from ostinato.runtime.rows import Lease, RowPool


def tokens(*parts: tuple[int, int]) -> Array:
    """Runs of equal tokens: (token, times)."""
    return np.concatenate([np.full(times, token, np.int32) for token, times in parts])


def take(pool: RowPool, prompt: Array) -> Lease:
    lease = pool.take(prompt)
    assert lease is not None
    return lease


def fill(pool: RowPool, *contents: Array) -> None:
    """Takes all rows and gives them back in order, with these tokens."""
    leases = [take(pool, np.zeros(0, np.int32)) for _ in contents]
    for lease, content in zip(leases, contents, strict=True):
        pool.give(lease, content)


def test_rows_are_lent_once() -> None:
    pool = RowPool(2)
    first, second = take(pool, tokens((1, 3))), take(pool, tokens((1, 3)))
    assert {first.row, second.row} == {0, 1}
    assert pool.held == 2
    assert pool.take(tokens((1, 3))) is None
    pool.give(second, tokens((1, 3)))
    assert pool.held == 1
    assert take(pool, tokens((2, 3))).row == second.row


def test_the_longest_common_beginning_wins() -> None:
    pool = RowPool(3)
    fill(pool, tokens((1, 4)), tokens((1, 6)), tokens((2, 8)))
    assert take(pool, tokens((1, 6), (3, 2))) == Lease(1, 6, (0, 0))
    assert take(pool, tokens((1, 6), (3, 2))) == Lease(0, 4, (0, 0))


def test_the_last_token_is_never_cached() -> None:
    pool = RowPool(1)
    fill(pool, tokens((1, 5)))
    assert take(pool, tokens((1, 5))).cached == 4
    pool = RowPool(1)
    fill(pool, tokens((1, 5)))
    assert take(pool, tokens((1, 1))).cached == 0


def test_an_empty_row_is_taken_before_a_used_one_and_the_oldest_before_the_newest() -> None:
    pool = RowPool(3)
    fill(pool, tokens((1, 5)), tokens((2, 5)))
    leases = [take(pool, tokens((number, 5))) for number in (7, 8, 9)]
    assert [(lease.row, lease.cached) for lease in leases] == [(2, 0), (0, 0), (1, 0)]


def test_a_row_whose_lease_is_lost_is_free_and_holds_nothing() -> None:
    """As an interrupt loses it, between the taking and the noting."""
    pool = RowPool(1)
    fill(pool, tokens((1, 5)))
    lost = take(pool, tokens((1, 5)))
    assert (lost.cached, pool.held, pool.take(tokens((1, 5)))) == (4, 1, None)
    del lost
    assert pool.held == 0
    assert take(pool, tokens((1, 5))).cached == 0


def test_a_long_conversation_is_not_cut_for_a_short_common_beginning() -> None:
    system = (5, 10)
    pool = RowPool(2)
    fill(pool, tokens((9, 50)), tokens(system, (1, 100)))
    other = take(pool, tokens(system, (2, 20)))
    assert (other.row, other.cached) == (0, 0), "the first conversation keeps its row"
    pool.give(other, tokens(system, (2, 30)))
    again = take(pool, tokens(system, (1, 100), (3, 5)))
    assert (again.row, again.cached) == (1, 110)
    # with one row there is no choice, and what is common is still of use
    pool = RowPool(1)
    fill(pool, tokens(system, (1, 100)))
    assert take(pool, tokens(system, (2, 20))).cached == 10


def test_a_changed_last_message_keeps_its_row() -> None:
    pool = RowPool(2)
    fill(pool, tokens((5, 100), (1, 20)))
    assert take(pool, tokens((5, 100), (2, 7))) == Lease(0, 100, (0, 0))


def test_what_another_call_may_have_written_is_forgotten() -> None:
    pool = RowPool(2)
    fill(pool, tokens((1, 5)), tokens((2, 5)))
    lease = take(pool, tokens((1, 9)))
    assert pool.is_current(lease)
    pool.forget()
    assert not pool.is_current(lease)
    assert take(pool, tokens((2, 9))).cached == 0
    pool.give(lease, tokens((1, 9)))
    assert take(pool, tokens((1, 9))).cached == 0, "given back after it was forgotten"


def test_rows_from_before_a_change_are_of_no_use() -> None:
    changes = 0
    pool = RowPool(2, lambda: changes)
    fill(pool, tokens((1, 5)), tokens((2, 5)))
    lease = take(pool, tokens((1, 9)))
    changes = 1
    assert not pool.is_current(lease)
    assert take(pool, tokens((2, 9))).cached == 0
    pool.give(lease, tokens((1, 9)))
    assert take(pool, tokens((1, 9))).cached == 0


def test_an_empty_prompt_reuses_nothing() -> None:
    pool = RowPool(1)
    fill(pool, tokens((1, 5)))
    assert take(pool, np.zeros(0, np.int32)).cached == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_several_threads_never_hold_one_row(rows: int) -> None:
    pool = RowPool(rows)
    holders = [0] * rows
    wrong: list[int] = []

    def work() -> None:
        for number in range(300):
            lease = pool.take(tokens((number % 5, 4)))
            if lease is None:
                continue
            holders[lease.row] += 1
            if holders[lease.row] != 1:
                wrong.append(lease.row)
            holders[lease.row] -= 1
            pool.give(lease, tokens((number % 5, 4)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.held == 0
