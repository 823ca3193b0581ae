"""Problem, solution, bound and CSV, each against a slow and obvious version of itself."""

from __future__ import annotations

import random

import pytest

from ostinato.planner.problem import (
    Buffer,
    Problem,
    ProblemError,
    Solution,
    fixed_collisions,
    granule,
    lower_bound,
    problem_from_csv,
    problem_to_csv,
    violations,
)


def random_problem(
    rng: random.Random, count: int, *, alignments: tuple[int, ...] = (1,), fixed: bool = False
) -> Problem:
    buffers = []
    for index in range(count):
        lower = rng.randrange(20)
        alignment = rng.choice(alignments)
        offset = alignment * rng.randrange(20) if fixed and rng.random() < 0.2 else None
        buffers.append(Buffer(f"b{index}", lower, lower + rng.randint(1, 8), rng.randrange(40), alignment, offset))
    return Problem(tuple(buffers))


def slow_violations(problem: Problem, offsets: tuple[int, ...]) -> bool:
    """Whether any two buffers collide: every pair."""
    placed = list(zip(problem.buffers, offsets, strict=True))
    return any(
        a.overlaps(b) and x < y + b.size and y < x + a.size and a.size and b.size
        for i, (a, x) in enumerate(placed)
        for b, y in placed[:i]
    )


def test_collisions_are_found_exactly(seed: int) -> None:
    rng = random.Random(seed)
    found = {True: 0, False: 0}
    for _ in range(300):
        problem = random_problem(rng, rng.randint(1, 9))
        offsets = tuple(rng.randrange(160) for _ in problem.buffers)
        height = max(o + b.size for o, b in zip(offsets, problem.buffers, strict=True))
        collides = slow_violations(problem, offsets)
        assert bool(violations(problem, Solution(offsets, height))) == collides
        found[collides] += 1
    assert min(found.values()) > 30


def test_collisions_among_many_live_buffers_are_found_exactly(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live buffers are kept in blocks: here of three, so that these are split and emptied."""
    monkeypatch.setattr("ostinato.planner.problem._LONGEST_BLOCK", 3)
    rng = random.Random(seed)
    found = {True: 0, False: 0}
    for _ in range(150):
        count = rng.randint(20, 40)
        places = rng.sample(range(0, 40 * count, 40), count)  # apart
        buffers = [Buffer(f"b{i}", rng.randrange(30), 30 + rng.randrange(30), rng.randint(1, 40)) for i in range(count)]
        if rng.random() < 0.5:
            moved = rng.randrange(count)
            places[moved] += rng.choice((-39, -20, -1, 1, 20))
            places[moved] = max(places[moved], 0)
        problem = Problem(tuple(buffers))
        height = max(o + b.size for o, b in zip(places, buffers, strict=True))
        collides = slow_violations(problem, tuple(places))
        assert bool(violations(problem, Solution(tuple(places), height))) == collides
        found[collides] += 1
    assert min(found.values()) > 15


def test_fixed_offsets_that_collide_are_named_without_a_solution() -> None:
    free = (Buffer("free", 0, 9, 4), Buffer("later", 5, 9, 4, 1, 2))
    assert fixed_collisions(Problem((Buffer("a", 0, 3, 4, 1, 0), Buffer("b", 3, 5, 4, 1, 0), *free))) == ()
    assert fixed_collisions(Problem((Buffer("a", 0, 3, 4, 1, 0), Buffer("b", 2, 5, 4, 1, 3), *free))) == (
        "buffers b [3:7] and a [0:4] share bytes [3:4] while both are alive",
    )


def test_every_kind_of_wrong_solution_is_named() -> None:
    problem = Problem((Buffer("a", 0, 2, 10, 4), Buffer("b", 1, 3, 10, 4, 0)), capacity=20)
    assert violations(problem, Solution((12, 0), 22)) == ("height 22 exceeds the capacity 20",)
    assert violations(problem, Solution((0,), 10)) == ("1 offsets for 2 buffers",)
    assert violations(problem, Solution((8, 0), 19)) == (
        "height 19 is stated, the highest buffer ends at 18",
        "buffers b [0:10] and a [8:18] share bytes [8:10] while both are alive",
    )
    text = "; ".join(violations(problem, Solution((-1, 4), 14)))
    assert "buffer a lies at the negative offset -1" in text
    assert "not a multiple of 4" in text
    assert "buffer b lies at 4, its fixed offset is 0" in text


def test_half_open_lifetimes_may_touch() -> None:
    problem = Problem((Buffer("a", 0, 1, 8), Buffer("b", 1, 2, 8)))
    assert violations(problem, Solution((0, 0), 8)) == ()
    assert lower_bound(problem).height == 8


def test_the_bound_is_the_largest_live_sum(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        problem = random_problem(rng, rng.randint(1, 12))
        bound = lower_bound(problem)
        sums = {t: sum(b.size for b in problem.buffers if b.lower <= t < b.upper) for t in range(30)}
        assert bound.height == max(sums.values())
        if bound.height:
            assert sums[bound.step] == bound.height
            alive = {b.id: b.size for b in problem.buffers if b.lower <= bound.step < b.upper and b.size}
            assert list(bound.tenants) == sorted(bound.tenants, key=lambda name: -alive[name])
            assert set(bound.tenants) == set(alive)


def test_the_bound_counts_padding_below_the_topmost_buffer_only() -> None:
    problem = Problem((Buffer("a", 0, 2, 10, 8), Buffer("b", 0, 2, 3, 8), Buffer("c", 0, 1, 1, 16)))
    assert granule(problem) == 8
    assert lower_bound(problem).height == 16 + 8 + 8 - 7
    assert lower_bound(Problem((Buffer("a", 0, 1, 4, 1, 100),))).height == 104
    assert lower_bound(Problem(())).height == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 0, 1, 1), "empty id"),
        (("a\0", 0, 1, 1), r"id 'a\\x00' has characters that cannot be printed"),
        (("a\ud800", 0, 1, 1), "cannot be printed"),
        (("a", 2, 2, 1), r"lifetime \[2, 2\) is empty or reversed"),
        (("a", 0, 1, -1), "size -1 is negative"),
        (("a", 0, 1, 1, 0), "alignment 0"),
        (("a", 0, 1, 1, 4, 6), "fixed offset 6 is not a multiple of its alignment 4"),
        (("a", 0, 1, 1, 4, -4), "fixed offset -4"),
    ],
)
def test_impossible_buffers_are_refused(arguments: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Buffer(*arguments)


def test_impossible_problems_are_refused() -> None:
    with pytest.raises(ProblemError, match="id a appears twice"):
        Problem((Buffer("a", 0, 1, 1), Buffer("a", 1, 2, 1)))
    with pytest.raises(ProblemError, match="capacity -1"):
        Problem((), -1)


def test_csv_reads_back_to_the_same_problem(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        problem = random_problem(rng, rng.randint(0, 9), alignments=rng.choice([(1,), (1, 4, 16)]), fixed=True)
        text = problem_to_csv(problem)
        assert problem_from_csv(text) == problem
        assert problem_to_csv(problem_from_csv(text)) == text


def test_csv_of_a_solution_fixes_its_offsets() -> None:
    problem = Problem((Buffer("with,comma", 0, 2, 5), Buffer("b", 0, 2, 2**40)))
    text = problem_to_csv(problem, Solution((2**40, 0), 2**40 + 5))
    assert text == f'id,lower,upper,size,offset\n"with,comma",0,2,5,{2**40}\nb,0,2,{2**40},0\n'
    assert [buffer.offset for buffer in problem_from_csv(text).buffers] == [2**40, 0]


def test_csv_takes_columns_in_any_order_blank_lines_and_spaces() -> None:
    text = "\ufeffsize, upper ,lower,id,offset\r\n\r\n 8 ,2,0, a ,\r\n4,3,1,b,8\r\n"
    assert problem_from_csv(text, capacity=12) == Problem(
        (Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 4, 1, 8)), capacity=12
    )


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, None, "empty"),
        ("id,lower,upper\n", 1, None, r"columns \['size'\] are missing"),
        ("id,lower,upper,size,colour\n", 1, 5, "unknown column 'colour'"),
        ("id,lower,upper,size,id\n", 1, 5, "'id' appears twice"),
        ("id,lower,upper,size\na,0,1\n", 2, 4, "expected 4 cells"),
        ("id,lower,upper,size\na,0,1,2,3\n", 2, 5, "expected 4 cells"),
        ("id,lower,upper,size\na,0,1,2\nb,0,x,2\n", 3, 3, "upper: expected a 64-bit integer, found 'x'"),
        ("id,lower,upper,size\na,0,1,1e3\n", 2, 4, "size: expected a 64-bit integer"),
        ("id,lower,upper,size\na,0,1,9223372036854775808\n", 2, 4, "64-bit"),
        ("id,lower,upper,size\na,0,1,٣\n", 2, 4, "64-bit"),
        ("id,lower,upper,size\na,0,1,\n", 2, 4, "found ''"),
        ("id,lower,upper,size\na,5,1,2\n", 2, 3, "empty or reversed"),
        ("id,lower,upper,size\na,0,1,-2\n", 2, 4, "negative"),
        ("id,lower,upper,size\n,0,1,2\n", 2, 1, "empty id"),
        ("id,lower,upper,size,alignment\na,0,1,2,0\n", 2, 5, "alignment 0"),
        ("id,lower,upper,size,alignment,offset\na,0,1,2,4,2\n", 2, 6, "not a multiple"),
        ("id,lower,upper,size\na,0,1,2\n\na,0,1,2\n", 4, 1, "used on line 2 already"),
        ('id,lower,upper,size\n"a,0,1,2\n', None, None, "not CSV"),
    ],
)
def test_bad_csv_names_line_and_column(text: str, line: int | None, column: int | None, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        problem_from_csv(text)
    assert caught.value.column == column
    if line is not None:
        assert caught.value.line == line
        assert str(caught.value).startswith(f"line {line}")


def test_many_rows_are_read_and_the_last_one_is_still_named() -> None:
    rows = "".join(f"b{index},{index},{index + 3},64\n" for index in range(20_000))
    problem = problem_from_csv(f"id,lower,upper,size\n{rows}")
    assert problem.buffers[-1] == Buffer("b19999", 19_999, 20_002, 64)
    with pytest.raises(ProblemError, match=r"^line 20002, column 4: size"):
        problem_from_csv(f"id,lower,upper,size\n{rows}last,0,1,2 bytes\n")
    with pytest.raises(ProblemError, match=r"^line 20002, column 1: id 'b7' was used on line 9 already"):
        problem_from_csv(f"id,lower,upper,size\n{rows}b7,0,1,2\n")


def test_any_text_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    base = "id,lower,upper,size,alignment,offset\na,0,4,16,8,0\nb,2,6,24,8,\n"
    for _ in range(500):
        text = list(base)
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.choice('0123456789,-"\n\r\0 axé')
        try:
            problem = problem_from_csv("".join(text))
        except ProblemError:
            continue
        assert problem_from_csv(problem_to_csv(problem)) == problem
