"""What was saved is what is loaded: every kind of executable, format of checkpoint and family, with the same bits, and without compiling anything."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import ostinato as ost
from ostinato.artifact import open_artifact
from ostinato.backend_hip._native import isa_available
from ostinato.ir.types import DType
from ostinato.saving.container import Content, write_members
from ostinato.saving.embedded import EmbeddedCheckpoint
from ostinato.saving.read import open_file
from tests.artifact.files import BUCKETS, IDS, changed, compiled, manifest_of, members_of
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.small_families import SMALL_FAMILIES, small_model

GREEDY = ost.SamplingParams(max_tokens=6, temperature=0, detokenize=False)


def text(found: ost.Executable) -> ost.TextExecutable:
    assert isinstance(found, ost.TextExecutable)
    return found


@pytest.fixture
def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing, passes, planning, search and validation end the test."""

    def never(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("something was compiled")

    for place in (
        "ostinato.compiler.trace",
        "ostinato.stages.trace",
        "ostinato.stages.run_pipeline",
        "ostinato.stages.fit_entry",
        "ostinato.compiler.build_program",
        "ostinato.stages.build_program",
        "ostinato.planner.lower.solve",
        "ostinato.frontend.trace.GraphBuilder.__init__",
        "ostinato.backend_hip.evidence.first_use.validate",
        "ostinato.stages.validated_lowering",
    ):
        monkeypatch.setattr(place, never)


@pytest.mark.usefixtures("nothing_compiles")
def test_loading_compiles_nothing_and_proves_the_plan(
    saved: Path, model: ost.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven: list[object] = []
    monkeypatch.setattr("ostinato.artifact.check_program", lambda plan, *rest, **more: proven.append(plan))
    found = ost.load_executable(saved)
    assert proven == [found.program.plan]
    with pytest.raises(AssertionError, match="was compiled"):
        compiled(model)


@pytest.mark.parametrize("family", SMALL_FAMILIES)
@pytest.mark.parametrize("weights", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_family_gives_the_same_bits(family: str, weights: bool, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = small_model(family, folder, seed)
    made: Any = ost.compile_encoder(model, buckets=BUCKETS, threads=1) if family == "bert" else compiled(model)
    path = made.save(tmp_path / "saved.ost", weights=weights)
    if weights:
        shutil.rmtree(folder)  # nothing of it is needed
    opened = open_artifact(path)
    loaded: Any = opened.executable
    assert type(loaded) is type(made)
    output = "embedding" if family == "bert" else "logits"
    assert loaded(IDS[:1])[output].tobytes() == made(IDS[:1])[output].tobytes()
    assert opened.model.config == model.config
    assert opened.checkpoint.generation == model.checkpoint.generation
    assert opened.checkpoint.end_token_ids == model.checkpoint.end_token_ids
    assert {name: tensor.transform for name, tensor in opened.checkpoint.tensors.items()} == {
        name: tensor.transform for name, tensor in model.checkpoint.tensors.items()
    }


@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0, pytest.param(DType.Q4_K, marks=pytest.mark.slow)])
def test_quantised_tensors_keep_their_blocks_and_the_order_of_their_rows(
    dtype: DType, tmp_path: Path, seed: int
) -> None:
    """A GGUF file of llama's stores the rows of Q and K in another order."""
    config = small_config("llama", hidden_size=256, intermediate_size=256)
    source = tmp_path / "model.gguf"
    write_gguf(source, config, random_model(config, seed), dtype)
    made = compiled(ost.load(source))
    path = made.save(tmp_path / "saved.ost", weights=True)
    source.unlink()
    loaded = text(ost.load_executable(path))
    assert loaded(IDS[:1])["logits"].tobytes() == made(IDS[:1])["logits"].tobytes()
    checkpoint = EmbeddedCheckpoint(open_file(path))
    assert any(tensor.row_order is not None for tensor in checkpoint.tensors.values())


def test_the_same_program_gives_the_same_file(saved: Path, model: ost.Model, tmp_path: Path) -> None:
    assert compiled(model).save(tmp_path / "again.ost").read_bytes() == saved.read_bytes()
    loaded = ost.load_executable(saved)
    assert loaded.save(tmp_path / "loaded.ost").read_bytes() == saved.read_bytes()


def test_a_standalone_file_can_be_written_over_itself(standalone: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(standalone, tmp_path / "whole.ost"))
    loaded = text(ost.load_executable(path))
    expected = loaded(IDS[:1])["logits"].tobytes()
    loaded.save(path, weights=True)
    assert text(ost.load_executable(path))(IDS[:1])["logits"].tobytes() == expected
    assert list(tmp_path.iterdir()) == [path]


def test_archives_and_safetensors_are_read_by_who_reads_such_files(standalone: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    with zipfile.ZipFile(standalone) as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == set(members_of(standalone))
        archive.extract("weights.safetensors", tmp_path)
    tensors = safetensors.load_file(tmp_path / "weights.safetensors")
    checkpoint = EmbeddedCheckpoint(open_file(standalone))
    for name, tensor in checkpoint.tensors.items():
        assert tensors[name].shape == tensor.shape
        assert tensors[name].tobytes() == checkpoint.map(name).tobytes()
        assert tensor.offset % 8 == 0


def test_options_and_decisions_come_back(model: ost.Model, tmp_path: Path) -> None:
    made = compiled(
        model,
        levels={"rms_norm": "host_all_rows"},
        disable=["fuse_qkv"],
        policy="strict",
        memory_limit="1M",
        mode="guarded",
    )
    opened = open_artifact(made.save(tmp_path / "saved.ost"))
    loaded, request = opened.executable, opened.request
    assert loaded.mode == "guarded"
    assert loaded.program.plan == made.program.plan
    assert str(loaded.explain("*")) == str(made.explain("*"))
    assert loaded.program.decisions == {name: dict(found) for name, found in made.program.decisions.items()}
    assert (request.levels, request.disable, request.policy) == ({"rms_norm": "host_all_rows"}, ("fuse_qkv",), "strict")
    assert (request.memory_limit, request.context, request.buckets) == (1 << 20, 16, {"B": (1,), "T": (4,)})
    assert loaded.clone("reference").mode == "reference"


def test_values_that_are_computed_again_are_part_of_the_plan(model: ost.Model, tmp_path: Path) -> None:
    cache = ost.CacheShape(1, 64, 1)
    lowered = ost.trace(model, "step", cache=cache, sampling=True).lower(dims={"N": 16, "R": 1})
    planned = lowered.plan(lowered.plan().plan.stats.arena_bytes - 256)
    assert planned.plan.clones
    made = planned.load("cpu")
    loaded = ost.load_executable(made.save(tmp_path / "saved.ost"))
    assert type(loaded) is ost.Executable
    assert loaded.program.plan == made.program.plan
    assert loaded.program.originals == made.program.originals
    assert loaded.program.graphs == made.program.graphs != made.program.originals
    path = tmp_path / "saved.ost"
    graph = members_of(path)["graphs/0.ir"].decode().replace("weight %lm_head.weight", "weight %another")
    with pytest.raises(ost.VerificationError):  # what it recomputes from is held to the rules as well
        ost.load_executable(changed(path, tmp_path / "other.ost", {"graphs/0.ir": graph.encode()}))


def test_an_llm_and_an_embedder(model: ost.Model, tmp_path: Path) -> None:
    llm = ost.LLM(model, max_num_seqs=2, context=32, threads=1)
    loaded = ost.LLM.load(llm.save(tmp_path / "llm.ost", weights=True))
    assert (loaded.context, loaded.executable.rows) == (32, 2)
    assert loaded.default_sampling_params() == llm.default_sampling_params()
    found, expected = (each.generate([[5, 9, 2]], GREEDY)[0].token_ids for each in (loaded, llm))
    assert found == expected
    with pytest.raises(ost.ConfigError, match="an LLM, not of an Embedder"):
        ost.Embedder.load(tmp_path / "llm.ost")
    compiled(model).save(tmp_path / "text.ost")
    with pytest.raises(ost.ConfigError, match=r"ostinato\.compile, not of an LLM"):
        ost.LLM.load(tmp_path / "text.ost")


@pytest.mark.slow
@pytest.mark.parametrize("weights", [False, True])
def test_minilm_with_its_tokenizer(weights: bool, minilm: str, tmp_path: Path) -> None:
    embedder = ost.Embedder(minilm, max_seq_length=32)
    loaded = ost.Embedder.load(embedder.save(tmp_path / "minilm.ost", weights=weights))
    texts = ["A cat.", "Ein Kätzchen, das   springt."]
    assert loaded.encode(texts).tobytes() == embedder.encode(texts).tobytes()
    assert (loaded.recipe, loaded.max_seq_length) == (embedder.recipe, 32)


@pytest.mark.slow
def test_smollm2_with_its_tokenizer_and_template(tmp_path: Path) -> None:
    llm = ost.LLM("smollm2", max_num_seqs=1, context=256)
    loaded = ost.LLM.load(llm.save(tmp_path / "smollm2.ost", weights=True))
    messages = [{"role": "user", "content": "Say hi, <|im_end|> and 你好."}]
    assert loaded.chat_prompt(messages) == llm.chat_prompt(messages)
    params = ost.SamplingParams(max_tokens=16, temperature=0)
    assert loaded.chat(messages, params)[0].text == llm.chat(messages, params)[0].text
    assert loaded.model.checkpoint.special_tokens == llm.model.checkpoint.special_tokens


def test_what_cannot_be_saved_is_refused_and_leaves_the_file_that_was_there(model: ost.Model, tmp_path: Path) -> None:
    made = compiled(model)
    path = made.save(tmp_path / "saved.ost")
    before = path.read_bytes()
    name = "model.norm.weight"
    made.replace_weights({name: np.ones(64, np.float32)})
    with pytest.raises(ost.ConfigError, match="weights were replaced"):
        made.save(path)
    step = ost.train_step(model, batch=(1, 4), device="cpu")
    with pytest.raises(ost.ConfigError, match="Checkpoints"):
        step.save(path)
    for place in (tmp_path, tmp_path / "saved.ost" / "below.ost", tmp_path / "x\0.ost"):
        with pytest.raises(ost.ConfigError, match="cannot be written"):
            compiled(model).save(place)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_what_it_is_and_a_link_leads_to_it(saved: Path, tmp_path: Path) -> None:
    made, content = ost.load_executable(saved), saved.read_bytes()
    path, link, pipe = tmp_path / "saved.ost", tmp_path / "link.ost", tmp_path / "pipe.ost"
    path.write_bytes(b"before")
    path.chmod(0o600)
    link.symlink_to(path)
    made.save(link)
    assert link.is_symlink()
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    with pytest.raises(ost.ConfigError, match="a pipe or a device"):
        made.save(pipe)
    assert pipe.is_fifo()
    nothing: Any
    for nothing in (None, 3, b"x.ost", ""):
        with pytest.raises(ost.ConfigError, match="the path is"):
            made.save(nothing)
    assert sorted(tmp_path.iterdir()) == [link, pipe, path]


def test_a_file_with_weights_is_a_checkpoint_for_files_without(saved: Path, standalone: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copy(standalone, tmp_path / "whole.ost"))
    expected = text(ost.load_executable(saved))(IDS[:1])["logits"].tobytes()
    thin = ost.load_executable(whole).save(tmp_path / "thin.ost")
    assert thin.stat().st_size < whole.stat().st_size // 2
    for path, weights in ((thin, None), (saved, whole)):
        assert text(ost.load_executable(path, weights=weights))(IDS[:1])["logits"].tobytes() == expected
    with pytest.raises(ost.ConfigError, match="has no weights in it"):
        ost.load_executable(saved, weights=thin)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    """What fails in the middle of a member leaves nothing of its file."""
    path = tmp_path / "saved.ost"
    path.write_bytes(b"before")

    def blocks() -> Any:
        yield b"begin"
        raise ost.WeightsError("the checkpoint changed")

    with pytest.raises(ost.WeightsError):
        write_members(path, [Content("a", blocks())], lambda written: Content.of("manifest.json", b"{}"))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_artifact_says_what_it_is_without_a_device(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.backend_hip.open.open_named", lambda *_: pytest.fail("a device was opened"))
    artifact = ost.read_artifact(saved)
    assert (artifact.target, artifact.device) == ("host", "host:0")
    assert list(artifact.graphs) == list(artifact.plan.entries) == list(artifact.decisions)
    assert "prefill[N=4,R=1]" in repr(artifact)
    assert {record.id for record in artifact.records} >= {
        name for nodes in artifact.decisions.values() for decision in nodes.values() for name in decision.evidence
    }
    with pytest.raises(ValidationError):
        type(artifact.manifest).model_validate({**manifest_of(saved), "more": 1})


def test_the_kernel_unit_of_the_host_is_the_one_it_was_compiled_for(model: ost.Model, tmp_path: Path) -> None:
    plainest = isa_available()[0]
    made = compiled(model, isa=plainest)
    loaded = text(ost.load_executable(made.save(tmp_path / "saved.ost")))
    assert loaded.device.isa == made.device.isa == plainest
    assert loaded(IDS[:1])["logits"].tobytes() == made(IDS[:1])["logits"].tobytes()
