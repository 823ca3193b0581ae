"""Steps of level `reference`: numpy references called on the bytes of a step.

The text of the call (`impls/reference.py`) says what the bytes are. Operands are seen where they lie, without a copy, but for what a reference wants widened
(f16, bf16, blocks); results are written where they belong, the valid rows only. The interpreter runs the same function, `ir/evaluate.py`: the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ostinato.backend_hip.impls.reference import COUNT
from ostinato.ir.errors import BackendError, BoundsError, OstinatoError
from ostinato.ir.evaluate import evaluate, read_only
from ostinato.ir.graph import Graph, Node
from ostinato.ir.opdef import OpDef
from ostinato.ir.ops import OP
from ostinato.ir.rounding import widen
from ostinato.ir.text import parse_graph
from ostinato.ir.types import Array, TensorType

__all__ = ["ReferenceCall"]

Operands = Sequence[tuple[int, int]]
_parsed = functools.lru_cache(maxsize=4096)(parse_graph)


class _Bytes:
    """Memory that somebody else owns, as numpy takes it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


class ReferenceCall:
    """A call of a reference, made from what its step says; run on operands that may differ from call to call. Threads may share it.

    Raises `BackendError` for an operator that there is not (any more) and for a text that is no call.
    """

    def __init__(
        self, node: str, kernel: str, params: Sequence[int | float], *, counter: Callable[[], object] | None = None
    ) -> None:
        """`counter` is told of every `run`."""
        self._name, self._counter = node, counter
        try:
            self._graph: Graph = _parsed(kernel)
            self._node: Node = self._graph.nodes[0]
            self._opdef: OpDef = OP[self._node.op]
        except (OstinatoError, IndexError, KeyError) as error:
            raise BackendError(
                f"the step is no call of a reference here: {error!r}",
                node=node,
                hint="operators of your own must be there (ost.extend) when a plan is loaded",
            ) from None
        self._axis = self._graph.extents[0][0] if self._graph.extents else None
        self._strides = self._operand_strides(params)

    def run(self, operands: Operands, stream: object = None) -> None:
        """One call on (address, bytes) in the order of the row's operands, (0, 0) where one is absent.

        Raises what the reference raises, with the name of the step's node, and `BackendError` for operands of too few bytes.
        """
        del stream
        if self._counter is not None:
            self._counter()
        self._run(*self._arrays(operands))

    def bind(self, operands: Operands) -> Callable[[], None]:
        """The call on operands that stay: what a step table calls. Raises `BackendError` for operands of too few bytes."""
        return functools.partial(self._run, *self._arrays(operands))

    def _arrays(self, operands: Operands) -> tuple[dict[str, Array], dict[str, Array], Array | None]:
        """The arrays over those bytes: operands by name, results by name, and the count of valid rows."""
        opdef, types = self._opdef, self._graph.types
        given: dict[str, Array] = {}
        for spec, (address, nbytes), name in zip(opdef.operands, operands, self._padded(), strict=False):
            if name is not None:
                given[spec.name] = self._array(types[name], address, nbytes, self._strides.get(name))
        places = iter(operands[len(opdef.operands) :])
        address, nbytes = next(places)
        count = self._array(types[COUNT], address, nbytes, None) if self._axis is not None else None
        aliased = {r: opdef.operands[o].name for r, o in opdef.aliased(self._node.operands)}
        results: dict[str, Array] = {}
        declared = {result for result, _ in opdef.must_alias}
        for index, value in enumerate(self._node.results):
            if index in aliased:
                results[value.name] = given[aliased[index]]
            elif index not in declared:
                results[value.name] = self._array(value.type, *next(places), None)
        return given, results, count

    def _run(self, given: Mapping[str, Array], results: Mapping[str, Array], count: Array | None) -> None:
        types = self._graph.types
        rows = None if count is None or self._axis is None else (self._axis, int(count[0]))
        if rows is not None:
            self._check_rows(rows)
        operands = [
            None if name is None else read_only(widen(given[name], types[name].dtype)) for name in self._node.operands
        ]
        try:
            found = evaluate(self._node, self._opdef, types, operands, rows)
        except OstinatoError as error:
            error.node = self._name
            raise
        except Exception as error:
            error.add_note(f"raised by the reference of {self._node.op} for %{self._name}")
            raise
        for value, array in zip(self._node.results, found, strict=True):
            place = results[value.name]
            (place if array.shape == place.shape else place[: len(array)])[...] = array

    def _check_rows(self, rows: tuple[str, int]) -> None:
        axis, count = rows
        extents = {t.static_shape[0] for t in self._graph.types.values() if t.axes[:1] == (axis,)}
        if not 0 <= count <= min(extents):
            raise BoundsError(f"{count} rows of axis {axis} are said to be valid, found {extents}", node=self._name)

    def _padded(self) -> tuple[str | None, ...]:
        operands = self._node.operands
        return (*operands, *([None] * (len(self._opdef.operands) - len(operands))))

    def _operand_strides(self, params: Sequence[int | float]) -> dict[str, tuple[int, ...]]:
        """Strides in bytes by operand."""
        found: dict[str, tuple[int, ...]] = {}
        numbers = iter(int(number) for number in params)
        for name in self._node.operands:
            if name is not None and not (tensor := self._graph.types[name]).dtype.is_block:
                size = tensor.dtype.numpy.itemsize
                found[name] = tuple(next(numbers) * size for _ in tensor.shape)
        return found

    def _array(self, tensor: TensorType, address: int, nbytes: int, strides: tuple[int, ...] | None) -> Array:
        shape = tensor.static_shape
        if tensor.dtype.is_block:
            shape, dtype = (*shape[:-1], tensor.dtype.nbytes(shape[-1])), np.dtype(np.uint8)
        else:
            dtype = tensor.dtype.numpy
        if not tensor.elements:
            return np.empty(shape, dtype)
        held = np.asarray(_Bytes(address, nbytes))
        needed = dtype.itemsize
        needed += sum((n - 1) * s for n, s in zip(shape, strides or _dense(shape, dtype.itemsize), strict=True))
        if address == 0 or needed > nbytes:
            raise BackendError(f"{tensor} takes {needed} bytes, found {nbytes}", node=self._name)
        flat = held[: nbytes - nbytes % dtype.itemsize].view(dtype)
        return np.lib.stride_tricks.as_strided(flat, shape, strides or _dense(shape, dtype.itemsize))


def _dense(shape: Sequence[int], size: int) -> tuple[int, ...]:
    found: list[int] = []
    for extent in reversed(shape):
        found.append(size)
        size *= extent
    return tuple(reversed(found))
