"""The command line end to end in one process: output, JSON against its schema, exit codes."""

from __future__ import annotations

import importlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from ostinato.backend_hip.open import _shows_a_gpu
from ostinato.tools import cli, doctor, loading
from ostinato.tools.schemas import (
    BenchReport,
    CompareReport,
    CompileReport,
    DoctorReport,
    ErrorReport,
    PassesReport,
    PlacementReport,
    PlanReport,
    RunReport,
)
from ostinato.tools.unavailable import UNAVAILABLE
from tests.tools.conftest import Run


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_the_listing_says_what_the_command_says(ostinato: Run, command: cli.Command) -> None:
    assert (command.load().__doc__ or "").splitlines()[0] == command.summary
    assert f"ostinato {command.name}" in " ".join(ostinato(command.name, "--help").out.split()), "help shows an example"


def test_help_and_version(ostinato: Run) -> None:
    assert ostinato("--version").out.startswith("ostinato ")
    text = ostinato("--help").out
    for command in (*(command.name for command in cli.COMMANDS), *UNAVAILABLE):
        assert command in text
        assert ostinato(command, "--help").code == 0


def test_doctor(ostinato: Run) -> None:
    result = ostinato("doctor", "--json")
    report = result.report()
    assert isinstance(report, DoctorReport)
    assert result.code == 0, report.problems
    assert report.native is not None
    assert report.native.isa in report.native.available
    assert Path(report.package_path) == Path(cli.__file__).resolve().parents[1]
    text = ostinato("doctor").out
    assert report.package_path in text.replace("\n", "")
    assert report.gemm_record.path.endswith("vendor_choices.jsonl")
    assert [gpu.platform for gpu in report.gpus] == ["amd", "nvidia"]
    for gpu in report.gpus:
        assert [library.role for library in gpu.libraries] == ["runtime", "compiler", "blas", "collective"]
        assert bool(gpu.cards) != bool(gpu.problem), "either there is a card or it is said why not"
        for library in gpu.libraries:
            assert library.name in text
            assert library.path if library.finding == "found" else library.problem and library.fix


@pytest.mark.parametrize("command", sorted(UNAVAILABLE))
def test_commands_of_later_versions_say_so(ostinato: Run, command: str) -> None:
    result = ostinato(command, "model", "--flag", "3")
    assert result.code == 2
    assert "not yet available" in result.err
    assert result.out == ""
    report = ostinato(command, "--json").report()
    assert isinstance(report, ErrorReport)
    assert report.code == "not_yet_available"


def test_usage_errors_end_with_2(ostinato: Run, tmp_path: Path) -> None:
    for arguments in (
        ("no-such-command",),
        ("run",),
        ("run", "a", "--model", "b", "--prompt", "x"),
        ("run", "a", "--max-tokens", "many", "--prompt", "x"),
        ("plan", "a", "--shapes", "nonsense"),
        ("run", str(tmp_path), "--prompt", "x"),
        ("run", "no-such-model", "--prompt", "x"),
        ("run", "no-such-model"),
        ("compare", "no-such-model", "--modes", "captured"),
    ):
        result = ostinato(*arguments)
        assert result.code == 2, arguments
        assert result.err, arguments
        assert "Traceback" not in result.err


def test_a_missing_native_module_is_named_and_doctor_still_works(
    ostinato: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> object:
        if name == doctor.__name__ or not name.startswith("ostinato."):
            return real(name, package)
        raise ModuleNotFoundError("No module named 'ostinato.backend_hip._native'", name="ostinato.backend_hip._native")

    monkeypatch.setattr(loading, "import_module", missing)
    monkeypatch.setattr("importlib.import_module", missing)
    for arguments in (("plan", "model"), ("doctor", "--conformance")):
        result = ostinato(*arguments)
        assert result.code == 2
        assert "ostinato doctor" in result.err
    result = ostinato("doctor", "--json")
    report = result.report()
    assert isinstance(report, DoctorReport)
    assert (result.code, report.ok, report.native) == (1, False, None)
    assert "native module" in report.problems[0].text
    assert "not ready" in ostinato("doctor").out


def test_errors_are_json_too(ostinato: Run) -> None:
    result = ostinato("plan", "no-such-model", "--json")
    report = result.report()
    assert result.code == 2
    assert isinstance(report, ErrorReport)
    assert report.code == "weights"
    assert "no-such-model" in report.message
    assert report.hint


def test_wrong_options_are_json_too(ostinato: Run) -> None:
    for arguments in (("no-such-command",), ("run",), ("run", "a", "--max-tokens", "many"), ("plan", "a", "--none")):
        result = ostinato(*arguments, "--json")
        report = result.report()
        assert (result.code, result.err) == (2, ""), arguments
        assert isinstance(report, ErrorReport)
        assert report.hint is not None
        assert "--help" in report.hint


def test_output_that_cannot_be_written_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = [sys.executable, "-c", "from ostinato.tools.cli import main; main()", "doctor", "--json"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 2
    assert "cannot be written" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_messages_that_cannot_be_written_are_no_failed_check() -> None:
    command = [sys.executable, "-c", "from ostinato.tools.cli import main; main()", "run", "no such model", "-p", "x"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert subprocess.run(command, stderr=full, check=False).returncode == 2


def test_a_reader_that_has_gone_ends_the_process_quietly() -> None:
    command = [sys.executable, "-c", "from ostinato.tools.cli import main; main()", "doctor"]
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (found.returncode, found.stderr) == (-signal.SIGPIPE, "")


def test_run(ostinato: Run, tiny: Path) -> None:
    arguments = ("run", str(tiny), "--prompt", "hello", "--max-tokens", "5", "--ignore-eos", "--threads", "1")
    result = ostinato(*arguments, "--json")
    report = result.report()
    assert isinstance(report, RunReport)
    assert (result.code, result.err) == (0, "")
    assert len(report.token_ids) == 5
    assert (report.finish_reason, report.mode, report.threads, report.precision) == ("length", "planned", 1, "f32")
    streamed = ostinato(*arguments)
    assert streamed.out.rstrip("\n") == report.text.rstrip("\n")
    assert "tokens/s" in streamed.err
    assert "planned" in streamed.err


def test_run_reads_standard_input_and_names_a_fallback(
    ostinato: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello"), encoding="utf-8"))
    arguments = ("run", str(tiny), "--prompt-file", "-", "--max-tokens", "1")
    result = ostinato(*arguments, "--mode", "captured")
    assert result.code == 0
    assert "captured needs a GPU" in result.err
    monkeypatch.setattr("sys.stdin", None)
    result = ostinato(*arguments)
    assert result.code == 2
    assert "standard input is closed" in result.err
    empty = ostinato("run", str(tiny), "--prompt", "hello", "--max-tokens", "0")
    assert empty.code == 0
    assert "first after" not in empty.err


def test_run_takes_a_prompt_file_and_a_chat_template(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hello", encoding="utf-8")
    plain = ostinato("run", str(tiny), "--prompt-file", str(file), "--max-tokens", "1", "--json").report()
    chat = ostinato("run", str(tiny), "--prompt", "hello", "--chat", "--max-tokens", "1", "--json").report()
    assert isinstance(plain, RunReport)
    assert isinstance(chat, RunReport)
    assert chat.prompt_tokens > plain.prompt_tokens
    for arguments in (("--prompt-file", str(file), "--prompt", "x"), ("--prompt-file", str(tmp_path / "none"))):
        assert ostinato("run", str(tiny), *arguments).code == 2


def test_sampling_repeats_with_its_seed(ostinato: Run, tiny: Path) -> None:
    def tokens(seed: int) -> tuple[int, ...]:
        arguments = (
            "--prompt",
            "hello",
            "--max-tokens",
            "12",
            "--temperature",
            "1",
            "--ignore-eos",
            "--seed",
            str(seed),
            "--json",
        )
        report = ostinato("run", str(tiny), *arguments).report()
        assert isinstance(report, RunReport)
        return report.token_ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_bad_requests_are_typed_errors(ostinato: Run, tiny: Path) -> None:
    for arguments, code in (
        (("--prompt", ""), 2),
        (("--prompt", "x", "--context", "100000"), 2),
        (("--prompt", "x", "--context", "8", "--max-tokens", "64"), 2),
        (("--prompt", "x", "--mode", "fastest"), 2),
        (("--prompt", "x", "--dtype", "int8"), 2),
        (("--prompt", "x", "--top-p", "2"), 2),
        (("--prompt", "x", "--device", "toaster"), 2),
        (("--prompt", "x", "--device", "hip:x"), 2),
    ):
        result = ostinato("run", str(tiny), *arguments)
        assert result.code == code, arguments
        assert "Traceback" not in result.err


@pytest.mark.parametrize("device", ["hip", "hip:1", "hip:9999"])
def test_a_gpu_that_is_not_here(device: str, tiny: Path) -> None:
    """In a process of its own: a vendor's libraries are opened once a process, and this one may have the emulated ones."""
    if _shows_a_gpu() and device != "hip:9999":
        pytest.skip("there is a GPU here")
    command = [sys.executable, "-c", "from ostinato.tools.cli import main; main()", "run", str(tiny), "--prompt", "x"]
    result = subprocess.run([*command, "--device", device], capture_output=True, text=True, check=False)
    assert result.returncode == 3, result.stderr
    assert result.stderr.startswith("error [no_device]"), result.stderr


def test_plan_of_a_model(ostinato: Run, tiny: Path) -> None:
    result = ostinato("plan", str(tiny), "--shapes", "B=1,T=1,16", "--json")
    report = result.report()
    assert isinstance(report, PlanReport)
    assert result.code == 0
    assert [entry.dims["N"] for entry in report.entries] == [1, 16]
    for entry in report.entries:
        assert entry.checked
        assert entry.lower_bound <= entry.arena_bytes <= entry.sum_bytes
        assert entry.gap == pytest.approx(entry.arena_bytes / entry.lower_bound - 1)
    assert report.regions["host:0/arena"] == max(entry.arena_bytes for entry in report.entries)
    text = ostinato("plan", "--model", str(tiny), "--shapes", "B=1,T=1,16").out
    assert "lower bound" in text
    assert "proven" in text


def test_a_gpu_is_planned_for_without_one(ostinato: Run, tiny: Path) -> None:
    report = ostinato("plan", str(tiny), "--shapes", "B=1,T=8", "--target", "gfx942", "--json").report()
    assert isinstance(report, PlanReport)
    assert report.target == "gfx942"
    assert set(report.regions) >= {"hip:0/arena", "hip:0/weights"}


def test_plan_of_a_problem(ostinato: Run, tmp_path: Path) -> None:
    problem = tmp_path / "p.csv"
    problem.write_text("id,lower,upper,size\na,0,2,4\nb,1,3,4\n", encoding="utf-8")
    report = ostinato("plan", str(problem), "--json").report()
    assert isinstance(report, PlacementReport)
    assert (report.height, report.lower_bound, report.status) == (8, 8, "optimal")
    assert ostinato("plan", str(problem), "--capacity", "8").code == 0
    assert ostinato("plan", str(problem), "--capacity", "7").code == 1
    assert "lower bound" in ostinato("plan", str(problem)).out
    for arguments in ((str(problem), "--shapes", "B=1,T=4"), ("no-such-model", "--capacity", "7")):
        result = ostinato("plan", *arguments)
        assert result.code == 2
        assert f"does not take {arguments[1]}" in result.err


def test_compile_dumps_every_stage(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    result = ostinato("compile", str(tiny), "--shapes", "B=1,T=8", "--dump", str(tmp_path / "stages"), "--json")
    report = result.report()
    assert isinstance(report, CompileReport)
    assert (result.code, report.mode) == (0, "planned")
    assert {Path(file).name for file in report.files} >= {"plan.txt", "plan.json"}
    assert all(Path(file).stat().st_size for file in report.files)
    assert "mode planned" in ostinato("compile", str(tiny), "--shapes", "B=1,T=8").out
    assert "mode guarded" in ostinato("compile", str(tiny), "--shapes", "B=1,T=8", "--mode", "guarded").out


def test_trace_and_passes(ostinato: Run, tiny: Path) -> None:
    assert ostinato("trace", str(tiny)).out.startswith("graph @step(dims N in")
    assert ostinato("trace", str(tiny), "--entry", "forward").out.startswith("graph @forward(dims B in")
    report = ostinato("passes", str(tiny), "--dims", "N=8,R=1", "--json").report()
    assert isinstance(report, PassesReport)
    assert "fuse_qkv" in [row.name for row in report.rows]
    text = ostinato("passes", str(tiny), "--dims", "N=8,R=1", "--graph").out
    assert "graph @step" in text
    assert ostinato("passes", str(tiny), "--dims", "N=8").code == 2
    assert "passes of forward" in ostinato("passes", str(tiny), "--entry", "forward", "--dims", "B=1,T=4").out
    for command in ("trace", "plan", "compile", "passes"):
        result = ostinato(command, str(tiny), "--context", "1000000")
        assert result.code == 2
        assert "positions" in result.err


def test_compare(ostinato: Run, tiny: Path) -> None:
    result = ostinato("compare", str(tiny), "--replays", "2", "--json")
    report = result.report()
    assert isinstance(report, CompareReport)
    assert (result.code, report.ok) == (0, True)
    assert {(pair.left, pair.right): pair.verdict for pair in report.pairs}["eager", "planned"] == "bit-equal"
    assert "every contract holds" in ostinato("compare", str(tiny), "--modes", "eager,planned", "--replays", "1").out
    assert "verdict" not in ostinato("compare", str(tiny), "--modes", "eager", "--replays", "1").out
    assert "bit-equal" in ostinato("compare", str(tiny), "--modes", "planned,no-reuse,guarded", "--replays", "1").out
    for command in ("compare", "bench"):
        result = ostinato(command, str(tiny), "--seed", "-1")
        assert result.code == 2
        assert "seed" in result.err


def test_bench(ostinato: Run, tiny: Path) -> None:
    result = ostinato("bench", str(tiny), "--tokens", "8", "--runs", "1", "--threads", "1", "--json")
    report = result.report()
    assert isinstance(report, BenchReport)
    assert result.code == 0
    assert report.prompt_tokens == 8
    assert report.weight_bytes > 0
    assert "GB/s" in ostinato("bench", str(tiny), "--tokens", "8", "--runs", "1").out


def test_an_argument_that_is_no_text_is_refused_before_anything_is_done_with_it(ostinato: Run) -> None:
    for given in (("plan", "model\udcff"), ("plan", "smollm2", "--output", "plan\udcff.json")):
        result = ostinato(*given, "--json")
        assert result.code == 2
        error = result.report()
        assert isinstance(error, ErrorReport)
        assert "\\udcff" in error.message


def test_memory_that_is_not_there_is_an_error_and_no_traceback(ostinato: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(arguments: Sequence[str]) -> typer.Typer:
        raise MemoryError("Unable to allocate 4.00 TiB")

    monkeypatch.setattr(cli, "_build", build)
    result = ostinato("plan", "model", "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert (result.code, report.code) == (2, "capacity")
    assert "4.00 TiB" in report.message
