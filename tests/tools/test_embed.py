"""The commands on an encoder: `run` embeds, the others look at its one entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.tools import cli
from ostinato.tools.schemas import CompareReport, CompileReport, EmbedReport, PassesReport, PlanReport
from tests.frontend.make_encoders import write_encoder, write_modules


@dataclass(frozen=True, slots=True)
class Output:
    code: int
    out: str
    err: str


Run = Callable[..., Output]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_encoder(tmp_path_factory.mktemp("encoder"), seed=2)
    return write_modules(directory, {"pooling_mode": "cls"}, settings={"max_seq_length": 16})


@pytest.fixture
def run(encoder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the encoder."""

    def call(command: str, *arguments: str) -> Output:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main([command, str(encoder), *arguments])
        out, err = capsys.readouterr()
        return Output(caught.value.code if isinstance(caught.value.code, int) else 0, out, err)

    return call


def test_one_prompt_prints_its_vector(run: Run, encoder: Path) -> None:
    found = run("run", "--prompt", "the France", "--threads", "1")
    assert found.code == 0
    vector = ost.Embedder(encoder, threads=1).encode("the France")
    assert np.allclose([float(number) for number in found.out.split()], vector, atol=1e-7)
    assert "64 numbers, cls pooling" in found.err


def test_several_prompts_print_how_alike_they_are(run: Run) -> None:
    found = run("run", "--prompt", "the France", "--prompt", "the France", "-p", "is " * 40)
    assert found.code == 0
    assert "cosine similarity" in found.out
    assert found.out.count("1.0000") >= 5
    assert "prompt 3 has 16 tokens or more" in found.err


def test_the_report_has_all_of_it(run: Run, encoder: Path) -> None:
    texts = ["the France", "is"]
    found = run("run", *(part for text in texts for part in ("--prompt", text)), "--json", "--threads", "1")
    report = EmbedReport.model_validate_json(found.out, strict=True)
    embedder = ost.Embedder(encoder, threads=1)
    assert (report.dimension, report.pooling, report.normalized, report.max_seq_length) == (64, "cls", False, 16)
    assert (report.precision, report.mode, report.ignored_tensors) == ("f32", "planned", ())
    assert report.tokens == tuple(len(embedder.token_ids(text)) for text in texts)
    vectors = embedder.encode(texts)
    assert np.array_equal(np.array(report.embeddings, np.float32), vectors)
    assert np.array_equal(np.array(report.similarity, np.float32), embedder.similarity(vectors, vectors))


@pytest.mark.parametrize(
    "arguments", [("--max-tokens", "3"), ("--temperature", "0"), ("--chat",), ("--context", "9"), ("--ignore-eos",)]
)
def test_options_of_decoders_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    found = run("run", "--prompt", "the", *arguments)
    assert found.code == 2
    assert arguments[0] in found.err


def test_looking_at_an_encoder(run: Run) -> None:
    plan = PlanReport.model_validate_json(run("plan", "--shapes", "B=2,T=8,16", "--json").out, strict=True)
    assert [entry.name for entry in plan.entries] == ["embed[N=16,R=2]", "embed[N=32,R=2]"]
    compiled = CompileReport.model_validate_json(run("compile", "--shapes", "B=1,T=16", "--json").out, strict=True)
    assert compiled.mode == "planned"
    assert compiled.regions["host:0/state"] == 0
    passes = PassesReport.model_validate_json(run("passes", "--json").out, strict=True)
    assert passes.entry == "embed"
    assert run("trace").out.startswith("graph @embed(")
    compared = CompareReport.model_validate_json(run("compare", "--json").out, strict=True)
    assert compared.ok
    assert {pair.verdict for pair in compared.pairs} == {"within contract", "bit-equal"}
    for command, *arguments in (
        ("plan", "--context", "8"),
        ("compile", "--logits", "all"),
        ("trace", "--context", "8"),
    ):
        refused = run(command, *arguments)
        assert (refused.code, arguments[0] in refused.err) == (2, True)


def test_decoders_take_one_prompt(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", str(tiny), "--prompt", "a", "--prompt", "b", "--json"])
    assert caught.value.code == 2
    assert json.loads(capsys.readouterr().out)["message"] == "expected one prompt, found 2"
