/* Counts every allocation of the process, on any thread, between counting_start and counting_stop. Loaded with LD_PRELOAD by test_allocations.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_int counting;
static atomic_long count;
static char early[1 << 16]; /* dlsym itself may allocate before the real functions are known */
static atomic_size_t early_used;

void counting_start(void) { atomic_store(&count, 0); atomic_store(&counting, 1); }
long counting_stop(void) { atomic_store(&counting, 0); return atomic_load(&count); }
static __thread int paused;
void counting_pause(int more) { paused += more; } /* the emulated GPU leaves its own allocations out: a driver's are not ours */
static void tick(void) {
    if (!paused && atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&count, 1);
}

static void* early_memory(size_t size) {
    size_t at = atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15);
    if (at + size > sizeof early) abort();
    return early + at;
}
static int is_early(const void* p) { return (const char*)p >= early && (const char*)p < early + sizeof early; }

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
static __thread int resolving;

void* malloc(size_t size) {
    static void* (*real)(size_t);
    if (!real) {
        if (resolving) return early_memory(size);
        resolving = 1; real = (void* (*)(size_t))dlsym(RTLD_NEXT, "malloc"); resolving = 0;
    }
    tick();
    return real(size);
}
void* calloc(size_t n, size_t size) {
    static void* (*real)(size_t, size_t);
    if (!real) {
        if (resolving) return early_memory(n * size);
        resolving = 1; real = (void* (*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc"); resolving = 0;
    }
    tick();
    return real(n, size);
}
void* realloc(void* p, size_t size) {
    REAL(realloc);
    if (is_early(p)) { void* q = malloc(size); memcpy(q, p, size); return q; }
    tick();
    return real(p, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
    REAL(aligned_alloc);
    tick();
    return real(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
    REAL(posix_memalign);
    tick();
    return real(out, alignment, size);
}
void free(void* p) {
    REAL(free);
    if (p && !is_early(p)) { tick(); real(p); }
}
void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
    REAL(mmap);
    tick();
    return real(address, size, protection, flags, file, offset);
}
