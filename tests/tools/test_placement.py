"""`ostinato plan problem.csv`: what it finds, says and writes, and what it refuses before it solves anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from ostinato.ir.errors import ConfigError, PlanError
from ostinato.planner.problem import Bound, Problem, Solution, problem_from_csv, violations
from ostinato.planner.solvers import Limits, Outcome, Status
from ostinato.tools import placement
from ostinato.tools.console import Steps, output, processors
from ostinato.tools.placement import limits_of, place_file, show_placement
from ostinato.tools.schemas import ErrorReport, PlacementReport
from tests.tools.conftest import Run

FIVE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"
PROVEN = "id,lower,upper,size,alignment\na,2,4,2,2\nb,0,3,1,4\nc,2,3,8,4\n"
"""Lowest at 12 because of alignments, where 11 bytes are alive: known by search alone."""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "problem.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def crowd() -> str:
    """Alignments that do not divide each other: neither is the lowest placement found soon nor soon proven."""
    rows = (f"b{i},{i % 8},{i % 8 + 1 + i % 6},{7 * i % 36 + 5},{(4, 6, 9)[i % 3]}\n" for i in range(60))
    return "id,lower,upper,size,alignment\n" + "".join(rows)


def place(path: Path, *, capacity: int | None = None, nodes: int = 10_000, solver: str = "native") -> PlacementReport:
    return place_file(path, capacity=capacity, solver=solver, limits=Limits(nodes), steps=Steps(None))


@pytest.fixture
def unsolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test whose command comes to solving."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("it came to the solver")

    monkeypatch.setattr(placement, "solve", refuse)


# what it finds


@pytest.mark.parametrize("solver", ["native", "best_fit", "exact"])
def test_a_problem_is_solved_written_back_and_drawn(ostinato: Run, tmp_path: Path, solver: str) -> None:
    path, placed, picture = write(tmp_path, FIVE), tmp_path / "new" / "placed.csv", tmp_path / "placed.svg"
    files = ("--output", str(placed), "--svg", str(picture))
    report = ostinato("plan", str(path), "--capacity", "12", "--solver", solver, *files, "--json").report()
    assert isinstance(report, PlacementReport)
    assert (report.height, report.lower_bound, report.bound_by, report.gap, report.status) == (
        12,
        12,
        "load",
        0,
        "optimal",
    )
    assert (report.buffers, report.sum_bytes, report.capacity, report.fits, report.missing_bytes) == (
        5,
        20,
        12,
        True,
        0,
    )
    assert (report.peak_bytes, len(report.peak_buffers), report.peak_sizes) == (12, 3, (4, 4, 4))
    assert (report.checked, report.files) == (True, (str(placed), str(picture)))
    problem = problem_from_csv(placed.read_text())
    offsets = tuple(buffer.offset for buffer in problem.buffers if buffer.offset is not None)
    assert violations(problem, Solution(offsets, 12)) == ()
    assert picture.read_text().count('class="slot') == 5


def test_a_placed_problem_is_a_problem_that_says_how_high_it_is(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,4,10\n")
    report = ostinato("plan", str(path), "--json").report()
    assert isinstance(report, PlacementReport)
    assert (report.height, report.lower_bound, report.bound_by, report.status) == (14, 14, "fixed", "optimal")
    result = ostinato("plan", str(path), "--capacity", "9")
    assert result.code == 1
    assert (
        "No placement fits into 9 bytes: a buffer is fixed so that it ends at 14, 5 more than the capacity."
        in result.out
    )


def test_an_empty_problem_is_solved(ostinato: Run, tmp_path: Path) -> None:
    report = place(write(tmp_path, "id,lower,upper,size\n"), capacity=0)
    assert (report.buffers, report.height, report.lower_bound, report.status) == (0, 0, 0, "optimal")
    result = ostinato("plan", str(tmp_path / "problem.csv"), "--svg", str(tmp_path / "nothing.svg"))
    assert result.code == 0
    assert "nothing is alive at any time" in result.out


def test_a_report_for_people_has_every_fact(ostinato: Run, tmp_path: Path) -> None:
    rows = "".join(f"b{index},0,4,{index}\n" for index in range(1, 10))
    out = ostinato("plan", str(write(tmp_path, f"id,lower,upper,size\n{rows}{'x' * 100},3,4,100\n"))).out
    assert "10 buffers, 145 bytes in all" in out
    assert "145, the most that is alive at one time" in out
    assert "optimal: no placement is lower" in out
    assert f"at time 3, 145 bytes: {'x' * 39}… (100), b9 (9), b8 (8), b7 (7), b6 (6), b5 (5) and 4 more" in out
    assert "native/" in out
    assert f"10 s (the default); {processors()} threads, seed 0" in out
    assert "no two buffers share a byte" in out


def test_a_capacity_below_the_load_names_the_peak_and_what_is_missing(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, FIVE)
    result = ostinato("plan", str(path), "--capacity", "11", "--json")
    report = result.report()
    assert isinstance(report, PlacementReport)
    assert (result.code, report.status, report.fits, report.missing_bytes) == (1, "infeasible", False, 1)
    text = ostinato("plan", str(path), "--capacity", "11").out
    sentence = "at time 0, 3 buffers of 12 bytes are alive, 1 more than the capacity."
    assert f"No placement fits into 11 bytes: {sentence}" in text
    aligned = write(tmp_path, "id,lower,upper,size,alignment\na,0,2,10,16\nb,0,2,10,16\n")
    text = ostinato("plan", str(aligned), "--capacity", "25").out
    assert "2 buffers of 20 bytes are alive and take 26 when aligned, 1 more than the capacity." in text


def test_a_capacity_that_only_a_search_refutes_says_so(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, PROVEN)
    assert place(path).bound_by == "search"
    result = ostinato("plan", str(path), "--capacity", "11")
    assert result.code == 1
    assert (
        "a search proved that 12 are needed, 1 more than the capacity; at time 2, 3 buffers of 11 bytes" in result.out
    )
    assert "12, proven by search" in result.out


def test_what_is_known_is_said_in_words(ostinato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a search may come to: a solver's answers are given here."""
    path = write(tmp_path, "id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
    known: dict[str, tuple[Status, int, tuple[str, ...], int]] = {
        "optimal: no placement is lower": (Status.OPTIMAL, 8, (), 0),
        "feasible: the search ended; no placement is more than 20.00% lower": (Status.FEASIBLE, 12, (), 0),
        "timeout: time ran out; no placement is more than 20.00% lower": (Status.TIMEOUT, 12, ("--capacity", "20"), 0),
        "over capacity: the search ended; the lowest placement found is 1 too high, whether one fits is not known": (
            Status.OVER_CAPACITY,
            12,
            ("--capacity", "19"),
            1,
        ),
        "timeout: time ran out; the lowest placement found is 1 too high": (
            Status.TIMEOUT,
            12,
            ("--capacity", "19"),
            1,
        ),
    }
    for words, (status, place_of_b, options, code) in known.items():

        def answer(*_: object, status: Status = status, offset: int = place_of_b) -> Outcome:
            return Outcome(Solution((0, offset), offset + 8), Bound(16, 1, ("a", "b")), "given", status, 1234)

        monkeypatch.setattr(placement, "solve", answer)
        result = ostinato("plan", str(path), *options)
        assert result.code == code
        assert words in result.out
        assert "given, 1 234 search nodes" in result.out


def test_limits_of_the_search() -> None:
    assert limits_of(None, None, 0, 0) == Limits(None, placement.DEFAULT_SECONDS, processors(), 0)
    assert limits_of(None, 7, 2, 5) == Limits(7, None, 2, 5)
    assert limits_of(0.5, None, 1, -1) == Limits(None, 0.5, 1, -1)
    assert limits_of(0.5, 7, 1, 0) == Limits(7, 0.5, 1, 0)
    with pytest.raises(ConfigError, match="nan"):
        limits_of(float("nan"), None, 1, 0)


def test_nodes_and_seed_decide_and_threads_do_not(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, crowd())
    reports = []
    for threads in ("1", "3"):
        limits = ("--nodes", "300", "--seed", "5", "--threads", threads)
        report = ostinato("plan", str(path), *limits, "--output", str(tmp_path / f"{threads}.csv"), "--json").report()
        assert isinstance(report, PlacementReport)
        assert (report.node_limit, report.time_limit, report.seed, report.threads) == (300, None, 5, int(threads))
        reports.append(report.model_copy(update={"seconds": 0.0, "threads": 0, "files": ()}))
    assert reports[0] == reports[1]
    assert (tmp_path / "1.csv").read_text() == (tmp_path / "3.csv").read_text()


def test_sizes_of_options_are_texts_too(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "id,lower,upper,size\na,0,1,2048\n")
    for text, capacity, code in (("2K", 2048, 0), ("2 kB", 2000, 1), ("1.5MiB", 3 << 19, 0), ("0", 0, 1)):
        result = ostinato("plan", str(path), "--capacity", text, "--json")
        report = result.report()
        assert isinstance(report, PlacementReport)
        assert (result.code, report.capacity) == (code, capacity)


def test_a_solution_that_breaks_the_definition_is_never_reported(
    ostinato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(problem: Problem, *_: object) -> Outcome:
        return Outcome(Solution((0,) * len(problem.buffers), 4), Bound(4, 0, ()), "wrong", Status.OPTIMAL)

    monkeypatch.setattr(placement, "solve", wrong)
    path = write(tmp_path, FIVE)
    with pytest.raises(PlanError, match="share bytes"):
        place(path)
    assert ostinato("plan", str(path), "--svg", str(tmp_path / "wrong.svg")).code == 1
    assert not (tmp_path / "wrong.svg").exists()


# what it refuses

HEADER = "id,lower,upper,size\n"
DAMAGED: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "line 1: the text is empty"),
    "blank lines": ("\n \r\n\n", "the text is empty"),
    "a column is missing": ("id,lower,upper\nb1,0,3\n", r"line 1: columns \['size'\] are missing"),
    "a column is unknown": ("id,lower,upper,size,colour\n", "line 1, column 5: unknown column 'colour'"),
    "semicolons": ("id;lower;upper;size\n", "line 1, column 1: unknown column"),
    "no header": ("b1,0,3,4\n", "line 1, column 1: unknown column 'b1'"),
    "a cell is missing": (f"{HEADER}b1,0,3\n", "line 2, column 4: expected 4 cells"),
    "a cell too many": (f"{HEADER}b1,0,3,4,5\n", "line 2, column 5: expected 4 cells"),
    "no number": (f"{HEADER}b1,0,x,4\n", "line 2, column 3: upper: expected a 64-bit integer, found 'x'"),
    "a fraction": (f"{HEADER}b1,0,3,4.5\n", "line 2, column 4: size"),
    "not finite": (f"{HEADER}b1,0,3,inf\n", "line 2, column 4: size"),
    "hexadecimal": (f"{HEADER}b1,0,3,0x10\n", "line 2, column 4: size"),
    "underscores": (f"{HEADER}b1,0,3,1_000\n", "line 2, column 4: size"),
    "negative": (f"{HEADER}b1,0,3,-4\n", "line 2, column 4: buffer b1: size -4 is negative"),
    "beyond 64 bits": (f"{HEADER}b1,0,3,{2**63}\n", "line 2, column 4: size: expected a 64-bit integer"),
    "thousands of digits": (f"{HEADER}b1,0,3,{'9' * 5000}\n", r"line 2, column 4: size: .*9'\.\.\."),
    "sums beyond 64 bits": (f"{HEADER}a,0,3,{2**62}\nb,1,3,{2**62}\n", r"\[0, 3\) could end above 2\^63 - 1"),
    "reversed": (f"{HEADER}b1,3,1,4\n", r"line 2, column 3: buffer b1: lifetime \[3, 1\) is empty or reversed"),
    "empty life": (f"{HEADER}b1,3,3,4\n", "line 2, column 3: buffer b1: lifetime"),
    "twice": (f"{HEADER}b1,0,3,4\nb2,0,3,4\nb1,0,3,4\n", "line 4, column 1: id 'b1' was used on line 2 already"),
    "no id": (f"{HEADER},0,3,4\n", "line 2, column 1: a buffer has an empty id"),
    "alignment": ("id,lower,upper,size,alignment\nb1,0,3,4,0\n", "line 2, column 5: buffer b1: alignment 0"),
    "offset": ("id,lower,upper,size,offset\nb1,0,3,4,-4\n", "line 2, column 5: buffer b1: fixed offset -4"),
    "an open quote": (f'{HEADER}"b1,0,3,4\n', "line 2: not CSV"),
    "text after a quote": (f'{HEADER}"b"1,0,3,4\n', "line 2: not CSV"),
    "a huge cell": (f"{HEADER}{'b' * 200_000},0,3,4\n", "line 2: not CSV: field larger than field limit"),
    "a byte of zeros": (f"{HEADER}b\0,0,3,4\n", r"line 2, column 1: id 'b\\x00' has characters that cannot be printed"),
    "a byte of zeros in a number": (f"{HEADER}b1,0,3,4\0\n", r"line 2, column 4: size: .* found '4\\x00'"),
    "an escape sequence": (f"{HEADER}b\x1b[2J,0,3,4\n", "line 2, column 1: id .* cannot be printed"),
    "Latin-1": ("id,lower,upper,size\né,0,3,4\n".encode("latin-1"), "is not UTF-8 text"),
    "UTF-16": (HEADER.encode("utf-16"), "is not UTF-8 text"),
    "UTF-16 without its mark": (HEADER.encode("utf-16-le"), "line 1, column 1: unknown column"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not UTF-8 text"),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_say_what_and_where(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        place(write(tmp_path, text))
    assert str(tmp_path / "problem.csv") in str(caught.value)
    assert caught.value.hint is not None
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        FIVE.removesuffix("\n"),
        FIVE.replace("\n", "\r\n"),
        FIVE.replace("\n", "\r"),
        "\ufeff" + FIVE,
        "\ufeff" + FIVE.replace("id,", '"id",'),
        FIVE.replace("b1", '"b,""1"'),
        FIVE.replace("b1", " Ω ").upper(),
        FIVE.replace(",", " , "),
        FIVE.replace("\n", "\n\n"),
    ],
    ids=["no last newline", "CRLF", "CR", "BOM", "BOM and quotes", "quoted id", "capitals", "spaces", "blank lines"],
)
def test_files_of_other_programs_are_read(tmp_path: Path, text: str) -> None:
    report = place(write(tmp_path, text))
    assert (report.buffers, report.height, report.status) == (5, 12, "optimal")


@pytest.mark.usefixtures("unsolved")
def test_fixed_offsets_that_collide_are_refused_before_solving(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "id,lower,upper,size,offset\na,0,3,4,0\nfree,0,9,4,\nb,2,5,4,2\nc,3,5,4,0\nd,2,3,1,3\n")
    result = ostinato("plan", str(path), "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert (result.code, report.code, report.node) == (2, "config", str(path))
    assert "fixed offsets collide: buffers b [2:6] and a [0:4] share bytes [2:4] while both are alive" in report.message
    assert "and 1 more" in report.message


@pytest.mark.usefixtures("unsolved")
def test_places_that_cannot_be_written_are_refused_before_solving(ostinato: Run, tmp_path: Path) -> None:
    path = write(tmp_path, FIVE)
    before = sorted(tmp_path.rglob("*"))
    for option in ("--output", "--svg"):
        for place in (path / "below.csv", tmp_path, tmp_path / ("x" * 300)):
            result = ostinato("plan", str(path), option, str(place))
            assert result.code == 2
            assert "cannot be written" in result.err
    result = ostinato("plan", str(path), "--output", str(tmp_path / "one"), "--svg", str(tmp_path / "one"))
    assert result.code == 2
    assert "written twice" in result.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("unsolved")
def test_what_is_no_file_of_a_reasonable_size_is_refused(
    ostinato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pipe = tmp_path / "folder.csv", tmp_path / "pipe.csv"
    folder.mkdir()
    os.mkfifo(pipe)
    for path, message in (
        (tmp_path / "none.csv", "cannot be read"),
        (folder, "not a file"),
        (pipe, "not a file"),
        (tmp_path / f"{'x' * 300}.csv", "cannot be read"),
        (tmp_path / "\0.csv", "cannot be read"),
    ):
        result = ostinato("plan", str(path))
        assert (result.code, message in result.err) == (2, True), (path, result.err)
    path = write(tmp_path, FIVE)
    monkeypatch.setattr(placement, "MOST_BYTES", 20)
    result = ostinato("plan", str(path))
    assert result.code == 2
    assert f"has {len(FIVE)} bytes; a problem has at most 20" in result.err


def test_options_that_make_no_sense_are_refused(ostinato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, FIVE)
    for option, value in (
        ("--capacity", "-1"),
        ("--capacity", "many"),
        ("--time", "-1"),
        ("--time", "nan"),
        ("--time", "soon"),
        ("--nodes", "-1"),
        ("--nodes", "1.5"),
        ("--threads", "-1"),
        ("--seed", "x"),
        ("--solver", "oracle"),
        ("--memory-limit", "1M"),
        ("--check", "plan.json"),
    ):
        result = ostinato("plan", str(path), option, value)
        assert (result.code, "Traceback" in result.err, bool(result.err)) == (2, False, True), (option, value)
    monkeypatch.setattr(placement, "MOST_IN_PYTHON", 4)
    result = ostinato("plan", str(path), "--solver", "exact")
    assert result.code == 2
    assert "takes at most 4 buffers" in result.err


INTERRUPTED = """
import sys
from ostinato.tools import cli, placement
solve = placement.solve
def begin(*arguments):
    print("begun", flush=True)
    return solve(*arguments)
placement.solve = begin
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
def test_ctrl_c_ends_the_command_as_it_ends_others(tmp_path: Path, as_json: tuple[str, ...]) -> None:
    path = write(tmp_path, crowd())
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, "plan", str(path), "--time", "600", *as_json],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_a_picture_of_very_many_buffers_draws_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.tools.view.arena._MOST_DRAWN", 3)
    rows = "".join(f"b{index},{index},{index + 2},{index % 50}\n" for index in range(2000))
    picture = tmp_path / "many.svg"
    path = write(tmp_path, f"id,lower,upper,size\n{rows}")
    place_file(path, limits=Limits(0), picture=picture, steps=Steps(None))
    text = picture.read_text()
    assert text.count('class="slot') == 3
    assert "the 3 largest of 2000 slots" in text
    assert text.count("), 49 B") == 3


def test_the_report_is_plain_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_placement(place(write(tmp_path, FIVE.replace("b1", "[red]b1[/]"))), output())
    assert "[red]b1[/]" in capsys.readouterr().out
