"""`ostinato train` around a step that is only pretended: the loop, its files, stopping and going on, and what is refused."""

from __future__ import annotations

import errno
import io
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.ir.errors import ConfigError, NonFiniteLoss
from ostinato.runtime.training.checkpoint import Checkpoints, read_checkpoint
from ostinato.tools.cli import main
from ostinato.tools.train import command
from ostinato.tools.train.metrics import Line, Metrics
from ostinato.tools.train.report import TrainReport
from tests.training.fake_step import FakeResult, FakeStep, make_fake_step
from tests.training.snapshots import same

CONFIG = """
[model.new]
config = { model_type = "llama", hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 1, max_position_embeddings = 64 }

[data]
text = "the quick brown fox jumps over the lazy dog, again and again and again, until the window of the text is long enough for some rows"
sequence = 8
batch = 2
seed = 3

[optimizer]
lr = 1e-3

[train]
steps = 12
folder = "out"
checkpoint_every = 5
device = "cpu"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "make_step", make_fake_step)
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `ostinato train ... --json`."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments, "--json"])
    return int(caught.value.code or 0), json.loads(capsys.readouterr().out)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without their times."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def final(folder: Path) -> Any:
    found = Checkpoints(folder / "checkpoints").load()
    assert found is not None
    return found


def test_a_run_leaves_checkpoints_metrics_a_picture_and_a_model(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, str(config))
    out = config.parent / "out"
    report = TrainReport.model_validate(said)
    assert (code, report.done, report.stopped, report.resumed_at, report.tokens) == (0, 12, False, None, 192)
    names = [path.name for path in Checkpoints(out / "checkpoints").all()]
    assert names == ["step-00000005", "step-00000010", "step-00000012"]
    assert [line["step"] for line in lines(out)] == list(range(1, 13))
    assert report.loss == lines(out)[-1]["loss"]
    assert (out / "loss.svg").read_text().startswith("<svg")
    model = ost.load(out / "model")
    trained = final(out).parameters
    for name, source in model.checkpoint.tensors.items():
        assert model.checkpoint.map(name).tobytes() == trained[name].astype(source.dtype.numpy).tobytes()
    assert model.checkpoint.tokenizer().encode("fox")
    assert {path.name for path in out.iterdir()} == {
        *("initial", "initial.json", "checkpoints", "metrics.jsonl", "loss.svg", "model")
    }


def test_a_sample_that_has_no_room_is_told_before_the_training(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG + 'sample = { prompt = "fox", max_tokens = 64 }\n')
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config)])
    assert caught.value.code == 2
    assert "train.sample: 3 tokens of prompt and 64 more, the model has 64 positions" in capsys.readouterr().err
    assert not (config.parent / "out/metrics.jsonl").exists()


class Full(io.StringIO):
    """A file on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", text[:0])


def test_lines_that_a_full_disk_does_not_take_end_the_run_by_name(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    metrics.close()
    metrics._file = Full()
    line = Line(step=1, loss=1.0, learning_rate=0.1, gradient_norm=None, epoch=0, tokens=16, seconds=0.1)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl cannot be written: No space left"):
        metrics.add(line)


def test_a_run_for_people(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config)])
    assert not caught.value.code
    said = capsys.readouterr()
    assert "step 12 of 12, loss" in said.out
    assert "step 3 of 12, loss" in said.err
    assert "tokens/s" in said.err


def stopping(at: int, how: Callable[[], None]) -> Callable[..., FakeStep]:
    """A fake step that does something during its step of that number."""

    class Stopping(FakeStep):
        calls = 0

        def __call__(self, input_ids: Any, target: Any) -> FakeResult:
            self.calls += 1
            if self.calls == at:
                how()
            return super().__call__(input_ids, target)

    return lambda config, model, optimizer, progress: Stopping(model, optimizer.lr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_resume_goes_on_with_the_same_bits(
    number: signal.Signals, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = config.with_name("whole.toml")
    other.write_text(CONFIG.replace('"out"', '"whole"'))
    run(capsys, str(other))
    before = signal.getsignal(number)
    monkeypatch.setattr(command, "make_step", stopping(7, lambda: signal.raise_signal(number)))
    code, said = run(capsys, str(config))
    assert (code, said["done"], said["stopped"], said["exported"]) == (130, 7, True, None)
    assert signal.getsignal(number) is before
    assert said["checkpoint"].endswith("step-00000007")
    monkeypatch.setattr(command, "make_step", make_fake_step)
    code, said = run(capsys, str(config), "--resume")
    assert (code, said["done"], said["resumed_at"]) == (0, 12, 7)
    assert same(final(config.parent / "out"), final(config.parent / "whole"))
    assert lines(config.parent / "out") == lines(config.parent / "whole")
    # nothing is left to do: nothing is written
    code, said = run(capsys, str(config), "--resume")
    assert (code, said["done"], said["resumed_at"], said["tokens_per_second"]) == (0, 12, 12, None)
    assert len(Checkpoints(config.parent / "out" / "checkpoints").all()) == 3
    code, said = run(capsys, str(config), "--resume", "--steps", "14")
    assert (code, said["done"], said["resumed_at"]) == (0, 14, 12)


def test_how_to_go_on_is_told(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "make_step", stopping(2, lambda: signal.raise_signal(signal.SIGINT)))
    with pytest.raises(SystemExit):
        main(["train", str(config)])
    assert f"stopped at step 2; go on with: ostinato train {config} --resume" in capsys.readouterr().err


def test_the_second_ctrl_c_stops_at_once(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "make_step", stopping(7, twice))
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config)])
    assert caught.value.code == 130
    assert final(config.parent / "out").step == 5


def refuse() -> None:
    raise NonFiniteLoss("step 7: the loss is nan; nothing of the step was applied", step=7, loss=float("nan"))


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_checkpoints(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "make_step", stopping(7, refuse))
    code, said = run(capsys, str(config))
    assert (code, said["code"]) == (1, "non_finite_loss")
    assert final(config.parent / "out").step == 5
    assert [line["step"] for line in lines(config.parent / "out")][:5] == [1, 2, 3, 4, 5]
    monkeypatch.setattr(command, "make_step", make_fake_step)
    assert run(capsys, str(config), "--resume")[1]["resumed_at"] == 5
    assert [line["step"] for line in lines(config.parent / "out")] == list(range(1, 13))


def test_resume_where_nothing_was_saved_begins(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, str(config), "--resume")
    assert (code, said["done"], said["resumed_at"]) == (0, 12, None)


def test_a_run_is_not_begun_over_another_one(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, str(config))
    code, said = run(capsys, str(config))
    assert (code, said["code"]) == (2, "config")
    assert "step-00000012" in said["message"]
    assert "--resume" in said["hint"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lr = 1e-3", "lr = 2e-3", "optimizer.lr: expected 0.002, found 0.001"),
        ("seed = 3", "seed = 4", "data.identity"),
        ("the quick", "a quick", "data.identity"),
        ("batch = 2", "batch = 3", "data.identity"),
        ("steps = 12", "steps = 12\ndropout = 0.5", "configs.train.dropout: expected 0.5, found 0.0"),
        ("steps = 12", 'steps = 12\nfrozen = ["lm_head*"]', "configs.train.frozen: expected ['lm_head*'], found []"),
        ("steps = 12", "steps = 12\nseed = 8", "seed: expected 8, found 0"),
        ("steps = 12", 'steps = 12\non_nan = "skip"', "configs.train.on_nan"),
    ],
)
def test_a_changed_configuration_is_refused_at_resume(
    old: str, new: str, told: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, str(config))
    before = lines(config.parent / "out")
    config.write_text(CONFIG.replace(old, new))
    code, said = run(capsys, str(config), "--resume")
    assert (code, said["code"]) == (1, "stale_artifact")
    assert told in said["message"]
    assert lines(config.parent / "out") == before


def test_another_new_model_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, str(config))
    config.write_text(CONFIG.replace("hidden_size = 8", "hidden_size = 16"))
    code, said = run(capsys, str(config), "--resume")
    assert (code, said["code"]) == (2, "config")
    assert "made from another configuration" in said["message"]


def test_a_new_model_from_which_nothing_was_learned_is_made_anew(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "make_step", stopping(1, refuse))
    assert run(capsys, str(config))[0] == 1
    assert (config.parent / "out" / "initial").is_dir()
    monkeypatch.setattr(command, "make_step", make_fake_step)
    config.write_text(CONFIG.replace("hidden_size = 8", "hidden_size = 16"))
    assert run(capsys, str(config))[0] == 0
    assert ost.load(config.parent / "out" / "model").config.hidden_size == 16


def test_an_existing_model_is_gone_on_from(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, str(config))
    (config.parent / "out" / "model").rename(config.parent / "base")
    begin, rest = CONFIG.index("[model.new]"), CONFIG.index("[data]")
    tuned = config.with_name("tune.toml")
    tuned.write_text((CONFIG[:begin] + '[model]\npath = "base"\n' + CONFIG[rest:]).replace('"out"', '"tuned"'))
    code, said = run(capsys, str(tuned))
    assert (code, said["done"], said["model"]) == (0, 12, str(config.parent / "base"))
    assert not (config.parent / "tuned" / "initial").exists()
    assert not same(final(config.parent / "tuned"), final(config.parent / "out"))


@pytest.mark.parametrize(
    ("old", "new", "code", "told"),
    [
        ("sequence = 8", "sequence = 100", 2, "130 tokens give 1 windows of 100 tokens"),
        ("sequence = 8", "sequence = 200", 2, "a batch needs 2"),
        ('folder = "out"', 'folder = "run.toml"', 2, "cannot be written"),
        ("lr = 1e-3", "rl = 1e-3", 2, "did you mean lr"),
        ('model_type = "llama"', 'model_type = "lama"', 2, "not supported"),
    ],
)
def test_runs_that_cannot_be_are_refused(
    old: str, new: str, code: int, told: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace(old, new))
    found, said = run(capsys, str(config))
    assert found == code
    assert told in said["message"]


def test_a_run_in_a_thread_has_no_signals(config: Path) -> None:
    codes: list[Any] = []

    def work() -> None:
        with pytest.raises(SystemExit) as caught:
            main(["train", str(config), "--json"])
        codes.append(caught.value.code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0]
    assert read_checkpoint(config.parent / "out" / "checkpoints" / "step-00000012").step == 12


def test_target_is_for_planning_only(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, str(config), "--target", "host")
    assert code == 2
    assert "--dry-run" in said["hint"]
