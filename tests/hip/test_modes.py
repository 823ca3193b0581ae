"""Models on a GPU: eager, planned, guarded and captured give the same bits, which are those of the CPU within the operators' tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.emulator.machine import EmulatedGpu
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.kernel_source import STATUS_BYTES
from ostinato.ir.step import Region, StepKind
from ostinato.ir.types import Array, DType
from ostinato.runtime.captured import CapturedRunner
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.small_families import SMALL_DECODERS, small_model

MODES = ("eager", "planned", "guarded", "captured")
BUCKETS = {"B": [1, 2], "T": [4]}
IDS = np.array([[5, 9, 2, 77, 31, 8], [12, 3, 3, 90, 41, 7]], np.int32)
TOLERANCE = {"f32": 2e-4, "bf16": 0.1}
"""Of the logits' standard deviation."""


def compiled(model: ost.Model, device: Any, mode: str = "auto", **options: Any) -> ost.TextExecutable:
    return ost.compile(model, buckets=BUCKETS, context=32, device=device, mode=mode, **options)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ost.Model:
    return small_model("llama", tmp_path_factory.mktemp("llama"), 5)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("family", SMALL_DECODERS)
def test_every_family_has_the_same_bits_in_every_mode(
    family: str, precision: str, gpu: HipDevice, tmp_path: Path, seed: int
) -> None:
    model = small_model(family, tmp_path, seed)
    expected = compiled(model, "cpu", precision=precision)(IDS)["logits"]
    first = compiled(model, gpu, "planned", precision=precision)
    found = {mode: (first if mode == "planned" else first.clone(mode))(IDS)["logits"] for mode in MODES}
    assert len({logits.tobytes() for logits in found.values()}) == 1
    worst = np.abs(found["captured"] - expected).max()
    assert worst <= TOLERANCE[precision] * expected.std()


def test_waves_of_both_widths(llama: ost.Model, device: HipDevice) -> None:
    captured = compiled(llama, device)
    assert (captured.mode, captured.device) == ("captured", device)
    assert captured.reason == f"auto: captured is the fastest mode of {device.name}"
    planned = captured.clone("planned")
    for start in range(3):  # other values through the same graphs
        ids = (IDS + start) % 90
        assert captured(ids)["logits"].tobytes() == planned(ids)["logits"].tobytes()


def test_quantised_weights(gpu: HipDevice, tmp_path: Path) -> None:
    config = small_config("llama")
    path = tmp_path / "q8.gguf"
    write_gguf(path, config, random_model(config, 3), DType.Q8_0)
    model = ost.load(str(path))
    expected = compiled(model, "cpu")(IDS)["logits"]
    found = [compiled(model, gpu, mode)(IDS)["logits"] for mode in ("eager", "captured")]
    assert found[0].tobytes() == found[1].tobytes()
    assert np.abs(found[0] - expected).max() <= 2e-4 * expected.std()


def graphs(executable: ost.TextExecutable, entry: str) -> list[tuple[int, int, bool]]:
    """First step, count and whether it is a graph, of each segment of an entry."""
    executable.captures(entry)
    runner = executable.runner(entry)
    assert isinstance(runner, CapturedRunner)
    return [(segment.first, segment.count, segment.graph is not None) for segment in runner.steps.segments]


def test_ranges_are_captured_by_name(llama: ost.Model, gpu: HipDevice) -> None:
    expected = compiled(llama, gpu, "planned")(IDS)["logits"]
    whole = compiled(llama, gpu, "captured")
    entry = next(iter(whole.entries))
    names = [step.node for step in whole.entries[entry].steps]
    assert graphs(whole, entry) == [(0, len(names), True)]
    assert whole(IDS)["logits"].tobytes() == expected.tobytes()
    for patterns, wanted in (
        (["ffn"], [".ffn." in name for name in names]),
        (["layers.1"], [name.startswith("layers.1.") for name in names]),
        (["layers.*.attn", "logits"], [".attn." in name or name == "logits" for name in names]),
    ):
        partly = compiled(llama, gpu, "captured", capture=patterns)
        covered = [False] * len(names)
        for first, count, captured in graphs(partly, entry):
            covered[first : first + count] = [captured] * count
        assert covered == wanted
        assert partly(IDS)["logits"].tobytes() == expected.tobytes()
        reports = partly.captures(entry)
        assert sum(report.graph_nodes for report in reports) == sum(wanted)
        assert all(report.dependencies == report.graph_nodes - 1 for report in reports)


def test_kernels_behind_kernels_start_early(llama: ost.Model, gpu: HipDevice) -> None:
    """As the plan says, in the graph that was read back; that the bits are those of eager, where nothing starts early, others look at."""
    whole = compiled(llama, gpu, "captured")
    for name, entry in whole.entries.items():
        early = [step.launch is not None and step.launch.early for step in entry.steps]
        behind = [step.kind is StepKind.LAUNCH for step in entry.steps]
        (report,) = whole.captures(name)
        assert report.early == sum(a and b for a, b in zip(early[1:], behind, strict=False)) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "captured", "capture": ["layers.7"]}, "names no step"),
        ({"mode": "captured", "capture": []}, "list of patterns"),
        ({"mode": "captured", "capture": "ffn"}, "list of patterns"),
        ({"mode": "planned", "capture": ["ffn"]}, "the mode is planned"),
    ],
)
def test_a_capture_that_makes_no_sense_is_refused(
    options: dict[str, Any], message: str, llama: ost.Model, gpu: HipDevice
) -> None:
    with pytest.raises(ost.ConfigError, match=message):
        compiled(llama, gpu, **options).prewarm()


def test_a_pattern_may_name_steps_of_one_entry_only(llama: ost.Model, gpu: HipDevice) -> None:
    """Here of the decode step: the prefill is submitted step by step."""
    whole, partly = (
        ost.LLM(llama, device=gpu, context=16, max_num_seqs=2, mode="captured", capture=capture)
        for capture in (None, ["input_ids"])
    )
    found = {entry: [c for _, _, c in graphs(partly.executable, entry)] for entry in partly.executable.entries}
    assert [sum(captured) for captured in found.values()] == [0, 1], found
    params = ost.SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    assert partly.generate([[5, 6]], params)[0].token_ids == whole.generate([[5, 6]], params)[0].token_ids


def test_prewarm_captures_once_and_runs_nothing(llama: ost.Model, gpu: HipDevice, machine: EmulatedGpu) -> None:
    executable = compiled(llama, gpu, "captured")
    before, launched = machine.count("hipStreamBeginCapture"), machine.count("hipGraphLaunch")
    executable.prewarm()
    assert machine.count("hipStreamBeginCapture") == before + len(executable.entries)
    assert machine.count("hipGraphLaunch") == launched
    executable.prewarm()
    assert machine.count("hipStreamBeginCapture") == before + len(executable.entries)
    executable.clone().prewarm()  # another arena: captured anew
    assert machine.count("hipStreamBeginCapture") == before + 2 * len(executable.entries)


def test_a_replay_allocates_nothing_and_copies_only_inputs_and_outputs(
    llama: ost.Model, gpu: HipDevice, machine: EmulatedGpu
) -> None:
    executable = compiled(llama, gpu, "captured")
    first = executable(IDS)["logits"]
    counted = ("hipMalloc", "hipModuleLaunchKernel", "hipStreamBeginCapture", "hipHostMalloc", "hipModuleLoadData")
    before = {name: machine.count(name) for name in counted}
    graphs_before = machine.count("hipGraphLaunch")
    assert executable(IDS)["logits"].tobytes() == first.tobytes()
    assert {name: machine.count(name) for name in counted} == before
    assert machine.count("hipGraphLaunch") > graphs_before


def test_memory_is_the_plans_to_the_byte(llama: ost.Model, gpu: HipDevice) -> None:
    native = gpu.native
    native.trim_pool()
    before = native.counters.current_bytes
    executable = compiled(llama, gpu, "captured")
    executable.prewarm()
    report = executable.memory
    assert native.counters.current_bytes - before == report.total
    assert report.status == STATUS_BYTES * len(executable.entries)
    assert report.arena == executable.program.plan.size_of(Region(gpu.name, "arena")) > 0
    del executable
    assert native.counters.current_bytes == before


def test_too_little_memory_names_what_is_missing_before_anything_is_taken(
    llama: ost.Model, gpu: HipDevice, machine: EmulatedGpu
) -> None:
    gpu.native.trim_pool()
    before, backend = gpu.native.counters.current_bytes, gpu.native.counters.backend_allocations
    free, total = gpu.native.memory_info
    machine.capacity(1, total - free + 100_000)
    try:
        with pytest.raises(ost.CapacityError, match=r"bytes are missing: .*entry prefill.*live at step") as caught:
            compiled(llama, gpu)
        assert "weights" in str(caught.value)
    finally:
        machine.capacity(1, total)
    counters = gpu.native.counters
    assert (counters.current_bytes, counters.backend_allocations) == (before, backend)


def test_an_index_out_of_range_is_told_with_its_node_and_the_next_run_is_right(
    llama: ost.Model, gpu: HipDevice
) -> None:
    for mode in ("eager", "planned", "captured"):
        executable = compiled(llama, gpu, mode)
        expected = executable(IDS)["logits"]
        entry = executable.bucket(4, 1)
        inputs: dict[str, Array] = {b.name: np.zeros(b.type.static_shape, b.type.dtype.numpy) for b in entry.inputs}
        inputs["token_count"][:] = 1
        inputs["input_ids"][0] = 4000
        with pytest.raises(ost.BoundsError, match="embed"):
            executable.run(entry.name, inputs)
        assert executable(IDS)["logits"].tobytes() == expected.tobytes()


def test_weights_are_replaced_under_a_captured_graph(llama: ost.Model, gpu: HipDevice) -> None:
    captured = compiled(llama, gpu, "captured")
    before = captured(IDS)["logits"]
    name = "model.layers.0.mlp.down_proj.weight"
    config = small_config("llama", attention_bias=True)
    captured.replace_weights({name: 2 * random_model(config, 5)[name]})
    after = captured(IDS)["logits"]
    assert after.tobytes() != before.tobytes()
    assert after.tobytes() == captured.clone("eager")(IDS)["logits"].tobytes()
