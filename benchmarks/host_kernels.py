"""Host linear kernels against the machine's limits: decode products against read bandwidth, prefill products against peak multiply-adds.

    python -m benchmarks.host_kernels [--isa avx512_bf16] [--formats f32,bf16] [--rows 1,128] [--json]

Times are CPU time of this process with one thread, which leaves out the moments when others held the core; limits are measured the same way by a small C
program built here. A kernel that does not equal a float64 product on sampled outputs is reported as wrong and not timed. Weights rotate through more
memory than the last-level cache holds, as the layers of a model do.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ostinato.backend_hip import _native
from ostinato.ir.blocks import dequantize
from ostinato.ir.ops.samplers import random_blocks
from ostinato.ir.types import DType

Array = npt.NDArray[Any]

# (N, K) of the products of Qwen2.5-0.5B: Q/K/V, attention output, gate and up, down, output projection; and one of a
# larger model, whose width fills the blocks of every format
SHAPES = [(1152, 896), (896, 896), (9728, 896), (896, 4864), (151936, 896), (4096, 4096)]
ROTATE_BYTES = 256 << 20
LANES = 32
DTYPES = _native.dtype_numbers()
BLOCKS = tuple(dtype.value for dtype in DType if dtype.is_block)
FLOATS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

_LIMITS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
typedef float lanes __attribute__((vector_size(WIDTH)));
static double now(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(void) {
    size_t bytes = (size_t)1 << 29, count = bytes / WIDTH; double read = 1e9, fma = 1e9, dot = 0;
    lanes* p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes / 4; i++) ((float*)p)[i] = (float)(i & 7);
    lanes s[8] = {{0}}, x = s[0] + 1.0001f, y = s[0] + 0.5f;
#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define DECLARE(j) lanes a##j = y;
#define FMA(j) __asm__ volatile("vfmadd231ps %1,%2,%0" : "+v"(a##j) : "v"(x), "v"(y));
#define DOT(j) __asm__ volatile("vdpbf16ps %1,%2,%0" : "+v"(a##j) : "v"(x), "v"(y));
#define KEEP(j) s[0] += a##j;
    for (int r = 0; r < 7; r++) {
        double t = now();
        for (size_t i = 0; i < count; i += 8) for (int j = 0; j < 8; j++) s[j] += p[i + j];
        t = now() - t; if (t < read) read = t;
    }
    const long n = 20000000;
    EACH(DECLARE)
    for (int r = 0; r < 5; r++) {
        double t = now();
        for (long i = 0; i < n; i++) { EACH(FMA) }
        t = now() - t; if (t < fma) fma = t;
    }
#if defined(__AVX512BF16__)
    dot = 1e9;
    for (int r = 0; r < 5; r++) {
        double t = now();
        for (long i = 0; i < n; i++) { EACH(DOT) }
        t = now() - t; if (t < dot) dot = t;
    }
    dot = n * 12.0 * (WIDTH / 4) * 4 / dot;
#endif
    EACH(KEEP)
    printf("%f %f %f\n", bytes / read, n * 12.0 * (WIDTH / 4) * 2 / fma, dot);
    float total = 0; for (int j = 0; j < 8; j++) total += s[j][0];
    return total == 12345.0f;
}
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one core: bytes read from memory a second, float and bf16-pair multiply-adds as operations a second (0: not there)."""

    read: float
    fma: float
    dot: float


@dataclass(frozen=True, slots=True)
class Result:
    """One product. `share` is achieved over the limit that binds it: read bandwidth for few rows, multiply-adds for many."""

    format: str
    x: str
    M: int
    N: int
    K: int
    microseconds: float
    gigabytes_per_second: float
    gigaflops: float
    bound: str
    share: float


def measure_limits() -> Limits:
    """Best of several passes of a C program for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "limits.c", Path(folder) / "limits"
        source.write_text(_LIMITS)
        subprocess.run(["cc", "-O3", "-march=native", source, "-o", program], check=True)
        out = subprocess.run([program], check=False, capture_output=True, text=True).stdout
    return Limits(*(float(number) for number in out.split()))


def random_rows(rng: np.random.Generator, format: str, rows: int, columns: int) -> tuple[Array, Array]:
    """A weight as a checkpoint stores it, and the float32 values of its first rows."""
    if format in FLOATS:
        stored = rng.standard_normal((rows, columns), np.float32).astype(FLOATS[format])
        return stored, stored[:LANES].astype(np.float32)
    stored = random_blocks((rows, columns), DType(format), rng)
    return stored, dequantize(stored[:LANES], DType(format))


class Memory:
    """Device memory seen as numpy arrays."""

    def __init__(self, device: _native.Device) -> None:
        self.device = device

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = (ctypes.c_char * size).from_address(self.device.allocate(size, 64))
        return np.frombuffer(buffer, dtype).reshape(shape)


def operand(array: Array | None) -> tuple[int, int]:
    return (0, 0) if array is None else (array.ctypes.data, array.nbytes)


def measure(
    device: _native.Device,
    limits: Limits,
    format: str,
    x_name: str,
    m: int,
    n: int,
    k: int,
    seconds: float,
    rotate: int,
) -> Result:
    """Checks and times one product; raises AssertionError where it is wrong."""
    rng = np.random.default_rng(n * k + m)
    memory = Memory(device)
    stored, head = random_rows(rng, format, n, k)
    row_bytes = stored[0].nbytes if format in FLOATS else stored.shape[1]
    panels = -(-n // LANES)
    size = panels * LANES * row_bytes
    copies = max(1, rotate // size)
    region = memory.array((copies, size), np.uint8)  # as a model's weights lie: one region, one matrix behind the other
    weights = list(region)
    index = np.arange(n, dtype=np.int64)
    params = [DTYPES[format], k, n, 0, n, 1]
    operands = [operand(stored), operand(index), operand(weights[0])]
    _native.Table(device, [(0, device.kernel(f"pack_{format}"), 0, operands, params, [], [])]).run()
    region[1:] = region[0]
    x = memory.array((m, k), FLOATS[x_name])
    x[...] = rng.standard_normal((m, k), np.float32)
    y = memory.array((m, n), np.float32)
    kernel = device.kernel(f"linear_{format}")
    scalars = [m, k, DTYPES[x_name], DTYPES["f32"], n, 0, 0, 0.0]
    table = _native.Table(
        device,
        [(0, kernel, 0, [operand(v) for v in (x, w, *[None] * 4, y, *[None] * 3)], scalars, [], []) for w in weights],
    )
    table.run()
    expected = x.astype(np.float64) @ head.astype(np.float64).T
    error = float(np.abs(y[:, :LANES] - expected).max() / np.abs(expected).max())
    assert error < 1e-5, (
        f"linear_{format} of {x_name} [{m},{k}] x [{n},{k}] is wrong by {error:.2g} of the largest output"
    )
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 3:
        start = time.process_time_ns()
        table.run()
        times.append((time.process_time_ns() - start) / len(weights))
    for array in (region, x, y):
        device.free(array.ctypes.data)
    nanoseconds = float(np.median(times))
    rate, flops = weights[0].nbytes / nanoseconds, 2 * m * n * k / nanoseconds
    peak = limits.dot if limits.dot and device.isa == "avx512_bf16" and format == x_name == "bf16" else limits.fma
    memory_time, compute_time = weights[0].nbytes / limits.read, 2 * m * n * k / peak
    bound = "read" if memory_time > compute_time else "multiply-add"
    share = max(memory_time, compute_time) / (nanoseconds * 1e-9)
    return Result(format, x_name, m, n, k, nanoseconds * 1e-3, rate, flops, bound, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="auto", help="kernel unit (default: the best)")
    parser.add_argument(
        "--formats",
        default=",".join(("f32", "bf16", "bf16:bf16", *BLOCKS)),
        help="weight formats, with :x for the dtype of x",
    )
    parser.add_argument("--rows", default="1,128", help="values of M")
    parser.add_argument("--shapes", default=",".join(f"{n}x{k}" for n, k in SHAPES), help="NxK, comma-separated")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each product")
    parser.add_argument(
        "--rotate", type=int, default=ROTATE_BYTES >> 20, help="MiB of weights in turn; 0: one matrix, from the cache"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    limits = measure_limits()
    device = _native.Device(1, options.isa)
    if not options.json:
        print(
            f"{device.cpu}, unit {device.isa}: read {limits.read / 1e9:.1f} GB/s, fma {limits.fma / 1e9:.0f}, bf16 pairs {limits.dot / 1e9:.0f} GFLOP/s"
        )
    results = []
    for m in (int(text) for text in options.rows.split(",")):
        for spec in options.formats.split(","):
            weight, _, x = spec.partition(":")
            for n, k in (tuple(int(v) for v in text.split("x")) for text in options.shapes.split(",")):
                if m > 1 and n > 100_000:
                    continue  # prefill projects one token
                if k % DType(weight).block_elements:
                    continue  # no row of this format
                result = measure(device, limits, weight, x or "f32", m, n, k, options.seconds, options.rotate << 20)
                results.append(result)
                if not options.json:
                    print(
                        f"{result.format:5} x {result.x:5} M {m:4} N {n:6} K {k:5} {result.microseconds:10.1f} us {result.gigabytes_per_second:6.1f} GB/s"
                        f" {result.gigaflops:7.1f} GFLOP/s  {100 * result.share:5.1f} % of {result.bound}",
                        flush=True,
                    )
    if options.json:
        print(
            json.dumps({"limits": asdict(limits), "isa": device.isa, "results": [asdict(result) for result in results]})
        )


if __name__ == "__main__":
    main()
