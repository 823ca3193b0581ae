"""The verifier's rules about inputs, constants, weights and layouts: V16 to V19 and V24. The list of all rules stands in `verify.py`."""

from __future__ import annotations

from ostinato.ir.diagnostics import Diagnostics, plain
from ostinato.ir.errors import DTypeError, LayoutError
from ostinato.ir.graph import GraphInput, Role
from ostinato.ir.naming import NO_TEXT_HINT, is_text
from ostinato.ir.types import TensorType
from ostinato.ir.weights import TRANSFORMS

__all__ = ["check_input", "check_result"]


def check_input(out: Diagnostics, statement: int, item: GraphInput) -> None:
    """Reports what is wrong with one input by itself."""
    name, tensor = item.value.name, item.value.type
    is_weight = item.role in (Role.WEIGHT, Role.PARAMETER)
    if item.parts and not is_weight:
        hint = "only weights and parameters are read from a checkpoint"
        out.report("V16", statement, f"{item.role.value} %{name} has parts", hint=hint)
    elif item.parts:
        _check_parts(out, statement, item)
    _check_data(out, statement, item)
    if item.carried and item.role is not Role.INPUT:
        message = f"{item.role.value} %{name} is carried"
        out.report("V24", statement, message, hint="only an input is: what else is updated is state or a parameter")
    if tensor.is_packed:
        _check_packed(out, statement, name, tensor, item.role is Role.WEIGHT)
    if tensor.dtype.is_block:
        _check_block(out, statement, name, tensor, item.role is Role.WEIGHT)


def check_result(out: Diagnostics, statement: int, name: str, tensor: TensorType, is_view: bool) -> None:
    """Reports a node result that has a layout or dtype which only inputs may have."""
    if tensor.is_packed or (is_view and not tensor.is_natural):
        expected = f"{tensor.natural_layout}{'' if is_view else ' or a permutation of named axes'}"
        hint = (
            "a view lies as its operand does; leave its layout in logical order"
            if is_view
            else "only weights are packed"
        )
        out.report("V18", statement, f"%{name} cannot have layout {tensor.layout}", expected, str(tensor), hint)
    if tensor.dtype.is_block:
        _check_block(out, statement, name, tensor, False)


def _check_data(out: Diagnostics, statement: int, item: GraphInput) -> None:
    name, tensor, data = item.value.name, item.value.type, item.data
    if item.role is not Role.CONSTANT:
        if data is not None:
            out.report("V17", statement, f"{item.role.value} %{name} carries data", hint="only constants do")
    elif data is None:
        out.report("V17", statement, f"constant %{name} has no data", plain(tensor), "nothing")
    elif tensor.dtype.is_block or data.dtype != tensor.dtype.numpy or data.shape != tensor.shape:
        found = f"{data.dtype}{list(data.shape)}"
        out.report("V17", statement, f"data of constant %{name} do not match its type", plain(tensor), found)


def _check_packed(out: Diagnostics, statement: int, name: str, tensor: TensorType, is_weight: bool) -> None:
    if not is_weight or tensor.rank != 2 or not tensor.is_static:
        message = f"%{name} cannot have layout {tensor.layout}"
        out.report("V18", statement, message, "a weight of two integer dimensions", str(tensor))
        return
    try:
        _ = tensor.nbytes
    except LayoutError as error:
        out.report_error("V18", statement, error)
    except DTypeError:
        pass  # broken blocks: V19 says so


def _check_block(out: Diagnostics, statement: int, name: str, tensor: TensorType, is_weight: bool) -> None:
    last = tensor.shape[-1] if tensor.shape else 1
    size = tensor.dtype.block_elements
    if not is_weight:
        hint = "block dtypes are read by the operators that take weights; dequantise for all else"
        out.report("V19", statement, f"%{name} has a block dtype", "a weight, or a plain dtype", str(tensor), hint)
    elif not isinstance(last, int) or last % size:
        hint = "keep this weight in a float dtype"
        expected = f"a last axis of whole blocks of {size}"
        out.report("V19", statement, f"%{name} has broken blocks", expected, str(tensor), hint)
    if not (tensor.is_natural or tensor.is_packed):
        out.report("V18", statement, f"blocks of %{name} cannot be permuted", tensor.natural_layout, str(tensor))


def _check_parts(out: Diagnostics, statement: int, item: GraphInput) -> None:
    name, tensor = item.value.name, item.value.type
    for part in item.parts:
        if not is_text(part.tensor):
            message = f"tensor {part.tensor!r} of %{name} has half of a surrogate pair in its name"
            out.report("V16", statement, message, hint=NO_TEXT_HINT)
        if not 0 <= part.start < part.stop:
            found = f"[{part.start}:{part.stop}]"
            out.report(
                "V16", statement, f"part {part.tensor!r} of %{name} is no range of rows", "0 <= start < stop", found
            )
        if part.transform not in TRANSFORMS:
            message = f"part {part.tensor!r} of %{name} has an unknown transform"
            out.report("V16", statement, message, " or ".join(TRANSFORMS), part.transform)
    rows = tensor.shape[0] if tensor.shape else None
    given = sum(part.stop - part.start for part in item.parts)
    if rows != given:
        expected = "no parts for a scalar" if rows is None else f"{rows} rows"
        out.report("V16", statement, f"the parts of %{name} do not cover its rows", expected, f"{given} rows")
