"""Pictures: repeats found by structure, DOT of whole models and long chains, the arena's SVG parsed as XML and compared with the plan."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import ostinato as ost
from ostinato.frontend.fresh import new_model
from ostinato.frontend.trace import GraphBuilder, Tensor
from ostinato.frontend.training import TrainingShape
from ostinato.ir.graph import Graph
from ostinato.ir.opdef import Attr
from ostinato.ir.text import format_name
from ostinato.ir.types import DType, TensorType
from ostinato.planner.problem import problem_from_csv
from ostinato.planner.solvers import solve
from ostinato.stages import Lowered
from ostinato.tools.cli import main
from ostinato.tools.schemas import ViewReport
from ostinato.tools.view.arena import ArenaMap, Tenant, arena_to_svg, map_of_plan, map_of_problem
from ostinato.tools.view.dot import graph_to_dot, render
from ostinato.tools.view.repeats import Repeat, find_repeats
from ostinato.tools.view.subjects import Viewable
from ostinato.training import Recipe, plan_training

SVG = "{http://www.w3.org/2000/svg}"
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="needs graphviz' dot")


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    traced = ost.trace("smollm2", "step", cache=ost.CacheShape(1, 64, 1), sampling=True)
    return traced.lower(dims={"N": 16, "R": 1})


def apply(op: str, x: Tensor, *, name: str | None = None, **attrs: Attr) -> Tensor:
    return x.builder.apply(op, (x,), attrs, name)


def stack(layers: int) -> Graph:
    """Layers of 8 nodes with a residual stream, as a program without scopes would have them."""
    builder = GraphBuilder("stack")
    x = builder.input("x", TensorType((4, 8), DType.F32))
    for _ in range(layers):
        y = x
        for step in range(7):
            y = apply("silu", y) if step % 2 else apply("scale", y, factor=0.5 + step)
        x = x + y
    return builder.finish((x,))


def chain(length: int) -> Graph:
    builder = GraphBuilder("chain")
    x = builder.input("x", TensorType((4,), DType.F32))
    for _ in range(length):
        x = apply("silu", x)
    return builder.finish((x,))


def test_layers_are_found_without_names() -> None:
    assert find_repeats(stack(12)) == (Repeat(0, 8, 12),)


def test_a_layer_that_differs_splits_the_repeat() -> None:
    builder = GraphBuilder("odd")
    x = builder.input("x", TensorType((4, 8), DType.F32))
    for layer in range(9):
        x = x + apply("silu", apply("scale", x, factor=3.0 if layer == 4 else 2.0))
    found = find_repeats(builder.finish((x,)))
    assert found == (Repeat(0, 3, 4), Repeat(15, 3, 4))


def test_alternating_layers_repeat_as_pairs() -> None:
    builder = GraphBuilder("pairs")
    x = builder.input("x", TensorType((4, 8), DType.F32))
    for layer in range(10):
        x = (x + apply("silu", x)) if layer % 2 else (x + apply("scale", x, factor=2.0))
    assert find_repeats(builder.finish((x,))) == (Repeat(0, 4, 5),)


def test_equal_nodes_that_read_otherwise_are_no_repeat() -> None:
    """The same operators in the same order, but each reads another distance back."""
    builder = GraphBuilder("skips")
    x = builder.input("x", TensorType((4,), DType.F32))
    values = [x, apply("silu", x), apply("scale", x, factor=2.0)]
    for read in (0, 2, 0, 3, 1, 4):
        values.append(values[-1] + values[read])
    assert find_repeats(builder.finish((values[-1],))) == ()


def test_a_model_is_drawn_as_one_layer(lowered: Lowered) -> None:
    repeats = find_repeats(lowered.graph)
    assert [repeat.count for repeat in repeats] == [30]
    assert len(lowered.graph.nodes) - repeats[0].hidden < 40
    text = graph_to_dot(lowered.graph)
    assert "30 times" in text
    assert text.count("attention_packed @ host") == 1  # all layers are one


@pytest.mark.parametrize("graph", [chain(2_000), stack(80), stack(700)], ids=["chain 2000", "80 layers", "5600 nodes"])
def test_large_graphs_are_collapsed_quickly(graph: Graph) -> None:
    """5 to 8 thousand nodes hang viewers elsewhere, a chain of 2,000 overflows their stack; here the picture has a handful of nodes."""
    text = graph_to_dot(graph)
    assert len(text.splitlines()) < 60


def test_a_chain_of_twenty_thousand_has_one_repeat() -> None:
    (repeat,) = find_repeats(chain(20_000))
    assert (repeat.period, repeat.start + repeat.hidden + 1) == (1, 20_000)


@needs_dot
def test_dot_accepts_the_text(lowered: Lowered) -> None:
    begin = time.perf_counter()
    picture = render(graph_to_dot(lowered.graph))
    root = ElementTree.fromstring(picture)
    titles = [node.findtext(f"{SVG}title") for node in root.iter(f"{SVG}g")]
    assert sum(title is not None and title.isdigit() for title in titles) > 10
    print(f"rendered in {time.perf_counter() - begin:.2f} s")


@needs_dot
@pytest.mark.parametrize(
    "name", ['a:b"<c>\\N', "<b>x</b>", "\\", "\x00", "\x01", "\ud800", "x->y; {z}", "", "a\nb", "]]>"]
)
def test_names_that_dot_or_xml_would_read_as_syntax_are_drawn_as_the_text_form_writes_them(name: str) -> None:
    builder = GraphBuilder(name)
    x = y = builder.input(name, TensorType((4,), DType.F32))
    for layer in range(6):
        y = apply("silu", y, name=f"{name}{layer}")
    picture = render(graph_to_dot(builder.finish((y, x))))
    lines = "".join(ElementTree.fromstring(picture).itertext()).split("\n")
    assert lines.count(format_name(name)) >= 2, "the input and the output that it is"
    assert f"6 times: {format_name(name + '0')} to {format_name(name + '5')}" in lines


@needs_dot
def test_inputs_with_alike_names_keep_their_own_boxes() -> None:
    """A colon is a port in DOT; names in which it was replaced fell together."""
    builder = GraphBuilder("g")
    first, second = (builder.input(name, TensorType((4,), DType.F32)) for name in ("a:b", "a_b"))
    root = ElementTree.fromstring(render(graph_to_dot(builder.finish((apply("silu", first), apply("tanh", second))))))
    boxes = [node for node in root.iter(f"{SVG}g") if node.get("class") == "node"]
    assert len(boxes) == 6, "two inputs, two nodes, two outputs"


def test_control_characters_are_no_part_of_the_arena_picture() -> None:
    drawing = ArenaMap("title\x01", (Tenant("odd\ud800", "kind\x00", 0, 1, 0, 4096),), 4096, 4096, 0)
    text = "".join(ElementTree.fromstring(arena_to_svg(drawing).encode()).itertext())
    assert [word for word in ("title", "odd", "kind") if word not in text] == []


def test_the_arena_shows_every_slot_where_the_plan_has_it(lowered: Lowered) -> None:
    _, plan = lowered.fit_entry()
    drawing = map_of_plan(plan)
    root = ElementTree.fromstring(arena_to_svg(drawing))
    slots = [item for item in root.iter(f"{SVG}rect") if "slot" in item.get("class", "").split()]
    assert len(slots) == len(plan.slots)
    heights = [float(item.get("height", "nan")) for item in slots]
    sizes = [slot.range.size for slot in plan.slots]
    scale = max(heights) / max(sizes)
    assert heights == pytest.approx([size * scale for size in sizes], abs=0.01)
    top = min(float(item.get("y", "nan")) for item in slots)
    arena = next(item for item in root.iter(f"{SVG}line") if item.get("class") == "arena")
    assert top == pytest.approx(float(arena.get("y1", "nan")), abs=0.01)
    assert "workspace" in "".join(root.itertext())


def test_a_placement_problem_is_drawn(tmp_path: Path) -> None:
    problem = problem_from_csv("id,lower,upper,size\na,0,2,4\nb,1,3,8\nc,2,4,4\n")
    outcome = solve(problem, "best_fit")
    root = ElementTree.fromstring(arena_to_svg(map_of_problem("three", problem, outcome.solution, outcome.bound)))
    assert sum("slot" in item.get("class", "").split() for item in root.iter(f"{SVG}rect")) == 3


def test_an_empty_arena_is_a_picture_too() -> None:
    problem = problem_from_csv("id,lower,upper,size\n")
    outcome = solve(problem, "best_fit")
    ElementTree.fromstring(arena_to_svg(map_of_problem("none", problem, outcome.solution, outcome.bound)))


def test_view_writes_the_pictures_of_every_stage(lowered: Lowered, tmp_path: Path) -> None:
    (graph_only,) = ost.view(lowered, tmp_path / "lowered")
    (planned,) = ost.view(lowered.plan(), tmp_path / "planned")
    assert not any(file.endswith("arena.svg") for file in graph_only.files)
    assert any(file.endswith("arena.svg") for file in planned.files)
    for file in (*graph_only.files, *planned.files):
        assert Path(file).stat().st_size > 500


def test_view_refuses_what_it_cannot_draw(lowered: Lowered, tmp_path: Path) -> None:
    for subject in ("smollm2", 5, None, object()):
        with pytest.raises(ost.ConfigError, match="cannot be looked at"):
            ost.view(subject, tmp_path)  # type: ignore[arg-type]
    for options in ({"title": "t"}, {"before": lowered}):
        with pytest.raises(ost.ConfigError, match=f"pictures have no {next(iter(options))}"):
            ost.view(lowered, tmp_path, **options)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(ost.ConfigError, match="cannot be written"):
        ost.view(lowered, blocked / "pictures")
    with pytest.raises(ost.ConfigError, match=r"null (byte|character)"):
        ost.view(lowered, "a\0b")
    for directory in (None, 5, b"pictures"):
        with pytest.raises(ost.ConfigError, match="the path is"):
            ost.view(lowered, directory)  # type: ignore[arg-type]


def report_of(file: Path) -> dict[str, Any]:
    """The data of a report."""
    found = re.search(r'<script type="application/json" id="data">(.*)</script>', file.read_text(encoding="utf-8"))
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_report_has_every_node_with_its_decision_and_line(lowered: Lowered, tmp_path: Path) -> None:
    planned = lowered.plan()
    (drawn,) = ost.view(planned, tmp_path / "report.html", title="one")
    assert drawn.files == (str(tmp_path / "report.html"),)
    data = report_of(tmp_path / "report.html")
    strings, (entry,) = data["strings"], data["entries"]
    nodes = entry["graph"]["nodes"]
    assert {len(column) for column in nodes.values()} == {len(planned.graph.nodes)}
    for index, node in enumerate(planned.graph.nodes):
        assert strings[nodes["op"][index]] == node.op
        assert [strings[name] for name in nodes["makes"][index]] == [value.name for value in node.results]
        assert [strings[text] for text in nodes["types"][index]] == [str(value.type) for value in node.results]
        assert node.location is not None
        assert (strings[nodes["file"][index]], nodes["line"][index]) == (node.location.file, node.location.line)
        decision, number = lowered.decisions.get(node.name), nodes["decision"][index]
        assert (decision is None) == (number < 0)
        if decision is None:
            continue
        row, level, _, evidence, _, _, rejected = entry["graph"]["decisions"][number]
        assert (strings[row], strings[level]) == (decision.row, decision.level.name.lower())
        assert [strings[record] for record in evidence] == list(decision.evidence)
        assert [strings[item[0]] for item in rejected] == [item.row for item in decision.rejected]
    assert len(entry["graph"]["decisions"]) < len(planned.graph.nodes) / 5, (
        "what is the same in all layers is said once"
    )
    assert data["title"] == "one"


def test_every_stage_and_what_runs_it_has_a_report(tmp_path: Path) -> None:
    model = ost.load("smollm2")
    traced = ost.trace(model, "step", cache=ost.CacheShape(1, 64, 1))
    made = traced.lower(dims={"N": 4, "R": 1})
    executable = ost.compile(model, buckets={"B": [1], "T": [4]}, context=32, device="cpu")
    subjects: tuple[Viewable, ...] = (traced.graph, traced, made, made.plan(), executable.program, executable)
    for number, subject in enumerate(subjects):
        file = tmp_path / f"{number}.html"
        ost.view(subject, file)
        data = report_of(file)
        assert data["title"]
        assert len(data["entries"][0]["graph"]["nodes"]["op"]) > 100
    profile = executable.profile(runs=1)
    ost.view(executable, tmp_path / "profile.html", profile=profile)
    measured = report_of(tmp_path / "profile.html")
    assert measured["entries"][0]["profile"]["seconds"]
    assert any(region["base"] for region in measured["memory"]), "an executable knows its addresses"
    with pytest.raises(ost.ConfigError, match="not planned here"):
        ost.view(made.plan(), tmp_path / "other.html", profile=profile)
    assert not (tmp_path / "other.html").exists()
    executable.save(tmp_path / "model.ost")
    ost.view(tmp_path / "model.ost", tmp_path / "saved.html")
    saved = report_of(tmp_path / "saved.html")
    assert saved["title"] == "model.ost"
    assert len(saved["entries"][0]["graph"]["decisions"]) == len(measured["entries"][0]["graph"]["decisions"]) > 0
    (tmp_path / "bad.ost").write_bytes(b"no artifact")
    with pytest.raises(ost.OstinatoError):
        ost.view(tmp_path / "bad.ost", tmp_path / "bad.html")
    assert not (tmp_path / "bad.html").exists()


TINY = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "max_position_embeddings": 64,
}


def test_training_and_what_holds_an_executable_have_reports(tmp_path: Path) -> None:
    model = new_model(tmp_path / "tiny", TINY, seed=1)
    planned = plan_training(model, Recipe(TrainingShape(1, 8)))
    step = ost.train_step(model, batch=(1, 8), device="cpu")
    llm = ost.LLM(tmp_path / "tiny", max_num_seqs=1, device="cpu")
    subjects: tuple[Viewable, ...] = (planned.step, planned, step, llm)
    for number, subject in enumerate(subjects):
        ost.view(subject, tmp_path / f"{number}.html")
        data = report_of(tmp_path / f"{number}.html")
        assert data["title"] == "tiny"
        assert bool(data["memory"]) == (subject is not planned.step)
    changed = plan_training(model, Recipe(TrainingShape(1, 8), ost.SGD(lr=0.1)))
    ost.view(changed, tmp_path / "diff.html", before=planned)
    diff = report_of(tmp_path / "diff.html")["diff"]
    assert [entry["name"] for entry in diff["entries"]] == ["train"]


def test_view_command_shows_the_step_of_a_training_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = ", ".join(f"{key} = {json.dumps(value)}" for key, value in TINY.items())
    (tmp_path / "text.txt").write_text("a text to learn from, again and again")
    (tmp_path / "run.toml").write_text(
        f'[model.new]\nconfig = {{ {config} }}\n[data]\nfiles = ["text.txt"]\nbatch = 1\nsequence = 8\n[train]\nsteps = 1\nfolder = "run"\n'
    )
    with pytest.raises(SystemExit) as stop:
        main(["view", "run.toml", "--before", "run.toml", "--json"])
    assert stop.value.code == 0
    (entry,) = ViewReport.model_validate(json.loads(capsys.readouterr().out), strict=False).entries
    assert (entry.name, entry.files) == ("train", ("report.html",))
    data = report_of(tmp_path / "report.html")
    assert (data["title"], data["entries"][0]["name"]) == ("run.toml", "train")
    assert data["diff"]["entries"][0]["graph"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.toml", "text.txt"]


def test_view_command_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep" / "report.html"
    with pytest.raises(SystemExit) as stop:
        main(["view", "smollm2", "--shapes", "B=1,T=1", "--context", "64", "--output", str(file), "--json"])
    assert stop.value.code == 0
    found = ViewReport.model_validate(json.loads(capsys.readouterr().out), strict=False)
    assert [entry.files for entry in found.entries] == [(str(file),)]
    assert found.missing == ()
    assert report_of(file)["title"] == "smollm2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smollm2", "--device", "cpu"], "planned and not run"),
        (["smollm2", "--profile", "--target", "host"], "--target"),
        (["smollm2", "--profile", "--output", "folder"], "no .html file"),
        (["smollm2", "--before", "smollm2", "--output", "folder"], "no .html file"),
        (["run.toml", "--profile"], "a training run"),
        (["run.toml", "--shapes", "B=1,T=1"], "--shapes"),
        (["x.ost", "--profile"], "an artifact"),
        (["x.ost", "--policy", "strict"], "--policy"),
        (["x.ost"], "x.ost"),
        (["no-such.toml"], "no-such.toml"),
    ],
)
def test_view_command_refuses_what_it_would_not_read(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["view", *arguments])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert "hint" in told
    assert list(tmp_path.iterdir()) == []


def test_view_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["view", "smollm2", "--shapes", "B=1,T=1", "--context", "64", "--output", str(tmp_path), "--json"])
    assert stop.value.code == 0
    report = ViewReport.model_validate(json.loads(capsys.readouterr().out), strict=False)
    (entry,) = report.entries
    assert entry.nodes_drawn < 40 < entry.nodes
    assert all(Path(file).exists() for file in entry.files)
    assert bool(report.missing) == (shutil.which("dot") is None)


def test_plan_command_draws_a_problem(tmp_path: Path) -> None:
    source = tmp_path / "problem.csv"
    source.write_text("id,lower,upper,size\na,0,2,4\nb,1,3,8\n")
    with pytest.raises(SystemExit) as stop:
        main(["plan", str(source), "--svg", str(tmp_path / "arena.svg")])
    assert stop.value.code == 0
    ElementTree.parse(tmp_path / "arena.svg")
