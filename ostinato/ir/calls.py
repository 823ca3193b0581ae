"""How a chosen implementation row calls its kernel: which value stands in which operand position.

The lowering of the planner and the eager executor share this, so that both run the same decision. (The checker derives it on its own.)
"""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.ir.errors import PlanError
from ostinato.ir.graph import Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.step import WORKSPACE
from ostinato.ir.target import Impl

__all__ = ["kernel_operands"]


def kernel_operands(node: Node, opdef: OpDef, row: Impl, count: str | None) -> tuple[str | None, ...]:
    """Value names in the row's kernel order: None where absent, `WORKSPACE` for the workspace, `count` for the valid-rows input."""
    names: Mapping[str, str | None] = {
        **{spec.name: (node.operands[i] if i < len(node.operands) else None) for i, spec in enumerate(opdef.operands)},
        **_results(node, opdef),
        "count": count,
        "workspace": WORKSPACE,
        "-": None,
    }
    unknown = [name for name in row.operands if name not in names and not _is_spare_result(name, opdef)]
    if unknown:
        raise PlanError(f"row {row.identity} names operands {unknown} that {opdef.name} does not have", node=node.name)
    return tuple(names.get(name) for name in row.operands)


def _results(node: Node, opdef: OpDef) -> dict[str, str]:
    if len(opdef.results) == 1 and opdef.results[0].endswith("*"):
        stem = opdef.results[0][:-1]
        return {f"{stem}{i}": value.name for i, value in enumerate(node.results)}
    return {name: value.name for name, value in zip(opdef.results, node.results, strict=True)}


def _is_spare_result(name: str, opdef: OpDef) -> bool:
    """A row lists as many variadic results as its kernel takes; a node may have fewer."""
    stem = opdef.results[0][:-1] if opdef.results[0].endswith("*") else None
    return stem is not None and name.startswith(stem) and name[len(stem) :].isdigit()
