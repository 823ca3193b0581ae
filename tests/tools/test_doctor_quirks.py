"""The quirk table of `ostinato doctor`: all that is known, and what of it concerns the cards that are here."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ostinato.backend_hip.runtime_faults import FAULTS
from ostinato.tools.conformance.quirks import QUIRKS
from ostinato.tools.doctor_quirks import known_quirks, show_quirks
from ostinato.tools.doctor_report import DoctorReport, GpuCard, GpuLibrary, GpuPlatform
from ostinato.tools.schemas import ErrorReport
from tests.tools.conftest import Run


def machine(version: str, architecture: str) -> GpuPlatform:
    """A machine with one AMD card."""
    library = {"name": "libamdhip64", "finding": "found", "path": "/opt/rocm/lib", "problem": "", "fix": ""}
    runtime = GpuLibrary.model_validate({"role": "runtime", "version": version, **library})
    card = GpuCard(
        index=0, name="Instinct", architecture=architecture, memory_bytes=1 << 36, multiprocessors=304, wave=64
    )
    return GpuPlatform(platform="amd", libraries=(runtime,), cards=(card,), problem="", hint="")


@pytest.mark.parametrize(("version", "concerned"), [("7.2.53211", True), ("7.1.25424", False)])
def test_a_card_is_named_beside_what_concerns_it(version: str, concerned: bool) -> None:
    quirks = {quirk.name: quirk for quirk in known_quirks([machine(version, "gfx942:sramecc+:xnack-")], False)}
    garbage = quirks["replays give garbage in about one process of five"]
    assert garbage.cards == (("amd 0: Instinct",) if concerned else ())
    assert (garbage.handling, garbage.reports) == ("doubt", ("ROCm/clr#279",))
    shown = io.StringIO()
    show_quirks([garbage], Console(file=shown, width=200))
    text = shown.getvalue()
    assert ("concerns amd 0: Instinct" in text) is concerned
    assert "what you can do: use ROCm 7.1, or 7.13 and newer" in text


def test_everything_known_is_listed(ostinato: Run) -> None:
    report = ostinato("doctor", "--quirks", "--json").report()
    assert isinstance(report, DoctorReport)
    assert [quirk.name for quirk in report.quirks] == [item.name for item in (*FAULTS, *QUIRKS)]
    result = ostinato("doctor", "--quirks")
    text = " ".join(result.out.split())
    assert result.code == 0
    for quirk in report.quirks:
        assert quirk.name in text
        assert quirk.what_is_done
    assert "processor" not in text
    error = ostinato("doctor", "--quirks", "--conformance", "--json").report()
    assert isinstance(error, ErrorReport)
    assert error.hint == "give one of the two"


def test_without_the_native_module_what_is_known_is_still_listed() -> None:
    assert [quirk.name for quirk in known_quirks((), False)] == [fault.name for fault in FAULTS]
