"""A contender on torch in its own process.

    python -m benchmarks.gpu.torch_peer CONTENDER MODEL WORKLOADS --folder CHECKPOINT --out DIR [--hold]

CONTENDER: `exact` (fp32, writes the logits that all are held against), `hf eager` and `hf compile` (transformers), `lean eager`, `lean graph` and `lean
compile` (`lean.py`). `compile` is `torch.compile(mode="reduce-overhead")`. For chains: `lean eager` and `lean graph`. With `--hold` everything is compiled
first, then the file DIR/NAME.ready is made and nothing timed before there is a DIR/NAME.go; a file DIR/stop ends the compiling.
"""

from __future__ import annotations

import argparse
import functools
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.lean import Lean, LeanState, read_tensors
from benchmarks.gpu.records import EXACT, Record, exact_path, logits_error, time_record, write_record
from benchmarks.timing import Timed
from benchmarks.workloads import CACHE, FILLED, Shape, Workload, cache_values, chain_values, tokens_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_IDLE = ("Context Sync", "Event Sync", "Stream Wait Event", "Stream Sync")

Step = Callable[[], Any]


def sync() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Memory:
    """Device bytes since it was made."""

    def __init__(self) -> None:
        sync()
        self._before = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._before if DEVICE == "cuda" else -1

    @staticmethod
    def pools() -> int:
        """Bytes of the private pools of graphs."""
        if DEVICE != "cuda":
            return -1
        segments = torch.cuda.memory_snapshot()
        return sum(item["total_size"] for item in segments if tuple(item.get("segment_pool_id", (0, 0))) != (0, 0))


class Peer:
    """The model of one contender and what its workloads need; made when first asked for."""

    def __init__(self, family: str, folder: str, dtype: Any = torch.bfloat16) -> None:
        self.family, self.folder, self.dtype = family, folder, dtype
        self.shape = Shape.read(folder)

    @functools.cached_property
    def lean(self) -> Lean:
        made = Lean(self.shape, read_tensors(self.folder, DEVICE), self.dtype)
        for tensor in made.tensors:  # no parameters: unmarked, a compiled graph copies them on every call
            torch._dynamo.mark_static_address(tensor)
        return made

    @functools.cached_property
    def hf(self) -> Any:
        import transformers  # only the contender that is one needs it

        transformers.logging.set_verbosity_error()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=self.dtype, attn_implementation="sdpa"
        )
        return model.to(DEVICE).eval().requires_grad_(False)

    def step(self, workload: Workload) -> tuple[Step, Step]:
        """What runs a step and gives its logits [rows, vocabulary], and what goes back to the first one."""
        if workload.kind == "c":
            return _chain(workload.size)
        tokens = torch.from_numpy(tokens_of(workload, self.shape.vocabulary)).long().to(DEVICE)
        return (self._hf_step if self.family == "hf" else self._lean_step)(workload, tokens)

    def _lean_step(self, workload: Workload, tokens: Any) -> tuple[Step, Step]:
        lean = self.lean
        state = LeanState(self.shape, workload.rows, self.dtype, DEVICE, filled=workload.kind == "d")
        for tensor in state.tensors:
            torch._dynamo.mark_static_address(tensor)
        if workload.kind == "d":
            return lambda: lean.decode(state), lambda: state.begin(tokens)
        return lambda: lean.prefill(tokens, state), _nothing

    def _hf_step(self, workload: Workload, tokens: Any) -> tuple[Step, Step]:
        model = self.hf
        if workload.kind == "p":
            ids = tokens[None]
            return lambda: model(input_ids=ids, use_cache=True, logits_to_keep=1).logits[:, -1], _nothing
        cache = self._hf_cache(workload.rows)
        token = tokens[:, None].clone()
        torch._dynamo.mark_static_address(token)

        def step() -> Any:
            logits = model(input_ids=token, past_key_values=cache, use_cache=True).logits[:, -1]
            token.copy_(logits.argmax(-1, keepdim=True))
            return logits

        def begin() -> None:
            token.copy_(tokens[:, None])
            for layer in cache.layers:
                layer.cumulative_length.fill_(FILLED)

        return step, begin

    def _hf_cache(self, rows: int) -> Any:
        import transformers  # loaded already, with the model

        cache = transformers.StaticCache(config=self.hf.config, max_cache_len=CACHE)
        like = torch.zeros(rows, self.shape.kv, 1, self.shape.width, dtype=self.dtype, device=DEVICE)
        for number, layer in enumerate(cache.layers):
            layer.lazy_initialization(like, like)
            held = torch.from_numpy(cache_values(self.shape, rows, number)).to(self.dtype).transpose(2, 3)
            layer.keys[:, :, :FILLED] = held[0].to(DEVICE)
            layer.values[:, :, :FILLED] = held[1].to(DEVICE)
        return cache


def _chain(length: int) -> tuple[Step, Step]:
    x = torch.from_numpy(chain_values()).to(DEVICE)

    def step() -> Any:
        value = x
        for number in range(length):
            value = torch.tanh(value) if number % 2 else torch.nn.functional.silu(value)
        return value

    return step, _nothing


def _nothing() -> None:
    pass


class Case:
    """A workload made ready: its record so far, and what times it."""

    def __init__(self, peer: Peer, how: str, record: Record, workload: Workload, out: Path) -> None:
        self.record = record
        step, reset = peer.step(workload)
        reset()
        memory = Memory()
        make = {"eager": _plain, "graph": _captured, "compile": _compiled}[how]
        begin = time.perf_counter()
        run = make(step, record)
        if record.first_s < 0:
            run()
            sync()
            record.first_s = time.perf_counter() - begin
        record.pool_bytes = Memory.pools() if how != "eager" else -1
        reset()
        logits = run().detach().float().cpu().numpy()
        if workload.kind != "c":
            logits_error(out, record, workload, logits)
        reset()
        run()
        run()
        sync()
        record.beyond_bytes = memory.peak
        reset()
        record.launches = _kernels(run)
        self._timed = Timed(reset, run, sync)

    def time(self) -> None:
        time_record(self.record, self._timed)


def _plain(step: Step, record: Record) -> Step:
    del record
    return step


def _captured(step: Step, record: Record) -> Step:
    """A CUDA graph captured by hand, as torch's pages show it: three runs on a side stream first."""
    if DEVICE != "cuda":
        raise ValueError("a graph needs a GPU")
    begin = time.perf_counter()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    sync()
    graph = torch.cuda.CUDAGraph(keep_graph=True)  # instantiated apart, to tell what that takes
    start = time.perf_counter()
    with torch.cuda.stream(side):
        graph.capture_begin()
        out = step()
        graph.capture_end()
    record.capture_ms = (time.perf_counter() - start) * 1e3
    record.nodes = _nodes(graph)
    start = time.perf_counter()
    graph.instantiate()
    record.instantiate_ms = (time.perf_counter() - start) * 1e3
    sync()
    start = time.perf_counter()
    graph.replay()
    sync()
    record.first_replay_ms = (time.perf_counter() - start) * 1e3
    record.first_s = time.perf_counter() - begin
    record.submissions = 1

    def replay() -> Any:
        graph.replay()
        return out

    return replay


def _nodes(graph: Any) -> int:
    """Nodes of a graph that was kept; -1 where nothing is installed that tells."""
    try:
        from cuda.bindings import runtime  # the image of a GPU machine may have it

        return int(runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph.raw_cuda_graph()))[-1])
    except Exception as error:  # a number beside the point costs no measurement
        print(f"the nodes of the graph are not counted: {error!r}", flush=True)
        return -1


def _compiled(step: Step, record: Record) -> Step:
    """`torch.compile` with graphs: compiled in the first call, recorded in the second or third."""
    given: Any = step
    name = f"step_{record.workload}"
    code = given.__code__.replace(co_name=name)  # of its own, so that no workload finds another one's graphs
    fresh = types.FunctionType(code, given.__globals__, name, None, given.__closure__)
    made = torch.compile(fresh, mode="reduce-overhead", dynamic=False)

    def run() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return made()

    calls = []
    for _ in range(4):
        begin = time.perf_counter()
        run()
        sync()
        calls.append(time.perf_counter() - begin)
    record.first_s = calls[0]
    record.detail = "calls of " + ", ".join(f"{call:.3f}" for call in calls) + " s"
    return run


def _kernels(run: Step) -> int:
    """Kernels, copies and fills of a step, as the profiler sees them."""
    if DEVICE != "cuda":
        return -1
    from torch.profiler import ProfilerActivity, profile  # not where there is no GPU

    run()
    sync()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        sync()
    events = seen.profiler.kineto_results.events()
    return sum(str(event.device_type()).endswith("CUDA") and event.name() not in _IDLE for event in events)


def write_exact(model: str, workloads: list[Workload], folder: str, out: Path) -> None:
    """The logits in fp32 arithmetic, the caches' values rounded to bf16 as everybody has them."""
    peer = Peer("lean", folder, torch.float32)
    for workload in workloads:
        if workload.kind == "c":
            continue
        begin = time.perf_counter()
        state = LeanState(peer.shape, workload.rows, torch.float32, DEVICE, filled=workload.kind == "d")
        np.save(exact_path(out, model, workload), peer.lean.first(workload, state).double().cpu().numpy())
        write_record(
            Record(model, EXACT, str(workload), detail=f"{time.perf_counter() - begin:.1f} s"), out / "records.jsonl"
        )


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contender")
    parser.add_argument("model")
    parser.add_argument("workloads")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hold", metavar="NAME")
    options = parser.parse_args()
    workloads = list(map(Workload.parse, options.workloads.split(",")))
    out: Path = options.out
    torch._dynamo.config.recompile_limit = 64
    with torch.no_grad():
        if options.contender == EXACT:
            write_exact(options.model, workloads, options.folder, out)
            return
        family, how = options.contender.split()
        peer, cases = Peer(family, options.folder), []
        for workload in workloads:
            chain = workload.kind == "c"
            record = Record(
                "" if chain else options.model, f"torch {how}" if chain else options.contender, str(workload)
            )
            try:
                if options.hold and (out / "stop").exists():
                    raise ValueError("out of time")
                case = Case(peer, how, record, workload, out)
                if options.hold:
                    print(f"{options.contender} {options.model} {workload} ready", flush=True)
                    cases.append(case)
                else:
                    case.time()
                    write_record(record, out / "records.jsonl")
            except Exception as error:  # a contender that fails costs itself alone
                traceback.print_exc()
                record.note = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
                write_record(record, out / "records.jsonl")
        if options.hold:
            sync()
            (out / f"{options.hold}.ready").touch()
            wait_for(out / f"{options.hold}.go")
        for case in cases:
            case.time()
            write_record(case.record, out / "records.jsonl")


if __name__ == "__main__":
    main()
