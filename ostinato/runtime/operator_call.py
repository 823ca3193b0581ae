"""One caller-owned operator call worked out from its types: which row serves it, and where the caller's memory goes in its kernel.

Everything that types can tell is settled here, once for all calls of the same types: shapes, dtypes and layouts of operands and outputs, the row, its
parameters and its workspace. What depends on addresses (overlaps, size of the workspace) is left to each call. Rows, predicates and their order are those that
the passes choose from (`Target.ranked`, `row_refusal`), so that a call and a compiled graph run the same kernels.

Memory is numbered: first the operands in schema order, then the outputs, then the workspace. A result that must alias an operand is that operand's memory
and no output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.ir.calls import kernel_operands
from ostinato.ir.errors import BackendError, DTypeError, InputError, LayoutError, OstinatoError, ShapeError
from ostinato.ir.evidence import Finding
from ostinato.ir.graph import Attributes, Node, Value, trimmed
from ostinato.ir.opdef import Attr, OpDef
from ostinato.ir.step import WORKSPACE, KernelCall, Launch, StepKind
from ostinato.ir.target import CallSite, Impl, Level, Target
from ostinato.ir.types import TensorType
from ostinato.ir.views import layout_refusal, row_refusal
from ostinato.runtime.forms import Form

__all__ = ["CallPlan", "Forms", "call_site_of", "form_of_type", "plan_call", "serving_row"]


Forms = tuple[Form | None, ...]


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A call without its addresses.

    `places` says for each kernel operand which memory it is, None where it is absent; `names` are the names of all memory. `written` are the places that a call
    changes; `in_place` pairs (output, operand) that may be the same memory. A call that is `empty` has nothing to compute.
    """

    kernel: str
    params: tuple[int | float, ...]
    workspace: int
    places: tuple[int | None, ...]
    names: tuple[str, ...]
    written: tuple[int, ...]
    in_place: frozenset[tuple[int, int]]
    empty: bool
    kind: StepKind = StepKind.LAUNCH
    launch: Launch | None = None

    def call(self, name: str) -> KernelCall:
        """What the device makes ready; `name` is what its errors name."""
        return KernelCall(name, self.kernel, self.params, len(self.places), self.kind, self.launch)


def form_of_type(tensor: TensorType) -> Form:
    """The form of a tensor of that type that somebody will own."""
    packed = tensor.layout if tensor.is_packed else None
    strides = None if tensor.is_packed else tensor.strides
    return Form(tensor.static_shape, strides, tensor.dtype, packed, True)


def call_site_of(opdef: OpDef, operands: Forms, attrs: Mapping[str, Attr]) -> CallSite:
    """The call as implementation rows see it: one node whose values are called as in the schema. Raises what the operator's rule raises."""
    full = opdef.attributes(attrs)
    types = tuple(None if form is None else form.type for form in operands)
    results = opdef.infer(types, full)
    fixed = len(opdef.results) - opdef.results[-1].endswith("*")
    values = tuple(
        Value(opdef.result_name(index) + (str(index - fixed) if index >= fixed else ""), tensor)
        for index, tensor in enumerate(results)
    )
    names = [None if form is None else spec.name for spec, form in zip(opdef.operands, operands, strict=True)]
    node = Node(opdef.name, trimmed(names), values, Attributes(full))
    strides = tuple(None if form is None else form.strides for form in operands)
    offsets = tuple(0 if form is None else form.offset for form in operands)
    return CallSite(node, types, results, strides, offsets=offsets)


def plan_call(
    opdef: OpDef, target: Target, site: CallSite, writable: Sequence[bool], outs: Forms, level: str | None
) -> CallPlan:
    """Works a call out. `writable` is of the operands; `outs` are the caller's outputs, one for each result that aliases no operand.

    Raises `InputError` for a missing output; `ShapeError`, `DTypeError` and `LayoutError` for outputs that do not fit, and for read-only memory that would be
    written; what `serving_row` raises.
    """
    values, aliased = site.node.results, dict(opdef.aliased(site.operands))
    free = [value for index, value in enumerate(values) if index not in aliased]
    _check_outs(opdef, free, outs)
    for operand in aliased.values():
        if not writable[operand]:
            raise LayoutError(
                "the operand is updated, and its memory is read-only",
                node=f"{opdef.name}.{opdef.operands[operand].name}",
            )
    row = serving_row(opdef, target, site, level)
    if row.kind is StepKind.GEMM and any(form is not None and form.offset for form in outs):
        raise LayoutError(
            f"{row.identity} writes memory that is aligned to 16 bytes, the output is not",
            node=opdef.name,
            hint='pass aligned memory, or level="tuned" for a kernel of our own',
        )
    names = [*(spec.name for spec in opdef.operands), *(value.name for value in free), WORKSPACE]
    place = {name: index for index, name in enumerate(names) if index >= len(site.operands) or site.has(index)}
    place |= {values[result].name: operand for result, operand in aliased.items()}
    in_place = [pair for pair in row.in_place if set(pair) <= place.keys()]
    return CallPlan(
        kernel=row.kernel(site),
        params=row.params(site),
        workspace=row.workspace(site),
        places=tuple(
            None if name is None else place.get(name) for name in kernel_operands(site.node, opdef, row, None)
        ),
        names=tuple(names),
        written=(*range(len(site.operands), len(names)), *aliased.values()),
        in_place=frozenset((place[result], place[operand]) for result, operand in in_place),
        empty=not any(result.elements for result in site.results),
        kind=row.kind,
        launch=row.launch_of(site),
    )


def _check_outs(opdef: OpDef, values: Sequence[Value], outs: Forms) -> None:
    if len(outs) != len(values):
        wanted = ", ".join(f"{value.name} {value.type}" for value in values)
        raise InputError(
            f"expected {len(values)} outputs, {wanted}; found {len(outs)}",
            node=opdef.name,
            hint="out= takes one array for one result, a tuple for several; nothing is allocated for the caller"
            if values
            else f"{opdef.name} updates its operands; leave out= away",
        )
    for value, form in zip(values, outs, strict=True):
        where, expected = f"{opdef.name}.{value.name}", value.type
        if form is None:
            raise InputError(f"out is None, expected memory for {expected}", node=where)
        if form.dtype is not expected.dtype:
            raise DTypeError(
                f"expected an output of {expected.dtype.value}, found {form.type}",
                node=where,
                hint="results are not converted: pass memory of that dtype"
                + (", or ask for another with dtype=" if any(spec.name == "dtype" for spec in opdef.attrs) else ""),
            )
        if form.shape != expected.static_shape:
            raise ShapeError(
                f"expected an output of shape {list(expected.static_shape)}, found {form.type}", node=where
            )
        if not form.is_contiguous:
            raise LayoutError(
                f"expected a contiguous output, found {form.type} with strides {list(form.strides or ())}", node=where
            )
        if not form.writable:
            raise LayoutError("the output is read-only", node=where, hint="pass memory that may be written")


def serving_row(opdef: OpDef, target: Target, site: CallSite, level: str | None) -> Impl:
    """The first row in order of preference that takes the call as it stands, of the level or name that is forced, if any.

    A row that a record says is wrong is passed over; one without a record is taken on trust, since a call validates nothing. The reference serves where it is
    forced, and where an operator has no other row.

    Raises `LayoutError` where some row would take the same operands in another layout, with the call that makes it; `BackendError` where none would;
    `ConfigError` for a row or level that does not exist.
    """
    name = opdef.name
    rows = _unforced(target, name) if level is None else target.forced(name, level, name)
    refusals: list[str] = []
    for row in rows:
        reason = row_refusal(row, site, opdef) or _known_wrong(row, site, target)
        if reason is None:
            return row
        refusals.append(f"{row.identity}: {reason}")
    raise _unserved(opdef, target, site, rows, refusals)


def _unforced(target: Target, name: str) -> tuple[Impl, ...]:
    rows = target.ranked(name)
    return tuple(row for row in rows if row.level is not Level.REFERENCE) or rows


def _known_wrong(row: Impl, site: CallSite, target: Target) -> str | None:
    verdict = None if target.evidence is None else target.evidence.verdict(row, site)
    if verdict is None or verdict.finding is not Finding.FAILED:
        return None
    return f"validation failed: {verdict.reason} [{', '.join(verdict.evidence)}]"


def _unserved(
    opdef: OpDef, target: Target, site: CallSite, rows: tuple[Impl, ...], refusals: Sequence[str]
) -> OstinatoError:
    text = "\n  ".join([f"no row of {target.name} takes this call", *refusals])
    dense = replace(site, strides=tuple(None if t is None or t.is_packed else t.strides for t in site.operands))
    if dense != site and any(row_refusal(row, dense, opdef) is None for row in rows):
        strided = [spec.name for spec, a, b in zip(opdef.operands, site.strides, dense.strides, strict=True) if a != b]
        return LayoutError(
            text,
            node=opdef.name,
            hint=f"make a dense copy of {', '.join(strided)} first: ops.contiguous(x, out=...)",
        )
    if any(layout_refusal(row, site, opdef) for row in rows):
        return LayoutError(
            text,
            node=opdef.name,
            hint=f'pack the weight once: size = ops.packed_bytes(weight, operator="{opdef.name}"), then '
            f'packed = ops.pack(weight, out=np.empty(size, np.uint8), operator="{opdef.name}")',
        )
    return BackendError(text, node=opdef.name, hint="see docs/OPERATORS.md for what each row takes")
