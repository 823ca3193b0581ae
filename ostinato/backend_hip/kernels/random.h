// Random numbers: the first word of Philox4x32-10, and the point in (0, 1) that it stands for.
#pragma once
#include "device.h"

DEVICE u32 philox(u64 key, u32 counter) {
    u32 c0 = counter, c1 = 0, c2 = 0, c3 = 0;
    u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const u64 a = static_cast<u64>(c0) * 0xd2511f53u, b = static_cast<u64>(c2) * 0xcd9e8d57u;
        c0 = static_cast<u32>(b >> 32) ^ c1 ^ k0;
        c1 = static_cast<u32>(b);
        c2 = static_cast<u32>(a >> 32) ^ c3 ^ k1;
        c3 = static_cast<u32>(a);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

DEVICE f64 random_point(i64 seed, i32 index) {
    const u32 word = philox(static_cast<u64>(seed), static_cast<u32>(index));
    return (static_cast<f64>(word) + 0.5) * 2.3283064365386963e-10;  // 2^-32
}
