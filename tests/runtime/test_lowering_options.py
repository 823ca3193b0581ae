"""Options that shape a lowered graph: rows and levels by hand, passes left out, limits of folding. Unknown names are errors that say what exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.target import Level

BUCKETS = {"B": [1], "T": [4]}
DIMS = {"B": 1, "T": 4}


NORMS = ("fuse_norm", "fuse_add_norm", "fuse_qkv_rope_store")
"""Passes that put norms into other nodes."""


def impls(executable: ost.TextExecutable) -> dict[str, str | None]:
    (graph,) = executable.program.graphs.values()
    return {node.name: node.impl for node in graph.nodes}


def test_levels_force_the_row_of_an_operator_or_of_one_node(tiny_model: ost.Model, rng: np.random.Generator) -> None:
    apart = ["fuse_norm", "fuse_residual", "fuse_qkv_rope_store"]  # norms that are nodes of their own
    plain = ost.compile(tiny_model, buckets=BUCKETS, disable=apart)
    ids = rng.integers(0, tiny_model.config.vocab_size, (1, 4), dtype=np.int32)
    expected = plain(input_ids=ids)["logits"]
    operators = {node.name: node.op for node in next(iter(plain.program.graphs.values())).nodes}
    norm = next(name for name, op in operators.items() if op == "add_rms_norm")
    levels = {"rms_norm": "host_all_rows", norm: "host_all_rows"}
    forced = ost.compile(tiny_model, buckets=BUCKETS, levels=levels, disable=apart)
    found = impls(forced)
    assert found[norm] == "host_all_rows" != impls(plain)[norm]
    assert all(found[name] == "host_all_rows" for name, op in operators.items() if op == "rms_norm")
    assert any(found[name] == "host" for name, op in operators.items() if op == "add_rms_norm")
    np.testing.assert_array_equal(forced(input_ids=ids)["logits"], expected)


@pytest.mark.parametrize("level", ["tuned", Level.TUNED])
def test_levels_force_a_level(tiny_model: ost.Model, level: Any) -> None:
    lowered = ost.trace(tiny_model).lower(dims=DIMS, levels={"linear": level})
    assert {item.level for name, item in lowered.decisions.items()} == {Level.TUNED}
    assert "choice=[linear@tuned]" in lowered.report.options["select_impl"]


WRONG: list[tuple[dict[str, str], str]] = [
    (
        {"rms_norm": "readable"},
        r"host has no level 'readable' of rms_norm.*\n.*host \(tuned\), host_all_rows \(tuned\)",
    ),
    ({"linear": "vendor"}, r"host has no level 'vendor' of linear"),
    ({"linear": "fast"}, r"host has no row 'fast' of linear.*\n.*host \(tuned\), host_all_rows \(tuned\)"),
    ({"cross_entropy": "fast"}, r"host has no row 'fast' of cross_entropy"),
    ({"logits": "fast"}, r"logits: host has no row 'fast' of linear"),
    ({"linaer": "host"}, r"'linaer', which is no operator and no node.*\n.*like name: linear; operators: .*rms_norm"),
    ({"reshape": "host"}, r"'reshape', which is a view, which runs nothing"),
]


@pytest.mark.parametrize(
    ("levels", "message"), WRONG, ids=lambda item: next(iter(item)) if isinstance(item, dict) else ""
)
@pytest.mark.parametrize("through", ["compile", "lower"])
def test_rules_about_what_does_not_exist_are_refused(
    tiny_model: ost.Model, levels: dict[str, str], message: str, through: str
) -> None:
    def lower() -> object:
        if through == "compile":
            return ost.compile(tiny_model, buckets=BUCKETS, levels=levels)
        return ost.trace(tiny_model).lower(dims=DIMS, levels=levels)

    with pytest.raises(ost.ConfigError, match=message):
        lower()


@pytest.mark.parametrize("wrong", ["linear", ["linear"], {"linear": 3}, {3: "host"}, {"linear": None}, 5])
def test_levels_of_another_kind_are_refused(tiny_model: ost.Model, wrong: Any) -> None:
    with pytest.raises(ost.ConfigError, match="levels"):
        ost.compile(tiny_model, buckets=BUCKETS, levels=wrong)


def test_passes_are_left_out_by_name(tiny_model: ost.Model) -> None:
    exe = ost.compile(tiny_model, buckets=BUCKETS, disable=["fuse_qkv", "fuse_swiglu"])
    assert not {"linear_swiglu"} & {node.op for node in next(iter(exe.program.graphs.values())).nodes}
    for wrong in (["typo"], ["gate"], [3]):
        with pytest.raises(ost.ConfigError, match="disable"):
            ost.compile(tiny_model, buckets=BUCKETS, disable=wrong)  # type: ignore[arg-type]


def test_options_of_the_pipeline_reach_the_passes(tiny_model: ost.Model) -> None:
    traced = ost.trace(tiny_model)
    options = ost.PipelineOptions(
        disable=frozenset({"cse"}),
        choice=ost.RowChoice(forced=(("rms_norm", "host"),), limits=(("*", Level.TUNED),)),
        fold=ost.FoldConstants(most_bytes=17),
    )
    report = traced.lower(
        dims=DIMS, options=options, levels={"rms_norm": "host_all_rows"}, disable=["fuse_qkv", *NORMS]
    ).report
    assert "most_bytes=17" in report.options["fold_constants"]
    assert not {"cse", "fuse_qkv"} & set(report.options)
    assert report.options["select_impl"].count("rms_norm@") == 2
    assert {node.impl for node in report.graph.nodes if node.op == "rms_norm"} == {"host_all_rows"}


REFUSED: list[tuple[Callable[[ost.Traced], Any], str]] = [
    (lambda traced: ost.PipelineOptions("bf16"), "options say precision 'bf16', the trace was made for 'f32'"),
    (lambda traced: {"disable": ["cse"]}, "options is .*expected a PipelineOptions"),
    (
        lambda traced: ost.PipelineOptions(choice=ost.RowChoice(limits=(("linaer", Level.TUNED),))),
        "a highest level is given for linaer",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=["precision", "kind", "limit"])
def test_options_that_cannot_be_used_are_refused(
    tiny_model: ost.Model, make: Callable[[ost.Traced], Any], message: str
) -> None:
    traced = ost.trace(tiny_model)
    with pytest.raises(ost.ConfigError, match=message):
        traced.lower(dims=DIMS, options=make(traced))
