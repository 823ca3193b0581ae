"""`TraceSession`: chosen values through a traced plan of their own; the ordinary plan, its memory and its bits are what they are without a session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import ostinato as ost
from ostinato.frontend.trace import GraphBuilder
from ostinato.ir.step import Region
from ostinato.ir.types import Array, DType, TensorType
from ostinato.runtime.executable import Executable
from ostinato.tools.bench import bench
from ostinato.tools.compare.differences import bits_equal
from ostinato.tools.compare.probe import Probe
from ostinato.tools.compare.workload import make_workload
from tests.frontend.make_encoders import write_encoder
from tests.runtime.test_plain_graphs import load

IDS = np.array([[5, 9, 2], [12, 3, 77]], np.int32)
MODES = ("reference", "eager", "planned", "guarded")
LAYERS = "layers.*"


@pytest.fixture(scope="module")
def tiny(tiny_model: ost.Model) -> ost.TextExecutable:
    """One for all tests: a session leaves it as it was."""
    return ost.compile(tiny_model, buckets={"B": [2], "T": [4]}, context=16, threads=1)


def facts(executable: Executable) -> tuple[Any, ...]:
    """What a session must leave as it is: plans with their hashes and sizes, the memory and where it lies."""
    plan = executable.program.plan
    hashes = {name: (entry.hash, len(entry.steps), entry.stats.arena_bytes) for name, entry in plan.entries.items()}
    where = executable.regions
    places = [(buffer.address, buffer.nbytes) for buffer in (where.arena, where.io, where.state, where.shared.weights)]
    return hashes, places, executable.memory


@pytest.mark.parametrize("mode", MODES)
def test_layers_are_traced_and_the_ordinary_plan_stays_what_it_is(mode: str, tiny_model: ost.Model) -> None:
    executable = ost.compile(tiny_model, buckets={"B": [2], "T": [4]}, context=16, threads=1, mode=mode)
    expected = executable(IDS)["logits"]
    before = facts(executable)
    runners = dict(executable.runners.made)
    session = ost.TraceSession(executable, ["layers.0"], results_of=[LAYERS])
    (entry,) = executable.entries
    with session:
        assert bits_equal(executable(IDS)["logits"], expected)
    assert session.bit_equal
    assert session.scopes == {"layers.0": ("layers.0.add_1",), "layers.1": ("layers.1.add_1",)}
    assert len(session.steps) == 1
    assert (
        set(session.values) == set(session.names[entry]) > {"layers.0.attn.context", "layers.0.add_1", "layers.1.add_1"}
    )
    assert all(array.dtype == np.float32 and array.any() for array in session.values.values())
    assert session.values["layers.0.add_1"].shape == (IDS.size, 64), "padded rows are cut off"
    # nothing of the ordinary program has changed, and it is not asked to make anything again
    assert facts(executable) == before
    assert executable.runners.made == runners
    assert executable.diversion is None
    assert session.key[entry] != executable.entries[entry].hash
    assert bits_equal(executable(IDS)["logits"], expected)
    assert len(session.steps) == 1, "closed sessions note nothing"


def test_a_run_makes_as_many_launches_before_and_after_a_session(tiny: ost.TextExecutable) -> None:
    eager = tiny.clone("eager")

    def launches() -> int:
        before = eager.device.launches
        eager(IDS)
        return eager.device.launches - before

    usual = [launches() for _ in range(2)]
    with ost.TraceSession(eager, results_of=[LAYERS]) as session:
        traced = launches()
    assert usual == [launches() for _ in range(2)]
    plan = session.plan.entries[session.steps[0].entry]
    assert traced == plan.stats.launches == usual[0] > 0


def test_only_a_session_allocates(tiny: ost.TextExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arena and io of the traced plan, once; ordinary runs allocate nothing, before or after."""
    sizes: list[int] = []
    allocate = type(tiny.device).allocate

    def counted(self: Any, nbytes: int, *arguments: Any, **options: Any) -> Any:
        sizes.append(nbytes)
        return allocate(self, nbytes, *arguments, **options)

    tiny(IDS)
    monkeypatch.setattr(type(tiny.device), "allocate", counted)
    tiny(IDS)
    assert not sizes
    session = ost.TraceSession(tiny, results_of=[LAYERS])
    assert not sizes, "planning needs no memory of the device"
    with session:
        tiny(IDS)
        tiny(IDS)
    where = tiny.device.name
    assert sizes == [session.plan.size_of(Region(where, kind)) for kind in ("arena", "io")]
    sizes.clear()
    tiny(IDS)
    assert not sizes


def test_values_are_those_that_an_observer_sees(tiny: ost.TextExecutable) -> None:
    call = make_workload(tiny, tokens=8, seed=3)[0]
    with ost.TraceSession(tiny, ["layers"]) as session:
        tiny.run(call.entry, call.inputs)
    seen = Probe(tiny, "planned").run(call.entry, call.inputs)
    counts = {axis: int(call.inputs[count][0]) for axis, count in tiny.program.graphs[call.entry].extents}
    assert len(set(session.values) & set(seen)) > 4  # the observer sees no views
    for name, array in ((name, array) for name, array in session.values.items() if name in seen):
        tensor = tiny.program.graphs[call.entry].types[name]
        count = counts.get(tensor.axes[0])
        assert bits_equal(array, seen[name][:count]), name


def test_every_step_of_a_generation_is_noted_and_the_tokens_stay(tiny_model: ost.Model) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=2, context=32, threads=1, enable_prefix_caching=False)
    greedy = ost.SamplingParams(temperature=0.0, max_tokens=5)
    prompts = [[1, 2, 3], [7, 8]]
    expected = [output.token_ids for output in llm.generate(prompts, greedy)]
    with ost.TraceSession(llm, results_of=[LAYERS]) as session:
        found = [output.token_ids for output in llm.generate(prompts, greedy)]
    assert found == expected
    assert [output.token_ids for output in llm.generate(prompts, greedy)] == expected
    assert [step.entry.partition("[")[0] for step in session.steps] == ["prefill"] + ["decode"] * 4
    series = session.series("layers.1.add_1")
    assert [array.shape[0] for array in series] == [5, 2, 2, 2, 2]
    assert len({array.tobytes() for array in series}) == 5


def test_a_generation_goes_on_across_the_ends_of_a_session(tiny_model: ost.Model) -> None:
    """Replays of the ordinary plan and of the traced one are not taken for each other."""
    llm = ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1)
    greedy = ost.SamplingParams(temperature=0.0, max_tokens=9)
    expected = [event.token for event in llm.tokens([[4, 5, 6]], greedy)]
    events = llm.tokens([[4, 5, 6]], greedy)
    found = [next(events).token for _ in range(3)]
    with ost.TraceSession(llm, results_of=[LAYERS]) as session:
        found += [next(events).token for _ in range(3)]
    found += [event.token for event in events]
    assert found == expected
    assert len(session.steps) == 3
    again = [event.token for event in llm.tokens([[4, 5, 6]], greedy)]
    assert again == expected
    assert len(session.steps) == 3


def test_replays_are_noted_one_by_one(tiny_model: ost.Model) -> None:
    executable = ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1).executable
    steps = make_workload(executable, tokens=8, seed=3)
    call = next(step for step in steps if step.entry.startswith("decode"))
    with ost.TraceSession(executable, results_of=["layers.1"]) as session:
        executable.run(call.entry, call.inputs)
        tokens = executable.replay(call.entry, 3)
    assert tokens.shape[0] == 3
    assert len(session.steps) == 4
    with pytest.raises(ost.LifecycleError, match="not what ran last"):
        executable.replay(call.entry, 1)


def test_encoders_are_traced(tmp_path: Path) -> None:
    embedder = ost.Embedder(write_encoder(tmp_path, seed=5), threads=1)
    expected = embedder.encode(["a sentence"])
    with ost.TraceSession(embedder, results_of=[LAYERS]) as session:
        assert bits_equal(embedder.encode(["a sentence"]), expected)
    tokens = len(embedder.token_ids("a sentence"))
    assert {array.shape[0] for array in session.values.values()} == {tokens}
    assert len(session.values) == len(session.scopes) >= 1


def every_float(dtype: DType) -> Executable:
    """x twice in that dtype, and on in float32."""
    builder = GraphBuilder("main")
    x = builder.input("x", TensorType((3, 4), DType.F32))
    if dtype is not DType.F32:
        x = builder.apply("cast", (x,), {"dtype": dtype.value}, "block.narrow")
    y = builder.apply("concat", (x, x), {"axis": 0}, "block.twice")
    if dtype is not DType.F32:
        y = builder.apply("cast", (y,), {"dtype": "f32"}, "block.wide")
    return load({"main": builder.finish([builder.apply("silu", (y,), name="y")])}, "planned")


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(DType.F16, np.float16), (DType.BF16, ml_dtypes.bfloat16), (DType.F64, np.float64), (DType.F32, np.float32)],
)
def test_every_float_dtype_comes_as_it_is(dtype: DType, kind: Any, rng: np.random.Generator, tmp_path: Path) -> None:
    x = rng.standard_normal((3, 4), np.float32)
    executable = every_float(dtype)
    with ost.TraceSession(executable, ["block.twice"]) as session:
        executable.run(None, {"x": x})
    found = session.values["block.twice"]
    assert found.dtype == kind
    assert bits_equal(found, np.concatenate([x, x]).astype(kind))
    path = session.save(tmp_path / "trace.safetensors")
    (saved,) = load_file(path).values()
    assert saved.tobytes() == found.tobytes()


def test_everything_that_was_noted_is_saved(tiny: ost.TextExecutable, tmp_path: Path) -> None:
    with ost.TraceSession(tiny, results_of=[LAYERS]) as session:
        tiny(IDS)
        tiny(IDS[:1])
    saved: Mapping[str, Array] = load_file(session.save(tmp_path / "folder" / "trace.safetensors"))
    assert len(saved) == sum(len(step.values) for step in session.steps) == 4
    for step in session.steps:
        for name, array in step.values.items():
            assert bits_equal(saved[f"{step.number:06d}/{step.entry}/{name}"], array)
    session.clear()
    with pytest.raises(ost.LifecycleError, match="nothing has run"):
        _ = session.values
    with pytest.raises(ost.ConfigError, match="cannot be written"):
        session.save(tmp_path / "trace.safetensors" / "below" / "\0")


def test_a_swallowed_value_is_named_with_the_node_that_has_it(tiny: ost.TextExecutable) -> None:
    with pytest.raises(ost.ConfigError, match=r"made inside of %layers\.0\.attn\.q_rotated") as refused:
        ost.TraceSession(tiny, ["layers.0.attn.v"])
    assert "unfused=True" in str(refused.value)
    session = ost.TraceSession(tiny, ["layers.0"])
    assert "layers.0.attn.q_rotated" in session.left_out["layers.0.attn.v"]
    assert session.left_out["layers.0.attn.k_stored"] == "it is an update of k_cache.0"


def test_without_fusion_it_is_there_and_the_session_says_what_changed(tiny: ost.TextExecutable) -> None:
    expected = tiny(IDS)["logits"]
    with ost.TraceSession(tiny, ["layers.0.attn.v"], unfused=True) as session:
        found = tiny(IDS)["logits"]
    assert session.values["layers.0.attn.v"].shape[0] == IDS.size
    assert not session.bit_equal
    assert any("%layers.0.attn.v = linear_split" in text for text in session.differences)
    assert "may differ in their last bits" in str(session)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * expected.std())
    assert bits_equal(tiny(IDS)["logits"], expected), "the caches that the traced run wrote are those of the executable"


def test_weights_that_fusion_lays_out_otherwise_are_loaded_for_the_session(tiny_model: ost.Model) -> None:
    executable = ost.compile(tiny_model, buckets={"B": [2], "T": [4]}, context=16, threads=1)
    expected, weights = executable(IDS)["logits"], executable.regions.shared.weights
    with ost.TraceSession(executable, ["layers.0.ffn.gate"], unfused=True) as session:
        found = executable(IDS)["logits"]
    assert session.plan.weights != executable.program.plan.weights
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * expected.std())
    assert executable.regions.shared.weights is weights
    name = "model.layers.0.mlp.gate_proj.weight"
    executable.replace_weights({name: np.zeros((96, 64), np.float32)})
    with ost.TraceSession(executable, results_of=[LAYERS]) as plain:
        replaced = executable(IDS)["logits"]
    assert bits_equal(replaced, executable(IDS)["logits"])
    assert not bits_equal(replaced, expected), "a session sees the weights as they are"
    assert len(plain.steps) == 1
    with pytest.raises(ost.LifecycleError, match="weights were replaced"), session:
        pass
    assert executable.diversion is None


def test_what_an_unfused_run_left_in_the_caches_is_not_taken_for_the_ordinary_programs(tiny_model: ost.Model) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1)
    prompt, greedy = [list(range(1, 20))], ost.SamplingParams(temperature=0.0, max_tokens=2)

    def cached() -> int:
        return llm.generate(prompt, greedy)[0].num_cached_tokens

    assert cached() == 0
    assert cached() > 0
    with ost.TraceSession(llm, results_of=[LAYERS]):
        assert cached() > 0
    assert cached() > 0, "the bits of a traced run are the ordinary ones"
    with ost.TraceSession(llm, ["layers.0.attn.v"], unfused=True):
        cached()
    assert cached() == 0


def test_values_that_are_computed_again_for_a_limit_of_memory_are_traced_once(tiny_model: ost.Model) -> None:
    options: dict[str, Any] = {"buckets": {"B": [2], "T": [4]}, "context": 16, "threads": 1}
    arena = ost.compile(tiny_model, **options).memory.arena
    limited = ost.compile(tiny_model, **options, memory_limit=arena)
    expected = limited(IDS)["logits"]
    with ost.TraceSession(limited, results_of=[LAYERS]) as session:
        assert bits_equal(limited(IDS)["logits"], expected)
    assert len(session.values) == 2
    assert not any("memory_limit" in plan.options for plan in session.plan.entries.values())


def test_a_loaded_artifact_is_traced_as_it_was_lowered(tiny: ost.TextExecutable, tmp_path: Path) -> None:
    path = tmp_path / "model.ost"
    tiny.save(path)
    loaded = ost.load_executable(path)
    assert isinstance(loaded, ost.TextExecutable)
    with ost.TraceSession(loaded, results_of=[LAYERS]) as session:
        found = loaded(IDS)["logits"]
    assert bits_equal(found, tiny(IDS)["logits"])
    assert len(session.values) == 2
    with pytest.raises(ost.ConfigError, match="loaded as it was lowered"):
        ost.TraceSession(loaded, ["layers.0.attn.v"], unfused=True)


def test_a_traced_run_is_excluded_from_timing(tiny: ost.TextExecutable) -> None:
    with ost.TraceSession(tiny, results_of=[LAYERS]) as session:
        for measured in (
            tiny.profile,
            lambda: bench(tiny, "tiny", tokens=4, runs=1, seed=1, begin=lambda what: None),
        ):
            with pytest.raises(ost.LifecycleError, match="is being traced"):
                measured()
        tiny.clone("eager")(IDS)  # what is compared are clones, and those are not traced
        tiny.warm_up()
        assert tiny.captures() == []
    assert not session.steps
    assert "not for timing" in str(session)


def test_a_value_that_no_pass_would_swallow_changes_nothing(tiny: ost.TextExecutable) -> None:
    with ost.TraceSession(tiny, results_of=["layers.1"], unfused=True) as session:
        found = tiny(IDS)["logits"]
    assert session.bit_equal, session.differences
    assert bits_equal(found, tiny(IDS)["logits"])


def test_integers_are_refused_by_name(tiny_model: ost.Model) -> None:
    llm = ost.LLM(tiny_model, max_num_seqs=1, context=32, threads=1)
    with pytest.raises(ost.DTypeError, match=r"only float values are traced, 'token' names %token \(i32\)"):
        ost.TraceSession(llm, ["token"])
    with pytest.raises(ost.DTypeError, match=r"%token \(i32\)"):
        ost.TraceSession(llm, ["*"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"values": ["input_ids"]}, "input of the graph"),
        ({"values": ["layers.7"]}, "names no value"),
        ({"results_of": ["layers.7"]}, "names no scope"),
        ({"values": ["layers.0.attn.k_stored"]}, "update of k_cache.0"),
        ({}, "nothing is to be traced"),
        ({"values": [3]}, "values is"),
        ({"values": ["layers"], "unfused": 1}, "unfused"),
    ],
)
def test_what_cannot_be_traced(options: dict[str, Any], problem: str, tiny: ost.TextExecutable) -> None:
    with pytest.raises(ost.ConfigError, match=problem):
        ost.TraceSession(tiny, **options)


def test_what_is_no_executable(tiny: ost.TextExecutable) -> None:
    with pytest.raises(ost.ConfigError, match="cannot be traced"):
        ost.TraceSession("model", ["layers"])
    session = ost.TraceSession(tiny, ["layers.0"])
    with pytest.raises(ost.InputError, match="is not traced"):
        session.series("layers.1.add_1")


def test_one_session_at_a_time_and_none_within_a_call(tiny: ost.TextExecutable) -> None:
    first, second = (ost.TraceSession(tiny, results_of=[LAYERS]) for _ in range(2))
    with first:
        with pytest.raises(ost.LifecycleError, match="traced already"), second:
            pass
        with second.__class__(tiny.clone(), results_of=[LAYERS]):
            tiny(IDS)
    with tiny.exclusive(), pytest.raises(ost.LifecycleError, match="another call"), first:
        pass
    assert len(first.steps) == 1
    assert not second.steps
    with second:  # neither refusal has left anything behind
        tiny(IDS)
    assert len(second.steps) == 1
