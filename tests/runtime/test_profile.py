"""Profiles of steps on the host: every step with its facts, and an executable that cannot tell that it was profiled. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Role
from ostinato.ir.step import Region, StepKind
from ostinato.runtime.profile import layer_of
from ostinato.runtime.profiler import middle_mean, step_traffic
from ostinato.runtime.trace_events import trace_problems
from tests.training.steps import state_of
from tests.training.tiny import batch, checkpoint, make

IDS = np.array([[3, 14, 15, 9, 26]], np.int32)


def test_every_step_is_there_with_its_facts(tiny: ost.TextExecutable) -> None:
    for name, plan in tiny.entries.items():
        profile = tiny.profile(name, runs=2)
        assert (profile.entry, profile.device, profile.mode, profile.runs) == (name, "host:0", "planned", 2)
        graph = tiny.program.graphs[name]
        assert len(profile.steps) == len(plan.steps)
        for position, (found, step) in enumerate(zip(profile.steps, plan.steps, strict=True)):
            node = graph.producers[step.node]
            assert (found.position, found.node, found.kernel) == (position, step.node, step.kernel)
            assert found.op == (node.op if step.kind is not StepKind.COPY else "copy")
            assert found.impl == (node.impl if step.kind is not StepKind.COPY else "")
            assert found.line == str(node.location or "")
            assert np.isfinite([found.seconds, found.best]).all()
            assert min(found.seconds, found.best, found.bytes_read, found.bytes_written, found.flops) >= 0
            for shown, operand in zip(found.operands, [o for o in step.operands if o is not None], strict=True):
                base = tiny.regions.base(operand.range.region)
                assert (shown.value, shown.address) == (operand.value, base + operand.range.offset)
        products = [step for step in profile.steps if step.op.startswith("linear")]
        assert all(step.flops > 0 and step.dtypes[0] == "f32" for step in products)
        assert min(profile.whole_seconds, profile.whole_best, profile.resolution_seconds) > 0
        assert profile.sum_seconds == pytest.approx(sum(step.seconds for step in profile.steps))
        assert "host's clock" in profile.method
        assert trace_problems(profile.to_chrome_json()) == []


def test_operators_and_layers_add_up_to_the_steps(tiny: ost.TextExecutable) -> None:
    profile = tiny.profile(next(iter(tiny.entries)), runs=1)
    for totals in (profile.by_operator(), profile.by_layer()):
        assert sum(total.steps for total in totals) == len(profile.steps)
        assert sum(total.seconds for total in totals) == pytest.approx(profile.sum_seconds)
        assert sum(total.flops for total in totals) == sum(step.flops for step in profile.steps)
    seconds = [total.seconds for total in profile.by_operator()]
    assert seconds == sorted(seconds, reverse=True)
    layers = [total.name for total in profile.by_layer()]
    assert [name for name in layers if name.startswith("layers.")] == ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("node", "layer"),
    [("layers.3.attn.q", "layers.3"), ("model.layers.10", "model.layers.10"), ("logits", "logits"), ("a.b", "a")],
)
def test_the_layer_of_a_node(node: str, layer: str) -> None:
    assert layer_of(node) == layer


def test_nothing_can_tell_that_a_profile_was_made(tiny: ost.TextExecutable) -> None:
    expected = tiny(IDS)["logits"].tobytes()
    memory = tiny.regions
    state, io = (region.read(np.uint8, (region.nbytes,)).tobytes() for region in (memory.state, memory.io))
    runners = {name: tiny.runner(name) for name in tiny.entries}
    turn = tiny.runners.turn
    tiny.profile(next(iter(tiny.entries)), runs=2)
    assert memory.state.read(np.uint8, (memory.state.nbytes,)).tobytes() == state
    assert memory.io.read(np.uint8, (memory.io.nbytes,)).tobytes() == io
    assert all(tiny.runner(name) is runner for name, runner in runners.items())
    assert tiny.runners.turn == turn
    assert tiny(IDS)["logits"].tobytes() == expected


def test_replays_go_on_behind_a_profile(tiny_model: ost.Model) -> None:
    """The decode step makes the inputs of the next one: they are put back too."""
    found = ost.LLM(tiny_model, context=32, max_num_seqs=1, threads=1).executable
    (decode,) = (name for name in found.entries if name.startswith("decode"))
    twin = found.clone()
    for executable in (found, twin):
        executable.run(decode, executable.example_inputs(decode))
    expected = twin.replay(decode, 6)
    tokens = [found.replay(decode, 3)]
    for name in found.entries:
        found.profile(name, runs=1)
    tokens.append(found.replay(decode, 3))
    np.testing.assert_array_equal(np.concatenate(tokens), expected)


def test_a_training_step_is_profiled_and_trains_nothing(tmp_path: Path) -> None:
    step = make(checkpoint("llama", tmp_path, num_hidden_layers=1), keep_gradients=True, mode="planned", dropout=0.1)
    step(*batch(0))
    state, gradient = state_of(step), step.gradient(step.gradient_names[0]).tobytes()
    twin = step.clone()
    twin(*batch(0))
    profiles = [
        step.profile(runs=2),
        step.profile(inputs=dict(zip(("input_ids", "target"), batch(1), strict=True)), runs=1),
    ]
    assert all(len(profile.steps) == len(step.plan.steps) for profile in profiles)
    assert {"adamw_group", "adamw"} & {found.op for found in profiles[0].steps}
    assert state_of(step) == state
    assert step.gradient(step.gradient_names[0]).tobytes() == gradient
    assert (step.number, step.runs) == (1, 1)
    assert step(*batch(1)).loss == twin(*batch(1)).loss
    name = step.gradient_names[0]
    mine = np.full(step.gradient(name).shape, 7, np.float32)
    step.bind_grad_buffer(name, mine, zero=False)
    step.profile(runs=1)
    ost.breakeven(step, runs=8)
    assert (mine == 7).all(), "a bound gradient is the caller's"


def test_traffic_of_steps_is_what_their_operators_say(tiny: ost.TextExecutable, tmp_path: Path) -> None:
    """Results of their own count whole, a cache only with the rows that are stored, parameters read and written."""
    name = next(iter(tiny.entries))
    graph, plan = tiny.program.graphs[name], tiny.entries[name]
    stores = [step for step in plan.steps if "store" in graph.producers[step.node].op]
    caches = tiny.program.plan.size_of(Region("host:0", "state"))
    assert stores
    for step in stores:
        read, written, _ = step_traffic(graph, step)
        assert 0 < written < caches / 4
        weights = [
            v for v in graph.producers[step.node].operands if v in {i.value.name for i in graph.with_role(Role.WEIGHT)}
        ]
        assert read >= sum(graph.types[value].nbytes for value in weights)
    train = make(checkpoint("llama", tmp_path, num_hidden_layers=1), mode="planned")
    graph = train.program.graphs["train"]
    updates = [step for step in train.plan.steps if graph.producers[step.node].op.startswith("adamw")]
    assert updates
    for step in updates:
        results = sum(value.type.nbytes for value in graph.producers[step.node].results)
        read, written, flops = step_traffic(graph, step)
        assert written == pytest.approx(results, rel=0.01)
        assert read > written
        assert flops > 0


def test_what_cannot_be_profiled_is_refused(tiny: ost.TextExecutable) -> None:
    name = next(iter(tiny.entries))
    for mode in ("reference", "eager", "guarded"):
        with pytest.raises(ost.ConfigError, match=r"no planned steps.*\n?.*clone"):
            tiny.clone(mode).profile(name)
    with pytest.raises(ost.ConfigError, match="several"):
        tiny.profile()
    with pytest.raises(ost.ConfigError, match="runs is 0"):
        tiny.profile(name, runs=0)
    with pytest.raises(ost.InputError, match="missing inputs"):
        tiny.profile(name, {"input_ids": np.zeros(4, np.int32)})
    with pytest.raises(ost.InputError, match="inputs are a list"):
        tiny.profile(name, [1])  # type: ignore[arg-type]
    with pytest.raises(ost.ConfigError, match="the path is 3"):
        tiny.profile(name, runs=1).save(3)  # type: ignore[arg-type]
    with tiny.exclusive(), pytest.raises(ost.LifecycleError, match="another call"):
        tiny.profile(name, runs=1)
    with ost.TraceSession(tiny, "layers.0"), pytest.raises(ost.LifecycleError, match="being traced"):
        tiny.profile(name, runs=1)


def test_an_index_out_of_range_is_told_and_the_memory_is_put_back(tiny: ost.TextExecutable) -> None:
    expected = tiny(IDS)["logits"].tobytes()
    name = next(iter(tiny.entries))
    inputs = tiny.example_inputs(name)
    inputs["input_ids"][0] = 4000
    with pytest.raises(ost.BoundsError, match="embed"):
        tiny.profile(name, inputs, runs=1)
    assert tiny(IDS)["logits"].tobytes() == expected


def test_the_middle_half_counts() -> None:
    assert middle_mean([9.0, 1.0, 2.0, 3.0]) == 2.5
    assert middle_mean([5.0]) == 5.0
    assert middle_mean([100.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]) == 1.0
