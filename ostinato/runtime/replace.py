"""Replacing weights in place, by the name that their tensor has in the checkpoint.

A weight may be packed, converted, concatenated with others (one projection for Q, K and V) or cut from a fused tensor: the manifest says which rows of which
slots a tensor became, and those rows are written anew by the load program. No address moves, so every bound, planned or captured run stays valid. All tensors
are checked before the first byte is written. The reference mode reads what was written back from the device, so that all modes see the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from ostinato.ir.errors import DTypeError, LayoutError, ShapeError, WeightsError
from ostinato.ir.types import Array, DType
from ostinato.planner.plan import ProgramPlan
from ostinato.runtime.binding import as_array
from ostinato.runtime.device import Device, WeightSource
from ostinato.runtime.regions import SharedRegions
from ostinato.runtime.weights import SlotRows, pack_part, places_of

__all__ = ["replace_weights"]

_FLOATS = (DType.F32, DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class _Given(WeightSource):
    """The caller's tensors as a weight source: logical rows in order, what the checkpoint adds to its values added to these."""

    arrays: Mapping[str, Array]
    dtypes: Mapping[str, DType]
    checkpoint: WeightSource

    def dtype(self, tensor: str) -> DType:
        return self.dtypes[tensor]

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.checkpoint.shape(tensor)

    def shift(self, tensor: str) -> float:
        return self.checkpoint.shift(tensor)

    def map(self, tensor: str) -> Array:
        return self.arrays[tensor].reshape(-1).view(np.uint8)


def replace_weights(
    device: Device, plan: ProgramPlan, shared: SharedRegions, source: WeightSource, tensors: Mapping[str, Any]
) -> None:
    """Writes `tensors` (original name -> array of the checkpoint's shape, in the checkpoint's convention) into the weights region.

    Floats convert into the slot's float dtype as they do when loading; a quantised weight takes rows of its own block dtype, uint8 [rows, bytes a row].
    Raises `WeightsError` for unknown names, `ShapeError`, `DTypeError` and `LayoutError` before anything is written, `LifecycleError` while this executable
    or a clone runs.
    """
    places = places_of(plan.weights)
    given = _checked(tensors, places, source, places_of(plan.parameters))
    with shared.use.changing():
        device.wait()  # replays that nobody waits for any more
        for name in given.arrays:
            for slot, part, first_row in places[name]:
                pack_part(device, slot, shared.weights.address + slot.range.offset, part, first_row, given)
                shared.replaced.add(slot.name)


def _checked(
    tensors: Mapping[str, Any],
    places: Mapping[str, Sequence[SlotRows]],
    source: WeightSource,
    parameters: Mapping[str, Sequence[SlotRows]],
) -> _Given:
    if not isinstance(tensors, Mapping):
        raise WeightsError(f"tensors are a {type(tensors).__name__}", hint="give arrays by the checkpoint's names")
    if trained := sorted(str(name) for name in tensors if name in parameters):
        raise WeightsError(
            f"{', '.join(trained[:5])} {'are' if trained[1:] else 'is'} trained here, every clone has its own",
            hint="write_state() gives one executable new values",
        )
    if unknown := sorted(str(name) for name in tensors if name not in places):
        close = get_close_matches(unknown[0], places, n=3, cutoff=0.3)
        raise WeightsError(
            f"no weight is made of {', '.join(unknown[:5])}" + (f" and {len(unknown) - 5} more" if unknown[5:] else ""),
            hint="close names: " + ", ".join(close) if close else "use the names of the checkpoint's tensors",
        )
    arrays, dtypes = {}, {}
    for name, value in tensors.items():
        slot_dtype = places[name][0][0].type.dtype
        shape = source.shape(name)
        array = as_array(name, value)
        if not array.flags.c_contiguous:
            raise LayoutError(
                f"strides {array.strides} of shape {list(array.shape)} are not contiguous",
                node=name,
                hint="give a contiguous copy: rows are read from where they lie",
            )
        if slot_dtype.is_block:
            shape = (*shape[:-1], slot_dtype.nbytes(shape[-1]))
            if array.dtype != np.uint8:
                raise DTypeError(
                    f"expected rows of {slot_dtype.value} blocks as uint8, found {array.dtype}",
                    node=name,
                    hint="floats never become blocks here: quantise them first, or load the float checkpoint",
                )
            dtypes[name] = slot_dtype
        else:
            dtypes[name] = DType.of(array.dtype)
            if dtypes[name] not in _FLOATS:
                known = ", ".join(dtype.value for dtype in _FLOATS)
                raise DTypeError(f"expected one of {known}, found {array.dtype}", node=name)
        if array.shape != shape:
            raise ShapeError(f"expected shape {list(shape)}, found {list(array.shape)}", node=name)
        arrays[name] = array
    return _Given(arrays, dtypes, source)
