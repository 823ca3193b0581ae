"""Every tuned kernel of a GPU on the shapes of two models, decode and prefill: microseconds, and the share of the card's limits.

    python -m benchmarks.gpu.kernels [--device 0] [--only attention_packed,sample] [--level 2] [--cases d1,d8,p512,p2048] [--json]

A row's launch is captured many times over operands that rotate through more memory than the card's caches hold, as the layers of a model do; what is told is
the best of some replays, measured by events, divided by the launches. Bytes are what the operator must move at least, FLOPs what it must compute. Results are
not looked at here: that is what `ostinato doctor --conformance` is for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.workloads import BYTES_PER_SECOND, FLOPS_PER_SECOND
from ostinato.backend_hip import _native
from ostinato.backend_hip.evidence.calls import Call, calls
from ostinato.backend_hip.hip_device import HipDevice
from ostinato.backend_hip.hip_memory import HipBuffer
from ostinato.backend_hip.hip_table import HipGraph
from ostinato.backend_hip.kernel_source import instance_of
from ostinato.backend_hip.open import open_hip
from ostinato.ir.calls import kernel_operands
from ostinato.ir.errors import OstinatoError
from ostinato.ir.opdef import Sample, SampleOperand
from ostinato.ir.ops.samplers import given, indices, normal, reals, valid
from ostinato.ir.step import WORKSPACE
from ostinato.ir.target import Impl, Level
from ostinato.ir.types import Array, DType
from ostinato.runtime.device import ResolvedStep

ROTATED = 160 << 20
"""Bytes that operands rotate through: three times the card's last-level cache."""
LAUNCHES = 20
MOST_COPIES = 48
REPLAYS = 8


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a decoder: width, query heads, key-value heads, head width, hidden width of the feed-forward, vocabulary."""

    name: str
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int


MODELS = (Model("Q", 896, 14, 2, 64, 4864, 151936), Model("D", 1536, 12, 2, 128, 8960, 151936))
CAPACITY = 2048
"""Keys that a row of the cache has room for."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sample of an operator, with what it must move and compute where the operator's own cost says something else."""

    label: str
    op: str
    sample: Sample
    nbytes: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """What a row took for a case. Times in microseconds; `share` is of the limit that is nearer."""

    case: str
    row: str
    in_place: bool
    us: float
    gigabytes_a_second: float
    teraflops: float
    share: float
    grid: tuple[int, ...]
    threads: int
    facts: dict[str, int]
    error: str = ""


def cases(names: set[str]) -> Iterator[Case]:
    for model in MODELS:
        for name, tokens, rows in (("d1", 1, 1), ("d8", 8, 8), ("d64", 64, 64), ("p512", 512, 1), ("p2048", 2048, 1)):
            if name not in names:
                continue
            label = f"{model.name} {name}"
            yield from _projections(model, label, tokens)
            yield from _small(model, label, tokens)
            for length in (512, 2048) if name.startswith("d") else (tokens,):
                for query in (DType.BF16, DType.F32):
                    yield _attention(model, f"{label} L{length}", tokens, rows, length, query)
    for rows in (1, 8):
        if f"d{rows}" in names:
            yield from _selection(MODELS[0], f"Q d{rows}", rows)


def _projections(model: Model, label: str, tokens: int) -> Iterator[Case]:
    def half(*shape: int) -> SampleOperand:
        return normal(shape, DType.BF16)

    width, hidden, sizes = model.width, model.hidden, (model.width, *[model.kv_heads * model.head] * 2)
    yield Case(
        f"{label} qkv",
        "linear_split",
        valid(half(tokens, width), half(sum(sizes), width), normal((sum(sizes),)), sizes=sizes),
    )
    yield Case(f"{label} out", "linear", valid(half(tokens, width), half(width, width)))
    yield Case(f"{label} gate and up", "linear_swiglu", valid(half(tokens, width), half(2 * hidden, width)))
    yield Case(f"{label} down", "linear", valid(half(tokens, hidden), half(width, hidden)))
    if tokens <= 64:
        yield Case(f"{label} head", "linear", valid(half(tokens, width), half(model.vocabulary, width), dtype="f32"))


def _small(model: Model, label: str, tokens: int) -> Iterator[Case]:
    half, gain = normal((tokens, model.width), DType.BF16), normal((model.width,))
    yield Case(f"{label} norm", "rms_norm", valid(half, gain, eps=1e-6))
    yield Case(f"{label} add and norm", "add_rms_norm", valid(half, half, gain, eps=1e-6))
    angle = normal((tokens, model.head // 2))
    for dtype in (DType.BF16, DType.F32):
        heads = normal((tokens, model.heads, model.head), dtype)
        yield Case(f"{label} rope {dtype.value}", "rope_split_half", valid(heads, angle, angle))
    hidden = normal((tokens, model.hidden))
    yield Case(f"{label} swiglu", "swiglu", valid(hidden, hidden, dtype="bf16"))


def _attention(model: Model, label: str, tokens: int, rows: int, length: int, query: DType) -> Case:
    """Queries are f32 where they come from a rotation, as in programs of the bf16 policy; results are bf16."""
    each = tokens // rows
    row = np.repeat(np.arange(rows), each)
    position = np.tile(np.arange(length - each, length), rows)
    cache = normal((rows, model.kv_heads, CAPACITY, model.head), DType.BF16)
    sample = valid(
        normal((tokens, model.heads, model.head), query),
        cache,
        cache,
        indices(row),
        indices(position),
        indices(np.arange(rows)[:, None]),
        indices(np.full(rows, length)),
        scale=model.head**-0.5,
        dtype="bf16",
    )
    keys = 2 * 2 * rows * length * model.kv_heads * model.head
    seen = int(np.sum(position + 1))
    return Case(
        f"{label} attention {query.value}",
        "attention_packed",
        sample,
        keys + (query.block_bytes + 2) * tokens * model.heads * model.head,
        4 * seen * model.heads * model.head,
    )


def _selection(model: Model, label: str, rows: int) -> Iterator[Case]:
    rng = np.random.default_rng(1)
    logits = reals(rng.standard_normal((rows, model.vocabulary)) * 3)
    each = np.ones(rows)
    numbers = given(np.arange(rows)), indices(np.arange(rows))
    read = 4 * rows * model.vocabulary
    ways = {
        "greedy": (0.0, 0, 1.0, 0.0),
        "temperature": (0.8, 0, 1.0, 0.0),
        "top-k 50 top-p 0.9": (0.8, 50, 0.9, 0.0),
        "top-p 0.9": (0.8, 0, 0.9, 0.0),
        "top-p 0.9 flat": (5.0, 0, 0.9, 0.0),
        "top-k 40000": (0.8, 40000, 1.0, 0.0),
    }
    yield Case(f"{label} argmax", "argmax", valid(logits))
    for way, (temperature, top_k, top_p, min_p) in ways.items():
        sample = valid(
            logits, reals(each * temperature), indices(each * top_k), reals(each * top_p), reals(each * min_p), *numbers
        )
        yield Case(f"{label} sample {way}", "sample", sample, read)
    tokens = indices(rng.integers(0, model.vocabulary, (rows, CAPACITY)))
    full = indices(np.full(rows, CAPACITY))
    for way, repetition in (("neutral", 1.0), ("repetition", 1.1)):
        penalties = reals(each * repetition), reals(each * 0), reals(each * 0)
        yield Case(
            f"{label} penalize {way}", "penalize", valid(logits, tokens, indices(each * 0), full, *penalties), 2 * read
        )
    listed = indices(np.zeros((rows, 64))), reals(np.zeros((rows, 64)))
    yield Case(f"{label} bias of no token", "add_at_tokens", valid(logits, *listed, indices(each * 0)), 2 * read)


_NOISE = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)


def _values(operand: SampleOperand) -> Array:
    """The operand's values; random ones are the same million over and over, which takes less of a card's time than fresh ones."""
    if operand.data is not None:
        return np.ascontiguousarray(operand.data)
    return np.resize(_NOISE.astype(operand.type.dtype.numpy), operand.type.static_shape)


class Bench:
    """A device with a stream, on which launches are timed."""

    def __init__(self, device: HipDevice) -> None:
        self.device, self.stream = device, device.open_stream()

    def time(self, case: Case, call: Call) -> Timing:
        row, site, op = call.row, call.site, call.op
        launch = row.launch_of(site)
        copies, buffers, steps = self._copies(case, call), [], []
        values = {
            spec.name: _values(operand)
            for spec, operand in zip(op.operands, case.sample.operands, strict=False)
            if operand is not None
        }
        for number in range(copies):
            places, made = self._operands(call, values)
            buffers += made
            steps.append(
                ResolvedStep(f"launch{number}", row.kind, row.kernel(site), places, row.params(site), launch=launch)
            )
        table = self.device.make_table([steps[i % copies] for i in range(max(LAUNCHES, copies))], self.stream)
        table.run()
        graph = table.capture()
        graph.enqueue()
        table.finish()
        best = min(self._replay(graph) for _ in range(REPLAYS)) * 1e3 / len(table)
        table.finish()
        graph.release()
        for buffer in buffers:
            buffer.free()
        cost = op.cost(site.operands, site.results, site.node.attrs)
        nbytes, flops = case.nbytes or cost.bytes, case.flops or cost.flops
        share = max(nbytes / best / BYTES_PER_SECOND, flops / best / FLOPS_PER_SECOND) * 1e6
        return Timing(
            case.label,
            row.identity,
            bool(call.in_place),
            round(best, 2),
            round(nbytes / best / 1e3, 1),
            round(flops / best / 1e6, 2),
            round(share, 3),
            launch.grid if launch else (),
            launch.threads if launch else 0,
            self._facts(call),
        )

    def _copies(self, case: Case, call: Call) -> int:
        held = sum(tensor.nbytes for tensor in (*call.site.operands, *call.site.results) if tensor is not None)
        return max(1, min(MOST_COPIES, -(-ROTATED // max(1, held))))

    def _operands(self, call: Call, values: dict[str, Array]) -> tuple[tuple[tuple[int, int], ...], list[HipBuffer]]:
        op, site = call.op, call.site
        buffers: dict[str, HipBuffer] = {}
        for name, array in values.items():
            buffers[name] = self.device.allocate(max(array.nbytes, 4), zeroed=False)
            buffers[name].write(array)
        places = dict(call.in_place) | {
            op.results[result]: op.operands[operand].name for result, operand in op.must_alias
        }
        for value in site.node.results:
            buffers[value.name] = (
                buffers[places[value.name]] if value.name in places else self.device.allocate(max(value.type.nbytes, 4))
            )
        buffers[WORKSPACE] = self.device.allocate(max(call.row.workspace(site), 4))
        names = kernel_operands(site.node, op, call.row, None)
        found = tuple((0, 0) if name is None else (buffers[name].address, buffers[name].nbytes) for name in names)
        return found, list({id(buffer): buffer for buffer in buffers.values()}.values())

    def _replay(self, graph: HipGraph) -> float:
        begin, end = _native.Event(self.device.native), _native.Event(self.device.native)
        begin.record(self.stream)
        graph.enqueue()
        end.record(self.stream)
        end.synchronize()
        return begin.milliseconds_to(end)

    def _facts(self, call: Call) -> dict[str, int]:
        launch = call.row.launch_of(call.site)
        if launch is None:
            return {}
        instance = instance_of(call.row.kernel(call.site), len(call.row.operands), call.row.params(call.site), launch)
        return dict(self.device.kernels.function(instance, launch.shared).facts)


def way_of(row: Impl, sample: Sample, *, in_place: bool) -> Call | None:
    """The call of a sample as it lies, with its result in an operand's bytes where wanted; None where the row does not take it."""
    for call in calls(row, sample):
        if call.count is None and bool(call.in_place) == in_place:
            return call
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--only", default="", help="operators, by comma")
    parser.add_argument("--rows", default="", help="rows by identity, by comma, of any level")
    parser.add_argument("--cases", default="d1,d8,p512,p2048")
    parser.add_argument(
        "--level",
        type=int,
        default=int(Level.TUNED),
        help="least level of rows; operators without such rows are always measured",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = open_hip(options.device)
    bench, only, rows = (
        Bench(device),
        set(filter(None, options.only.split(","))),
        set(filter(None, options.rows.split(","))),
    )
    for case in cases(set(options.cases.split(","))):
        if only and case.op not in only:
            continue
        able = [
            row
            for row in device.target.rows
            if row.op == case.op and way_of(row, case.sample, in_place=False) is not None
        ]
        level = min(options.level, max(row.level for row in able))
        for row in able:
            if (rows and row.identity not in rows) or (not rows and row.level < level):
                continue
            for in_place in (False, True):
                call = way_of(row, case.sample, in_place=in_place)
                if call is None:
                    continue
                try:
                    timing = bench.time(case, call)
                except OstinatoError as error:
                    timing = Timing(case.label, row.identity, in_place, 0.0, 0.0, 0.0, 0.0, (), 0, {}, str(error)[:400])
                show(timing, options.json)


def show(timing: Timing, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(timing)), flush=True)
        return
    place = " in place" if timing.in_place else ""
    what = timing.error or (
        f"{timing.us:9.2f} us {timing.gigabytes_a_second:8.1f} GB/s {timing.teraflops:8.2f} TFLOP/s {timing.share:6.1%}"
        f"  {list(timing.grid)} x {timing.threads} {timing.facts}"
    )
    print(f"{timing.case:34s} {timing.row + place:34s} {what}", flush=True)


if __name__ == "__main__":
    main()
