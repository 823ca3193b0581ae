"""From nothing to the first token, and what replays leave behind.

    python -m benchmarks.gpu.cold_start [--device hip|cpu|emulated] [--model S] [--processes 10] [--tokens 64] [--replays 1000] [--json FILE]

1. A fresh process with an empty cache of compiled kernels makes its first token, then `--processes` fresh ones with the cache that it left. Each says what
   took how long, and gives a digest of its greedy tokens: there must be one digest.
2. In one process a decode step is replayed `--replays` times. Before each replay the arena and the outputs are filled with bytes that are no numbers, the
   inputs are put back, and the logits must be the same bits every time; device memory in use must be as it was.

Weights are random and seeded; every process reads the same checkpoint. `cpu` and `emulated` show that it runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import CONFIGS, PACKAGED, checkpoint
from benchmarks.workloads import Shape, Workload

_POISON = 0xFF
"""Every byte: not a number in each float dtype, -1 in each signed integer."""
_PROMPT = tuple(range(3, 19))
_STEPS = ("import", "device", "build", "first token", "tokens")


def child(folder: str, device_name: str, tokens: int) -> dict[str, Any]:
    """What a fresh process does; seconds from the moment its parent started it."""
    started = float(os.environ["BENCHMARK_STARTED"])
    marks: dict[str, float] = {}

    def mark(name: str) -> None:
        marks[name] = time.time() - started

    import ostinato as ost  # a fresh process pays for it
    from ostinato.stages import open_device

    mark("import")
    if device_name == "emulated":
        from benchmarks.steps import open_benchmark_device  # not what is measured

        device = open_benchmark_device(device_name)
    else:
        device = open_device(device_name)
    mark("device")
    llm = ost.LLM(folder, device=device, max_num_seqs=1, context=256)
    llm.executable.prewarm()
    mark("build")
    first = llm.generate(
        [list(_PROMPT)], ost.SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    )
    mark("first token")
    sampling = ost.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    found = list(llm.generate([list(_PROMPT)], sampling)[0].token_ids)
    mark("tokens")
    assert found[0] == first[0].token_ids[0]
    result: dict[str, Any] = {"seconds": marks, "digest": hashlib.sha256(json.dumps(found).encode()).hexdigest()}
    result["mode"] = llm.executable.mode
    kernels = getattr(device, "kernels", None)
    if kernels is not None:
        counters = kernels.cache.counters
        result["cache"] = {"hits": counters.hits, "misses": counters.misses, "compile": counters.compile_seconds}
    return result


def fresh_process(options: argparse.Namespace, folder: str, cache: Path) -> dict[str, Any]:
    """Runs a child with that folder as its user's cache."""
    command = [sys.executable, "-m", "benchmarks.gpu.cold_start", "--child", folder, "--device", options.device]
    environment = dict(os.environ, XDG_CACHE_HOME=str(cache), BENCHMARK_STARTED=repr(time.time()))
    run = subprocess.run(
        [*command, "--tokens", str(options.tokens)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"a fresh process ended with {run.returncode}:\n{run.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def said(what: str, found: Mapping[str, Any]) -> str:
    """One line: how long each stage took, not counting those before it."""
    before, parts = 0.0, []
    for name in _STEPS:
        parts.append(f"{name} {found['seconds'][name] - before:.3f}")
        before = found["seconds"][name]
    cache = found.get("cache")
    kernels = (
        f"; compiled {cache['misses']}, found {cache['hits']}, compilers busy {cache['compile']:.2f} s" if cache else ""
    )
    return f"{what}: first token after {found['seconds']['first token']:.3f} s ({', '.join(parts)} s){kernels}"


def processes(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Part 1."""
    with tempfile.TemporaryDirectory() as name:
        cold = fresh_process(options, folder, Path(name))
        print(said("empty cache", cold), flush=True)
        warm = []
        for number in range(options.processes):
            warm.append(fresh_process(options, folder, Path(name)))
            print(said(f"process {number + 1}", warm[-1]), flush=True)
    digests = {found["digest"] for found in (cold, *warm)}
    firsts = [found["seconds"]["first token"] for found in warm]
    print(
        f"{len(warm) + 1} processes, {len(digests)} digest{'s' if len(digests) > 1 else ''} of {options.tokens} tokens; first token: "
        f"{cold['seconds']['first token']:.3f} s with an empty cache, {statistics.median(firsts):.3f} s with a warm one (median)",
        flush=True,
    )
    return {"part": "processes", "cold": cold, "warm": warm, "digests": len(digests)}


def replays(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Part 2."""
    from benchmarks.steps import (
        LoadedStep,
        WeightPool,
        open_benchmark_device,
        plan_workload,
    )  # the children import on their own clock
    from ostinato.passes.pipeline import PipelineOptions
    from ostinato.planner.settings import PlanSettings
    from ostinato.runtime.runners import PlannedRunner
    from ostinato.stages import open_model

    device, workload = open_benchmark_device(options.device), Workload("d", 1)
    program = plan_workload(workload, open_model(folder), device.target, PipelineOptions("bf16"), PlanSettings())
    mode = "captured" if device.captures else "planned"
    shared = WeightPool(device).of(program)
    step = LoadedStep(workload, program, device, shared, mode, shape=Shape.read(folder))
    runner, regions = step.runner, step.regions
    assert isinstance(runner, PlannedRunner)
    native = getattr(device, "native", None)
    expected = step.digest()
    places = [binding.range for binding in step.plan.outputs]
    used: list[tuple[int, int]] = []
    different = 0
    begin = time.perf_counter()
    for number in range(options.replays):
        step.rewind()
        regions.arena.fill(_POISON)
        for place in places:
            regions.io.fill(_POISON, place.offset, place.size)
        found = runner.run(("logits",))["logits"]
        if number == 0:
            logits = np.array(found)
        different += not np.array_equal(logits.view(np.uint32), found.view(np.uint32))
        if native is not None and number in (0, options.replays // 2, options.replays - 1):
            used.append((native.memory_info[1] - native.memory_info[0], native.counters.current_bytes))
    seconds = time.perf_counter() - begin
    same_state = step.digest() == expected
    flat = len(set(used)) <= 1
    memory = f", device memory {'flat' if flat else 'NOT FLAT'}: {used} (bytes of the card, of ours)" if used else ""
    print(
        f"{options.replays} {mode} runs on poisoned memory in {seconds:.2f} s: {different} with other logits, state and outputs "
        f"{'the same' if same_state else 'DIFFERENT'}{memory}",
        flush=True,
    )
    return {
        "part": "replays",
        "mode": mode,
        "replays": options.replays,
        "different": different,
        "same": same_state,
        "used": used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.cold_start", description=__doc__.partition("\n")[0])
    shows = "cpu and emulated show that it runs (default hip)"
    parser.add_argument("--device", default="hip", choices=("cpu", "hip", "emulated"), help=shows)
    parser.add_argument("--model", default="S", choices=(*CONFIGS, PACKAGED), help="(default S)")
    parser.add_argument("--processes", type=int, default=10, help="fresh ones after the first (default 10)")
    parser.add_argument("--tokens", type=int, default=64, help="that each makes (default 64)")
    parser.add_argument("--replays", type=int, default=1000, help="of a decode step on poisoned memory (default 1000)")
    parser.add_argument("--folder", type=Path, help="where a checkpoint is made or found (default: the user's cache)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets a line a part")
    parser.add_argument("--child", metavar="CHECKPOINT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.device, options.tokens)))
        return
    folder = checkpoint(options.model, "bf16", options.folder)
    results = []
    for part in (processes, replays):
        results.append(part(options, folder))
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
    first, second = results
    if first["digests"] > 1 or second["different"] or not second["same"] or len(set(map(tuple, second["used"]))) > 1:
        raise SystemExit("not as it must be, see above")


if __name__ == "__main__":
    main()
