"""`ostinato plan problem.csv` on files nobody meant: bytes and cells of valid files changed at random, and options with them.

Whatever the file holds, the command ends with one of its codes and says why: one report, or one error. A report is held against the file that
`--output` wrote, which is read and judged anew.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

from ostinato.planner.problem import Buffer, Problem, Solution, problem_from_csv, problem_to_csv, violations
from ostinato.tools.schemas import ErrorReport, PlacementReport
from tests.tools.conftest import Run

RUNS = 300

NUMBERS: tuple[str, ...] = (
    "0",
    "1",
    "-1",
    "",
    " ",
    "7",
    "+7",
    "1e3",
    "1_0",
    "0x7",
    "٣",
    "nan",
    str(2**31),
    str(2**62),
    str(2**63 - 1),
)
NUMBERS += (str(2**63), str(-(2**63)), "9" * 25)
BYTES = b'0123456789,-"\n\r\0 ax\xff\xc3\xa9\xef\xbb\xbf;\t'
OPTIONS = (
    (),
    ("--capacity", "30"),
    ("--capacity", "0"),
    ("--solver", "best_fit"),
    ("--solver", "exact"),
    ("--threads", "2", "--seed", "7"),
    ("--capacity", "4KiB", "--svg", "placed.svg"),
)


def valid_file(rng: random.Random) -> bytes:
    """A problem of few buffers, some of them aligned or fixed, as a program might write it."""
    buffers = []
    for index in range(rng.randint(0, 8)):
        lower = rng.randint(-3, 9)
        alignment = rng.choice((1, 1, 4, 16))
        offset = alignment * rng.randint(0, 40) if rng.random() < 0.1 else None
        name = f"b{index}" if rng.random() < 0.9 else f"b, {index}"
        buffers.append(Buffer(name, lower, lower + rng.randint(1, 9), rng.randint(0, 40), alignment, offset))
    text = problem_to_csv(Problem(tuple(buffers)))
    text = text.replace("\n", rng.choice(("\n", "\n", "\r\n")))
    return (rng.choice(("", "", "\ufeff")) + text).encode()


def with_other_numbers(data: bytes, rng: random.Random) -> bytes:
    """A number or two replaced by numbers."""
    parts = re.split(rb"(?<=,)(-?\d+)", data)
    for _ in range(rng.randint(0, 2)):
        if len(parts) > 1:
            parts[rng.randrange(1, len(parts), 2)] = str(rng.choice((0, 1, 2, 3, 7, 64, 2**33, 2**62))).encode()
    return b"".join(parts)


def with_other_cells(data: bytes, rng: random.Random) -> bytes:
    """A cell or two replaced, doubled or left out, or a row written twice."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 2)):
        row = rng.randrange(len(lines))
        cells = lines[row].split(b",")
        place = rng.randrange(len(cells))
        change = rng.randrange(5)
        if change == 0:
            del cells[place]
        elif change == 1:
            cells.insert(place, cells[place])
        elif change == 2:
            lines.insert(rng.randrange(len(lines)), lines[row])
            continue
        else:
            cells[place] = rng.choice(NUMBERS).encode()
        lines[row] = b",".join(cells)
    return b"\n".join(lines)


def with_other_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced, put in or left out; or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        change = rng.randrange(4)
        if change == 0:
            changed[place : place + 1] = b""
        elif change == 1:
            changed[place:place] = bytes(rng.choices(BYTES, k=rng.randint(1, 3)))
        else:
            changed[place : place + 1] = bytes([rng.choice(BYTES)])
    return bytes(changed if rng.random() < 0.9 else changed[: rng.randrange(len(changed) + 1)])


def test_any_file_is_answered(ostinato: Run, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path, placed = tmp_path / "problem.csv", tmp_path / "placed.csv"
    seen: Counter[str] = Counter()
    for _ in range(RUNS):
        mutate = rng.choice((with_other_bytes, with_other_cells, with_other_numbers, with_other_numbers))
        data = mutate(valid_file(rng), rng)
        path.write_bytes(data)
        placed.unlink(missing_ok=True)
        options = [str(tmp_path / word) if word.endswith(".svg") else word for word in rng.choice(OPTIONS)]
        arguments = ("plan", str(path), *options, "--nodes", "50", "--output", str(placed))
        result = ostinato(*arguments, "--json")
        report = result.report()
        assert result.err == "", (data, options)
        if isinstance(report, ErrorReport):
            assert (result.code, report.code, placed.exists()) == (2, "config", False), (data, options, report)
            assert len(report.message) < 500
            seen["refused"] += 1
            continue
        assert isinstance(report, PlacementReport)
        assert result.code == (0 if report.fits else 1), (data, options)
        assert report.lower_bound <= report.height
        problem = problem_from_csv(placed.read_text(encoding="utf-8"))
        offsets = tuple(-1 if buffer.offset is None else buffer.offset for buffer in problem.buffers)
        assert violations(problem, Solution(offsets, report.height)) == (), (data, options)
        if rng.random() < 0.1:
            people = ostinato(*arguments)
            assert people.code == result.code
            assert report.status.replace("_", " ") in people.out
        seen[report.status] += 1
    assert seen["refused"] > RUNS / 5, seen
    assert seen["optimal"] > RUNS / 10, seen
    assert seen["infeasible"] > RUNS / 50, seen


def test_errors_are_one_object_in_json_and_two_lines_for_people(ostinato: Run, tmp_path: Path) -> None:
    path = tmp_path / "problem.csv"
    path.write_bytes(b"id,lower,upper,size\na,0,1,\n")
    people = ostinato("plan", str(path))
    assert (people.code, people.out, len(people.err.splitlines())) == (2, "", 2)
    found = json.loads(ostinato("plan", str(path), "--json").out)
    assert found["message"] in people.err
