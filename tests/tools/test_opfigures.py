"""The error figures of docs/OPERATORS.md: what a cell says of the records there are, and of those that there are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ostinato.backend_hip.evidence.records import Environment, TimingRecord, ValidationRecord
from ostinato.backend_hip.impls import ROWS
from ostinato.backend_hip.impls.hip import HIP_ROWS
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops import OP
from ostinato.ir.target import Extents
from ostinato.tools.opfigures import GPUS, HOSTS, dtypes_of, figures
from ostinato.tools.optable import render

LINEAR = tuple(row for row in (*ROWS, *HIP_ROWS) if row.op == "linear")
HOST = next(row for row in LINEAR if "host" in row.architectures)


def record(architecture: str = HOSTS[1], **changes: Any) -> ValidationRecord:
    fields: dict[str, Any] = {
        "environment": Environment(device="one", architecture=architecture, kernel_hash="k", version="0"),
        "operator": "linear",
        "row": HOST.name,
        "level": "tuned",
        "signature": "f32,f32@panel32->f32",
        "sources": {},
        "calls": 9,
        "seed": 1,
        "maximum_error": 5e-7,
        "bound": 2e-6,
        "passed": True,
    }
    return ValidationRecord.made(**{**fields, **changes})


def cells(*records: ValidationRecord | TimingRecord, row: str = HOST.name) -> list[list[str]]:
    """The cells of a row's lines in the tables of figures."""
    lines = [line.strip("| ").split(" | ") for line in figures(LINEAR, records)]
    return [[cell.strip() for cell in line[1:]] for line in lines if line[0] == f"`{row}`"]


def test_without_records_nothing_was_run() -> None:
    assert cells() == [["", *["not run"] * len(HOSTS)]]
    assert len(figures_of_gpus()) == len([row for row in LINEAR if "host" not in row.architectures])
    assert any("|  |" in line for line in figures_of_gpus()), "a row that is not for a card has an empty cell there"


def figures_of_gpus() -> list[str]:
    lines = list(figures(LINEAR, ()))
    start = next(index for index, line in enumerate(lines) if GPUS[0] in line)
    return lines[start + 2 :]


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({}, "5.0e-07 of 2.0e-06"),
        ({"maximum_error": 0.0, "bound": 0.0}, "exact"),
        ({"bound": None}, "5.0e-07"),
        ({"passed": False, "reason": "off"}, "**failed**"),
        ({"maximum_error": None, "passed": False}, "**failed**"),
    ],
)
def test_a_record_is_a_cell(changes: dict[str, Any], cell: str) -> None:
    assert cells(record(**changes)) == [["f32", "not run", cell, *["not run"] * (len(HOSTS) - 2)]]


def test_the_worst_of_what_is_not_told_apart_is_shown() -> None:
    near = record(signature="f32,f32@panel32->f32;counted", maximum_error=9e-7, bound=9e-6)
    assert cells(record(), near)[0][2] == "5.0e-07 of 2.0e-06"
    assert cells(record(), replace_row(near, passed=False))[0][2] == "**failed**"


def replace_row(found: ValidationRecord, **changes: Any) -> ValidationRecord:
    return ValidationRecord.made(**{**found.model_dump(exclude={"id"}), **changes})


def test_dtypes_and_devices_have_lines_and_columns_of_their_own() -> None:
    found = cells(record(), record(signature="bf16,q4_k@panel32->f32"), record("aarch64/portable"))
    assert [line[0] for line in found] == ["bf16, q4_k to f32", "f32"]
    assert found[1][1:] == ["not run", "5.0e-07 of 2.0e-06", "not run", "not run", "5.0e-07 of 2.0e-06"]
    assert "| aarch64/portable |" in "\n".join(figures(LINEAR, [record("aarch64/portable")]))


@pytest.mark.parametrize(
    ("signature", "dtypes"),
    [
        ("f32,bf16@CF,_,f32~->f32;counted", "f32, bf16 to f32"),
        ("i32,f32->f32", "f32"),
        ("f32->i32", "f32 to i32"),
        ("bf16,i32,bf16->bf16,bf16", "bf16"),
        ("i32->i32", "i32"),
    ],
)
def test_dtypes_of_a_signature(signature: str, dtypes: str) -> None:
    assert dtypes_of(signature) == dtypes


def test_the_page_has_figures_exactness_and_sizes() -> None:
    row = replace(
        HOST, exactness=Exactness.ROW_INVARIANT, extents=Extents(rows=(2, None), batch=(0, 8), sequence=(3, 5))
    )
    page = render([OP["linear"]], [row], [record()])
    assert "| invariant | from 2 rows, up to 8 sequences, 3 to 5 rows a sequence |" in page
    assert "| f32 | not run | 5.0e-07 of 2.0e-06 |" in page
    assert render([OP["linear"]], [row], []) != page, "the page changes with the records"
