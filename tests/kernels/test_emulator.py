"""The emulator of GPU kernels: what it computes, and that it sees the mistakes it is there for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ostinato.backend_hip.emulator.emulator import Emulator
from ostinato.ir.errors import BackendError, ConfigError
from ostinato.ir.step import Launch
from ostinato.ir.types import Array
from tests.kernels.emulated import CACHE, WAVES, Kernel

by_wave = pytest.mark.parametrize("wave", WAVES)
SEEDS = range(8)


@by_wave
def test_shuffles_stay_within_the_wave(wave: int) -> None:
    kernel = Kernel(
        """
        DEVICE void kernel(const i32* x, i32* across, i32* down, f64* wide, Status) {
            const u32 t = thread_index();
            across[t] = shuffle_xor(x[t], WAVE / 2);
            down[t] = shuffle_down(x[t], 3);
            wide[t] = shuffle_xor(x[t] + 0.1, 1);
        }
        """,
        operands=4,
        threads=128,
        wave=wave,
    )
    x = np.arange(128, dtype=np.int32) * 7
    across, down, wide = np.zeros(128, np.int32), np.zeros(128, np.int32), np.zeros(128)
    for seed in SEEDS:
        kernel.run([x, across, down, wide], seed=seed)
        thread = np.arange(128)
        assert (across == x[thread ^ (wave // 2)]).all()
        assert (down == x[np.where(thread % wave + 3 < wave, thread + 3, thread)]).all()
        assert (wide == x[thread ^ 1] + 0.1).all()


def test_a_sum_has_the_same_bits_for_every_wave_and_schedule(rng: np.random.Generator) -> None:
    text = """
        DEVICE void kernel(const f32* x, f32* y, Status) {
            y[thread_index()] = block_sum(x[thread_index()]);
        }
        """
    x, results = rng.standard_normal(256).astype(np.float32), set()
    for wave in WAVES:
        kernel = Kernel(text, operands=2, threads=256, wave=wave)
        for seed in SEEDS:
            y = np.zeros(256, np.float32)
            kernel.run([x, y], seed=seed)
            assert (y == y[0]).all()
            results.add(y.tobytes())
    assert len(results) == 1
    assert abs(y[0] - x.astype(np.float64).sum()) < 1e-4


@by_wave
def test_shared_memory_of_a_block_is_reused_and_poisoned(wave: int) -> None:
    """A block sees NaN where it has written nothing, also where the block before it wrote."""
    kernel = Kernel(
        """
        DEVICE void kernel(f32* before, f32* after, Status) {
            SHARED(f32, array, 64);
            const u32 at = block_index() * 64 + thread_index();
            before[at] = array[thread_index()];
            block_barrier();
            array[thread_index()] = at;
            block_barrier();
            after[at] = array[63 - thread_index()];
        }
        """,
        operands=2,
        wave=wave,
    )
    before, after = np.zeros(256, np.float32), np.zeros(256, np.float32)
    kernel.run([before, after], blocks=4, seed=3)
    assert np.isnan(before).all()
    assert (after.reshape(4, 64)[:, ::-1].reshape(-1) == np.arange(256)).all()


@by_wave
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if (thread_index() < 40) block_barrier();", r"divergent barrier in block \[0,0,0\]: .*has returned"),
        ("if (thread_index() == 7) return; block_barrier();", "divergent barrier.*thread 7 has returned"),
        ("if (thread_index() < 64) { block_barrier(); }\n else block_barrier();", "divergent barrier"),
        ("if (thread_index() % 2) x[0] = shuffle_xor(x[0], 1);", "divergent shuffle.*has returned"),
        ("if (thread_index() % 2) x[0] = shuffle_xor(x[0], 1); else block_barrier();", "divergent.*waits at barrier"),
        ("for (u32 i = 0; i <= thread_index() / 64; ++i) block_barrier();", "divergent barrier.*has returned"),
    ],
)
def test_threads_that_do_not_meet_are_refused(wave: int, text: str, expected: str) -> None:
    kernel = Kernel(f"DEVICE void kernel(i32* x, Status) {{ {text} }}", operands=1, threads=128, wave=wave)
    x = np.zeros(1, np.int32)
    for seed in SEEDS:
        with pytest.raises(BackendError, match=expected):
            kernel.run([x], seed=seed)


def test_a_module_is_usable_after_a_refused_launch() -> None:
    kernel = Kernel(
        """
        DEVICE void kernel(i32* x, Status) {
            if (x[0] == 0 && thread_index() == 0) return;
            block_barrier();
            x[1 + thread_index()] = thread_index();
        }
        """,
        operands=1,
    )
    x = np.zeros(65, np.int32)
    with pytest.raises(BackendError, match="divergent barrier"):
        kernel.run([x])
    x[0] = 1
    kernel.run([x])
    assert (x[1:] == np.arange(64)).all()


def _outcomes(kernel: Kernel, size: int, blocks: int = 1) -> set[bytes]:
    found = set()
    for seed in (1, 2):
        y: Array = np.zeros(size, np.float32)
        kernel.run([y], blocks=blocks, seed=seed)
        found.add(y.tobytes())
    return found


@by_wave
def test_a_race_between_threads_shows_in_two_schedules(wave: int) -> None:
    text = """
        DEVICE void kernel(f32* y, Status) {
            SHARED(f32, array, 64);
            array[thread_index()] = thread_index();
            BARRIER
            y[thread_index()] = array[(thread_index() + 1) % 64];
        }
        """
    assert len(_outcomes(Kernel(text.replace("BARRIER", ""), operands=1, wave=wave), 64)) == 2
    assert len(_outcomes(Kernel(text.replace("BARRIER", "block_barrier();"), operands=1, wave=wave), 64)) == 1


def test_a_race_between_blocks_shows_in_two_schedules() -> None:
    kernel = Kernel("DEVICE void kernel(f32* y, Status) { if (thread_index() == 0) y[0] = block_index(); }", operands=1)
    assert len(_outcomes(kernel, 1, blocks=50)) == 2


def test_the_first_step_to_report_keeps_the_status_word() -> None:
    kernel = Kernel("DEVICE void kernel(Status status) { if (thread_index() > 9) status.out_of_range(); }", operands=0)
    assert kernel.run([], step=41) == 42
    silent = Kernel("DEVICE void kernel(Status) {}", operands=0)
    assert silent.run([], step=41) == 0


@by_wave
def test_the_last_block_that_comes_sees_what_the_others_wrote(wave: int) -> None:
    """One block is last, whichever it is, time after time: a ticket is 0 again when a launch ends."""
    kernel = Kernel(
        """
        DEVICE void kernel(i32* parts, i32* sum, i32* last, Status status) {
            if (thread_index() == 0) parts[block_index()] = block_index() + 1;
            if (!status.last_of(block_count(), TICKETS - 1)) return;
            if (thread_index() == 0) *last = block_index();
            for (u32 b = thread_index(); b < block_count(); b += thread_count()) atomic_add(sum, parts[b]);
        }
        """,
        operands=3,
        wave=wave,
    )
    found = set()
    for seed in range(6):
        parts, total, last = np.zeros(9, np.int32), np.zeros(1, np.int32), np.full(1, -1, np.int32)
        kernel.run([parts, total, last], blocks=9, seed=seed)
        assert total[0] == 45
        found.add(int(last[0]))
    assert len(found) > 1


@by_wave
def test_lanes_of_a_wave_meet_without_the_block(wave: int) -> None:
    text = """
        DEVICE void kernel(f32* y, Status) {
            SHARED(f32, array, 128);
            array[thread_index()] = thread_index();
            BARRIER
            y[thread_index()] = array[thread_index() / WAVE * WAVE + (lane() + 1) % WAVE];
        }
        """
    assert len(_outcomes(Kernel(text.replace("BARRIER", ""), operands=1, threads=128, wave=wave), 128)) == 2
    whole = Kernel(text.replace("BARRIER", "wave_barrier();"), operands=1, threads=128, wave=wave)
    assert len(_outcomes(whole, 128)) == 1


@by_wave
def test_running_sums_are_those_of_the_threads_before(wave: int) -> None:
    text = "DEVICE void kernel(i64* y, Status) { y[thread_index()] = block_running_sum(y[thread_index()]); }"
    y = np.arange(192, dtype=np.int64) ** 3
    expected = np.cumsum(y)
    Kernel(text, operands=1, threads=192, wave=wave).run([y])
    assert (y == expected).all()


def test_parameters_arrive_whole() -> None:
    kernel = Kernel(
        """
        DEVICE void kernel(i64* integers, f64* reals, const f32* absent, i64 n, f64 r, i64 m, Status) {
            integers[0] = n, integers[1] = m, reals[0] = absent == nullptr ? r : 0;
        }
        """,
        operands=3,
        params="idi",
    )
    integers, reals = np.zeros(2, np.int64), np.zeros(1)
    status = np.zeros(1, np.uint32)
    launch = Launch((1, 1, 1), (64, 1, 1))
    operands = [integers.ctypes.data, reals.ctypes.data, 0]
    kernel.module.launch("kernel", launch, operands, [-(2**62), 0.1, 2**40 + 1], status=status.ctypes.data)
    assert integers.tolist() == [-(2**62), 2**40 + 1]
    assert reals[0] == 0.1


def test_mistakes_of_the_caller_are_named() -> None:
    kernel = Kernel("DEVICE void kernel(Status) {}", operands=0)
    for block in ((96, 1, 1), (32, 1, 1), (1088, 1, 1), (64, 2, 1)):
        with pytest.raises(BackendError, match="a multiple of 64 threads"):
            kernel.module.launch("kernel", Launch((1, 1, 1), block), [], [], status=0)
    greedy = "DEVICE void kernel(Status) { SHARED(f64, a, 4096); SHARED(f64, b, 2049); a[0] = b[0] = 1.0; }"
    with pytest.raises(BackendError, match="at most 49152 bytes of shared memory, found 49160"):
        Kernel(greedy, operands=0).run([])
    with pytest.raises(BackendError, match="no kernel other"):
        kernel.module.launch("other", Launch((1, 1, 1), (64, 1, 1)), [], [], status=0)
    with pytest.raises(BackendError, match="do not compile"):
        Kernel("DEVICE void kernel(Status) { nonsense; }", operands=0)
    with pytest.raises(ConfigError, match="32 or 64"):
        Emulator(16, CACHE)


def test_modules_are_kept_and_told_apart(tmp_path: Path) -> None:
    first = Emulator(32, tmp_path)
    source = 'extern "C" int number() { return 1; }'
    one, other = first.module(source), first.module(source.replace("1", "2"))
    assert one.path != other.path
    assert first.module(source).path == one.path
    assert Emulator(64, tmp_path).module(source).path != one.path
    assert len(list(tmp_path.iterdir())) == 3, "nothing but the modules is left"


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_halves_convert_exactly(half: str, rng: np.random.Generator) -> None:
    """Every half widens to its value; every float32 rounds once, to nearest even, at ties, at the edges of the range and among subnormal numbers."""
    import ml_dtypes

    dtype = np.dtype(np.float16 if half == "f16" else ml_dtypes.bfloat16)
    kernel = Kernel(
        f"""
        DEVICE void kernel({half}* halves, f32* floats, i64 count, i64 down, Status) {{
            for (i64 i = first_element(); i < count; i += element_step()) {{
                if (down) narrow(floats[i], halves[i]); else floats[i] = widen(halves[i]);
            }}
        }}
        """,
        operands=2,
        params="ii",
    )
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    floats = np.zeros(2**16, np.float32)
    kernel.run([every, floats], [2**16, 0])
    assert np.array_equal(floats, every.astype(np.float32), equal_nan=True)
    bits = every.astype(np.float32).view(np.uint32).astype(np.int64)[:-1]
    step = (every.astype(np.float32).view(np.uint32).astype(np.int64)[1:] - bits) // 2
    near = [bits + step + offset for offset in (-1, 0, 1)] + [rng.integers(0, 2**32, 50000)]
    given = (np.concatenate(near) & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    found = np.zeros(given.size, dtype)
    kernel.run([found, given], [given.size, 1])
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = given.astype(dtype)
    assert np.array_equal(found.astype(np.float32), wanted.astype(np.float32), equal_nan=True)


def test_the_address_sanitizer_sees_what_lies_outside(tmp_path: Path) -> None:
    """Past a shared array and past an operand, from fibres; in a process of its own, because the sanitizer must be there first."""
    runtime = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("this compiler has no address sanitizer")
    script = f"""
import ctypes
from pathlib import Path
from ostinato.backend_hip.emulator.emulator import Emulator
from ostinato.backend_hip.kernel_source import Instance, KernelName, expanded
from ostinato.ir.step import Launch
import sys
text = '''DEVICE void kernel(f32* x, i64 outside, i64 inside, Status) {{
    SHARED(f32, array, 64);
    array[thread_index() + inside] = 1.0f;
    block_barrier();
    x[thread_index() + outside] = array[thread_index()];
}}'''
source = expanded('device.h') + text + chr(10) + Instance(KernelName('a/b', 'kernel'), 1, 'ii', 64).text
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
module = Emulator(64, Path({str(CACHE)!r}), sanitize=True).module(source)
module.launch('kernel', Launch((2, 1, 1), (64, 1, 1)), [libc.malloc(256)], [int(sys.argv[1]), int(sys.argv[2])], status=libc.malloc(4))
print('clean')
"""
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    for arguments, expected in (
        (("0", "0"), "clean"),
        (("1", "0"), "heap-buffer-overflow"),
        (("0", "1"), "heap-buffer-overflow"),
    ):
        run = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            cwd=Path.cwd(),
        )
        assert expected in run.stdout + run.stderr
        assert (run.returncode == 0) == (expected == "clean")
