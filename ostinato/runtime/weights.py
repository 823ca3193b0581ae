"""Loading weights and parameters: the manifest's parts go from the mapped checkpoint straight into their region.

Packing, row reordering, shifts, transposes and dtype conversion happen on the way, in pieces, and source pages are given back after each piece: two copies of
the weights never exist. The region is handed out only when every slot is filled; a failure leaves nothing behind. Weights are loaded once and shared; every
executable loads parameters for itself, since it trains its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ostinato.ir.blocks import dequantize
from ostinato.ir.errors import WeightsError
from ostinato.ir.step import Region
from ostinato.ir.types import Array, DType
from ostinato.ir.weights import PackSource, WeightPart, WeightSlot, transform_of
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.device import Buffer, Device, WeightSource
from ostinato.runtime.regions import SharedRegions, require_device, require_memory

__all__ = [
    "PACK_CHUNK_BYTES",
    "Progress",
    "SlotRows",
    "load_parameters",
    "load_shared",
    "logical_weight",
    "pack_part",
    "places_of",
]

PACK_CHUNK_BYTES = 16 << 20
"""Source bytes packed between two releases of mapped pages: bounds how much of the file is resident at once."""

Progress = Callable[[str, int, int], None]
"""progress(what, bytes done, bytes in all)"""

SlotRows = tuple[WeightSlot, WeightPart, int]
"""A part of a slot, and the slot's row at which it begins."""


def load_shared(
    device: Device, plan: ProgramPlan, source: WeightSource, progress: Progress | None = None
) -> SharedRegions:
    """Fills the weights and constants regions of a program.

    Raises `WeightsError` when a part does not fit its slot or states another transform than its source has, `DeviceUnavailable` when the plan is for
    another device, `CapacityError` when the device has less memory than the whole program needs, before any of it is taken.
    """
    require_device(plan, device)
    require_memory(plan, device)
    weights = device.allocate(plan.size_of(Region(device.name, "weights")))
    _load("weights", device, plan.weights, weights, source, progress)
    constants = device.allocate(plan.size_of(Region(device.name, "constants")))
    for constant in plan.constants:
        constants.write(np.frombuffer(constant.data, np.uint8), constant.range.offset)
    return SharedRegions(weights, constants)


def load_parameters(
    device: Device, plan: ProgramPlan, state: Buffer, source: WeightSource, progress: Progress | None = None
) -> None:
    """Fills the parameters of a program in a state region, each from the tensors that it is made of. Raises `WeightsError` like `load_shared`."""
    _load("parameters", device, plan.parameters, state, source, progress)


def places_of(slots: Sequence[WeightSlot]) -> Mapping[str, Sequence[SlotRows]]:
    """What became of each tensor, by its original name."""
    places: dict[str, list[SlotRows]] = {}
    for slot in slots:
        first_row = 0
        for part in slot.parts:
            places.setdefault(part.tensor, []).append((slot, part, first_row))
            first_row += part.stop - part.start
    return places


def _load(
    what: str,
    device: Device,
    slots: Sequence[WeightSlot],
    region: Buffer,
    source: WeightSource,
    progress: Progress | None,
) -> None:
    done, total = 0, sum(slot.type.nbytes for slot in slots)
    for slot in slots:
        _check_parts(slot, source)
        first_row = 0
        for part in slot.parts:
            pack_part(device, slot, region.address + slot.range.offset, part, first_row, source)
            first_row += part.stop - part.start
        done += slot.type.nbytes
        if progress is not None:
            progress(what, done, total)


def logical_weight(dtype: DType, parts: tuple[WeightPart, ...], source: WeightSource) -> Array:
    """A weight of `dtype` as the reference interpreter wants it: parts concatenated in logical row order, unpacked.

    Block weights are dequantised to float32, which is what every kernel of theirs computes with; others are converted to the weight's dtype. Raises
    `WeightsError` when a part states another transform than its source has.
    """
    pieces = []
    for part in parts:
        shape, stored = source.shape(part.tensor), source.dtype(part.tensor)
        raw = source.map(part.tensor)
        values = (
            dequantize(raw.reshape(shape[0], -1), stored) if stored.is_block else raw.view(stored.numpy).reshape(shape)
        )
        _check_transform(part, source)
        values = values.T if part.transform == "transpose" else values
        picked = values[_rows(part, source, part.start, part.stop)]
        if part.transform == "shift":
            picked = _shifted(picked, source.shift(part.tensor))
        # piece by piece: numpy has no common dtype for f16 and bf16
        pieces.append(picked.astype(np.float32 if dtype.is_block else dtype.numpy, copy=False))
        source.release(part.tensor)
    return np.concatenate(pieces)


def _check_parts(slot: WeightSlot, source: WeightSource) -> None:
    rows = 0
    for part in slot.parts:
        shape = source.shape(part.tensor)
        shape = shape[::-1] if part.transform == "transpose" else shape
        if not 0 <= part.start <= part.stop <= shape[0] or shape[1:] != slot.type.static_shape[1:]:
            raise WeightsError(
                f"rows [{part.start}, {part.stop}) of {list(shape)} do not fit {slot.type}", node=part.tensor
            )
        _check_transform(part, source)
        rows += part.stop - part.start
    if rows != slot.type.static_shape[0]:
        raise WeightsError(f"its parts have {rows} rows, its type is {slot.type}", node=slot.name)


def _check_transform(part: WeightPart, source: WeightSource) -> None:
    """Raises `WeightsError` unless the part's transform is what its source needs."""
    reordered, shift = source.row_order(part.tensor) is not None, source.shift(part.tensor)
    needed = transform_of(reordered=reordered, shift=shift)
    if part.transform == "transpose":
        if needed != "none" or len(source.shape(part.tensor)) != 2 or source.dtype(part.tensor).is_block:
            found = f"{source.dtype(part.tensor).value}{list(source.shape(part.tensor))} with transform {needed!r}"
            raise WeightsError(
                f"expected a matrix of floats without a transform, found {found}",
                node=part.tensor,
                hint="a stored tensor of this kind is read as it lies; transpose what it is multiplied with",
            )
    elif part.transform != needed:
        raise WeightsError(
            f"the plan loads it with transform {part.transform!r}, the checkpoint needs {needed!r}",
            node=part.tensor,
            hint="trace and plan again from this checkpoint",
        )
    if shift != 0.0 and (reordered or source.dtype(part.tensor).is_block):
        raise WeightsError(
            f"{shift} cannot be added to it: its rows are reordered or blocks",
            node=part.tensor,
            hint="gains are stored as plain floats",
        )


def _rows(part: WeightPart, source: WeightSource, start: int, stop: int) -> Array:
    """The file rows of the logical rows [start, stop), int64."""
    order = source.row_order(part.tensor)
    if order is None:
        return np.arange(start, stop, dtype=np.int64)
    return np.ascontiguousarray(order[start:stop], dtype=np.int64)


def _shifted(values: Array, shift: float) -> Array:
    return values.astype(np.float32) + np.float32(shift)


def pack_part(
    device: Device, slot: WeightSlot, address: int, part: WeightPart, first_row: int, source: WeightSource
) -> None:
    """Packs one part of a slot as its logical rows from `first_row` on, in pieces."""
    data, dtype, shape = source.map(part.tensor), source.dtype(part.tensor), source.shape(part.tensor)
    row_bytes = max(1, data.nbytes // max(1, shape[-1 if part.transform == "transpose" else 0]))
    chunk = max(32, PACK_CHUNK_BYTES // row_bytes // 32 * 32)
    for start in range(part.start, part.stop, chunk):
        stop = min(start + chunk, part.stop)
        rows = _rows(part, source, start, stop)
        piece = PackSource(data, dtype, rows)
        if part.transform == "shift":
            values = _shifted(data.view(dtype.numpy).reshape(shape)[rows], source.shift(part.tensor))
            piece = PackSource(values.reshape(-1).view(np.uint8), DType.F32, rows - rows[0])
        elif part.transform == "transpose":
            values = np.ascontiguousarray(data.view(dtype.numpy).reshape(shape)[:, start:stop].T)
            piece = PackSource(values.reshape(-1).view(np.uint8), dtype, rows - rows[0])
        device.pack(slot.type, address, piece, first_row + start - part.start)
        source.release(part.tensor)
