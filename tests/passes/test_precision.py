"""Policies of precision: their texts, what they narrow and for which projections, that nothing is narrowed unsaid, and how far from f32 they lead."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.target import host_target, named_target
from ostinato.frontend.model import CacheShape
from ostinato.ir.errors import ConfigError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.ops import OP
from ostinato.ir.precision import EVERY_PROJECTION, POLICIES, PrecisionPolicy, precision_policy, projection_kind
from ostinato.ir.signature import signature_class
from ostinato.ir.types import DType
from ostinato.ir.views import call_site
from ostinato.passes.precision import Precision
from ostinato.passes.runner import run_passes
from ostinato.stages import trace
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf, write_hf_checkpoint
from tests.frontend.small_families import SMALL_FAMILIES, small_model
from tests.passes.graphs import Builder

TEXTS = ("f32", "bf16", "bf16_results", "bf16[down,gate,up]", "bf16_results[gate,k,up]", "bf16[other]")
NARROW = (DType.BF16, DType.F16)


@pytest.mark.parametrize("text", TEXTS)
def test_a_policy_is_its_text(text: str) -> None:
    policy = precision_policy(text)
    assert str(policy) == text
    assert precision_policy(str(policy)) == policy == precision_policy(policy)
    assert ost.PipelineOptions(policy) == ost.PipelineOptions(text)
    assert Precision(text) == Precision(str(policy))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("fp4", "unknown precision 'fp4'"),
        ("bf16[gate", "has no end"),
        ("bf16[]", "is no kind of projection"),
        ("bf16[gate,heads]", "given for heads, which is no kind"),
        ("f32[gate]", "precision f32 is given for 1 kinds"),
        (16, "precision is 16"),
        (None, "precision is None"),
    ],
)
def test_what_is_no_policy_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        precision_policy(wrong)


def test_an_empty_scope_is_refused() -> None:
    with pytest.raises(ConfigError, match="given for 0 kinds"):
        PrecisionPolicy("bf16", frozenset())


def traced(model: ost.Model, precision: str | PrecisionPolicy, entry: str = "step") -> Graph:
    """The graph after the passes that decide dtypes."""
    found = trace(model, entry, cache=CacheShape(2, 32, 1), precision=precision)
    dims = {"B": 2, "T": 5} if entry == "forward" else {"N": 6, "R": 2}
    return run_passes(found.graph.bind(dims), host_target(), (Precision(found.precision),)).graph


def products(graph: Graph) -> dict[str, list[Node]]:
    """Projections by their kind."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "linear":
            found.setdefault(projection_kind(node.name), []).append(node)
    return found


def test_a_scope_narrows_its_kinds_and_the_others_are_products_of_another_kind(tmp_path: Path) -> None:
    model = small_model("llama", tmp_path, 1, attention_bias=False)
    graph = traced(model, PrecisionPolicy("bf16", frozenset({"gate", "up", "down"})))
    kinds = products(graph)
    assert set(kinds) == EVERY_PROJECTION - {"other"}
    for kind, nodes in kinds.items():
        narrow = kind in ("gate", "up", "down")
        for node in nodes:
            x, weight = (graph.types[name or ""].dtype for name in node.operands[:2])
            assert (x, weight) == (DType.BF16 if narrow else DType.F32, DType.BF16), node.name
    classes = {kind: signature_class(call_site(graph, nodes[0])) for kind, nodes in kinds.items()}
    assert classes["gate"].startswith("bf16,bf16")
    assert classes["q"].startswith("f32,bf16")
    assert classes["gate"] != classes["q"]


@pytest.mark.parametrize("target", ["host", "sm_90", "gfx942"])
def test_both_kinds_of_products_have_rows(target: str, tmp_path: Path) -> None:
    model = small_model("qwen2", tmp_path, 1)
    for precision in ("bf16[gate,up]", "bf16_results", "bf16_results[v,down]"):
        for dims in ({"N": 24, "R": 1}, {"N": 2, "R": 2}):
            step = trace(model, "step", cache=CacheShape(2, 32, 1), precision=precision)
            assert step.lower(named_target(target), dims=dims).copies == ()


def test_results_that_stay_inside_a_part_of_a_layer_are_kept(tmp_path: Path) -> None:
    graph = traced(small_model("llama", tmp_path, 1, attention_bias=False), "bf16_results")
    dtypes = {kind: {node.results[0].type.dtype for node in nodes} for kind, nodes in products(graph).items()}
    kept = {"q", "k", "v", "gate", "up"}
    assert dtypes == {kind: {DType.BF16 if kind in kept else DType.F32} for kind in dtypes}
    by_op = {node.op: node.results[0].type.dtype for node in graph.nodes}
    assert by_op["rope_split_half"] == by_op["attention_packed"] == by_op["swiglu"] == DType.BF16
    assert by_op["add"] == DType.F32
    assert graph.types[graph.outputs[0]].dtype is DType.F32
    assert "cast" not in {node.op for node in graph.nodes}, "whoever makes a value writes it as it is read"


def test_a_result_with_a_bias_stays_f32(tmp_path: Path) -> None:
    graph = traced(small_model("qwen2", tmp_path, 1), "bf16_results")
    dtypes = {kind: nodes[0].results[0].type.dtype for kind, nodes in products(graph).items()}
    assert dtypes["q"] == dtypes["k"] == dtypes["v"] == DType.F32
    assert dtypes["gate"] == dtypes["up"] == DType.BF16


def test_what_cannot_read_a_kept_result_has_a_cast_in_front() -> None:
    b = Builder("mixed")
    x = b.value("x", (3, 32))
    gate = b.add("linear", (x, b.weight("wg", (32, 32), dtype=DType.BF16)), "mlp.gate")
    y = b.add("swiglu", (gate, x), "y")
    b.add("add", (y, gate), "z")
    graph = Precision("bf16_results[gate]").apply(b.graph(("z",)), host_target())
    assert graph.types["mlp.gate"].dtype is DType.BF16
    assert graph.producers["y"].operands == ("mlp.gate.f32", "x")
    assert graph.producers["z"].operands == ("y", "mlp.gate.f32")
    assert [node.op for node in graph.nodes].count("cast") == 2, (
        "one before the product, one behind it for both readers"
    )


def unsaid(graph: Graph) -> list[str]:
    """Nodes whose result is narrower than what they work on, where neither an attribute nor an operand whose bytes it takes says so."""
    found = []
    for node in graph.nodes:
        first = node.operands[0]
        if first is None or graph.types[first].dtype is not DType.F32:
            continue
        aliased = {result for result, _ in OP[node.op].aliased(node.operands)}
        for index, value in enumerate(node.results):
            said = node.attrs.get("dtype") == value.type.dtype.value or index in aliased
            if value.type.dtype in NARROW and not said:
                found.append(f"{node.name} = {node.op}")
    return found


@pytest.mark.parametrize("precision", ["bf16", "bf16_results", "bf16[down,q]"])
@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_nothing_is_narrowed_unsaid(family: str, precision: str, tmp_path: Path) -> None:
    """A value has one dtype, its reader's operand is that value: so only a node can narrow, and every one that does says so."""
    model = small_model(family, tmp_path, 1)
    for entry in ("embed",) if family == "bert" else ("step", "forward"):
        graph = traced(model, precision, entry)
        assert unsaid(graph) == []
        assert any(value.type.dtype is DType.BF16 for node in graph.nodes for value in node.results)
        lowered = trace(model, entry, cache=CacheShape(2, 32, 1), precision=precision).lower(
            dims={"B": 2, "T": 5} if entry == "forward" else {"N": 6, "R": 2}
        )
        assert unsaid(lowered.graph) == []


def test_blocks_multiply_f32_under_every_policy(tmp_path: Path) -> None:
    config = small_config("llama")
    write_gguf(tmp_path / "model.gguf", config, random_model(config, 1), DType.Q8_0)
    model = ost.load(tmp_path / "model.gguf")
    for precision in POLICIES:
        graph = traced(model, precision)
        for node in (node for node in graph.nodes if node.op == "linear"):
            x, weight = (graph.types[name or ""].dtype for name in node.operands[:2])
            assert not weight.is_block or x is DType.F32
            assert not weight.is_block or node.results[0].type.dtype is DType.F32


def test_compile_takes_a_policy_and_its_text_alike(tmp_path: Path) -> None:
    model = small_model("qwen2", tmp_path, 1)
    ids = np.array([[3, 1, 4, 1, 5]], np.int32)
    buckets = {"B": [1], "T": [5]}
    policy = PrecisionPolicy("bf16", frozenset({"gate", "up"}))
    first, second = (
        ost.compile(model, buckets=buckets, precision=precision, device="cpu") for precision in (policy, str(policy))
    )
    assert first(ids)["logits"].tobytes() == second(ids)["logits"].tobytes()
    entry = next(iter(first.entries.values()))
    assert entry.options["precision"] == "precision{policy=bf16[gate,up]}"
    whole = ost.compile(model, buckets=buckets, precision="bf16", device="cpu")
    assert whole(ids)["logits"].tobytes() != first(ids)["logits"].tobytes()


VOCABULARY = 1024
QWEN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
LARGEST, ROOT_MEAN_SQUARE = 0.25, 0.05
"""The envelope of complete logits that a bf16 policy keeps to (`contracts.md`, other numeric gates)."""


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_the_policies_keep_to_the_envelope(architecture: str, tmp_path: Path, seed: int) -> None:
    """Two layers of the shape of Qwen2.5-0.5B, with and without biases, logits as wide as those of a trained model; against f32 over the same bf16 weights."""
    config = small_config(architecture, **QWEN)
    weights = {
        name: tensor.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, tensor in random_model(config, seed, std=0.05).items()
    }
    model = ost.load(write_hf_checkpoint(tmp_path, config, weights))
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, (1, 40), dtype=np.int32)

    def logits(precision: str) -> np.ndarray:
        executable = ost.compile(
            model, buckets={"B": [1], "T": [40]}, context=64, logits="all", precision=precision, device="cpu"
        )
        found: np.ndarray = executable(ids)["logits"][0]
        return found

    exact = logits("f32")
    assert exact.std() > 1
    ranked = np.sort(exact, axis=-1)
    for precision in ("bf16", "bf16_results", "bf16[gate,up,down]"):
        off = logits(precision) - exact
        largest, mean = float(np.abs(off).max()), float(np.sqrt((off**2).mean()))
        print(f"{architecture} {precision}: largest {largest:.4f}, root mean square {mean:.4f}")
        assert 0 < largest <= LARGEST
        assert mean <= ROOT_MEAN_SQUARE
        clear = ranked[:, -1] - ranked[:, -2] > 2 * largest  # of random logits some are closer than any rounding
        assert clear.any()
        assert ((off + exact).argmax(-1) == exact.argmax(-1))[clear].all()
