"""The quirk table of `ostinato doctor`: known faults of the vendors' runtimes beside the cards here, and the oddities that a device can be tried for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from ostinato.backend_hip.runtime_faults import FAULTS, RuntimeFault, faults_of
from ostinato.tools.console import table
from ostinato.tools.doctor_report import GpuPlatform, KnownQuirk
from ostinato.tools.loading import load_function

__all__ = ["known_quirks", "show_quirks"]

_PROBES = "ostinato.tools.conformance.quirks"
_DETECTION = {
    "doubt": "version of the runtime and architecture; then the first replays of whatever is captured",
    "avoided": "version of the runtime and architecture",
    "told": "version of the runtime and architecture",
}

_HANDLED = {"doubt": "replays are in doubt", "avoided": "avoided", "told": "nothing is done"}


def known_quirks(gpus: Sequence[GpuPlatform], probes: bool) -> tuple[KnownQuirk, ...]:
    """Every known fault, with the cards here that it concerns, and where `probes` says so (they need the native module) what a device can be asked for."""
    concerned: dict[str, list[str]] = {}
    for gpu in gpus:
        runtime = next((library.version for library in gpu.libraries if library.role == "runtime"), "")
        for card in gpu.cards:
            for fault in faults_of(gpu.platform, runtime, card.architecture):
                concerned.setdefault(fault.name, []).append(f"{gpu.platform} {card.index}: {card.name}")
    known = tuple(_known(fault, tuple(concerned.get(fault.name, ()))) for fault in FAULTS)
    return (*known, *_probed()) if probes else known


def show_quirks(quirks: Sequence[KnownQuirk], console: Console) -> None:
    """The quirks for people, a paragraph each; those that are tried in a table of their own."""
    console.print("[bold]known faults of GPU runtimes[/]")
    for quirk in quirks:
        if quirk.handling != "probed":
            where = f" on {', '.join(quirk.architectures)}" if quirk.architectures else ""
            here = f"concerns {'; '.join(quirk.cards)}" if quirk.cards else "no card here"
            lines = [
                quirk.name,
                f"  {quirk.versions}{where}; {', '.join(quirk.reports)}; {here}",
                f"  {_HANDLED[quirk.handling]}: {quirk.what_is_done}",
            ]
            if quirk.fix:
                lines.append(f"  what you can do: {quirk.fix}")
            console.print("\n".join(lines), markup=False)
    probed = [(quirk.name, quirk.detection, quirk.what_is_done) for quirk in quirks if quirk.handling == "probed"]
    if probed:
        title = "oddities that `ostinato doctor --conformance` tries a device for"
        console.print(table(title, ("oddity", "how it is tried", "what follows"), probed, numbers=False))


def _known(fault: RuntimeFault, cards: tuple[str, ...]) -> KnownQuirk:
    return KnownQuirk(
        name=fault.name,
        platform=fault.platform,
        reports=fault.reports,
        versions=fault.versions,
        architectures=fault.architectures,
        detection=_DETECTION[fault.handling],
        handling=fault.handling,
        what_is_done=fault.what_is_done,
        fix=fault.fix,
        cards=cards,
    )


def _probed() -> Iterator[KnownQuirk]:
    """What a device is asked; loaded by name, since it needs the native module."""
    for name, detection, consequence in load_function(_PROBES, "listed_quirks")():
        yield KnownQuirk(
            name=name,
            platform="any",
            reports=(),
            versions="any",
            architectures=(),
            detection=detection,
            handling="probed",
            what_is_done=consequence,
            fix="",
            cards=(),
        )
