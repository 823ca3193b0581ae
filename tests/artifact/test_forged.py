"""Files that are made to do harm, with checksums that fit: only what they say gives them away.

Loading one is an error on purpose, or gives a program that computes what it did.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.ir.errors import ArtifactError, OstinatoError
from ostinato.saving.embedded import EmbeddedCheckpoint
from ostinato.saving.manifest import DECISIONS, MANIFEST, PLAN, RECORDS, TOKENIZER, WEIGHTS
from ostinato.saving.read import open_file
from ostinato.tools.view.subjects import subject_of
from tests.artifact.files import changed, compiled, forged, manifest_of, members_of, refused, rehashed
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf, write_hf_checkpoint
from tests.frontend.make_tokenizers import train

FAST = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def test_members_that_are_something_else(standalone: Path, tmp_path: Path) -> None:
    """Each has one place, and what the manifest promises is there."""
    said, members = manifest_of(standalone), members_of(standalone)
    path, (entry,) = tmp_path / "other.ost", said["entries"]
    code = {"member": PLAN, "key": "", "file": "", "kernels": []}
    for change, wrong in (
        ({"entries": [{**entry, "graph": MANIFEST}]}, f"calls graphs/0.ir '{MANIFEST}'"),
        ({"code": [code]}, "it has no code/0"),
        ({"embedded": {**said["embedded"], "has_tokenizer": True}}, f"it has no {TOKENIZER}"),
        ({"embedded": None}, f"nothing says what {WEIGHTS} is"),
    ):
        assert wrong in str(refused(changed(standalone, path, **change)))
    assert "nothing says what code/0 is" in str(refused(changed(standalone, path, {"code/0": b""})))
    bare = {name: data for name, data in members.items() if name != WEIGHTS}
    said.pop("members")
    assert f"it has no {WEIGHTS}" in str(refused(forged(path, bare, said)))


def test_decisions_and_slots_that_are_of_nothing(saved: Path, tmp_path: Path) -> None:
    """What only people read has to be of the program as well."""
    members = members_of(saved)
    decisions, plan = json.loads(members[DECISIONS]), json.loads(members[PLAN])
    (nodes,) = decisions.values()
    nodes["logits"]["row"] = "reference"
    path = changed(saved, tmp_path / "row.ost", {DECISIONS: json.dumps(decisions).encode()})
    assert "%logits of entry prefill[N=4,R=1] runs another row" in str(refused(path))
    (entry,) = plan["plan"]["entries"].values()
    entry["slots"][0]["values"] = []
    path = changed(saved, tmp_path / "slot.ost", {PLAN: rehashed(json.dumps(plan)).encode()})
    with pytest.raises(ArtifactError, match=r"slots\.0\.values"):
        ost.read_artifact(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "%model.layers.1.post_attention_layernorm.weight",
            "%model.embed_tokens.weight",
        ),  # given twice, as other types
        ("weight %lm_head.weight", "weight %another"),
    ],
)
def test_a_graph_that_hangs_together_nowhere(before: str, after: str, saved: Path, tmp_path: Path) -> None:
    """No row is asked about a node whose operands are not what the operator takes; who only looks at the file finds it as well."""
    text = members_of(saved)["graphs/0.ir"].decode()
    path = changed(saved, tmp_path / "graph.ost", {"graphs/0.ir": text.replace(before, after, 1).encode()})
    assert isinstance(refused(path), ost.VerificationError)
    with pytest.raises(ost.VerificationError):
        subject_of(path)


def test_a_file_that_was_put_together_again_is_the_same_program(saved: Path, tmp_path: Path) -> None:
    """What the tests below change is all that they change."""
    path = changed(saved, tmp_path / "same.ost")
    assert ost.load_executable(path, "cpu").entries == ost.load_executable(saved, "cpu").entries


def _replaced(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one of its parts replaced by another value, or left out."""
    path: list[Any] = []
    inner = value
    while isinstance(inner, dict | list) and inner and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        path.append(key)
        inner = inner[key]
    if not path:
        return draw(JSON)
    copy = json.loads(json.dumps(value))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    if isinstance(holder, dict) and draw(st.booleans()):
        del holder[path[-1]]
    else:
        holder[path[-1]] = draw(
            JSON | st.just([inner, inner]) | st.just(inner if not isinstance(inner, int) else inner + 1)
        )
    return copy


@st.composite
def _mutated(draw: st.DrawFn, value: Any) -> Any:
    return _replaced(draw, value)


@FAST
@given(data=st.data())
def test_a_manifest_that_says_something_else(data: st.DataObject, standalone: Path, tmp_path: Path) -> None:
    """It is refused, or what was changed is no part of the program: then it computes what it did."""
    said = data.draw(_mutated(manifest_of(standalone)))
    path = tmp_path / "manifest.ost"
    forged(path, members_of(standalone), json.dumps(said).encode())
    _refused_or_the_same(path, standalone)


@FAST
@given(data=st.data(), member=st.sampled_from([PLAN, DECISIONS]))
def test_a_plan_and_decisions_that_say_something_else(
    data: st.DataObject, member: str, standalone: Path, tmp_path: Path
) -> None:
    members = members_of(standalone)
    said = data.draw(_mutated(json.loads(members[member])))
    text = json.dumps(said)
    if member == PLAN:
        text = rehashed(text)
    _refused_or_the_same(changed(standalone, tmp_path / "said.ost", {member: text.encode()}), standalone)


@FAST
@given(data=st.data())
def test_graphs_that_say_something_else(data: st.DataObject, standalone: Path, tmp_path: Path) -> None:
    text = members_of(standalone)["graphs/0.ir"].decode()
    lines = text.split("\n")
    index = data.draw(st.integers(0, len(lines) - 1))
    words = st.sampled_from(["%x", "%logits", "linear", "nothing", "f32[4]", "9999999999999", "@host", "= ", ", "])
    change = data.draw(st.sampled_from(["drop", "twice", "word", "any"]))
    if change == "drop":
        del lines[index]
    elif change == "twice":
        lines.insert(index, lines[index])
    else:
        line = lines[index]
        begin = data.draw(st.integers(0, len(line)))
        end = data.draw(st.integers(begin, min(len(line), begin + 12)))
        lines[index] = line[:begin] + data.draw(words if change == "word" else st.text(max_size=6)) + line[end:]
    try:
        content = "\n".join(lines).encode()
    except UnicodeEncodeError:
        content = b"\xff"
    _refused_or_the_same(changed(standalone, tmp_path / "graph.ost", {"graphs/0.ir": content}), standalone)


def _refused_or_the_same(path: Path, original: Path) -> None:
    """What is proven computes what it did, whatever else was said of it (times of slots, options, where the checkpoint was)."""
    try:
        found = ost.load_executable(path, "cpu")
        if not isinstance(found, ost.TextExecutable):
            return  # the manifest says that it was made stage by stage
        logits = found([[5, 9, 2]])["logits"]
    except OstinatoError:
        return
    expected = ost.load_executable(original, "cpu")
    assert isinstance(expected, ost.TextExecutable)
    assert logits.tobytes() == expected([[5, 9, 2]])["logits"].tobytes()


@pytest.mark.parametrize("kind", ["llm", "encoder", "embedder", "text", "staged"])
def test_a_program_that_is_called_another(kind: str, saved: Path, tmp_path: Path) -> None:
    path = changed(saved, tmp_path / "kind.ost", request={**manifest_of(saved)["request"], "kind": kind})
    if kind in ("text", "staged"):
        assert type(ost.load_executable(path)) is (ost.TextExecutable if kind == "text" else ost.Executable)
    else:
        assert "serves no texts" in str(refused(path))


@pytest.mark.parametrize("dims", [{}, {"N": 4}, {"R": 1}, {"N": 4, "R": 2}, {"N": 5, "R": 1}, {"N": -4, "R": 1}])
def test_sizes_that_its_inputs_do_not_have(dims: dict[str, int], saved: Path, tmp_path: Path) -> None:
    said = json.loads(members_of(saved)[PLAN])
    (entry,) = said["plan"]["entries"].values()
    entry["dims"] = dims
    content = rehashed(json.dumps(said)).encode()
    assert "serves no texts" in str(refused(changed(saved, tmp_path / "dims.ost", {PLAN: content})))


@pytest.mark.parametrize("member", [PLAN, DECISIONS, RECORDS, MANIFEST, "graphs/0.ir"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff\xfe",
        b"1" * 5000,
        b"x" * 100_000,
        b"[0" + b",0" * 3_000_000 + b"]",
        b"\n" * 300_000,
    ],
    ids=[
        "empty",
        "null",
        "deep lists",
        "deep objects",
        "no text",
        "a long number",
        "a long word",
        "many values",
        "many lines",
    ],
)
def test_texts_that_are_nothing(member: str, content: bytes, saved: Path, tmp_path: Path) -> None:
    if member == RECORDS and content == b"":
        return  # no records are records
    path = tmp_path / "text.ost"
    if member == MANIFEST:
        forged(path, members_of(saved), content)
    else:
        changed(saved, path, {member: content})
    assert isinstance(refused(path), ArtifactError)


def test_an_operator_that_nobody_knows(saved: Path, tmp_path: Path) -> None:
    text = re.sub(r"= [a-z_]+@", "= steal@", members_of(saved)["graphs/0.ir"].decode(), count=1)
    assert "steal" in str(refused(changed(saved, tmp_path / "steal.ost", {"graphs/0.ir": text.encode()})))


@pytest.mark.parametrize("kind", ["arena", "weights", "state", "io", "constants"])
def test_memory_that_no_machine_has(kind: str, saved: Path, tmp_path: Path) -> None:
    said = json.loads(members_of(saved)[PLAN])
    for region in said["plan"]["regions"]:
        region["bytes"] = 2**62 if region["region"]["kind"] == kind else region["bytes"]
    content = rehashed(json.dumps(said)).encode()
    assert isinstance(refused(changed(saved, tmp_path / "huge.ost", {PLAN: content})), ost.CapacityError)


def test_offsets_outside_of_regions(saved: Path, tmp_path: Path) -> None:
    """Every range of the first steps moved out of its region."""
    said = json.loads(members_of(saved)[PLAN])
    (entry,) = said["plan"]["entries"].values()
    for step in entry["steps"][:2]:
        for operand in (operand for operand in step["operands"] if operand is not None):
            before = dict(operand["range"])
            for offset in (2**40, -256):
                operand["range"]["offset"] = offset
                content = rehashed(json.dumps(said)).encode()
                error = refused(changed(saved, tmp_path / "moved.ost", {PLAN: content}))
                assert isinstance(error, ost.PlanError)
            operand["range"] = before


def test_weights_and_orders_of_rows_that_lead_outside(tmp_path: Path, seed: int) -> None:
    """The rows of Q and K of a GGUF file of llama's are in an order that the file states."""
    config = small_config("llama")
    model = ost.load(write_gguf(tmp_path / "model.gguf", config, random_model(config, seed)))
    source = compiled(model).save(tmp_path / "saved.ost", weights=True)
    said, members = manifest_of(source), members_of(source)
    weights = members[WEIGHTS]
    end = len(weights)
    for order in (2**40, -1, 0):
        other = weights[: end - 8] + struct.pack("<q", order)
        assert "names no row, or one twice" in str(refused(changed(source, tmp_path / "rows.ost", {WEIGHTS: other})))
    assert WEIGHTS in str(refused(changed(source, tmp_path / "short.ost", {WEIGHTS: weights[:-8]})))
    name = "model.norm.weight"
    for field, value in (("shape", [2**40]), ("shape", [32]), ("dtype", "f16"), ("dtype", "x"), ("rows", "absent")):
        tensors = {**said["embedded"]["tensors"], name: {**said["embedded"]["tensors"][name], field: value}}
        path = changed(source, tmp_path / "table.ost", embedded={**said["embedded"], "tensors": tensors})
        assert isinstance(refused(path), ArtifactError)
    shifted = {**said["embedded"]["tensors"], name: {**said["embedded"]["tensors"][name], "shift": 1.0}}
    path = changed(source, tmp_path / "shift.ost", embedded={**said["embedded"], "tensors": shifted})
    assert isinstance(refused(path), ost.WeightsError)  # the plan loads it as it is


def test_a_tokenizer_that_is_none(tmp_path: Path, seed: int) -> None:
    folder, tokenizer = tmp_path / "model", train()
    folder.mkdir()
    config = small_config(vocab_size=tokenizer.get_vocab_size())
    write_hf_checkpoint(folder, config, random_model(config, seed))
    tokenizer.save(str(folder / "tokenizer.json"))
    source = compiled(ost.load(folder)).save(tmp_path / "saved.ost", weights=True)
    good = EmbeddedCheckpoint(open_file(source)).tokenizer()
    assert good.encode("hello, world") == ost.load(folder).checkpoint.tokenizer().encode("hello, world")
    for content in (b"", b"{}", b"\xff", b"[" * 10_000):
        path = changed(source, tmp_path / "other.ost", {TOKENIZER: content})
        with pytest.raises(ost.WeightsError, match="tokenizer"):
            EmbeddedCheckpoint(open_file(path)).tokenizer()


@pytest.mark.slow
def test_what_a_hostile_text_costs_is_bounded(saved: Path, tmp_path: Path) -> None:
    """Two million wrong values, as many as are looked at, cost each some memory; more are not looked at."""
    plan = json.loads(members_of(saved)[PLAN])
    plan["plan"]["regions"] = [0] * 2_000_000
    path = changed(saved, tmp_path / "many.ost", {PLAN: json.dumps(plan).encode()})
    code = (
        "import resource, sys\nimport ostinato as ost\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "try:\n    ost.read_artifact(sys.argv[1])\nexcept ost.ArtifactError as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "2000000 values are not as they are written" in found.stdout
