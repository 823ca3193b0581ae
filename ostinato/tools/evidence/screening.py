"""`ostinato evidence screen MODEL`: every product that a model leaves to a vendor's library, screened on this card.

What a screening is and what becomes of its winners: `backend_hip/vendor_screen.py`. A product of which no proposal is right is reported; the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.vendor_screen import Product, products_of, screen
from ostinato.compiler import plan_text_program
from ostinato.frontend.model import Model
from ostinato.ir.errors import BackendError, CapacityError, ConfigError
from ostinato.runtime.device import Device
from ostinato.tools.console import Steps, count, table
from ostinato.tools.evidence.candidates import PLAIN
from ostinato.tools.evidence.report import EvidenceScreenReport, ScreenedProduct
from ostinato.tools.evidence.workloads import Workload, entries_of

__all__ = ["screen_model", "show_screening"]


def screen_model(
    name: str,
    model: Model,
    device: Device,
    workloads: Sequence[Workload],
    precision: str,
    *,
    candidates: int,
    seed: int,
    steps: Steps | None = None,
) -> EvidenceScreenReport:
    """Screens the products of a model's programs. Raises `ConfigError` for a device without a vendor's library, and what planning the model raises."""
    shown = steps or Steps(None)
    if not isinstance(device, HipDevice):
        raise ConfigError(f"{device.name} has no vendor's library to screen", hint="use a GPU: --device hip")
    shown.begin(f"planning {name}")
    options = PLAIN.options.pipeline(model.precision(precision))
    program = plan_text_program(entries_of(model, workloads, precision), device.target, options)
    users: dict[Product, list[str]] = {}
    for entry, plan in program.plan.entries.items():
        for product in products_of(plan.steps):
            users.setdefault(product, []).append(entry)
    found = []
    for number, (product, entries) in enumerate(users.items()):
        shown.advance(number, len(users), f"screening {product}")
        found.append(_screened(device, product, tuple(entries), candidates, seed))
    return EvidenceScreenReport(
        model=name,
        device=device.native.name,
        seed=seed,
        ok=not any(each.problem for each in found),
        products=tuple(found),
    )


def show_screening(report: EvidenceScreenReport, console: Console) -> None:
    """The report for people."""
    rows = (
        (
            each.product,
            ", ".join(each.workloads),
            count(each.candidates),
            count(each.right),
            _microseconds(each.first_seconds),
            _microseconds(each.seconds),
            f"{each.gain:.3f}x" if each.gain is not None else "",
        )
        for each in report.products
    )
    columns = ("product", "in", "proposals", "right", "first", "winner", "gain")
    console.print(table(f"{report.model} on {report.device}", columns, rows))
    for each in report.products:
        if each.problem:
            console.print(f"{each.product}: {each.problem}", style="red", markup=False)
    if not report.products:
        console.print("these programs have no product of a vendor's library", markup=False)


def _screened(
    device: HipDevice, product: Product, entries: tuple[str, ...], candidates: int, seed: int
) -> ScreenedProduct:
    try:
        found = screen(device.native, product, candidates=candidates, seed=seed)
    except (BackendError, CapacityError) as error:
        return ScreenedProduct(
            product=str(product),
            workloads=entries,
            candidates=0,
            right=0,
            first_seconds=None,
            seconds=None,
            gain=None,
            problem=error.message,
        )
    times = {one.number: one.seconds for one in found.solutions}
    return ScreenedProduct(
        product=str(product),
        workloads=entries,
        candidates=len(found.solutions),
        right=sum(not one.refused for one in found.solutions),
        first_seconds=times[found.first],
        seconds=times[found.winner],
        gain=found.gain,
        problem=f"not recorded: {found.unkept}" if found.unkept else "",
    )


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f} us"
