"""The table of fusions: what a layer has with all of them and with none, on a model of nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fusions import FUSIONS, main, variants


def test_variants_leave_out_each_fusion_in_turn_and_all() -> None:
    found = dict(variants())
    assert found["all on"] == frozenset()
    assert found["all off"] == frozenset(FUSIONS)
    assert [found[f"without {name}"] for name in FUSIONS] == [frozenset({name}) for name in FUSIONS]
    assert {"fuse_qkv", "fuse_norm", "fuse_residual", "unfuse_products"} <= set(FUSIONS)


def test_a_decode_step_has_five_launches_a_layer_and_sixteen_unfused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    targets = "host:f32,sm_90:bf16"
    options = ["--models", "tiny", "--workloads", "d1", "--targets", targets, "--passes", "fuse_norm"]
    assert main([*options, "--json", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["target"], row["variant"]) for row in rows] == [
        (target, variant) for target in ("host", "sm_90") for variant in ("all on", "without fuse_norm", "all off")
    ]
    assert [row["counts"]["launches"] for row in rows] == [5.0, 7.0, 16.0] * 2
    assert all(row["counts"]["copies"] == row["counts"]["casts"] == 0 for row in rows)
    assert all(row["seconds"]["passes"]["fuse_qkv"] >= 0 for row in rows if row["variant"] != "all off")
    assert "tiny d1 on sm_90, bf16" in capsys.readouterr().out


def test_an_unknown_pass_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--passes", "fuse_everything"])
    assert "unknown passes fuse_everything" in capsys.readouterr().err
