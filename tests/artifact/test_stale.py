"""What an artifact was made for and what is here: every difference is named, what makes none is let pass, and compiling again mends it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.artifact import open_artifact
from ostinato.backend_hip._native import isa_available
from ostinato.backend_hip.device import HostDevice
from ostinato.backend_hip.evidence.ledger import Ledger
from ostinato.backend_hip.evidence.records import write_record
from ostinato.saving.manifest import RECORDS
from ostinato.saving.read import read_artifact
from tests.artifact.files import BUCKETS, IDS, changed, compiled, manifest_of
from tests.frontend.make_checkpoints import random_model, small_config, write_hf_checkpoint
from tests.frontend.small_families import small_model


def stale(path: Path, **options: Any) -> tuple[str, ...]:
    """The differences that loading names."""
    with pytest.raises(ost.StaleArtifact) as caught:
        ost.load_executable(path, **options)
    assert all(difference in str(caught.value) for difference in caught.value.differences)
    return caught.value.differences


def logits(found: ost.Executable) -> bytes:
    assert isinstance(found, ost.TextExecutable)
    return bytes(found(IDS[:1])["logits"].tobytes())


def test_every_difference_is_named_at_once(saved: Path, tmp_path: Path) -> None:
    said = manifest_of(saved)
    row, kernel = next(iter(said["rows"])), next(iter(said["kernels"]))
    path = changed(
        saved,
        tmp_path / "old.ost",
        package_version="0.0.9",
        abi_version=1,
        environment={**said["environment"], "architecture": "x86_64/avx9"},
        rows={**said["rows"], row: "0" * 16},
        kernels={**said["kernels"], kernel: "1" * 16},
        model={**said["model"], "sampled": "2" * 32},
    )
    assert stale(path) == (
        f"library: saved 0.0.9, found {ost.__version__}",
        "native interface: saved 1, found 2",
        f"architecture: saved x86_64/avx9, found {said['environment']['architecture']}",
        f"content of the weights, sampled: saved {'2' * 32}, found {said['model']['sampled']}",
        f"row {row}: saved {'0' * 16}, found {said['rows'][row]}",
        f"kernel source {kernel}: saved {'1' * 16}, found {said['kernels'][kernel]}",
    )


@pytest.mark.parametrize(
    ("field", "value"), [("device", "Another CPU with this unit"), ("compiler", "gcc 99"), ("kernel_hash", "0" * 16)]
)
def test_what_changes_nothing_is_let_pass(field: str, value: str, saved: Path, tmp_path: Path) -> None:
    environment = {**manifest_of(saved)["environment"], field: value}
    path = changed(saved, tmp_path / "moved.ost", environment=environment)
    assert logits(ost.load_executable(path)) == logits(ost.load_executable(saved))


def test_another_kernel_unit_is_another_machine(model: ost.Model, tmp_path: Path) -> None:
    plainest, *_, best = isa_available()
    path = compiled(model, isa=best).save(tmp_path / "saved.ost")
    other = HostDevice(1, plainest)
    (difference,) = stale(path, device=other)
    assert difference.startswith("architecture: saved")
    assert ost.load_executable(path, other, recompile=True).device is other


def test_compiling_again_gives_what_the_options_say(saved: Path, model: ost.Model, tmp_path: Path) -> None:
    path = changed(saved, tmp_path / "old.ost", package_version="0.0.9")
    opened = open_artifact(path, recompile=True)
    assert opened.stale == (f"library: saved 0.0.9, found {ost.__version__}",)
    assert logits(opened.executable) == logits(compiled(model))
    opened.executable.save(path)
    assert path.read_bytes() == saved.read_bytes()
    assert open_artifact(path, recompile=True).stale == ()


@pytest.mark.parametrize("kind", ["llm", "encoder", "text"])
def test_every_kind_is_compiled_again(kind: str, model: ost.Model, tmp_path: Path, seed: int) -> None:
    options: Any = {"precision": "f32", "memory_limit": "1M", "policy": "strict", "device": "cpu"}
    made: Any
    if kind == "llm":
        made = ost.LLM(model, max_num_seqs=2, context=24, **options)
    elif kind == "text":
        made = compiled(model, logits="all", **options)
    else:
        encoder = small_model("bert", tmp_path / "bert", seed)
        made = ost.compile_encoder(encoder, buckets=BUCKETS, **options)
    compiled_again(made, tmp_path)


@pytest.mark.slow
def test_an_embedder_is_compiled_again(minilm: str, tmp_path: Path) -> None:
    compiled_again(ost.Embedder(minilm, max_seq_length=48, precision="f32", policy="strict", device="cpu"), tmp_path)


def compiled_again(made: Any, folder: Path) -> None:
    """An artifact of another version, compiled again and saved, is the artifact that was saved first."""
    path = made.save(folder / "saved.ost")
    old = changed(path, folder / "old.ost", package_version="0.0.9")
    ost.load_executable(old, recompile=True).save(old)
    assert old.read_bytes() == path.read_bytes()


def test_what_no_file_can_say_is_not_compiled_again(model: ost.Model, tmp_path: Path) -> None:
    policy = replace(ost.Policy("mine"), plainest=True)
    path = compiled(model, policy=policy).save(tmp_path / "saved.ost")
    assert logits(ost.load_executable(path)) == logits(compiled(model, policy=policy))
    old = changed(path, tmp_path / "old.ost", package_version="0.0.9")
    with pytest.raises(ost.ConfigError, match="a policy of your own: mine"):
        ost.load_executable(old, recompile=True)
    staged = ost.trace(model, "forward").lower(dims={"B": 1, "T": 4}).plan().load("cpu").save(tmp_path / "staged.ost")
    with pytest.raises(ost.ConfigError, match="stage by stage"):
        ost.load_executable(changed(staged, old, package_version="0.0.9"), recompile=True)


# weights


def test_the_checkpoint_is_found_where_it_went(model: ost.Model, tmp_path: Path) -> None:
    first, later = tmp_path / "first", tmp_path / "later"
    shutil.copytree(model.checkpoint.path, first / "model")
    made = compiled(ost.load(first / "model"))
    made.save(first / "saved.ost")
    first.rename(later)  # the file and its checkpoint move together
    moved = later / "saved.ost"
    assert open_artifact(moved).checkpoint.path == later / "model"
    (later / "model").rename(later / "elsewhere")
    with pytest.raises(ost.WeightsError, match="not found") as caught:
        ost.load_executable(moved)
    assert "weights=" in (caught.value.hint or "")
    for weights in (later / "elsewhere", str(later / "elsewhere"), ost.load(later / "elsewhere")):
        assert logits(ost.load_executable(moved, weights=weights)) == logits(made)


def test_another_model_of_the_same_shape_is_another_model(saved: Path, tmp_path: Path, seed: int) -> None:
    config = small_config("llama")
    other = ost.load(write_hf_checkpoint(tmp_path, config, random_model(config, seed)))
    (difference,) = stale(saved, weights=other)
    assert difference.startswith("content of the weights, sampled")
    found = ost.load_executable(saved, weights=other, recompile=True)
    assert logits(found) == logits(compiled(other)) != logits(ost.load_executable(saved))


def test_tensors_that_differ_are_named(saved: Path, tmp_path: Path, seed: int) -> None:
    config = small_config("llama", num_hidden_layers=1, hidden_size=32)
    other = write_hf_checkpoint(tmp_path, config, random_model(config, seed))
    differences = stale(saved, weights=other)
    assert "tensor lm_head.weight: saved f32[96, 64], found f32[96, 32]" in differences
    assert "and 9 more tensors" in differences


def test_all_bytes_of_the_weights_are_held_against_the_file_where_that_was_asked_for(
    model: ost.Model, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model.checkpoint.path, folder)
    made = compiled(ost.load(folder))
    sampled, whole = made.save(tmp_path / "sampled.ost"), made.save(tmp_path / "whole.ost", whole=True)
    assert logits(ost.load_executable(whole)) == logits(made)
    tensor = ost.load(folder).checkpoint.tensor("model.embed_tokens.weight")
    content = bytearray(tensor.file.read_bytes())
    content[tensor.offset + tensor.nbytes // 2] ^= 1  # in the middle, where no sample is
    tensor.file.write_bytes(content)
    ost.load_executable(sampled)
    (difference,) = stale(whole)
    assert difference.startswith("content of the weights: saved")


# evidence


def test_a_row_that_fails_here_and_a_row_that_nobody_validated(saved: Path, tmp_path: Path) -> None:
    """A machine without records of its own takes those of the file; a file without them brings rows that are not known to be right."""
    artifact = read_artifact(saved)
    empty = HostDevice(1, artifact.manifest.environment.architecture.rpartition("/")[2], ledger=Ledger(tmp_path))
    assert empty.records is not None
    empty.records._shipped = False
    loaded = ost.load_executable(saved, empty, threads=0)
    assert logits(loaded) == logits(ost.load_executable(saved, threads=1))
    again = loaded.save(tmp_path / "again.ost")
    assert again.read_bytes() == saved.read_bytes()  # the records go on with the program
    bare = changed(saved, tmp_path / "bare.ost", {RECORDS: b""})
    differences = stale(bare, device=empty)
    assert differences
    assert all(" no record of " in difference for difference in differences)
    record = artifact.records[0]
    fields = {**record.model_dump(exclude={"id", "kind"}), "passed": False, "reason": "it was wrong"}
    empty.records.ledger.add([type(record).made(**fields)])
    (failed,) = stale(saved, device=empty)
    assert f"{record.operator}@{record.row}" in failed
    assert "its validation failed here: it was wrong" in failed


def test_records_of_another_unit_do_not_count(saved: Path, tmp_path: Path) -> None:
    artifact = read_artifact(saved)
    unit = artifact.manifest.environment.architecture.rpartition("/")[2]
    empty = HostDevice(1, unit, ledger=Ledger(tmp_path))
    assert empty.records is not None
    empty.records._shipped = False
    lines = []
    for record in artifact.records:
        environment = record.environment.model_copy(update={"architecture": "x86_64/avx9"})
        fields = {**record.model_dump(exclude={"id", "kind", "environment"}), "environment": environment}
        lines.append(write_record(type(record).made(**fields)))
    path = changed(saved, tmp_path / "other.ost", {RECORDS: "".join(lines).encode()})
    assert len(stale(path, device=empty)) >= 1
