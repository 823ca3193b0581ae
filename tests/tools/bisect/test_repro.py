"""Repro bundles: they run without the model and say whether they show what they state; damaged and foreign ones are typed errors."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backend_hip.device import HostDevice
from ostinato.ir.errors import OstinatoError
from ostinato.ir.types import DType
from ostinato.tools.repro.bundle import read_bundle
from ostinato.tools.repro.report import ReproReport
from tests.faults import FAULTS, Bench
from tests.frontend.make_checkpoints import random_model, small_config, write_gguf
from tests.frontend.small_families import small_model
from tests.tools.conftest import Run

DEVICE = HostDevice(threads=1)


def bundle(name: str, folder: Path, **options: Any) -> Path:
    """The bundle of the fault of that name, of a model that is gone when it is returned."""
    fault = next(fault for fault in FAULTS if fault.name == name)
    model = small_model("llama", folder / "model", 5)
    with fault.plant(Bench(model, DEVICE)) as planted:
        report = Bench(model, DEVICE).bisect(planted, output=folder / "bundle", **options)
    assert report.bundle is not None, report.unreduced
    model.checkpoint.close()
    shutil.rmtree(folder / "model")
    return folder / "bundle"


@pytest.fixture(scope="module")
def lifetime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle("wrong lifetime", tmp_path_factory.mktemp("lifetime"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle("wrong kernel at one shape", tmp_path_factory.mktemp("kernel"), extension="mine:rows")


def test_a_bundle_is_text_values_and_what_it_is_about(lifetime: Path) -> None:
    names = {path.name for path in lifetime.iterdir()}
    assert names == {"repro.json", "graph.txt", "values.safetensors", "plan.json", "README.txt"}
    assert sum(path.stat().st_size for path in lifetime.iterdir()) < 300_000
    readme = (lifetime / "README.txt").read_text(encoding="utf-8")
    assert "ostinato repro bundle\n" in readme
    assert "eager with planned, bit for bit" in readme
    about = read_bundle(lifetime).about
    assert about.environment.target == "host"
    assert len(about.places) >= 2
    assert not about.needs.any


def test_the_command_runs_it_without_the_model(ostinato: Run, lifetime: Path) -> None:
    shown = ostinato("repro", lifetime, "--device", "cpu")
    assert (shown.code, "it is as stated" in shown.out) == (0, True)
    report = ostinato("repro", lifetime, "--device", "cpu", "--json").report()
    assert isinstance(report, ReproReport)
    assert (report.ok, report.outcome, report.expected) == (True, "mismatch", "mismatch")
    assert report.same_environment
    assert report.worst is not None


def test_what_a_stranger_wrote_is_no_command_to_the_terminal(ostinato: Run, lifetime: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(lifetime, tmp_path / "strange")
    about = json.loads((folder / "repro.json").read_text(encoding="utf-8"))
    about["fault"] = "[red]\x1b]0;mine\x07 \x1b[2J\x9b0m"
    (folder / "repro.json").write_text(json.dumps(about), encoding="utf-8")
    shown = ostinato("repro", folder, "--device", "cpu")
    assert shown.code == 0
    assert r"[red]\x1b]0;mine\x07 \x1b[2J\x9b0m" in shown.out
    assert not {"\x1b", "\x07", "\x9b"} & set(shown.out)


def test_names_that_no_system_can_hold_are_usage_errors(ostinato: Run) -> None:
    for name in ("a" * 5000, ""):
        assert ostinato("repro", name).code == 2
    for output in ("a" * 5000, "a\0b"):
        with pytest.raises(ost.ConfigError, match="cannot be written"):
            ost.bisect("no such model", output=output)
    with pytest.raises(ost.ConfigError, match="the path is 3"):
        ost.repro(3)  # type: ignore[arg-type]


def test_a_fault_that_is_mended_is_another_outcome(ostinato: Run, lifetime: Path, tmp_path: Path) -> None:
    """Here by taking the places out, which are what is wrong."""
    folder = shutil.copytree(lifetime, tmp_path / "mended")
    about = json.loads((folder / "repro.json").read_text(encoding="utf-8"))
    about["places"] = {}
    (folder / "repro.json").write_text(json.dumps(about), encoding="utf-8")
    shown = ostinato("repro", folder, "--device", "cpu", "--json")
    assert shown.code == 1
    report = shown.report()
    assert isinstance(report, ReproReport)
    assert (report.ok, report.outcome, report.worst) == (False, "agreement", None)


def test_code_of_the_users_is_asked_for_and_given(ostinato: Run, kernel: Path, tmp_path: Path) -> None:
    assert "ostinato repro bundle --extension mine:rows" in (kernel / "README.txt").read_text(encoding="utf-8")
    refused = ostinato("repro", kernel, "--device", "cpu")
    assert refused.code == 2
    assert "needs row linear_swiglu@mine" in refused.err
    assert "it was mine:rows" in refused.err
    extension = tmp_path / "rows.py"
    extension.write_text(
        "from dataclasses import replace\n"
        "import ostinato as ost\n"
        "from ostinato.backend_hip.impls import ROWS\n"
        "def rows(scale=1e6):\n"
        "    known = next(row for row in ROWS if (row.op, row.name) == ('linear_swiglu', 'host'))\n"
        "    def params(site):\n"
        "        return tuple(0.5 if type(p) is float else p for p in known.params(site))\n"
        "    return ost.extend(rows=[replace(known, name='mine', params=params)])\n",
        encoding="utf-8",
    )
    shown = ostinato("repro", kernel, "--device", "cpu", "--extension", f"{extension}:rows")
    assert (shown.code, "it is as stated" in shown.out) == (0, True), shown
    own = ostinato("repro", kernel, "--device", "cpu", "--own-rows", "--json")
    report = own.report()
    assert isinstance(report, ReproReport)
    assert (own.code, report.outcome) == (1, "agreement")  # the device's own rows are right


def test_blocks_of_quantised_weights_stay_what_they_are(tmp_path: Path) -> None:
    config = small_config("llama", hidden_size=64, intermediate_size=64)
    write_gguf(tmp_path / "q8.gguf", config, random_model(config, 3), DType.Q8_0)
    bench = Bench(ost.load(str(tmp_path / "q8.gguf")), DEVICE)
    fault = next(fault for fault in FAULTS if fault.name == "wrong kernel at one shape")
    with fault.plant(bench) as planted:
        report = bench.bisect(planted, output=tmp_path / "bundle")
        assert report.bundle is not None, report.unreduced
        assert ost.repro(report.bundle, device=DEVICE).ok
    values = read_bundle(tmp_path / "bundle").cut.values
    assert [array.dtype for name, array in values.items() if "gate" in name or "up_proj" in name] == [np.uint8]


# damage


def test_every_flipped_byte_is_told_and_named(lifetime: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    for name in ("graph.txt", "values.safetensors"):
        original = (lifetime / name).read_bytes()
        folder = shutil.copytree(lifetime, tmp_path / name)
        for place in rng.integers(0, len(original), 12):
            damaged = bytearray(original)
            damaged[int(place)] ^= 1 << int(rng.integers(8))
            (folder / name).write_bytes(bytes(damaged))
            with pytest.raises(ost.WeightsError, match=f"{name} was changed"):
                ost.repro(folder, device=DEVICE)


def _rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """`repro.json` with a change, and the hashes of the other files made right."""
    import hashlib

    about = json.loads((folder / "repro.json").read_text(encoding="utf-8"))
    for name in about["files"]:
        about["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    change(about)
    (folder / "repro.json").write_text(json.dumps(about), encoding="utf-8")


def test_a_hostile_bundle_is_a_typed_error(lifetime: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    """Fields with other values, and files changed with their hashes: whatever happens, nothing but errors on purpose, or an outcome."""
    values: list[Any] = [None, -1, 1, 2**70, "x", "", [], {}, {"x": 1}, True, 1e400, "../../etc", ["a"] * 3]
    fields = list(json.loads((lifetime / "repro.json").read_text(encoding="utf-8")))
    outcomes = 0
    for turn in range(60):
        folder = shutil.copytree(lifetime, tmp_path / str(turn))
        field, value = fields[int(rng.integers(len(fields)))], values[int(rng.integers(len(values)))]
        if turn % 3 == 0:
            lines = (folder / "graph.txt").read_text(encoding="utf-8").splitlines()
            line = int(rng.integers(len(lines)))
            lines[line] = lines[line].replace("1", "4096").replace("C:64", "C:65") if turn % 2 else ""
            (folder / "graph.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            _rewritten(folder, lambda about: None)
        else:
            _rewritten(folder, lambda about, field=field, value=value: about.update({field: value}))  # type: ignore[misc]
        with contextlib.suppress(OstinatoError):
            ost.repro(folder, device=DEVICE)
            outcomes += 1
        shutil.rmtree(folder)
    assert outcomes < 40


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, ost.StaleArtifact, "another version"),
        ({"format": "other"}, ost.ConfigError, "no bundle of format"),
        ({"left": "magic"}, ost.ConfigError, "left"),
        ({"places": {"logits": 0}}, ost.PlanError, "no storages"),
        ({"places": {"layers.0.add_1": -256}}, ost.PlanError, "begin at"),
        ({"places": {"layers.0.add_1": 2**62}}, ost.CapacityError, None),
        ({"rows": {"layers.1.add": "gone"}}, ost.ConfigError, "no row 'gone'"),
        ({"runs": 0}, ost.ConfigError, "runs"),
        ({"left": "saved"}, ost.WeightsError, "no saved values"),
        ({"files": {}}, ost.ConfigError, "says nothing of graph.txt"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told(
    change: dict[str, Any], error: type[Exception], message: str | None, lifetime: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(lifetime, tmp_path / "changed")
    _rewritten(folder, lambda about: about.update(change))
    with pytest.raises(error, match=message):
        ost.repro(folder, device=DEVICE)


def test_rows_of_another_kind_of_device_are_not_taken_unasked(lifetime: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(lifetime, tmp_path / "gpu")
    _rewritten(folder, lambda about: about["environment"].update(device="hip:0", target="gfx942"))
    with pytest.raises(ost.ConfigError, match="the rows of the bundle are those of gfx942"):
        ost.repro(folder, device=DEVICE)
    assert ost.repro(folder, device=DEVICE, own_rows=True).ok  # places are wrong with any rows


def test_what_is_no_bundle_is_told(ostinato: Run, lifetime: Path, tmp_path: Path) -> None:
    for path, message in ((tmp_path / "nowhere", "is no folder"), (tmp_path, "has no repro.json")):
        shown = ostinato("repro", path, "--device", "cpu")
        assert (shown.code, message in shown.err, "hint" in shown.err) == (2, True, True)
    for name, kind in (("graph.txt", ost.WeightsError), ("values.safetensors", ost.WeightsError)):
        folder = shutil.copytree(lifetime, tmp_path / name)
        (folder / name).unlink()
        with pytest.raises(kind, match="is missing"):
            ost.repro(folder, device=DEVICE)
    broken = shutil.copytree(lifetime, tmp_path / "broken")
    for text in (b"", b"{", b"[1]", b"\xff\xfe", b'{"format": "ostinato-repro"}'):
        (broken / "repro.json").write_bytes(text)
        with pytest.raises(ost.ConfigError):
            ost.repro(broken, device=DEVICE)


def test_bisect_is_a_command(ostinato: Run, tiny: Path, tmp_path: Path) -> None:
    shown = ostinato("bisect", tiny, "--left", "eager", "--right", "planned", "--device", "cpu")
    assert (shown.code, "the sides agree" in shown.out) == (0, True)
    report = ostinato("bisect", tiny, "--right", "policy=strict", "--device", "cpu", "--json").report()
    assert (report.model_dump()["ok"], report.model_dump()["verdict"]) == (True, "agree")
    refused = ostinato("bisect", tiny, "--right", "levels.linear=magic", "--device", "cpu")
    assert (refused.code, "magic" in refused.err) == (2, True)
    there = ostinato("bisect", tiny, "--output", tiny)
    assert (there.code, "is there already" in there.err) == (2, True)
