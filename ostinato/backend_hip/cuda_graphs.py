"""Captured CUDA graphs read through `libcuda`, whoever captured them: nodes, edges, and the arguments of kernels as bytes.

Structures are those of cuda.h. The driver owns what it shows: values are copied out at once. Sizes of arguments come from `cuFuncGetParamInfo` (drivers from
12.4 on); with an older driver the arguments of kernels are None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from ostinato.ir.errors import BackendError, DeviceUnavailable
from ostinato.ir.foreign import ForeignArgument, ForeignGraph, ForeignNode

__all__ = ["CudaGraphs"]

_KINDS = (
    "kernel",
    "memcpy",
    "memset",
    "host",
    "child",
    "empty",
    "event wait",
    "event record",
    "semaphore signal",
    "semaphore wait",
    "mem alloc",
    "mem free",
    "batch mem op",
    "conditional",
)
"""CUgraphNodeType by its number."""
_MEMORY = {1: "pinned", 2: "device", 4: "managed"}
"""CUmemorytype of addresses that the driver knows."""
_HOST = 1
_MEMORY_TYPE, _IS_MANAGED = 2, 8
_BUFFER, _SIZE = 1, 2
"""How `extra` spells that a pointer to all arguments, or their bytes, comes next."""
_MOST_ARGUMENTS = 4096
_NO_SUCH_ARGUMENT = 1
"""CUDA_ERROR_INVALID_VALUE: the last argument was the one before."""


class _KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("arguments", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("context", c_void_p),
    ]


class _Place(Structure):
    """One side of CUDA_MEMCPY3D."""

    _fields_ = [
        ("x_bytes", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("kind", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    ]

    @property
    def address(self) -> int:
        """Where its bytes begin; 0 for an array, which has no address."""
        base = (self.host or 0) if self.kind == _HOST else self.device
        return base + self.x_bytes + (self.y + self.z * self.height) * self.pitch if base else 0


class _CopyParams(Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        ("source", _Place),
        ("to", _Place),
        ("width_bytes", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    ]


class _FillParams(Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        ("to", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element_bytes", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class _AllocParams(Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS; the pool's properties are 88 bytes that nobody here asks about."""

    _fields_ = [
        ("pool", c_uint64 * 11),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("nbytes", c_size_t),
        ("to", c_uint64),
    ]


class _HostParams(Structure):
    """CUDA_HOST_NODE_PARAMS."""

    _fields_ = [("function", c_void_p), ("data", c_void_p)]


class _Edge(Structure):
    """CUgraphEdgeData."""

    _fields_ = [("from_port", c_ubyte), ("to_port", c_ubyte), ("kind", c_ubyte), ("reserved", c_ubyte * 5)]


class CudaGraphs:
    """A reader over the driver; satisfies `ir.foreign.GraphDriver`. Raises `DeviceUnavailable` where there is no driver of NVIDIA's."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise DeviceUnavailable(
                f"there is no NVIDIA driver here: {error}", hint="audit in the process that captured the graph"
            ) from None
        self._demangle = _demangler()
        self._names: dict[int, str] = {}

    def memory_kind(self, address: int) -> str:
        """What the driver says an address is; "" where it knows nothing of it."""
        found = c_uint(0)
        get = self._cuda.cuPointerGetAttribute
        if get(byref(found), c_int(_MEMORY_TYPE), c_uint64(address)) != 0:
            return ""
        managed = c_uint(0)
        if get(byref(managed), c_int(_IS_MANAGED), c_uint64(address)) == 0 and managed.value:
            return "managed"
        return _MEMORY.get(found.value, "")

    def read(self, handle: int) -> ForeignGraph:
        """The graph behind a `CUgraph`. Raises `BackendError` for what the driver refuses."""
        nodes: list[ForeignNode] = []
        edges: list[tuple[int, int]] = []
        ends: dict[int, tuple[list[int], list[int]]] = {}  # of an embedded graph, by its node: where it begins and ends
        pending: list[tuple[int, int]] = [(handle, -1)]
        while pending:
            graph, owner = pending.pop()
            handles, joined = self._nodes(graph), self._edges(graph)
            first = len(nodes)
            place = {node: first + index for index, node in enumerate(handles)}
            for node in handles:
                found = self._node(node, owner >= 0)
                if found.kind == "child":
                    pending.append((self._child(node), len(nodes)))
                nodes.append(found)
            edges += [(place[a], place[b]) for a, b in joined]
            if owner >= 0:
                later, earlier = {place[b] for _, b in joined}, {place[a] for a, _ in joined}
                mine = range(first, len(nodes))
                ends[owner] = ([i for i in mine if i not in later], [i for i in mine if i not in earlier])
        return ForeignGraph(tuple(nodes), tuple(_through(edges, ends)))

    def _nodes(self, graph: int) -> list[int]:
        count = c_size_t(0)
        self._check("cuGraphGetNodes", c_void_p(graph), None, byref(count))
        found = (c_void_p * count.value)()
        if count.value:
            self._check("cuGraphGetNodes", c_void_p(graph), found, byref(count))
        return [node or 0 for node in found[: count.value]]

    def _edges(self, graph: int) -> list[tuple[int, int]]:
        with_data = getattr(self._cuda, "cuGraphGetEdges_v2", None) is not None  # the older call refuses early starts
        name, extra = ("cuGraphGetEdges_v2", (None,)) if with_data else ("cuGraphGetEdges", ())
        count = c_size_t(0)
        self._check(name, c_void_p(graph), None, None, *extra, byref(count))
        if not count.value:
            return []
        first, second = (c_void_p * count.value)(), (c_void_p * count.value)()
        data = ((_Edge * count.value)(),) if with_data else ()
        self._check(name, c_void_p(graph), first, second, *data, byref(count))
        return [(a or 0, b or 0) for a, b in zip(first, second, strict=True)]

    def _child(self, node: int) -> int:
        graph = c_void_p(0)
        self._check("cuGraphChildGraphNodeGetGraph", c_void_p(node), byref(graph))
        return graph.value or 0

    def _node(self, node: int, child: bool) -> ForeignNode:
        number = c_int(0)
        self._check("cuGraphNodeGetType", c_void_p(node), byref(number))
        kind = _KINDS[number.value] if 0 <= number.value < len(_KINDS) else f"type {number.value}"
        match kind:
            case "kernel":
                return self._kernel(node, child)
            case "memcpy":
                copy = self._params("cuGraphMemcpyNodeGetParams", node, _CopyParams())
                return ForeignNode(
                    kind,
                    to=copy.to.address,
                    source=copy.source.address,
                    nbytes=_extent(copy.to.pitch, copy.width_bytes, max(copy.height, 1) * max(copy.depth, 1)),
                    child=child,
                )
            case "memset":
                fill = self._params("cuGraphMemsetNodeGetParams", node, _FillParams())
                nbytes = _extent(fill.pitch, fill.width * fill.element_bytes, max(fill.height, 1))
                return ForeignNode(kind, to=fill.to, nbytes=nbytes, value=fill.value, child=child)
            case "mem alloc":
                made = self._params("cuGraphMemAllocNodeGetParams", node, _AllocParams())
                return ForeignNode(kind, to=made.to, nbytes=made.nbytes, child=child)
            case "mem free":
                freed = self._params("cuGraphMemFreeNodeGetParams", node, c_uint64(0))
                return ForeignNode(kind, to=freed.value, child=child)
            case "host":
                call = self._params("cuGraphHostNodeGetParams", node, _HostParams())
                return ForeignNode(kind, name=f"{call.function or 0:#x}", child=child)
        return ForeignNode(kind, child=child)

    def _kernel(self, node: int, child: bool) -> ForeignNode:
        found = self._params("cuGraphKernelNodeGetParams_v2", node, _KernelParams())
        function = found.func or found.kern or 0
        # launches may have a CUkernel in the place of the CUfunction
        kinds = ("Func", "Kernel") if found.func else ("Kernel",)
        return ForeignNode(
            "kernel",
            self._name(function, kinds),
            self._arguments(found, function, kinds),
            (found.grid[0], found.grid[1], found.grid[2]),
            (found.block[0], found.block[1], found.block[2]),
            found.shared_bytes,
            child=child,
        )

    def _name(self, function: int, kinds: Sequence[str]) -> str:
        if function not in self._names:
            text = c_char_p(b"")
            gets = (getattr(self._cuda, f"cu{kind}GetName", None) for kind in kinds)
            known = any(get is not None and get(byref(text), c_void_p(function)) == 0 for get in gets)
            self._names[function] = self._demangle(text.value or b"") if known else f"function {function:#x}"
        return self._names[function]

    def _arguments(self, params: Any, function: int, kinds: Sequence[str]) -> tuple[ForeignArgument, ...] | None:
        """Copies of a kernel's arguments; None where the driver does not tell them."""
        buffer = None if params.arguments else _buffer_of(params.extra)
        given = bool(params.arguments) or buffer is not None
        for kind in kinds if function else ():
            get = getattr(self._cuda, f"cu{kind}GetParamInfo", None)
            found = None if get is None else _copied(get, params, function, buffer)
            if found or (found is not None and not given):
                return found
        return None  # a kernel that has arguments, and nothing that describes them

    def _params(self, name: str, node: int, params: Any) -> Any:
        self._check(name, c_void_p(node), byref(params))
        return params

    def _check(self, name: str, *arguments: Any) -> None:
        function = getattr(self._cuda, name, None)
        if function is None:
            raise BackendError(f"the driver has no {name}", hint="update the driver to 12.4 or later")
        code = function(*arguments)
        if code != 0:
            text = c_char_p(b"")
            self._cuda.cuGetErrorName(c_int(code), byref(text))
            said = (text.value or b"").decode() or f"error {code}"
            raise BackendError(f"{name}: {said}", hint="pass a graph of this process that was not reset")


def _copied(get: Any, params: Any, function: int, buffer: int | None) -> tuple[ForeignArgument, ...] | None:
    """The arguments that a call of the driver describes: none where it describes none, None where they are not there or it fails."""
    found: list[ForeignArgument] = []
    offset, size, code = c_size_t(0), c_size_t(0), 0
    while code == 0 and len(found) < _MOST_ARGUMENTS:
        code = get(c_void_p(function), c_size_t(len(found)), byref(offset), byref(size))
        if code == 0:
            address = params.arguments[len(found)] if params.arguments else buffer and buffer + offset.value
            if not address:
                return None
            found.append(ForeignArgument(offset.value, ctypes.string_at(address, size.value)))
    return tuple(found) if code in (0, _NO_SUCH_ARGUMENT) else None


def _extent(pitch: int, width: int, rows: int) -> int:
    """Bytes from the first to the last of so many rows."""
    return width if rows <= 1 else (rows - 1) * max(pitch, width) + width


def _buffer_of(extra: Any) -> int | None:
    """The address of all arguments, where a launch gave them as one buffer."""
    index = 0
    while extra and extra[index]:
        if extra[index] == _BUFFER:
            return int(extra[index + 1] or 0) or None
        index += 2
    return None


def _through(edges: list[tuple[int, int]], ends: dict[int, tuple[list[int], list[int]]]) -> list[tuple[int, int]]:
    """Edges of a graph with embedded ones: what comes before such a node comes before all that it begins with, and what follows waits for all of its ends."""
    found = list(edges)
    for owner, (begins, lasts) in ends.items():
        found += [(owner, first) for first in begins]
        pending, final = list(lasts), []
        while pending:  # an end may itself be a node with a graph, whose ends are meant
            last = pending.pop()
            final.append(last)
            pending += ends[last][1] if last in ends else []
        found += [(last, after) for before, after in edges if before == owner for last in final]
    return found


def _demangler() -> Any:
    """Names of C++ functions as people write them, where the C++ library is there; as they are otherwise."""

    def plain(name: bytes) -> str:
        return name.decode(errors="replace")

    try:
        library, free = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None).free
    except OSError:
        return plain
    demangle = library.__cxa_demangle
    demangle.restype, free.argtypes = c_void_p, [c_void_p]

    def readable(name: bytes) -> str:
        status = c_int(0)
        made = demangle(c_char_p(name), None, None, byref(status)) if name.startswith(b"_Z") else None
        if not made:
            return plain(name)
        text = plain(ctypes.string_at(made))
        free(made)
        return text

    return readable
