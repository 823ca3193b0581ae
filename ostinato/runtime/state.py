"""What runs update, read and written by name from the host: parameters by the names that their tensors have in the checkpoint, other state by its own name.

A tensor may lie in several slots: a float32 master and a mirror in bf16, rows of a concatenated projection. It is read from the widest of them and written to
all, each in its own dtype, so that they stay one truth. Rows that are in none of them, because they are frozen, are the checkpoint's. Values are those that the
steps compute with: where loading adds a number to what is stored, it is in them, and what was read is written back bit for bit. All of a write is checked
before the first byte changes.

The reference mode keeps its state in numpy; it is read and written the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from ostinato.ir.errors import DTypeError, InputError, LayoutError, ShapeError
from ostinato.ir.types import Array, DType
from ostinato.ir.weights import WeightPart, WeightSlot
from ostinato.planner.plan import Binding
from ostinato.runtime.binding import as_array
from ostinato.runtime.device import Buffer, Device, WeightSource
from ostinato.runtime.program import Program
from ostinato.runtime.weights import load_parameters, logical_weight, pack_part, places_of

__all__ = ["ProgramState"]

_FLOATS = (DType.F32, DType.F16, DType.BF16)


def _initial_state(program: Program) -> dict[str, Array]:
    """What a fresh executable has, by value name, in numpy: parameters as the checkpoint has them, zeros for the rest. Raises what loading raises."""
    plan, source = program.plan, program.source
    found = {slot.name: logical_weight(slot.type.dtype, slot.parts, source) for slot in plan.parameters}
    found.update((item.name, np.zeros(item.type.static_shape, item.type.dtype.numpy)) for item in plan.state)
    return found


@dataclass(frozen=True, slots=True)
class _Given(WeightSource):
    """A tensor of the caller's as a weight source: logical rows in order, taken as they are."""

    array: Array
    shape_: tuple[int, ...]

    def dtype(self, tensor: str) -> DType:
        del tensor
        return DType.of(self.array.dtype)

    def shape(self, tensor: str) -> tuple[int, ...]:
        del tensor
        return self.shape_

    def map(self, tensor: str) -> Array:
        del tensor
        return self.array.reshape(-1).view(np.uint8)


class ProgramState:
    """The parameters and state of one executable: in the `state` region of a device, or by value name in numpy (`reference`, otherwise empty)."""

    def __init__(self, program: Program, device: Device, region: Buffer, *, in_numpy: bool) -> None:
        self._program, self._device, self._region, self._in_numpy = program, device, region, in_numpy
        self.reference = _initial_state(program) if in_numpy else {}
        self._places = places_of(program.plan.parameters)
        self._state = {item.name: item for item in program.plan.state}
        self._slots = {slot.name: slot for slot in program.plan.parameters}

    @property
    def parameters(self) -> tuple[str, ...]:
        """The tensors that parameters are made of, by their original names, in the order of the plan."""
        return tuple(self._places)

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be read and written: `parameters`, then the state."""
        return tuple(dict.fromkeys((*self._places, *self._state)))

    def read(self, name: str) -> Array:
        """A copy of a tensor in the checkpoint's shape and in the widest dtype that it has here, of a state value, or (by the name of the graph's value) of one
        slot of a parameter. Raises `InputError` for a name that is none of these."""
        if name in self._places:
            return self._tensor(name)
        if name in self._state:
            return self._values(self._state[name])
        if name in self._slots:
            return self._values(self._slots[name])
        raise self._unknown(name)

    def write(self, values: Mapping[str, Any]) -> None:
        """Gives names new values: numpy, torch CPU or DLPack arrays of the shapes that `read` gives. Tensors may be f32, f16 or bf16 and are converted as they
        are when loading; state has its own dtype. Frozen rows of a tensor must be as they are. Raises `InputError`, `ShapeError`, `DTypeError` or `LayoutError`
        naming the value before anything changed."""
        if not isinstance(values, Mapping):
            raise InputError(f"values are a {type(values).__name__}", hint="give arrays by name")
        checked = {name: self._checked(name, value) for name, value in values.items()}
        self._device.wait()
        for name, array in checked.items():
            if name in self._places:
                given = _Given(array, array.shape)
                for slot, part, first_row in self._places[name]:
                    plain = part if part.transform == "transpose" else replace(part, transform="none")
                    self._put_rows(slot, plain, first_row, given)
            else:
                self._put(self._state[name], array)

    def reset(self) -> None:
        """Everything as it was in the beginning: parameters as the checkpoint has them, zeros for the rest."""
        self._region.fill(0)
        load_parameters(self._device, self._program.plan, self._region, self._program.source)
        if self._in_numpy:
            self.reference.update(_initial_state(self._program))

    # reading

    def _tensor(self, name: str) -> Array:
        dtype = self._dtype(name)
        found = np.empty(self._shape(name), dtype.numpy)
        logical = self._logical(name, found)
        rows = np.zeros(len(logical), np.bool_)
        for slot, part, first_row in self._places[name]:
            if slot.type.dtype is dtype:
                values = self._values(slot)[first_row : first_row + part.stop - part.start]
                logical[part.start : part.stop] = values
                rows[part.start : part.stop] = True
        if not rows.all():
            logical[~rows] = self._stored(name, dtype, len(rows))[~rows]
        return found

    def _stored(self, name: str, dtype: DType, rows: int) -> Array:
        """The logical rows of a tensor of which some are frozen, as the checkpoint has them."""
        part = self._places[name][0][1]
        return logical_weight(dtype, (replace(part, start=0, stop=rows),), self._program.source)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._program.source.shape(name))

    def _dtype(self, name: str) -> DType:
        return max((slot.type.dtype for slot, _, _ in self._places[name]), key=lambda dtype: dtype.block_bytes)

    def _logical(self, name: str, array: Array) -> Array:
        """A view of a tensor by the rows that its slots have: the columns of one that is stored transposed."""
        return array.T if self._places[name][0][1].transform == "transpose" else array

    def _values(self, item: WeightSlot | Binding) -> Array:
        if self._in_numpy:
            return np.array(self.reference[item.name])
        return self._region.read(item.type.dtype.numpy, item.type.static_shape, item.range.offset)

    # writing

    def _checked(self, name: str, value: Any) -> Array:
        if name not in self._places and name not in self._state:
            raise self._unknown(name)
        array = as_array(name, value)
        dtypes: tuple[DType, ...] = _FLOATS
        if name in self._places:
            shape = self._shape(name)
        else:
            shape, dtypes = self._state[name].type.static_shape, (self._state[name].type.dtype,)
        if array.shape != shape:
            raise ShapeError(f"expected shape {list(shape)}, found {list(array.shape)}", node=name)
        if array.dtype not in [dtype.numpy for dtype in dtypes]:
            known = " or ".join(dtype.value for dtype in dtypes)
            raise DTypeError(f"expected {known}, found {array.dtype}", node=name, hint="convert it before the call")
        if not array.flags.c_contiguous:
            raise LayoutError(
                f"strides {array.strides} of shape {list(array.shape)} are not contiguous",
                node=name,
                hint="give a contiguous copy",
            )
        if name in self._places:
            self._check_frozen(name, array)
        return array

    def _check_frozen(self, name: str, array: Array) -> None:
        logical = self._logical(name, array)
        frozen = np.ones(len(logical), np.bool_)
        for _, part, _ in self._places[name]:
            frozen[part.start : part.stop] = False
        if not frozen.any():
            return
        stored = self._stored(name, DType.of(array.dtype), len(frozen))
        if not np.array_equal(logical[frozen], stored[frozen]):
            raise InputError(
                f"{int(frozen.sum())} of its {len(frozen)} rows are frozen, and these are others than the checkpoint's",
                node=name,
                hint="give them as they were read",
            )

    def _put_rows(self, slot: WeightSlot, part: WeightPart, first_row: int, given: _Given) -> None:
        if not self._in_numpy:
            pack_part(self._device, slot, self._region.address + slot.range.offset, part, first_row, given)
            return
        values = np.array(self.reference[slot.name])
        values[first_row : first_row + part.stop - part.start] = logical_weight(slot.type.dtype, (part,), given)
        self.reference[slot.name] = values

    def _put(self, item: Binding, array: Array) -> None:
        if self._in_numpy:
            self.reference[item.name] = np.array(array)
        else:
            self._region.write(array, item.range.offset)

    def _unknown(self, name: object) -> InputError:
        known: Sequence[str] = self.names
        if name in self._slots:
            tensors = dict.fromkeys(part.tensor for part in self._slots[str(name)].parts)
            return InputError(
                f"a parameter is written by the names of its tensors, {', '.join(tensors)}", node=str(name)
            )
        close = get_close_matches(str(name), known, n=3, cutoff=0.3)
        return InputError(
            f"no parameter and no state is called {name!r}",
            hint="close names: " + ", ".join(close) if close else f"there are {len(known)} names: see state_names",
        )
