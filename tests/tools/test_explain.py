"""`explain` asked about layouts, addresses, the peak and the mode: what it says is what the plan has, and every question prints and is data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.ir.naming import any_layer
from ostinato.planner.plan import Slot
from ostinato.tools.schemas import ErrorReport, ExplainReport
from tests.tools.conftest import Run

DIMS = ("--dims", "N=8,R=1")


@pytest.fixture(scope="module")
def planned(tiny: Path) -> ost.Planned:
    return ost.trace(tiny, "step").lower(dims={"N": 8, "R": 1}).plan()


def explained(run: Run, *arguments: object) -> ExplainReport:
    report = run("explain", *arguments, *DIMS, "--json").report()
    assert isinstance(report, ExplainReport)
    return report


def slots(planned: ost.Planned) -> Iterator[tuple[str, Slot]]:
    for slot in planned.plan.slots:
        for value in slot.values:
            yield value, slot


def test_every_slot_is_explained_as_the_plan_has_it(planned: ost.Planned) -> None:
    for value, slot in slots(planned):
        (found,) = [item for item in planned.explain_address(value).values if item.name == value]
        assert slot.range.contains(found.place)
        assert found.steps == (slot.first, slot.last)
        assert found.address is None
        text = str(found)
        for other in slot.values[:3]:
            assert other == value or other in text
        living = [
            other
            for other in planned.plan.slots
            if other is not slot and other.first < slot.last and slot.first < other.last and other.range.size
        ]
        below = [other.range.end for other in living if other.range.end <= slot.range.offset]
        assert ("at the bottom of the arena" in text) == (slot.range.offset == 0)
        if slot.range.offset and below:
            assert f"up to {max(below)})" in text
            assert ("directly above" in text) == (
                -(-max(below) // planned.plan.alignment) * planned.plan.alignment == slot.range.offset
            )


def test_who_had_the_bytes_before_and_who_gets_them_after(planned: ost.Planned) -> None:
    (found,) = planned.explain_address("layers.1.ffn.activated").values
    slot = dict(slots(planned))["layers.1.ffn.activated"]
    same = [other for other in planned.plan.slots if other is not slot and other.range.overlaps(slot.range)]
    before = max((other for other in same if other.last <= slot.first), key=lambda other: other.last)
    (line,) = [text for text in found.reasons if text.startswith("these bytes are")]
    assert f"%{before.values[0]} before (steps {before.first} to {before.last - 1})" in line


@pytest.mark.parametrize(
    ("name", "kind", "region"),
    [
        ("model.embed_tokens.weight", "weight", "weights"),
        ("k_cache.0", "state", "state"),
        ("layers.0.attn.k_stored", "the bytes of %k_cache.0, state", "state"),
        ("input_ids", "input", "io"),
        ("logits", "output", "io"),
        ("layers.0.attn.context", "the bytes of %layers.0.attn.attention, a slot of the arena", "arena"),
    ],
)
def test_what_is_no_slot_of_its_own(planned: ost.Planned, name: str, kind: str, region: str) -> None:
    found = next(item for item in planned.explain_address(name).values if item.name == name)
    assert (found.kind, found.place.region.kind) == (kind, region)
    assert found.reasons


def test_a_loaded_program_says_real_addresses(planned: ost.Planned) -> None:
    executable = planned.load("cpu", "planned")
    (found,) = executable.explain_address("layers.0.ffn.activated").values
    assert found.address == executable.regions.arena.address + found.place.offset
    assert f"= {found.address:#x}, " in str(found)
    assert executable.clone("eager").explain_address("logits").values[0].address is None
    (peak,) = executable.explain_peak()
    assert peak == planned.explain_peak()


def test_the_peak_is_what_the_plan_says(planned: ost.Planned) -> None:
    peak = planned.explain_peak()
    live = [usage.live for usage in planned.plan.usage()]
    assert (peak.live, live[peak.step], peak.arena) == (max(live), max(live), planned.plan.stats.arena_bytes)
    assert [tenant.bytes for tenant in peak.tenants] == sorted((t.bytes for t in peak.tenants), reverse=True)
    assert sum(tenant.bytes for tenant in peak.tenants) == peak.live
    step = planned.plan.steps[peak.step]
    touched = {operand.value for operand in step.operands if operand is not None}
    for tenant in peak.tenants:
        assert tenant.first <= peak.step < tenant.last
        assert tenant.op == "workspace" or tenant.held == (tenant.name not in touched)
    assert all(
        any_layer(planned.plan.steps[at].node) == any_layer(step.node) or live[at] == peak.live for at in peak.alike
    )
    assert any("a bucket with a smaller N" in text for text in peak.advice)
    assert peak.next_live == max(
        live[at] for at, other in enumerate(planned.plan.steps) if any_layer(other.node) != any_layer(step.node)
    )


def test_a_limit_that_the_peak_recommends_is_one_that_lowers_it(planned: ost.Planned) -> None:
    """What is only held is computed again below a limit: a smaller arena is there to be had, smaller by no more than what was held."""
    peak = planned.explain_peak()
    held = sum(tenant.bytes for tenant in peak.tenants if tenant.held)
    assert any(f"a memory limit below {peak.arena}: {held} bytes are only held" in text for text in peak.advice)
    smaller = planned.lowered.plan(peak.arena - 1)
    assert peak.arena - held <= smaller.explain_peak().arena < peak.arena
    with pytest.raises(ost.ConfigError, match="no entry"):
        smaller.load("cpu").explain_peak("forward")


def test_layouts_of_packed_weights_views_and_copies(planned: ost.Planned) -> None:
    text = str(planned.explain_layout("o_proj"))
    natural = planned.graph.types["model.layers.0.self_attn.o_proj.weight"].is_natural
    assert ("packed once while it is loaded" in text, "in its logical order" in text) == (not natural, natural)
    assert "the same for %model.layers.1.self_attn.o_proj.weight" in text
    view = str(planned.explain_layout("layers.0.attn.context"))
    assert "a view: element 0 of %layers.0.attn.attention" in view
    assert "written over %k_cache.0" in str(planned.explain_layout("layers.0.attn.k_stored"))
    with pytest.raises(ost.ConfigError, match="names no value"):
        planned.explain_layout("logitz")


def test_the_layout_that_a_row_likes_is_taken_or_said_why_not(tiny: Path) -> None:
    lowered = ost.trace(tiny, "forward").lower(dims={"B": 1, "T": 8}, levels={})
    types = lowered.graph.types
    wished = [
        name
        for name in types
        if any("likes to write it so" in text for text in lowered.explain_layout(name).values[0].reasons)
    ]
    assert wished
    assert all(not types[name].is_natural for name in wished)


def test_questions_from_the_command_line(ostinato: Run, tiny: Path) -> None:
    report = explained(ostinato, tiny, "layers.0.ffn", "--address")
    assert [item.name for item in report.addresses] == ["layers.0.ffn.activated"]
    assert not report.nodes
    assert explained(ostinato, tiny, "logits", "--layout").layouts[0].name == "logits"
    peak = explained(ostinato, tiny, "--peak").peak
    assert peak is not None
    assert "what would lower it:" in ostinato("explain", tiny, "--peak", *DIMS).out
    mode = explained(ostinato, tiny, "--mode", "captured", "--device", "cpu").mode
    assert mode is not None
    assert (mode.mode, "needs a GPU" in mode.reason) == ("planned", True)
    text = ostinato("explain", tiny, "--mode", "eager", "--device", "cpu", *DIMS).out
    assert "because it was asked for" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--peak", "--address"), "--address and --peak are questions of their own"),
        (("--layout", "--device", "cpu"), "belong to a question about a mode"),
        (("--mode", "planned", "--target", "sm_90"), "not about a --target"),
        (("layers.0", "--peak"), "about the whole entry"),
        (("--memory-limit", "1M"), "of addresses and the peak alone"),
        (("--mode", "fast", "--device", "cpu"), "mode 'fast' is unknown"),
        (("logitz", "--address"), "names no value with an address"),
    ],
)
def test_what_cannot_be_asked(ostinato: Run, tiny: Path, arguments: tuple[str, ...], message: str) -> None:
    result = ostinato("explain", tiny, *arguments, *DIMS, "--json")
    report = result.report()
    assert isinstance(report, ErrorReport)
    assert (result.code, bool(report.hint)) == (2, True)
    assert message in report.message
