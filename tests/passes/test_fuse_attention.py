"""Composed attention as hand-written graphs have it: which form it takes on which device, that its values stay, and what is left as it was written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ostinato.backend_hip.target import host_target, named_target
from ostinato.frontend import functional as F  # noqa: N812 - the usual name
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.ir.graph import Graph
from ostinato.ir.interp import interpret
from ostinato.ir.target import Level, Target
from ostinato.ir.types import DType, TensorType
from ostinato.passes.attention_islands import Left, find_islands
from ostinato.passes.canonicalize import Canonicalize
from ostinato.passes.copies import copies_of
from ostinato.passes.fuse_attention import FuseAttention
from ostinato.passes.fuse_rope_bias import FuseRopeBias
from ostinato.passes.pipeline import PipelineOptions
from ostinato.passes.precision import Precision
from ostinato.passes.runner import run_passes, run_pipeline
from ostinato.planner.lower import plan_entry

TARGETS = {name: named_target(name) for name in ("host", "sm_90", "gfx942", "gfx1100")}
NOTHING = frozenset({"fuse_attention", "fuse_rope_bias"})


@dataclass(frozen=True)
class Attention:
    """How somebody wrote it down: q [B,T,H*D], k and v [B,T,G*D] come in, [B,T,H*D] goes out."""

    batch: int = 2
    time: int = 8
    groups: int = 2
    repeats: int = 3
    width: int = 16
    causal: bool = True
    repeated: str = "head-major"
    """Where heads are repeated: "head-major", or "token-major" before they are transposed."""
    keys_turned: bool = False
    """Keys transposed by hand, not by the flag of the product."""
    rotated: bool = True
    biased: bool = False
    """Biases that are added behind a projection."""
    dtype: DType = DType.F32
    returned: str = ""
    """What else goes out: "scores" or "probabilities"."""
    odd: str = ""
    """What does not fit: see ODD."""

    @property
    def heads(self) -> int:
        return self.groups * self.repeats

    def graph(self) -> Graph:
        b = GraphBuilder("attention")
        q, k, v = (
            self._heads(b, name, heads) for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups))
        )
        if self.rotated:
            half = TensorType((self.batch, self.time, self.width // 2), DType.F32, ("B", "T", ""))
            cos, sin = b.input("cos", half), b.input("sin", half)
            q = F.rope_split_half(q, cos, sin)
            named = F.reshape(k, (self.batch, self.time, self.groups, self.width), "BTGD")
            letters = "B_HD" if self.repeats == 1 else "B_GD"
            k = F.reshape(F.rope_split_half(named, cos, sin), (self.batch, self.time, self.groups, self.width), letters)
        q = F.transpose(q, (0, 2, 1, 3))
        k, v = self._grouped(k), self._grouped(v)
        k = F.transpose(k, (0, 1, 3, 2)) if self.keys_turned else k
        scores = F.matmul(q, k, transpose_b=not self.keys_turned, scale=0.25, name="scores")
        probabilities = (F.causal_softmax if self.causal else F.softmax)(scores, name="probabilities")
        if self.odd == "two products":
            context = F.matmul(probabilities, v) + F.matmul(probabilities, v, scale=2.0)
        else:
            context = F.matmul(probabilities, v, scale=2.0 if self.odd == "scaled context" else 1.0, name="context")
        context = F.tanh(context) if self.odd == "head-major reader" else context
        y = F.reshape(F.contiguous(F.transpose(context, (0, 2, 1, 3))), (0, 0, self.heads * self.width), "BT_")
        more = {"scores": (scores,), "probabilities": (probabilities,)}.get(self.returned, ())
        return b.finish((y, *more))

    def _heads(self, b: GraphBuilder, name: str, heads: int) -> Tensor:
        x = b.input(name, TensorType((self.batch, self.time, heads * self.width), self.dtype, ("B", "T", "")))
        if self.biased:
            x = F.add_bias(x, b.input(f"{name}_bias", TensorType((heads * self.width,), DType.F32)))
        if name == "q":
            return F.reshape(x, (0, 0, heads, self.width), "BTHD")
        letter = "H" if self.repeats == 1 else "G"
        return F.reshape(x, (self.batch, self.time, heads, self.width), f"B_{letter}D")

    def _grouped(self, x: Tensor) -> Tensor:
        """[B,T,G,D] as [B,H,T,D]."""
        if self.repeats == 1:
            return F.transpose(x, (0, 2, 1, 3))
        if self.repeated == "token-major":
            return F.transpose(F.repeat_interleave(x, 2, self.repeats, axis_name="H"), (0, 2, 1, 3))
        return F.repeat_interleave(F.transpose(x, (0, 2, 1, 3)), 1, self.repeats, axis_name="H")


def outcome(graph: Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return interpret(
        graph, {name: rng.normal(size=t.static_shape).astype(t.dtype.numpy) for name, t in inputs(graph)}
    ).outputs


def inputs(graph: Graph) -> list[tuple[str, TensorType]]:
    return [(item.value.name, item.value.type) for item in graph.inputs]


def same_values(before: Graph, after: Graph, seed: int, tolerance: float) -> None:
    assert inputs(before) == [(name, tensor.with_layout(None)) for name, tensor in inputs(after)]
    expected, found = (outcome(graph, np.random.default_rng(seed)) for graph in (before, after))
    for name, values in expected.items():
        assert np.abs(found[name].astype(np.float64) - values.astype(np.float64)).max() <= tolerance, name


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.impl is not None]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("how", ["head-major", "token-major", "turned keys", "halves", "not rotated"])
def test_a_causal_island_is_one_operator_without_copies(how: str, repeats: int, target: Target, seed: int) -> None:
    written = Attention(repeats=repeats, repeated=how if how.endswith("major") else "head-major")
    if how == "turned keys":
        written = replace(written, keys_turned=True)
    if how == "halves":
        written = replace(written, dtype=DType.BF16, width=64)  # heads of 16 halves have a readable row alone
    if how == "not rotated":
        written = replace(written, rotated=False)
    before = written.graph()
    after = run_pipeline(before, target, PipelineOptions("bf16" if how == "halves" else "f32")).graph
    wanted = ["rope_split_half"] * 2 * written.rotated + ["attention_causal"]
    assert [op for op in ops(after) if op != "cast"] == wanted
    assert copies_of(after, target) == ()
    assert plan_entry(after, target, name="attention").stats.strided_copies == 0
    same_values(before, after, seed, 0.05 if how == "halves" else 2e-6)
    plain = run_pipeline(before, target, PipelineOptions("bf16" if how == "halves" else "f32", disable=NOTHING)).graph
    assert [copy.kind for copy in copies_of(plain, target)].count("repeat") == (2 if repeats > 1 else 0)
    assert any(copy.kind == "view" for copy in copies_of(plain, target))
    same_values(before, plain, seed, 0.05 if how == "halves" else 1e-6)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    "written", [Attention(causal=False), Attention(returned="probabilities")], ids=["whole", "kept"]
)
def test_probabilities_go_straight_to_token_major_memory(written: Attention, target: Target, seed: int) -> None:
    """Grouped heads share keys and values; the scores are needed, or not causal, so that they are made."""
    before = written.graph()
    after = run_pipeline(before, target).graph
    softmax = "softmax" if not written.causal else "causal_softmax"
    wanted = ["rope_split_half"] * 2 + ["attention_scores_gqa", softmax, "attention_probability_value_bthd"]
    assert ops(after) == wanted
    assert copies_of(after, target) == ()
    same_values(before, after, seed, 2e-6)
    alone = run_pipeline(replace(written, repeats=1).graph(), target).graph
    assert ops(alone) == ["rope_split_half"] * 2 + ["matmul", softmax, "attention_probability_value_bthd"]
    assert copies_of(alone, target) == ()


def head_major(batch: int) -> Graph:
    """Keys come head-major, values token-major, as `repeat_gqa_kv_bthd` takes them."""
    b = GraphBuilder("grouped")
    q = b.input("q", TensorType((batch, 6, 8, 16), DType.F32, tuple("BHTD")))
    k = b.input("k", TensorType((batch, 2, 8, 16), DType.F32, tuple("BGSD")))
    v = b.input("v", TensorType((batch, 8, 2, 16), DType.F32, tuple("BSGD")))
    keys = F.repeat_interleave(k, 1, 3, axis_name="H")
    values = F.repeat_interleave(F.transpose(v, (0, 2, 1, 3)), 1, 3, axis_name="H")
    scores = F.matmul(q, keys, transpose_b=True, scale=0.25)
    context = F.matmul(F.softmax(scores), values)
    return b.finish((F.tanh(F.contiguous(F.transpose(context, (0, 2, 1, 3)))),))


def test_heads_are_repeated_together_where_that_has_the_better_rows(seed: int) -> None:
    """The vendor takes one step between matrices: with as many values as heads the context of one sequence is a batch of them, with groups it is not."""
    sharing = ["attention_scores_gqa", "softmax", "attention_probability_value_bthd", "tanh"]
    for name, batch, paired in (("sm_90", 1, True), ("sm_90", 2, False), ("host", 1, False), ("gfx1100", 1, False)):
        before, target = head_major(batch), TARGETS[name]
        after = run_pipeline(before, target).graph
        assert ops(after) == (["repeat_gqa_kv_bthd", *sharing] if paired else sharing), (name, batch)
        rows = {node.op: target.row(node.op, node.impl or "") for node in after.nodes if node.impl is not None}
        context = rows["attention_probability_value_bthd"]
        assert context is not None
        assert (context.level is Level.VENDOR) is paired
        assert [copy.kind for copy in copies_of(after, target)] == ["repeat"] * paired
        assert not paired or "rows of a higher level" in str(copies_of(after, target)[0])
        same_values(before, after, seed, 2e-6)


ODD = {
    "two products": "its probabilities go into 2 products",
    "scaled context": "its context is scaled",
}


@pytest.mark.parametrize("odd", ODD)
def test_what_does_not_fit_stays_as_it_was_written_and_says_why(odd: str, seed: int) -> None:
    before, target = Attention(odd=odd).graph(), TARGETS["host"]
    after = run_pipeline(before, target).graph
    assert [op for op in ops(after) if op.startswith("attention")] == []
    (left,) = find_islands(after)
    assert isinstance(left, Left)
    assert left.reason == ODD[odd]
    repeats = [copy for copy in copies_of(after, target) if copy.kind == "repeat"]
    assert len(repeats) == 2
    assert all(copy.reasons == (("grouped heads", ODD[odd]),) for copy in repeats)
    same_values(before, after, seed, 1e-6)


def test_scores_share_heads_though_the_context_is_read_head_major(seed: int) -> None:
    before, target = Attention(odd="head-major reader", causal=False).graph(), TARGETS["host"]
    after = run_pipeline(before, target).graph
    assert ops(after).count("attention_scores_gqa") == 1
    assert "attention_probability_value_bthd" not in ops(after)
    same_values(before, after, seed, 1e-6)


def test_a_bias_goes_into_the_rotation_and_out_of_the_steps(seed: int) -> None:
    before, target = Attention(biased=True, causal=False, repeats=1).graph(), TARGETS["host"]
    passes = (Canonicalize(), Precision(), FuseRopeBias(), FuseAttention())
    after = run_passes(before, target, passes).graph
    fused = [node for node in after.nodes if node.op == "rope_split_half_bias_bthd"]
    assert [node.operands[1] for node in fused] == ["q_bias"]  # the keys are named otherwise in between
    assert "".join(fused[0].results[0].type.axes) == "BHTD"
    same_values(before, after, seed, 2e-6)


def with_rotated_projection(rows: int, dtype: str) -> Graph:
    b = GraphBuilder("rotated")
    x = b.input("x", TensorType((1, rows, 64), DType.BF16, ("B", "T", "C")))
    weight = b.input("weight", TensorType((64, 64), DType.BF16, ("", "C")))
    bias = b.input("bias", TensorType((64,), DType.F32))
    half = TensorType((1, rows, 16), DType.F32, ("B", "T", ""))
    q = b.apply("linear", (x, weight, bias), {"dtype": dtype})
    q = F.rope_split_half(F.reshape(q, (0, 0, 2, 32), "BTHD"), b.input("cos", half), b.input("sin", half))
    return b.finish((F.contiguous(F.transpose(q, (0, 2, 1, 3))),))


def test_a_bias_leaves_a_projection_only_for_a_row_of_a_higher_level(seed: int) -> None:
    """A vendor adds a float32 bias to float32 results alone; few rows are for kernels of our own, which add any."""
    for target, rows, dtype, moved in (
        ("sm_90", 32, "bf16", True),
        ("sm_90", 32, "f32", False),
        ("sm_90", 4, "bf16", False),
        ("host", 32, "bf16", False),
    ):
        before = with_rotated_projection(rows, dtype)
        after = FuseRopeBias().apply(before, TARGETS[target])
        assert ("rope_split_half_bias_bthd" in [node.op for node in after.nodes]) is moved, (target, rows, dtype)
        assert (after is before) is not moved
        same_values(before, after, seed, 1.0)  # two bf16 near 100


def test_a_copy_of_what_is_overwritten_later_stays() -> None:
    """The old keys are kept beside the new ones: a copy that looks needless is the value before the store."""
    b = GraphBuilder("kept")
    cache = TensorType((1, 2, 8, 16), DType.F32, tuple("PGSD"))
    k_cache, v_cache = b.state("k_cache", cache), b.state("v_cache", cache)
    token = TensorType((3, 2, 16), DType.F32, tuple("NGD"))
    k, v = b.input("k", token), b.input("v", token)
    index = TensorType((3,), DType.I32, ("N",))
    old = F.scale(F.contiguous(k_cache), 2.0)
    where = b.input("row_of_token", index), b.input("position", index)
    F.kv_store(k, v, *where, b.input("table", TensorType((1, 1), DType.I32, ("R", "W"))), k_cache, v_cache)
    after = run_pipeline(b.finish((old,)), host_target()).graph
    assert "contiguous" in [node.op for node in after.nodes]
