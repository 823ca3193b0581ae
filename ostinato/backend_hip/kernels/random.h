// Random numbers: words of Philox4x32-10, and the point in (0, 1) that the first one stands for.
#pragma once
#include "device.h"

struct RandomWords {
    u32 w[4];
    DEVICE u32 at(int i) const { return i == 0 ? w[0] : i == 1 ? w[1] : i == 2 ? w[2] : w[3]; }
};

// A counter of a 64-bit number and two words.
DEVICE RandomWords philox(u64 key, u64 number, u32 second, u32 third) {
    u32 c0 = static_cast<u32>(number), c1 = static_cast<u32>(number >> 32), c2 = second, c3 = third;
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
    return {{c0, c1, c2, c3}};
}

DEVICE f64 random_point(i64 seed, i32 index) {
    const u32 word = philox(static_cast<u64>(seed), static_cast<u32>(index), 0, 0).w[0];
    return (static_cast<f64>(word) + 0.5) * 2.3283064365386963e-10;  // 2^-32
}
