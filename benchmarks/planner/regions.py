"""The four regions that the reference engine plans by hand (T = 512, batch 1), planned here as graphs of the same operators.

A hand plan gives every buffer of its region bytes of its own for the whole region: input casts, fallbacks, results. Here the same operators stand in a graph,
what the region makes is read by one operator behind it as in the model, and lifetimes decide: never more bytes than the hand plan, and fewer where a buffer
dies early. The last column plans the fused operators that the compiler puts in their place.

    python -m benchmarks.planner.regions
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from ostinato.backend_hip.target import host_target
from ostinato.ir.text import parse_graph
from ostinato.ir.verify import verify
from ostinato.passes.select_impl import SelectImpl
from ostinato.planner.check import check_program
from ostinato.planner.lower import plan_entry
from ostinato.planner.plan import EntryPlan
from ostinato.planner.program import build_program
from ostinato.planner.settings import DEFAULT_SETTINGS, PlanSettings

__all__ = ["MODELS", "REGIONS", "Model", "Region", "plan_region"]

TARGET = host_target()


@dataclass(frozen=True, slots=True)
class Model:
    """Rows of a prefill, and the widths of a model: hidden H, intermediate I, query heads, kv heads, head width."""

    name: str
    rows: int
    hidden: int
    inner: int
    heads: int
    groups: int
    width: int

    @property
    def kv(self) -> int:
        """Width of all keys or values of a token."""
        return self.groups * self.width


MODELS = (
    Model("Qwen2.5-0.5B", 512, 896, 4864, 14, 2, 64),
    Model("DeepSeek-R1-Distill-Qwen-1.5B", 512, 1536, 8960, 12, 2, 128),
)


def _ffn(m: Model, dtype: str) -> str:
    """gate, up, activation, down, residual; bf16 casts its input first."""
    r, h, f = m.rows, m.hidden, m.inner
    cast = f'  %xc: {dtype}[N:{r},C:{h}] = cast(%x) {{dtype="{dtype}"}}\n' if dtype != "f32" else ""
    x = "%xc" if cast else "%x"
    attrs = f'{{dtype="{dtype}", axis="F"}}'
    return f"""graph @ffn {{
  input %x: f32[N:{r},C:{h}]
  input %residual: f32[N:{r},C:{h}]
  weight %gate_w: {dtype}[F:{f},C:{h}]@panel32 = "gate"[0:{f}]
  weight %up_w: {dtype}[F:{f},C:{h}]@panel32 = "up"[0:{f}]
  weight %down_w: {dtype}[C:{h},F:{f}]@panel32 = "down"[0:{h}]
{cast}  %gate: {dtype}[N:{r},F:{f}] = linear({x}, %gate_w) {attrs}
  %up: {dtype}[N:{r},F:{f}] = linear({x}, %up_w) {attrs}
  %activated: {dtype}[N:{r},F:{f}] = swiglu(%gate, %up) {{dtype="{dtype}"}}
  %down: f32[N:{r},C:{h}] = linear(%activated, %down_w) {{dtype="f32", axis="C"}}
  %y: f32[N:{r},C:{h}] = add(%residual, %down)
  return %y
}}
"""


def _ffn_fused(m: Model, dtype: str) -> str:
    r, h, f = m.rows, m.hidden, m.inner
    cast = f'  %xc: {dtype}[N:{r},C:{h}] = cast(%x) {{dtype="{dtype}"}}\n' if dtype != "f32" else ""
    x = "%xc" if cast else "%x"
    return f"""graph @ffn {{
  input %x: f32[N:{r},C:{h}]
  input %residual: f32[N:{r},C:{h}]
  weight %gate_up: {dtype}[F:{2 * f},C:{h}]@panel32_pair = "gate"[0:{f}] + "up"[0:{f}]
  weight %down_w: {dtype}[C:{h},F:{f}]@panel32 = "down"[0:{h}]
{cast}  %activated: {dtype}[N:{r},F:{f}] = linear_swiglu({x}, %gate_up) {{dtype="{dtype}", axis="F"}}
  %down: f32[N:{r},C:{h}] = linear(%activated, %down_w) {{dtype="f32", axis="C"}}
  %y: f32[N:{r},C:{h}] = add(%residual, %down)
  return %y
}}
"""


def _qkv_head(m: Model) -> str:
    r, h = m.rows, m.hidden
    return f"""graph @qkv {{
  input %x: f32[N:{r},C:{h}]
"""


def _qkv_tail(m: Model) -> str:
    """Attention reads what the projections made."""
    r, h = m.rows, m.hidden
    heads, kv = f"B:1,T:{r},H:{m.heads},D:{m.width}", f"B:1,T:{r},G:{m.groups},D:{m.width}"
    return f"""  %qh: f32[{heads}] = reshape(%q) {{shape=[1, {r}, {m.heads}, {m.width}], axes="BTHD"}}
  %kh: f32[{kv}] = reshape(%k) {{shape=[1, {r}, {m.groups}, {m.width}], axes="BTGD"}}
  %vh: f32[{kv}] = reshape(%v) {{shape=[1, {r}, {m.groups}, {m.width}], axes="BTGD"}}
  %context: f32[{heads}] = attention_causal(%qh, %kh, %vh) {{scale=0.125, dtype="f32"}}
  %y: f32[N:{r},C:{h}] = reshape(%context) {{shape=[{r}, {h}], axes="NC"}}
  return %y
}}
"""


def _qkv(m: Model) -> str:
    r, h, kv = m.rows, m.hidden, m.kv
    weights = "".join(
        f'  weight %{name}_w: bf16[{rows},C:{h}]@panel32 = "{name}"[0:{rows}]\n'
        for name, rows in (("q", h), ("k", kv), ("v", kv))
    )
    projections = "".join(
        f'  %{name}: f32[N:{r},{rows}] = linear(%xc, %{name}_w) {{dtype="f32"}}\n'
        for name, rows in (("q", h), ("k", kv), ("v", kv))
    )
    cast = f'  %xc: bf16[N:{r},C:{h}] = cast(%x) {{dtype="bf16"}}\n'
    return _qkv_head(m) + weights + cast + projections + _qkv_tail(m)


def _qkv_fused(m: Model) -> str:
    r, h, kv = m.rows, m.hidden, m.kv
    parts = f'"q"[0:{h}] + "k"[0:{kv}] + "v"[0:{kv}]'
    made = f"%q: f32[N:{r},{h}], %k: f32[N:{r},{kv}], %v: f32[N:{r},{kv}]"
    return (
        _qkv_head(m)
        + f"  weight %qkv_w: bf16[{h + 2 * kv},C:{h}]@panel32 = {parts}\n"
        + f'  %xc: bf16[N:{r},C:{h}] = cast(%x) {{dtype="bf16"}}\n'
        + f'  {made} = linear_split(%xc, %qkv_w) {{sizes=[{h}, {kv}, {kv}], dtype="f32", axes="___"}}\n'
        + _qkv_tail(m)
    )


def _attention(m: Model) -> str:
    """Scaled queries, keys and values repeated for every query head, scores, probabilities, context; a cast for the projection behind."""
    t, repeats = m.rows, m.heads // m.groups
    heads, expanded = f"B:1,H:{m.heads},T:{t},D:{m.width}", f"B:1,H:{m.heads},S:{t},D:{m.width}"
    groups, square = f"B:1,G:{m.groups},S:{t},D:{m.width}", f"B:1,H:{m.heads},T:{t},S:{t}"
    expand = f'{{axis=1, repeats={repeats}, name="H"}}'
    return f"""graph @attention {{
  input %q: f32[{heads}]
  input %k: f32[{groups}]
  input %v: f32[{groups}]
  %scaled: f32[{heads}] = scale(%q) {{factor=0.125}}
  %keys: f32[{expanded}] = repeat_interleave(%k) {expand}
  %scores: f32[{square}] = matmul(%scaled, %keys) {{transpose_b=true}}
  %probabilities: f32[{square}] = causal_softmax(%scores)
  %values: f32[{expanded}] = repeat_interleave(%v) {expand}
  %context: f32[{heads}] = matmul(%probabilities, %values)
  %y: bf16[{heads}] = cast(%context) {{dtype="bf16"}}
  return %y
}}
"""


def _attention_fused(m: Model) -> str:
    heads, groups = f"B:1,T:{m.rows},H:{m.heads},D:{m.width}", f"B:1,T:{m.rows},G:{m.groups},D:{m.width}"
    return f"""graph @attention {{
  input %q: f32[{heads}]
  input %k: f32[{groups}]
  input %v: f32[{groups}]
  %context: f32[{heads}] = attention_causal(%q, %k, %v) {{scale=0.125, dtype="f32"}}
  %y: bf16[{heads}] = cast(%context) {{dtype="bf16"}}
  return %y
}}
"""


@dataclass(frozen=True, slots=True)
class Region:
    """A hand-planned region: its bytes as the reference engine's formula gives them, and its graphs with the same operators and with fused ones."""

    name: str
    hand: Callable[[Model], int]
    graph: Callable[[Model], str]
    fused: Callable[[Model], str]


REGIONS = (
    Region(
        "FP32 FFN",
        lambda m: 3 * 4 * m.rows * m.inner,
        lambda m: _ffn(m, "f32"),
        lambda m: _ffn_fused(m, "f32"),
    ),
    Region(
        "BF16 FFN",
        lambda m: 2 * 2 * m.rows * m.hidden + 3 * 2 * m.rows * m.inner + 4 * m.rows * m.hidden,
        lambda m: _ffn(m, "bf16"),
        lambda m: _ffn_fused(m, "bf16"),
    ),
    Region(
        "BF16 QKV",
        lambda m: 2 * 2 * m.rows * (m.hidden + m.kv) + 4 * m.rows * m.hidden + 2 * 4 * m.rows * m.kv,
        _qkv,
        _qkv_fused,
    ),
    Region(
        "attention core",
        lambda m: 3 * 4 * m.heads * m.rows * m.width + 4 * m.heads * m.rows**2,
        _attention,
        _attention_fused,
    ),
)


def plan_region(text: str, settings: PlanSettings = DEFAULT_SETTINGS) -> EntryPlan:
    """The proven plan of a region's graph on the host."""
    graph = SelectImpl().apply(parse_graph(text), TARGET)
    verify(graph, target=TARGET)
    plan = plan_entry(graph, TARGET, name=graph.name, settings=settings)
    check_program(build_program({graph.name: (graph, plan)}), {graph.name: graph}, TARGET)
    return plan


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'bytes of arena':46}{'hand plan':>12}{'ours':>12}{'bound':>12}{'saved':>8}{'fused':>12}")
    for model in MODELS:
        for region in REGIONS:
            ours, fused, hand = plan_region(region.graph(model)), plan_region(region.fused(model)), region.hand(model)
            bytes_of = (hand, ours.stats.arena_bytes, ours.stats.lower_bound)
            print(
                f"{model.name:31}{region.name:15}{''.join(f'{item:12,}' for item in bytes_of)}"
                f"{1 - ours.stats.arena_bytes / hand:8.1%}{fused.stats.arena_bytes:12,}"
            )


if __name__ == "__main__":
    main()
