"""Rows of the end of a training step, for GPUs: everything that belongs to a parameter is updated in one pass, 16 bytes at a time.

AdamW has three with one arithmetic: 16 bytes a thread, an element a thread where whole-model runs say so, and several parameters in a launch (`adamw_group`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ostinato.backend_hip.impls.common import uncounted
from ostinato.backend_hip.impls.hip.common import THREADS, Params, block_launch, by_dtypes, readable
from ostinato.backend_hip.impls.hip.elementwise_backward import RUN
from ostinato.backend_hip.kernel_source import kernel_name
from ostinato.ir.evidence import Exactness
from ostinato.ir.ops.optimizer import SCHEDULES
from ostinato.ir.ops.optimizer_group import ADAMW_GROUP, MOST_UPDATES, PARTS
from ostinato.ir.step import Launch
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.types import DType

__all__ = ["OPTIMIZER_ROWS"]

_FILE = "optimizer/optimizer"
_MOST_BLOCKS = 8192
"""They read the factors first: so many fill any device, and each has enough to do after that."""


def _launch(site: CallSite) -> Launch:
    return block_launch(min(-(-site.operand(0).elements // (RUN * THREADS)), _MOST_BLOCKS), THREADS)


def _element_launch(site: CallSite) -> Launch:
    return block_launch(min(-(-site.operand(0).elements // THREADS), _MOST_BLOCKS), THREADS)


def _update(
    op: str,
    *moments: str,
    switches: tuple[str, ...] = ("decay",),
    function: str = "",
    launch: Callable[[CallSite], Launch] = _launch,
) -> Impl:
    """The update of a parameter and its moments by its gradient; a mirror that is not there has a dtype all the same."""
    operands = ("parameter", "gradient", *moments, "factors", "mirror")
    mirror = len(operands) - 1

    def kernel(site: CallSite) -> str:
        dtypes = [site.operand(2 + index).dtype for index, name in enumerate(moments) if name != "velocity"]
        dtypes.append(site.operand(mirror).dtype if site.has(mirror) else DType.BF16)
        return kernel_name(_FILE, function or op, *(dtype.value for dtype in dtypes))

    def params(site: CallSite) -> Params:
        return (site.operand(0).elements, *(int(site.boolean(switch)) for switch in switches))

    return readable(op, operands, kernel, params, launch, uncounted)


def _members(site: CallSite) -> list[int]:
    """Elements of the parameter of each, 0 where there is none."""
    starts = range(1, 1 + PARTS * MOST_UPDATES, PARTS)
    return [site.operand(start).elements if site.has(start) else 0 for start in starts]


def _group_launch(site: CallSite) -> Launch:
    """A row of blocks each, as many as the largest one wants."""
    sizes = _members(site)
    return block_launch(-(-max(sizes) // (RUN * THREADS)), THREADS, rows=MOST_UPDATES - sizes.count(0))


def _group_kernel(site: CallSite) -> str:
    return kernel_name(_FILE, "adamw_group", *(site.operand(index).dtype.value for index in (3, 4)))


OPTIMIZER_ROWS = (
    readable(
        "optimizer_factors",
        ("step", "settings", "loss", "square_sum", "factors"),
        by_dtypes(_FILE, "optimizer_factors"),
        lambda site: (SCHEDULES.index(site.text("schedule")),),
        lambda site: block_launch(1, 64),
        uncounted,
        exactness=Exactness.TOLERANCE,
    ),
    _update("adamw", "first", "second"),
    replace(
        _update("adamw", "first", "second", function="adamw_scalar", launch=_element_launch),
        name="hip_scalar",
        priority=-1,
    ),
    readable(
        "adamw_group",
        tuple(spec.name for spec in ADAMW_GROUP.operands),
        _group_kernel,
        lambda site: (*_members(site), int(site.boolean("decay"))),
        _group_launch,
        uncounted,
    ),
    _update("sgd"),
    _update("sgd_momentum", "velocity", switches=("decay", "nesterov")),
)
