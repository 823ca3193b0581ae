// The language that kernels are written in: one text for NVRTC and nvcc (HIP's NVIDIA side), hipRTC and clang (AMD),
// and, under OSTINATO_EMULATOR, a C++ compiler. It includes nothing: what it takes from a compiler is there unasked.
//
// Rules of the language, which the emulator enforces where it can:
// - a block is one-dimensional and has a multiple of 64 threads, so that it is whole waves everywhere;
// - every lane of a wave takes part in a shuffle, every thread of a block in a barrier, at the same place;
// - reductions go by groups of 32 lanes, whatever the wave, in one fixed tree: the same bits on every device;
// - products and sums are contracted nowhere (see kernel_source.py); fma() stands where it is meant;
// - a kernel may start while the one before it still runs, and then waits for it (see below);
// - nothing past a count is read or written; an index out of range sets the status word and stays in bounds.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

// What compilers differ in. WAVE lanes run together; SHARED(type, name, count) is an array of a block, aligned to 16
// bytes; KERNEL makes an entry point; exchange() gives the value of a lane of the wave.
//
// wait_for_earlier() returns when all work before this kernel is over and its results are to be seen; allow_later() says
// that the next kernel may begin to start. See Start.
#if defined(OSTINATO_EMULATOR)  // all of it stands in emulator/emulator.h, which is included before

#define DEVICE inline

#else

#define DEVICE __device__ __forceinline__
#define SHARED(type, name, count) alignas(16) __shared__ type name[count]
#define KERNEL(name, threads, parameters, call) \
    extern "C" __global__ __launch_bounds__(threads) void name parameters { call; }

// Devices that cannot start a kernel early have nothing to wait for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEVICE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void allow_later() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEVICE void wait_for_earlier() {}
DEVICE void allow_later() {}
#endif

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
#if defined(__GFX8__) || defined(__GFX9__)
#define WAVE 64
#else
#define WAVE 32
#endif
DEVICE u32 exchange(u32 value, int lane) {
    return static_cast<u32>(__builtin_amdgcn_ds_bpermute(lane << 2, static_cast<int>(value)));
}
#else
#define WAVE 32
DEVICE u32 exchange(u32 value, int lane) { return __shfl_sync(0xffffffffu, value, lane, WAVE); }
#endif

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 thread_count() { return blockDim.x; }
DEVICE u32 block_index() { return blockIdx.x; }
DEVICE u32 block_index_y() { return blockIdx.y; }
DEVICE u32 block_count() { return gridDim.x; }
DEVICE u32 block_count_y() { return gridDim.y; }
DEVICE void block_barrier() { __syncthreads(); }
DEVICE u32 atomic_compare_exchange(u32* at, u32 expected, u32 wanted) { return atomicCAS(at, expected, wanted); }
DEVICE i32 atomic_add(i32* at, i32 value) { return atomicAdd(at, value); }
DEVICE u32 atomic_add(u32* at, u32 value) { return atomicAdd(at, value); }
DEVICE void device_fence() { __threadfence(); }
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
DEVICE void wave_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#else
DEVICE void wave_barrier() { __syncwarp(); }
#endif
DEVICE i32 atomic_exchange(i32* at, i32 value) { return atomicExch(at, value); }
DEVICE u32 bits_of(f32 x) { return __float_as_uint(x); }
DEVICE f32 float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE u64 bits_of(f64 x) { return static_cast<u64>(__double_as_longlong(x)); }
DEVICE f64 double_of(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }

#endif

// Element types. Conversions are exact upwards and round once, to nearest even, downwards; NaN stays NaN.

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

DEVICE f32 widen(f32 x) { return x; }
DEVICE f32 widen(bf16 x) { return float_of(static_cast<u32>(x.bits) << 16); }

DEVICE void narrow(f32 x, f32& y) { y = x; }
DEVICE void narrow(f32 x, bf16& y) {
    const u32 bits = bits_of(x);
    const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    y.bits = static_cast<u16>(x == x ? rounded : (bits >> 16) | 0x40u);
}

#if defined(OSTINATO_EMULATOR)
DEVICE f32 widen(f16 x) {
    const u32 sign = (x.bits & 0x8000u) << 16, rest = (x.bits & 0x7fffu) << 13;
    if ((x.bits & 0x7c00u) == 0x7c00u) return float_of(sign | 0x7f800000u | rest);
    return float_of(sign | bits_of(float_of(rest) * 0x1p112f));
}
DEVICE void narrow(f32 x, f16& y) {
    const u32 sign = (bits_of(x) >> 16) & 0x8000u, size = bits_of(x) & 0x7fffffffu;
    u32 half;
    if (size > 0x7f800000u) {
        half = 0x7e00u | ((size >> 13) & 0x3ffu);
    } else if (size >= 0x47800000u) {  // 65536 and more
        half = 0x7c00u;
    } else if (size < 0x38800000u) {  // below the smallest normal number: the sum is rounded at 2^-24
        half = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    } else {
        half = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    }
    y.bits = static_cast<u16>(sign | half);
}
#elif defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
DEVICE f32 widen(f16 x) { return static_cast<f32>(__builtin_bit_cast(_Float16, x.bits)); }
DEVICE void narrow(f32 x, f16& y) { y.bits = __builtin_bit_cast(u16, static_cast<_Float16>(x)); }
#else
DEVICE f32 widen(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE void narrow(f32 x, f16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
#endif

template <class Y>
DEVICE Y narrowed(f32 x) {
    Y y;
    narrow(x, y);
    return y;
}

DEVICE f32 infinity() { return float_of(0x7f800000u); }
DEVICE f32 not_a_number() { return float_of(0x7fc00000u); }

template <class T>
DEVICE T smaller(T a, T b) {
    return b < a ? b : a;
}
template <class T>
DEVICE T larger(T a, T b) {
    return a < b ? b : a;
}

// What a kernel gets beside its parameters.

// An operand before its type is known.
struct Pointer {
    void* address;
    template <class T>
    DEVICE operator T*() const {
        return static_cast<T*>(address);
    }
};

// The status word of a run: 0, or one more than the number of the first step that met an index out of range. Behind it
// lie tickets, which are 0 whenever a kernel begins.
constexpr i64 TICKETS = 1023;
struct Status {
    u32* word;
    u32 step;
    DEVICE void out_of_range() const { atomic_compare_exchange(word, 0u, step + 1u); }
    DEVICE bool last_of(u32 blocks, i64 ticket) const;
};

// A kernel may be started while the one before it still runs. Every thread waits before it ends, before it writes
// anything and before it reads anything that a step of the run may write. No kernel is over before the one in front of
// it is, so that to wait for the last one is to wait for all.
//
// A kernel that takes a Status has waited when it begins. One that takes a Start in its place gets its status by
// waiting, and may read before that only the operands that its row names as `ahead`, which no step of the run writes.
struct Start {
    u32* word;
    u32 step;
    DEVICE Status wait() const {
        wait_for_earlier();
        return {word, step};
    }
    DEVICE operator Status() const {
        const Status status = wait();
        allow_later();
        return status;
    }
};

// Leading rows that are valid in this run: all of them without a count.
DEVICE i64 valid_rows(const i32* count, i64 capacity) {
    return count == nullptr ? capacity : larger<i64>(0, smaller<i64>(*count, capacity));
}

// Places in the grid: elements in steps of all threads, rows in steps of all blocks.
DEVICE i64 first_element() { return static_cast<i64>(block_index()) * thread_count() + thread_index(); }
DEVICE i64 element_step() { return static_cast<i64>(block_count()) * thread_count(); }

// Communication between lanes and threads.

constexpr int GROUP = 32;  // lanes that reduce together, half a wave of 64
constexpr int MAXIMUM_GROUPS = 1024 / GROUP;

DEVICE int lane() { return static_cast<int>(thread_index() % WAVE); }
DEVICE int group_lane() { return static_cast<int>(thread_index() % GROUP); }
DEVICE int group_index() { return static_cast<int>(thread_index() / GROUP); }
DEVICE int group_count() { return static_cast<int>(thread_count() / GROUP); }

DEVICE f32 exchange(f32 value, int from) { return float_of(exchange(bits_of(value), from)); }
DEVICE i32 exchange(i32 value, int from) { return static_cast<i32>(exchange(static_cast<u32>(value), from)); }
DEVICE u64 exchange(u64 value, int from) {
    const u64 high = exchange(static_cast<u32>(value >> 32), from);
    return high << 32 | exchange(static_cast<u32>(value), from);
}
DEVICE i64 exchange(i64 value, int from) { return static_cast<i64>(exchange(static_cast<u64>(value), from)); }
DEVICE f64 exchange(f64 value, int from) { return double_of(exchange(bits_of(value), from)); }

// The value of the lane whose number differs in the bits of n; n below WAVE.
template <class T>
DEVICE T shuffle_xor(T value, int n) {
    return exchange(value, lane() ^ n);
}
// The value of the lane n further on, a lane's own past the end of the wave.
template <class T>
DEVICE T shuffle_down(T value, int n) {
    return exchange(value, lane() + n < WAVE ? lane() + n : lane());
}
// The value of one lane of the group in all of its lanes.
template <class T>
DEVICE T group_broadcast(T value, int from) {
    return exchange(value, lane() / GROUP * GROUP + from);
}

// Whether this is the last of so many blocks that call it with this ticket: the others have then written all that they
// had to, and this block sees it. All threads take part.
DEVICE bool Status::last_of(u32 blocks, i64 ticket) const {
    SHARED(u32, arrived, 1);
    u32* const at = word + 1 + ticket;
    device_fence();
    block_barrier();
    if (thread_index() == 0) {
        *arrived = atomic_add(at, 1u) + 1;
        if (*arrived == blocks) *at = 0;
    }
    block_barrier();
    const bool last = *arrived == blocks;
    device_fence();
    return last;
}

struct Sum {
    template <class T>
    DEVICE T operator()(T a, T b) const {
        return a + b;
    }
};
// The larger one; NaN if either is NaN.
struct Largest {
    DEVICE f32 operator()(f32 a, f32 b) const { return a > b || a != a ? a : b; }
    template <class T>
    DEVICE T operator()(T a, T b) const {
        return a > b ? a : b;
    }
};
struct Any {
    DEVICE i32 operator()(i32 a, i32 b) const { return a | b; }
};

// Both operands of `join` swap roles between lanes, so it must be commutative: then all lanes get the same bits.
template <class T, class Join>
DEVICE T group_reduce(T value, Join join) {
    for (int n = GROUP / 2; n > 0; n /= 2) value = join(value, shuffle_xor(value, n));
    return value;
}

// The same in every thread: a tree within groups, then the groups in ascending order.
template <class T, class Join>
DEVICE T block_reduce(T value, Join join) {
    SHARED(T, partial, MAXIMUM_GROUPS);
    value = group_reduce(value, join);
    block_barrier();  // an earlier reduction may still be read
    if (group_lane() == 0) partial[group_index()] = value;
    block_barrier();
    T total = partial[0];
    for (int g = 1; g < group_count(); ++g) total = join(total, partial[g]);
    return total;
}

template <class T>
DEVICE T group_sum(T value) {
    return group_reduce(value, Sum());
}
template <class T>
DEVICE T block_sum(T value) {
    return block_reduce(value, Sum());
}
// The sum over this thread and those before it: a tree within groups, then the groups in ascending order.
template <class T>
DEVICE T block_running_sum(T value) {
    SHARED(T, partial, MAXIMUM_GROUPS);
    for (int n = 1; n < GROUP; n *= 2) {
        const T other = exchange(value, group_lane() < n ? lane() : lane() - n);
        if (group_lane() >= n) value += other;
    }
    block_barrier();  // an earlier sum may still be read
    if (group_lane() == GROUP - 1) partial[group_index()] = value;
    block_barrier();
    T before = T();
    for (int g = 0; g < group_index(); ++g) before += partial[g];
    return before + value;
}
DEVICE f32 block_largest(f32 value) { return block_reduce(value, Largest()); }
DEVICE bool block_any(bool value) { return block_reduce(static_cast<i32>(value), Any()) != 0; }
