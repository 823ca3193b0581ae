"""Measured read bandwidth: the limit that decode is held against."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

__all__ = ["read_bandwidth"]

_SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
typedef float lanes __attribute__((vector_size(64)));
static size_t count; static int threads, rounds; static pthread_barrier_t gate; static lanes sums[64]; static lanes* data;
static clockid_t clock_kind = CLOCK_MONOTONIC; static double now(void) { struct timespec t; clock_gettime(clock_kind, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static double best = 1e9;
static void* work(void* argument) {
    long me = (long)argument; size_t each = count / threads / 8 * 8; lanes* p = data + me * each;
    for (int r = 0; r < rounds; r++) {
        pthread_barrier_wait(&gate);
        double start = now();
        lanes a[8] = {0};
        for (size_t i = 0; i < each; i += 8) for (int j = 0; j < 8; j++) a[j] += p[i + j];
        for (int j = 0; j < 8; j++) sums[me] += a[j];
        pthread_barrier_wait(&gate);
        if (me == 0 && now() - start < best) best = now() - start;
    }
    return 0;
}
int main(int argc, char** argv) {
    threads = atoi(argv[1]); rounds = 9; if (threads == 1) clock_kind = CLOCK_PROCESS_CPUTIME_ID; size_t bytes = (size_t)1 << 30; count = bytes / sizeof(lanes);
    data = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(data, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes / 4; i++) ((float*)data)[i] = (float)(i & 7);
    pthread_barrier_init(&gate, 0, threads); pthread_t ids[64];
    for (long t = 1; t < threads; t++) pthread_create(&ids[t], 0, work, (void*)t);
    work(0);
    for (int t = 1; t < threads; t++) pthread_join(ids[t], 0);
    printf("%f\n", bytes / best);
    return sums[0][0] == 1.5f;
}
"""


def read_bandwidth(threads: int) -> float:
    """Best of nine passes over 1 GiB by a small C program built here, in bytes per second (CPU time for one thread, as in `worker.py`)."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "read.c", Path(folder) / "read"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-O3", "-march=native", "-pthread", source, "-o", program], check=True)
        return float(subprocess.run([program, str(threads)], check=False, capture_output=True, text=True).stdout)
