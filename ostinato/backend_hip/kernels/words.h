// Memory taken 16 bytes at a time.
#pragma once
#include "device.h"

struct alignas(16) Words {
    u32 w[4];
};

// Values of type T in 16 bytes.
template <class T>
struct Packed {
    static constexpr int size = 16 / static_cast<int>(sizeof(T));
};

DEVICE bool aligned(const void* at) { return reinterpret_cast<u64>(at) % 16 == 0; }

// Bytes that are read once in a step, past the nearest cache; the address is a multiple of 16. Such loads, and those of
// weights below, take memory for constant as long as the kernel lives, and that may begin before the step in front is
// over: they are for operands that the row names as `ahead`, which no step of the run writes.
#if defined(OSTINATO_EMULATOR)
DEVICE Words load_once(const void* at) { return *static_cast<const Words*>(at); }
#elif defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
DEVICE Words load_once(const void* at) {
    typedef u32 Vector __attribute__((ext_vector_type(4)));
    const Vector v = __builtin_nontemporal_load(static_cast<const Vector*>(at));
    return {{v.x, v.y, v.z, v.w}};
}
#else
DEVICE Words load_once(const void* at) {
    Words v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
        : "l"(at));
    return v;
}
#endif

// The same for weights, of which most devices read more in a step than their last cache holds: the first ones to leave it.
// Where such a load stands among waits and other loads of its kind, there it is done.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
struct WeightLoads {
    u64 policy;
    DEVICE WeightLoads() { asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy)); }
    DEVICE Words operator()(const void* at) const {
        Words v;
        asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                     : "l"(at), "l"(policy));
        return v;
    }
};
#else
struct WeightLoads {
    DEVICE Words operator()(const void* at) const { return load_once(at); }
};
#endif

// Bytes in their places among words.
DEVICE void put(Words& words, int i, f32 x) { words.w[i] = bits_of(x); }
DEVICE void put(Words& words, int i, bf16 x) { words.w[i / 2] |= static_cast<u32>(x.bits) << i % 2 * 16; }
DEVICE void put(Words& words, int i, f16 x) { words.w[i / 2] |= static_cast<u32>(x.bits) << i % 2 * 16; }

template <class T>
DEVICE Words load_words(const T* at) {
    return *reinterpret_cast<const Words*>(at);
}
// 16 bytes of values, at once where `whole` says that the address is a multiple of 16.
template <class T>
DEVICE Words load_words(const T* at, bool whole) {
    if (whole) return load_words(at);
    Words words = {};
#pragma unroll
    for (int i = 0; i < Packed<T>::size; ++i) put(words, i, at[i]);
    return words;
}

// Value i of the words, in memory order; the pointer says what they are.
DEVICE f32 value_in(const Words& words, int i, const f32*) { return float_of(words.w[i]); }
DEVICE f32 value_in(const Words& words, int i, const bf16*) {
    return float_of(i % 2 ? words.w[i / 2] & 0xffff0000u : words.w[i / 2] << 16);
}
DEVICE f32 value_in(const Words& words, int i, const f16*) {
    return widen(f16{static_cast<u16>(words.w[i / 2] >> i % 2 * 16)});
}

// COUNT neighbours as f32, by words where they fill some.
template <int COUNT, class T>
DEVICE void load_values(const T* at, bool whole, f32 (&values)[COUNT]) {
    constexpr int size = Packed<T>::size;
    if (COUNT % size == 0) {
        for (int word = 0; word < COUNT / size; ++word) {
            const Words words = load_words(at + word * size, whole);
            for (int i = 0; i < size; ++i) values[word * size + i] = value_in(words, i, at);
        }
    } else {
        for (int i = 0; i < COUNT; ++i) values[i] = widen(at[i]);
    }
}

// COUNT neighbours that fill words, rounded; the address is a multiple of 16.
template <int COUNT, class T>
DEVICE void store_values(T* at, const f32 (&values)[COUNT]) {
    constexpr int size = Packed<T>::size;
    static_assert(COUNT % size == 0, "whole words");
#pragma unroll
    for (int word = 0; word < COUNT / size; ++word) {
        Words words = {};
#pragma unroll
        for (int i = 0; i < size; ++i) put(words, i, narrowed<T>(values[word * size + i]));
        reinterpret_cast<Words*>(at)[word] = words;
    }
}

// Nothing is moved across it by AMD's compiler, which would begin all loads at once and run out of registers.
DEVICE void keep_order() {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
    __builtin_amdgcn_sched_barrier(0);
#endif
}

// 16 bytes on their way into shared memory, nothing of them where there is no source; they are there, for the thread
// that sent them, after copies_done().
#if defined(OSTINATO_EMULATOR) || defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
DEVICE void copy_words(Words* to, const void* from) {
    if (from == nullptr) {
        *to = Words{};
    } else {
        *to = *static_cast<const Words*>(from);
    }
}
DEVICE void copies_done() {}
#else
DEVICE u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }
DEVICE void copy_words(Words* to, const void* from) {
    if (from == nullptr) {
        *to = Words{};
        return;
    }
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(shared_address(to)), "l"(from)
                 : "memory");
}
DEVICE void copies_done() { asm volatile("cp.async.wait_all;" : : : "memory"); }
#endif
