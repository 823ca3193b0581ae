"""How a chosen implementation row calls its kernel: which value stands in which operand position, and what the row says of kernel, parameters and workspace.

The lowering of the planner and the eager executor share this, so that both run the same decision. (The checker derives it on its own.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.ir.errors import PlanError, UserCodeError
from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import Cost, OpDef
from ostinato.ir.ops import OP
from ostinato.ir.step import WORKSPACE, Launch, StepKind
from ostinato.ir.target import CallSite, Impl
from ostinato.ir.views import StorageView, call_site, extent_input

__all__ = ["NodeCall", "kernel_operands", "node_call", "result_names"]


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node's kernel call as its row says it: `operands` are value names in the kernel's order, `workspace` is bytes."""

    row: Impl
    site: CallSite
    operands: tuple[str | None, ...]
    kernel: str
    params: tuple[int | float, ...]
    workspace: int
    launch: Launch | None

    @property
    def kind(self) -> StepKind:
        """The kind of step that runs it."""
        return self.row.kind

    def cost(self, opdef: OpDef) -> Cost:
        """What the call costs by its operator, which is `opdef`."""
        try:
            return opdef.cost(self.site.operands, self.site.results, self.site.node.attrs)
        except UserCodeError as error:
            error.node = self.site.node.name
            raise


def node_call(
    graph: Graph, node: Node, row: Impl, views: Mapping[str, StorageView], *, ops: Mapping[str, OpDef] = OP
) -> NodeCall:
    """The call of `node` by `row`. Raises `PlanError` for a row that names operands which its operator does not have."""
    site = call_site(graph, node, views, ops=ops)
    operands = kernel_operands(node, ops[node.op], row, extent_input(graph, node, ops=ops))
    return NodeCall(row, site, operands, row.kernel(site), row.params(site), row.workspace(site), row.launch_of(site))


def kernel_operands(node: Node, opdef: OpDef, row: Impl, count: str | None) -> tuple[str | None, ...]:
    """Value names in the row's kernel order: None where absent, `WORKSPACE` for the workspace, `count` for the valid-rows input."""
    names: Mapping[str, str | None] = {
        **{spec.name: (node.operands[i] if i < len(node.operands) else None) for i, spec in enumerate(opdef.operands)},
        **result_names(node, opdef),
        "count": count,
        "workspace": WORKSPACE,
        "-": None,
    }
    unknown = [name for name in row.operands if name not in names and not _is_spare_result(name, opdef)]
    if unknown:
        raise PlanError(f"row {row.identity} names operands {unknown} that {opdef.name} does not have", node=node.name)
    return tuple(names.get(name) for name in row.operands)


def result_names(node: Node, opdef: OpDef) -> dict[str, str]:
    """Result names of the schema (y0, y1, ... for a variadic y*) -> value names."""
    fixed = len(opdef.results) - opdef.results[-1].endswith("*")
    return {
        opdef.results[i] if i < fixed else f"{opdef.result_name(i)}{i - fixed}": value.name
        for i, value in enumerate(node.results)
    }


def _is_spare_result(name: str, opdef: OpDef) -> bool:
    """A row lists as many variadic results as its kernel takes; a node may have fewer."""
    last = opdef.results[-1]
    stem = last.removesuffix("*")
    return stem != last and name.startswith(stem) and name[len(stem) :].isdigit()
