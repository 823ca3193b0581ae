"""Plans of graphs of the real operators on the host's rows: a decoder step, sampling, quantised weights."""

from __future__ import annotations

from ostinato.backend_hip.target import host_target
from ostinato.ir.step import WORKSPACE, Region, StepKind
from ostinato.ir.text import parse_graph
from ostinato.ir.verify import verify
from ostinato.passes.select_impl import SelectImpl
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan, ProgramPlan
from ostinato.planner.program import build_program

TARGET = host_target()


def prove(text: str) -> tuple[EntryPlan, ProgramPlan]:
    graph = SelectImpl().apply(parse_graph(text), TARGET)
    verify(graph, target=TARGET)
    plan = plan_entry(graph, TARGET, name=graph.name)
    program = build_program({graph.name: (graph, plan)})
    check_program(program, {graph.name: graph}, TARGET)
    return plan, program


STEP = """graph @step {
  input %ids: i32[N:5]
  input %row_of_token: i32[N:5]
  input %position: i32[N:5]
  input %block_table: i32[R:2,W:3]
  input %length: i32[R:2]
  input %last: i32[R:2]
  input %token_count: i32[1]
  input %row_count: i32[1]
  weight %embed: f32[V:100,C:32]@panel32 = "embed"[0:100]
  weight %norm: f32[C:32] = "norm"[0:32]
  weight %qkv: f32[64,C:32]@panel32 = "q"[0:32] + "k"[0:16] + "v"[0:16]
  weight %out_w: f32[C:32,32]@panel32 = "o"[0:32]
  constant %inverse: f32[4] = hex:0000803f0000003f0000803e0000003e
  state %k_cache: f32[P:6,G:2,S:4,D:8]
  state %v_cache: f32[P:6,G:2,S:4,D:8]
  extent N = %token_count
  extent R = %row_count
  %h: f32[N:5,C:32] = embedding(%ids, %embed) {dtype="f32", axis="C"}
  %cos: f32[N:5,4], %sin: f32[N:5,4] = rotary_table(%position, %inverse) {scale=1.0}
  %hn: f32[N:5,C:32] = rms_norm(%h, %norm) {eps=1e-06, dtype="f32"}
  %q: f32[N:5,32], %k: f32[N:5,16], %v: f32[N:5,16] = linear_split(%hn, %qkv) {sizes=[32, 16, 16], dtype="f32", axes="___"}
  %qh: f32[N:5,H:4,D:8] = reshape(%q) {shape=[0, 4, 8], axes="NHD"}
  %kh: f32[N:5,G:2,D:8] = reshape(%k) {shape=[0, 2, 8], axes="NGD"}
  %vh: f32[N:5,G:2,D:8] = reshape(%v) {shape=[0, 2, 8], axes="NGD"}
  %qr: f32[N:5,H:4,D:8] = rope_split_half(%qh, %cos, %sin)
  %kr: f32[N:5,G:2,D:8] = rope_split_half(%kh, %cos, %sin)
  %ks: f32[P:6,G:2,S:4,D:8], %vs: f32[P:6,G:2,S:4,D:8] = kv_store(%kr, %vh, %row_of_token, %position, %block_table, %k_cache, %v_cache)
  %a: f32[N:5,H:4,D:8] = attention_packed(%qr, %ks, %vs, %row_of_token, %position, %block_table, %length) {scale=0.5, dtype="f32"}
  %af: f32[N:5,32] = reshape(%a) {shape=[0, 32], axes="N_"}
  %o: f32[N:5,C:32] = linear(%af, %out_w) {dtype="f32", axis="C"}
  %s: f32[N:5,C:32], %n: f32[N:5,C:32] = add_rms_norm(%h, %o, %norm) {eps=1e-06, dtype="f32"}
  %g: f32[R:2,C:32] = gather_rows(%n, %last)
  %logits: f32[R:2,V:100] = linear(%g, %embed) {dtype="f32", axis="V"}
  %token: i32[R:2] = argmax(%logits)
  return %logits, %token
}
"""


def test_a_decoder_step_is_proven() -> None:
    plan, program = prove(STEP)
    steps = {step.node: step for step in plan.steps}
    assert [step.kind for step in plan.steps] == [StepKind.LAUNCH] * plan.stats.steps
    assert plan.stats.gap == 0.0
    assert (plan.stats.copies, plan.stats.strided_copies) == (0, 0)
    assert plan.stats.in_place == 3  # both rotations and the residual sum
    by_value = {o.value: o for step in plan.steps for o in step.operands if o is not None}
    assert by_value["s"].range == by_value["h"].range
    assert by_value["qr"].range == by_value["q"].range
    stored = [o for o in steps["ks"].operands if o is not None and o.range.region.kind == "state"]
    assert all(operand.reads and operand.writes and operand.early for operand in stored)
    attended = [o for o in steps["a"].operands if o is not None and o.range.region.kind == "state"]
    assert [(o.value, o.reads, o.writes, o.early) for o in attended] == [
        ("ks", True, False, False),
        ("vs", True, False, False),
    ]
    counts = {
        node: [o.value for o in step.operands if o is not None and o.value.endswith("_count")]
        for node, step in steps.items()
    }
    assert counts["h"] == ["token_count"]
    assert counts["logits"] == ["row_count"]
    assert [slot.name for slot in program.weights] == ["embed", "norm", "qkv", "out_w"]  # the tied head is stored once
    assert all(slot.range.offset % 256 == 0 for slot in program.weights)


def test_sampling_takes_its_workspace_from_the_arena() -> None:
    rows, vocabulary = 3, 70
    vectors = "".join(
        f"  input %{name}: {dtype}[R:{rows}]\n"
        for name, dtype in (
            ("temperature", "f32"),
            ("top_k", "i32"),
            ("top_p", "f32"),
            ("min_p", "f32"),
            ("seed", "i64"),
            ("index", "i32"),
        )
    )
    plan, _ = prove(
        f"graph @sample {{\n  input %logits: f32[R:{rows},V:{vocabulary}]\n{vectors}"
        f"  %token: i32[R:{rows}] = sample(%logits, %temperature, %top_k, %top_p, %min_p, %seed, %index)\n"
        "  return %token\n}\n"
    )
    work = next(o for o in plan.steps[0].operands if o is not None and o.value == WORKSPACE)
    assert (work.range.region.kind, work.range.size) == ("arena", 8 * vocabulary * rows)
    assert plan.stats.arena_bytes >= work.range.size


def test_block_quantised_weights_have_their_exact_bytes() -> None:
    plan, program = prove(
        "graph @q {\n"
        "  input %x: f32[N:4,C:64]\n"
        '  weight %w: q4_0[F:40,C:64]@panel32 = "w"[0:40]\n'
        '  %y: f32[N:4,F:40] = linear(%x, %w) {dtype="f32", axis="F"}\n'
        "  return %y\n}\n"
    )
    # 64 rows of two blocks of 18 bytes
    weight = next(o for o in plan.steps[0].operands if o is not None and o.value == "w")
    assert weight.range.size == 64 * 2 * 18
    assert program.size_of(Region("host:0", "weights")) == 2304
