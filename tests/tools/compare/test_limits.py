"""What a comparison allows, and what it says that it did not try."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.types import Array
from ostinato.tools.compare.comparison import compare
from ostinato.tools.compare.judgement import SENSITIVE, TOLERANCE
from ostinato.tools.compare.page import comparison_page
from ostinato.tools.compare.report import CompareReport, PairVerdict
from ostinato.tools.compare.runs import Answers, SideRun
from ostinato.tools.compare.show import comparison_markdown
from ostinato.tools.compare.sides import Side
from ostinato.tools.compare.verdicts import Ran, first_wrong_step, judge
from ostinato.tools.compare.workload import Case
from ostinato.tools.fresh_process import ask
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.small_families import small_model

ROWS = 16
CASES = (Case("random", (np.zeros(ROWS, np.int32),), (ROWS,)),)


def side(name: str, values: Array, precision: str = "f32") -> Ran:
    answers = Answers(tuple((0, 0, at) for at in range(len(values))), values, tuple(range(len(values))), "logits")
    return Ran(Side(name), None, SideRun(answers, None, (0.0,), 0.0, None), name, precision)


def verdict(errors: dict[int, float], precision: str = "f32", tolerance: float | None = None) -> PairVerdict:
    """Of two functions whose rows differ at one element each, by so many times the tolerance."""
    values = np.random.default_rng(0).normal(size=(ROWS, 50)).astype(np.float32)
    other = values.copy()
    for row, times in errors.items():
        other[row, 7] += times * TOLERANCE[precision] * float(values.std())
    left, right = side("left", values, precision), side("right", other, precision)
    pair = judge(left, right, CASES, tolerance)
    if not pair.ok:
        assert first_wrong_step(left.run.answers, right.run.answers, pair.tolerance) == min(errors)
    return pair


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_few_rows_may_be_sensitive_and_many_may_not(precision: str) -> None:
    assert verdict(dict.fromkeys(range(ROWS), 0.9), precision).ok
    assert verdict({3: 0.9 * SENSITIVE}, precision).ok, "a row that the model is sensitive on"
    assert not verdict({3: 1.1 * SENSITIVE}, precision).ok
    assert verdict(dict.fromkeys(range(ROWS // 4), 1.5), precision).ok
    pair = verdict(dict.fromkeys(range(2, 3 + ROWS // 4), 1.5), precision)
    assert pair.verdict == "mismatch"
    assert pair.worst is not None
    assert pair.worst.difference > pair.tolerance, "what is told as allowed is what was not kept"


def test_a_tolerance_that_is_given_counts_for_every_row() -> None:
    assert verdict({3: 0.9}, tolerance=TOLERANCE["f32"]).ok
    assert not verdict({3: 1.1}, tolerance=TOLERANCE["f32"]).ok
    assert verdict({}, tolerance=0.0).verdict == "bit-equal"
    assert not verdict({3: 0.5}, tolerance=0.0).ok


def test_one_percent_in_a_head_is_found_at_the_outputs(tmp_path: Path) -> None:
    """The queries of one head of one layer, by a function, of which nothing but the outputs is seen."""
    config = small_config("llama")
    tensors = random_model(config, 3)
    wrong = dict(tensors)
    name = "model.layers.1.self_attn.q_proj.weight"
    wrong[name] = tensors[name].copy()
    wrong[name][: wrong[name].shape[0] // config["num_attention_heads"]] *= 1.01
    for folder, weights in (("right", tensors), ("wrong", wrong)):
        write_hf_checkpoint(tmp_path / folder, config, weights)

    def logits(folder: str) -> Callable[[Array], Array]:
        oracle = ost.compile(
            str(tmp_path / folder), buckets={"B": [1], "T": [16]}, context=16, logits="all", device="cpu", threads=1
        )

        def of(ids: Array) -> Array:
            found: Array = oracle([ids.tolist()])["logits"][0]
            return found

        return of

    model = str(tmp_path / "right")
    for folder, ok in (("right", True), ("wrong", False)):
        report = compare(model, ["planned", logits(folder)], replays=1, operators=False, device="cpu", threads=1)
        assert report.ok is ok, str(report)


@pytest.mark.parametrize("family", ["llama", "gemma", "phi3"])
def test_bf16_beside_f32_is_no_mismatch(family: str, tmp_path: Path) -> None:
    model = small_model(family, tmp_path, 11)
    report = compare(model, ["planned", "dtype=bf16"], replays=1, operators=False, device="cpu", threads=1)
    assert report.ok, str(report)


def test_what_the_work_did_not_reach_is_said(tmp_path: Path) -> None:
    model = small_model("mistral", tmp_path, 1, sliding_window=64)
    executable = ost.compile(model, buckets={"B": [1], "T": [8, 32, 128]}, context=128, device="cpu", threads=1)

    def run(tokens: int | None) -> CompareReport:
        return compare(executable, ["planned"], tokens=tokens, replays=1, operators=False)

    report = run(None)
    said = "\n".join(report.not_covered)
    assert "positions from 16 on, of 128" in said
    assert "the edge of a window of 64 tokens" in said
    assert "several sequences at once" in said
    assert any(name in said for name in executable.entries), "no step had that many tokens"
    assert "another side" in said
    for text in (str(report), comparison_markdown(report), comparison_page(report)):
        assert "positions from 16 on, of 128" in text
    wide = "\n".join(run(128).not_covered)
    assert not [word for word in ("positions", "window", "entries") if word in wide], wide


def test_nothing_is_said_where_all_was_tried(tmp_path: Path) -> None:
    model = small_model("mistral", tmp_path, 1)
    executable = ost.compile(model, buckets={"B": [2], "T": [8]}, context=16, device="cpu", threads=1)
    assert compare(executable, ["eager", "planned"], replays=1, operators=False).not_covered == ()


def test_a_slow_side_says_which_cases_it_was_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.tools.compare.comparison.affordable", lambda executable: 1)
    report = compare(
        small_model("llama", tmp_path, 1), ["reference", "planned"], replays=1, operators=False, device="cpu", threads=1
    )
    assert report.ok
    assert any(line.startswith("of reference the cases full bucket") for line in report.not_covered)
    assert report.pairs[0].compared < report.sides[1].steps * 8


@pytest.mark.parametrize("tolerance", [float("inf"), float("nan"), -1.0, 10**400, True, "1"])
def test_a_tolerance_that_allows_everything_is_refused(tolerance: object, tiny: Path) -> None:
    with pytest.raises(ost.ConfigError, match="tolerance is") as caught:
        compare(str(tiny), ["planned"], tolerance=tolerance)  # type: ignore[arg-type]
    assert caught.value.hint is not None


def test_an_interrupt_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[subprocess.Popen[str]] = []

    def interrupted(process: subprocess.Popen[str], question: str) -> None:
        del question
        asked.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask("code", "a question to a prompt that waits for ever")
    (process,) = asked
    assert process.returncode is not None, "killed, and waited for"
    assert process.returncode < 0
