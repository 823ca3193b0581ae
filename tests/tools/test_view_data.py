"""The data of a page's panels against the plan it is of, and the printed picture of an arena."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ostinato as ost
from ostinato.frontend.training import TrainingShape
from ostinato.ir.step import Region
from ostinato.planner.memory_report import memory_answer
from ostinato.planner.plan import EntryPlan
from ostinato.runtime.profile import Profile, StepTime
from ostinato.tools.profile.ceilings import Ceilings
from ostinato.tools.view.arena import ArenaMap, Paper, Tenant, arena_to_svg, map_of_plan
from ostinato.tools.view.diff_data import diff_data
from ostinato.tools.view.plan_data import layers_of, memory_data, plan_data
from ostinato.tools.view.roles import ROLES, Touches
from ostinato.tools.view.strings import Strings
from ostinato.tools.view.subjects import Entry, Viewed
from ostinato.tools.view.timeline_data import profile_data
from ostinato.training import PlannedTraining, Recipe, plan_training
from tests.tools.test_view import stack
from tests.training.tiny import checkpoint

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> PlannedTraining:
    folder = checkpoint("llama", tmp_path_factory.mktemp("deep"), num_hidden_layers=4, vocab_size=160)
    whole = plan_training(folder, Recipe(TrainingShape(2, 48))).planned.plan.stats.arena_bytes
    return plan_training(folder, Recipe(TrainingShape(2, 48)), memory_limit=whole * 3 // 4)


def plan_of(training: PlannedTraining) -> EntryPlan:
    return training.planned.plan


def test_the_columns_are_the_plan(training: PlannedTraining) -> None:
    plan, strings = plan_of(training), Strings()
    data = plan_data(plan, strings, training.graph)
    texts = strings.table()
    assert json.loads(json.dumps(data)) == data, "nothing but what JSON can say"
    assert [texts[number] for number in data["steps"]["node"]] == [step.node for step in plan.steps]
    slots = data["slots"]
    assert list(zip(slots["first"], slots["last"], slots["offset"], slots["bytes"], strict=True)) == [
        (slot.first, slot.last, slot.range.offset, slot.range.size) for slot in plan.slots
    ]
    starts, values = slots["first_value"], slots["values"]
    for index, slot in enumerate(plan.slots):
        rows = range(starts[index], starts[index + 1])
        assert tuple(texts[values["name"][row]] for row in rows) == slot.values
        for row in rows:
            assert slot.range.offset <= values["offset"][row]
            assert values["offset"][row] + values["bytes"][row] <= slot.range.end
            assert all(slot.first <= step < slot.last for step in values["read"][row])
            assert values["made"][row] == -1 or slot.first <= values["made"][row] < slot.last


def test_what_is_saved_for_the_backward_is_what_the_memory_report_counts(training: PlannedTraining) -> None:
    """Two answers that share no code: the roles of slots, and the report's search over the graph. They differ by what shares a slot."""
    plan = plan_of(training)
    touches = Touches(plan)
    saved = [slot for slot in plan.slots if touches.role(slot) == "saved"]
    most = max(
        sum(slot.range.size for slot in saved if slot.first <= step < slot.last) for step in range(len(plan.steps))
    )
    answer = memory_answer(training.planned.program, training.graph)
    assert most == pytest.approx(answer.saved, rel=0.1)
    assert {touches.role(slot) for slot in plan.slots} >= {"activation", "saved", "backward", "gradient", "recomputed"}
    assert [slot for slot in plan.slots if touches.role(slot) == "recomputed"] == [
        slot for slot in plan.slots if slot.values[0] in plan.clones
    ]


def test_layers_come_from_names_or_from_structure() -> None:
    named = layers_of(None, ["layers.3.attn.q"])
    assert [named(name) for name in ("layers.3.attn.q", "d.layers.11.x", "embed", "cast_1")] == [3, 11, -1, -1]
    graph = stack(12)
    found = layers_of(graph, [node.name for node in graph.nodes])
    assert [found(node.name) for node in graph.nodes] == [index // 8 for index in range(len(graph.nodes))]


def test_regions_say_what_lies_in_them_and_where(training: PlannedTraining) -> None:
    program, strings = training.planned.program, Strings()
    state = Region("host:0", "state")
    found = {item["kind"]: item for item in memory_data(program, strings, {state: 0x7FFF_FFFF_FFFF_FF00})}
    texts = strings.table()
    assert found["state"]["base"] == "0x7fffffffffffff00"
    assert found["arena"]["base"] is None
    items = [(texts[name], offset, size) for name, _, offset, size, _ in found["state"]["items"]]
    lying = [(slot.name, slot.range) for slot in program.parameters] + [
        (slot.name, slot.range) for slot in program.state
    ]
    assert sorted(items) == sorted((name, place.offset, place.size) for name, place in lying)


def profile(plan: EntryPlan, first: str | None = None) -> Profile:
    steps = tuple(
        StepTime(at, first or step.node, "", step.kernel, "launch", 2e-6, 1000, 0, 500, 1e-6)
        for at, step in enumerate(plan.steps[:5])
    )
    return Profile(plan.name, plan.device, "planned", steps, 3, 1e-5)


def test_a_profile_of_part_of_the_steps_leaves_the_others_unmeasured(training: PlannedTraining) -> None:
    plan = plan_of(training)
    found = profile_data(profile(plan), plan, Ceilings(1e9, {("f32", "f32"): 1e12}, 1e-8))
    assert found["seconds"][:6] == [2e-6] * 5 + [-1.0]
    assert len(found["seconds"]) == len(found["share"]) == len(plan.steps)
    assert (found["share"][0], found["bound"][0], found["bound"][5]) == (0.5, "memory", "")
    assert profile_data(profile(plan), plan)["share"] is None


def test_a_profile_of_another_plan_is_refused(training: PlannedTraining) -> None:
    plan = plan_of(training)
    with pytest.raises(ost.ConfigError, match="the profile has %other at position 0"):
        profile_data(profile(plan, "other"), plan)


def test_graphs_without_plans_differ_too() -> None:
    strings = Strings()
    before, after = (
        Viewed(title, "graph", (Entry(title, stack(layers)),)) for title, layers in (("old", 3), ("new", 4))
    )
    found = diff_data(before, after, strings)
    (entry,) = found["entries"]
    assert (entry["name"], entry["before"], entry["plan"], entry["old"]) == ("new", "old", None, None)
    assert [node["kind"] for node in entry["graph"]["nodes"]].count("added") == 8


def test_a_printed_arena_has_its_size_in_millimetres_and_no_heading(training: PlannedTraining) -> None:
    plan = plan_of(training)
    drawing = map_of_plan(plan)
    root = ElementTree.fromstring(arena_to_svg(drawing, Paper(84, 60)))
    assert (root.get("width"), root.get("height")) == ("84mm", "60mm")
    _, _, width, height = map(float, root.get("viewBox", "").split())
    assert width / height == pytest.approx(84 / 60, abs=0.01)
    assert 10 * 84 / width * 72 / 25.4 == pytest.approx(7, abs=0.1), "letters of 7 points"
    texts = ["".join(item.itertext()) for item in root.iter(f"{SVG}text")]
    assert drawing.title not in texts
    assert {"arena", "lower bound", "peak", "saved", "gradient", "step"} <= set(texts)
    for item in root.iter(f"{SVG}text"):
        assert 0 <= float(item.get("x", "nan")) <= width
        assert 0 <= float(item.get("y", "nan")) <= height


def test_roles_are_told_apart_without_colour() -> None:
    """Any two differ in brightness by a tenth, or one is hatched and the other not, or their lines run otherwise."""
    tenants = tuple(Tenant(role, role, at, at + 1, 0, 4096) for at, role in enumerate(ROLES))
    root = ElementTree.fromstring(arena_to_svg(ArenaMap("all", tenants, 4096, 4096, 0), Paper()))
    patterns = {item.get("id"): item for item in root.iter(f"{SVG}pattern")}
    looks = []
    for item in root.iter(f"{SVG}rect"):
        if "slot" not in item.get("class", ""):
            continue
        fill = item.get("fill", "")
        pattern = patterns.get(fill.removeprefix("url(#").removesuffix(")"))
        colour = fill if pattern is None else pattern.find(f"{SVG}rect").get("fill", "")  # type: ignore[union-attr]
        red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        turn = None if pattern is None else pattern.get("patternTransform")
        looks.append((0.299 * red + 0.587 * green + 0.114 * blue, turn))
    assert len(looks) == len(ROLES)
    for at, (bright, turn) in enumerate(looks):
        for other, (near, way) in enumerate(looks[:at]):
            assert turn != way or abs(bright - near) > 0.1, (ROLES[at], ROLES[other])


@pytest.mark.parametrize("size", [(10, 90), (160, 0), (float("nan"), 90), (5000, 90)])
def test_a_size_without_room_is_refused(size: tuple[float, float]) -> None:
    with pytest.raises(ost.ConfigError, match="cannot be drawn") as refused:
        Paper(*size)
    assert "60 by 50" in str(refused.value.hint)


def test_view_prints_arenas_in_that_size(training: PlannedTraining, tmp_path: Path) -> None:
    (picture,) = ost.view(training, tmp_path, paper=Paper.parse("120X70"))
    (file,) = [Path(name) for name in picture.files if name.endswith(".arena.svg")]
    assert 'width="120mm" height="70mm"' in file.read_text()
    with pytest.raises(ost.ConfigError, match="no size on paper"):
        ost.view(training, tmp_path / "report.html", paper=Paper())
    for text in ("160", "axb", "160x", "1x2x3", ""):
        with pytest.raises(ost.ConfigError, match="is no size of a picture"):
            Paper.parse(text)


def test_an_arena_that_the_plan_does_not_have_is_refused(training: PlannedTraining) -> None:
    with pytest.raises(ost.ConfigError, match="no arena on hip:3"):
        map_of_plan(plan_of(training), "hip:3")
