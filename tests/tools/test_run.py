"""`ostinato run` of a decoder: every sampling option, the report's schema, what the model's authors recommend, a system prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.tools import cli
from ostinato.tools.sampling_options import sampling_params
from ostinato.tools.schemas import RunReport

Reported = Callable[..., RunReport]


@pytest.fixture
def report(tiny: Path, capsys: pytest.CaptureFixture[str]) -> Reported:
    """Runs the command with `--json` and checks its output against the schema."""

    def run(*arguments: str) -> RunReport:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", str(tiny), "--prompt", "hello", "--threads", "1", "--json", *arguments])
        out, err = capsys.readouterr()
        assert (caught.value.code, err) == (0, ""), out
        return RunReport.model_validate_json(out, strict=True)

    return run


LONG = ("--max-tokens", "20", "--ignore-eos")


def test_options_are_parameters_of_the_same_names(tiny: Path, report: Reported) -> None:
    found = report(
        *LONG,
        *("--temperature", "0.9", "--top-k", "30", "--top-p", "0.95", "--min-p", "0.01", "--seed", "5"),
        *("--repetition-penalty", "1.3", "--presence-penalty", "0.4", "--frequency-penalty", "-0.2"),
    )
    llm = ost.LLM(tiny, max_num_seqs=1, threads=1)
    params = ost.SamplingParams(
        max_tokens=20,
        ignore_eos=True,
        temperature=0.9,
        top_k=30,
        top_p=0.95,
        min_p=0.01,
        seed=5,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=-0.2,
    )
    (expected,) = llm.generate("hello", params)
    assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
    assert (found.finish_reason, found.stop_reason, found.logprobs) == ("length", None, None)


def test_stop_strings_and_tokens_end_the_text(report: Reported) -> None:
    whole = report(*LONG)
    stop = whole.text[5:8]
    found = report(*LONG, "--stop", "never", "--stop", stop)
    assert found.text == whole.text[: whole.text.find(stop)]
    assert (found.finish_reason, found.stop_reason) == ("stop", stop)
    token = whole.token_ids[4]
    found = report(*LONG, "--stop-token", str(token))
    assert found.stop_reason == token
    assert found.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    found = report(*LONG, "--stop-token", str(token), "--min-tokens", "20")
    assert len(found.token_ids) == 20
    assert token not in found.token_ids


def test_log_probabilities_are_in_the_report(report: Reported) -> None:
    found = report("--max-tokens", "3", "--ignore-eos", "--logprobs", "2")
    assert found.logprobs is not None
    assert [choices[0].token for choices in found.logprobs] == list(found.token_ids)
    for choices in found.logprobs:
        assert len(choices) == 2, "greedy: the chosen one is the likeliest"
        assert choices[0].rank == 1
        assert choices[0].logprob >= choices[1].logprob
        assert isinstance(choices[0].text, str)


def test_a_system_prompt_is_part_of_the_conversation(report: Reported, capsys: pytest.CaptureFixture[str]) -> None:
    plain, told = report("--chat", *LONG), report("--chat", "--system", "Be brief.", *LONG)
    assert told.prompt_tokens > plain.prompt_tokens
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "no-such-model", "--prompt", "x", "--system", "y"])
    assert caught.value.code == 2
    assert "use it with --chat" in capsys.readouterr().err


def test_a_default_number_of_tokens_is_capped_to_the_context(report: Reported) -> None:
    found = report("--context", "12", "--ignore-eos")
    assert len(found.token_ids) == 12 - found.prompt_tokens + 1


def test_what_is_not_given_is_what_the_authors_recommend(tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).symlink_to(file)
    plain = sampling_params(ost.load(tmp_path), {"top_k": None, "seed": 3}, 128)
    assert (plain.temperature, plain.max_tokens, plain.seed, plain.top_k) == (0.0, 128, 3, 0)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"temperature": 0.7, "top_k": 20, "top_p": 1.5, "max_new_tokens": 400}), encoding="utf-8"
    )
    model = ost.load(tmp_path)
    told = sampling_params(model, {"top_k": 5, "top_p": 0.9, "temperature": None}, 128)
    assert (told.temperature, told.top_k, told.top_p, told.max_tokens) == (0.7, 5, 0.9, 400)
    with pytest.raises(ost.ConfigError, match=r"top_p is 1\.5"):
        sampling_params(model, {}, 128)
