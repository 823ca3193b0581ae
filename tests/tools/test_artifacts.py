"""Artifacts on the command line: `compile --output` writes one, and every command that looks at a program or runs one takes it as MODEL."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.tools.schemas import CompileReport, ErrorReport, ExplainReport, PlanReport, RunReport
from tests.artifact.files import changed
from tests.tools.conftest import Run

ENOUGH = ("--prompt", "hello", "--max-tokens", "6", "--ignore-eos", "--json")


@pytest.fixture(scope="module")
def served(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `compile --output` writes."""
    llm = ost.LLM(tiny, max_num_seqs=1, device="cpu", threads=1)
    return llm.save(tmp_path_factory.mktemp("served") / "tiny.ost")


@pytest.fixture(scope="module")
def calls(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = ost.compile(tiny, buckets={"B": [1], "T": [1, 16]}, device="cpu", threads=1)
    return made.save(tmp_path_factory.mktemp("calls") / "calls.ost")


def test_compile_writes_what_run_uses(ostinato: Run, tiny: Path, served: Path, tmp_path: Path) -> None:
    path = tmp_path / "written.ost"
    report = ostinato("compile", tiny, "--device", "cpu", "--output", path, "--json").report()
    assert isinstance(report, CompileReport)
    assert (report.files, report.stale) == ((str(path),), ())
    assert path.read_bytes() == served.read_bytes()
    expected, found = (ostinato("run", each, *ENOUGH).report() for each in (tiny, path))
    assert isinstance(expected, RunReport)
    assert isinstance(found, RunReport)
    assert found.token_ids == expected.token_ids
    assert len(found.token_ids) == 6


def test_a_standalone_file_needs_no_checkpoint(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    folder, path = tmp_path / "model", tmp_path / "whole.ost"
    shutil.copytree(tiny, folder)
    arguments = ("--standalone", "--sequences", "2", "--context", "64", "--output", path)
    assert ostinato("compile", folder, *arguments).code == 0
    shutil.rmtree(folder)
    found = ostinato("run", path, "--chat", *ENOUGH).report()
    assert isinstance(found, RunReport)
    expected = ostinato("run", tiny, "--chat", "--context", "64", *ENOUGH).report()
    assert isinstance(expected, RunReport)
    assert found.text == expected.text


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        ("explain", "logits"),
        ("explain", "--peak"),
        ("explain", "logits", "--address"),
        ("explain", "logits", "--layout"),
        ("audit",),
        pytest.param(("bench", "--tokens", "8", "--runs", "1"), marks=pytest.mark.slow),
        pytest.param(("profile", "--runs", "1"), marks=pytest.mark.slow),
        pytest.param(("breakeven", "--runs", "8"), marks=pytest.mark.slow),
        ("compile",),
    ],
    ids=str,
)
def test_commands_take_an_artifact(command: tuple[str, ...], ostinato: Run, calls: Path) -> None:
    name, *rest = command
    found = ostinato(name, calls, *rest, "--json")
    assert found.code == 0, found.out
    assert getattr(found.report(), "model", str(calls)) == str(calls)


def test_an_entry_is_chosen_by_its_name(ostinato: Run, served: Path) -> None:
    found = ostinato("explain", served, "logits", "--entry", "decode[R=1]", "--json").report()
    assert isinstance(found, ExplainReport)
    assert (found.entry, {node.op for node in found.nodes}) == ("decode[R=1]", {"linear"})
    wrong = ostinato("explain", served, "--entry", "forward")
    assert wrong.code == 2
    assert "decode[R=1]" in wrong.err


def test_the_plan_is_the_one_that_was_made(ostinato: Run, served: Path) -> None:
    report = ostinato("plan", served, "--json").report()
    assert isinstance(report, PlanReport)
    assert [entry.name for entry in report.entries] == ["prefill[N=256,R=1]", "decode[R=1]"]
    told = " ".join(ostinato("plan", served).out.split())
    assert f"the plan of {served} proven for host" in told


def test_stale_is_told_with_the_way_out_which_works(ostinato: Run, served: Path, tmp_path: Path) -> None:
    path = changed(served, tmp_path / "old.ost", package_version="0.0.9")
    stale = ostinato("run", path, *ENOUGH)
    assert stale.code == 1
    assert "stale_artifact" in stale.out
    told = ostinato("run", path, "--prompt", "hello").err
    assert "library: saved 0.0.9" in told
    assert "--recompile" in told
    assert ostinato("run", path, "--recompile", *ENOUGH).code == 0
    assert path.read_bytes() != served.read_bytes()  # the file stays as it is
    report = ostinato("compile", path, "--recompile", "--output", path, "--json").report()
    assert isinstance(report, CompileReport)
    assert report.stale == (f"library: saved 0.0.9, found {ost.__version__}",)
    assert path.read_bytes() == served.read_bytes()
    assert ostinato("run", path, *ENOUGH).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "--modes", "eager,planned", "--no-operators", "--no-edges", "--replays", "1"),
        ("bisect", "--left", "eager", "--right", "planned", "--runs", "2"),
    ],
    ids=str,
)
def test_sides_are_opened_as_run_opens_an_artifact(
    command: tuple[str, ...], ostinato: Run, tiny: Path, tmp_path: Path
) -> None:
    """One that is stale, and whose checkpoint went elsewhere."""
    shutil.copytree(tiny, tmp_path / "model")
    made = ost.compile(tmp_path / "model", buckets={"B": [1], "T": [16]}, context=16, device="cpu", threads=1)
    path = changed(made.save(tmp_path / "new.ost"), tmp_path / "old.ost", package_version="0.0.9")
    moved = (tmp_path / "model").rename(tmp_path / "elsewhere")
    name, *rest = command
    how = ("--weights", moved, "--recompile", "--trust")
    assert ostinato(name, path, *rest, *how[:2]).code == 1
    assert ostinato(name, path, *rest, *how[2:]).code == 2
    assert ostinato(name, path, *rest, *how).code == 0
    if name == "bisect":
        shapes = ("--shapes", "B=1,T=16", "--context", "16", "--device", "cpu", "--threads", "1")
        assert ostinato(name, tiny, "--left", path, "--right", "planned", *shapes, *how).code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "SERVED", "--prompt", "x", "--policy", "strict"), "which does not take --policy"),
        (("run", "CALLS", "--prompt", "x"), "without --shapes, writes what run takes"),
        (("run", "TINY", "--prompt", "x", "--recompile"), "is no artifact, which --recompile is for"),
        (("bench", "TINY", "--trust"), "is no artifact, which --trust is for"),
        (("compare", "TINY", "--trust"), "no side is an artifact, which trust is for"),
        (("bisect", "TINY", "--recompile", "--weights", "TINY"), "an artifact, which weights, recompile is for"),
        (("compile", "TINY", "--output", "plan.json"), "end it in .ost"),
        (("compile", "TINY", "--standalone"), "--output"),
        (("compile", "TINY", "--shapes", "B=1,T=4", "--sequences", "2"), "give one of them"),
        (("compile", "SERVED", "--context", "8"), "which does not take --context"),
        (("compile", "TINY", "--output", "x.ost", "--logits", "all"), "give --shapes with it"),
        (("explain", "CALLS", "--dims", "N=4,R=1"), "which does not take --dims"),
        (("plan", "CALLS", "--shapes", "B=1,T=4"), "which does not take --shapes"),
        (("run", "absent.ost", "--prompt", "x"), "cannot be read"),
        (("trace", "CALLS"), "saved executable"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...], told: str, ostinato: Run, served: Path, calls: Path, tiny: Path
) -> None:
    places = {"SERVED": str(served), "CALLS": str(calls), "TINY": str(tiny)}
    found = ostinato(*(places.get(argument, argument) for argument in arguments))
    assert found.code == 2
    assert told in " ".join(found.err.split())


def test_errors_are_objects_with_json(ostinato: Run, tmp_path: Path) -> None:
    path = tmp_path / "any.ost"
    path.write_bytes(b"anything")
    found = ostinato("run", path, *ENOUGH)
    assert found.code == 2
    report = found.report()
    assert isinstance(report, ErrorReport)
    assert report.code == "artifact"


@pytest.mark.slow
def test_an_encoder(minilm: str, ostinato: Run, tmp_path: Path) -> None:
    path = tmp_path / "minilm.ost"
    assert ostinato("compile", minilm, "--output", path).code == 0
    texts = ("--prompt", "A cat.", "--prompt", "A bill.", "--json")
    found, expected = (ostinato("run", each, *texts).report() for each in (path, minilm))
    assert getattr(found, "embeddings") == getattr(expected, "embeddings")  # noqa: B009
