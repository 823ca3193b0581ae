// Products of 16 x 32 by 32 x 16 values on the matrix units, with f32 sums: mma.sync of sm_80 and later, MFMA of gfx9,
// WMMA of gfx11, and plain loops under the emulator. T is f16 or bf16.
//
// Both operands are 16 rows of memory with the 32 values of a row together (the second one is a matrix seen from its
// columns), and every lane loads whole runs of 8 values. Which of the 32 positions a value is multiplied at is the
// hardware's business, as long as it is the same one in both operands: so no values change lanes. What a lane holds is
// different everywhere; `row` and `column` say where its sums belong.
#pragma once
#include "words.h"

constexpr int TILE = 16;         // rows and columns of sums
constexpr int TILE_DEPTH = 32;  // values of a row that one product takes
constexpr int RUN = 8;          // of them in 16 bytes

#if defined(OSTINATO_EMULATOR)

constexpr int SUMS = TILE * TILE / WAVE;
struct Sums {
    f32 values[SUMS] = {};
    static DEVICE int row(int i) { return i * (WAVE / TILE) + lane() / TILE; }
    static DEVICE int column(int) { return lane() % TILE; }
};
constexpr int ROWS_HELD = SUMS, ROW_LANES = TILE;
DEVICE constexpr int held_row_of(int i) { return i; }
template <class T>
struct Rows {
    f32 values[SUMS][TILE_DEPTH];
    DEVICE void load(const T* first, i64 stride, int last) {
        load_shared([=](int row, int run) { return first + smaller(row, last) * stride + run * RUN; });
    }
    template <class Place>
    DEVICE void load_shared(Place place) {
        for (int i = 0; i < SUMS; ++i) {
            for (int k = 0; k < TILE_DEPTH; ++k) values[i][k] = widen(place(Sums::row(i), k / RUN)[k % RUN]);
        }
    }
};
template <class T>
struct Columns {
    f32 values[TILE_DEPTH];
    DEVICE void load(const T* first, i64 stride, int last) {
        load_shared([=](int row, int run) { return first + smaller(row, last) * stride + run * RUN; });
    }
    template <class Place>
    DEVICE void load_shared(Place place) {
        for (int k = 0; k < TILE_DEPTH; ++k) values[k] = widen(place(Sums::column(0), k / RUN)[k % RUN]);
    }
    template <class Place>
    DEVICE void load_turned(Place place) {
        const int d = Sums::column(0);
        for (int k = 0; k < TILE_DEPTH; ++k) values[k] = widen(place(k, d / RUN)[d % RUN]);
    }
};
template <class T>
DEVICE void multiply(Sums& sums, const Rows<T>& a, const Columns<T>& b) {
    for (int i = 0; i < SUMS; ++i) {
        for (int k = 0; k < TILE_DEPTH; ++k) sums.values[i] = fmaf(a.values[i][k], b.values[k], sums.values[i]);
    }
}

#else

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)

#if WAVE == 64
// MFMA 16x16x16: a lane has 4 values of row lane % 16 at 4 * (lane / 16), and 4 sums of column lane % 16.
constexpr int SUMS = 4, HELD_RUNS = 1;
DEVICE int held_row(int) { return lane() % TILE; }
DEVICE int held_run(int) { return lane() / TILE; }
DEVICE int sum_row(int i) { return lane() / TILE * 4 + i; }
DEVICE int sum_column(int) { return lane() % TILE; }
#else
// WMMA 16x16x16: a lane has all values of row lane % 16, and every other sum of column lane % 16.
constexpr int SUMS = 8, HELD_RUNS = 4;
DEVICE int held_row(int) { return lane() % TILE; }
DEVICE int held_run(int i) { return i; }
DEVICE int sum_row(int i) { return 2 * i + lane() / TILE; }
DEVICE int sum_column(int) { return lane() % TILE; }
#endif

#else
// mma.m16n8k16, twice for 16 columns: a lane has pairs of values of rows lane / 4 and lane / 4 + 8.
constexpr int SUMS = 8, HELD_RUNS = 2;
DEVICE int held_row(int i) { return lane() / 4 + 8 * i; }
DEVICE int held_run(int) { return lane() % 4; }
DEVICE int sum_row(int i) { return lane() / 4 + i % 4 / 2 * 8; }
DEVICE int sum_column(int i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }
#endif

// A lane has sums of ROWS_HELD rows, of which i is that of sum `held_row_of`; ROW_LANES neighbours have all of a row.
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
constexpr int ROWS_HELD = SUMS, ROW_LANES = TILE;
DEVICE constexpr int held_row_of(int i) { return i; }
#else
constexpr int ROWS_HELD = 2, ROW_LANES = 4;
DEVICE constexpr int held_row_of(int i) { return i % 4 / 2; }
#endif

struct Sums {
    f32 values[SUMS] = {};
    static DEVICE int row(int i) { return sum_row(i); }
    static DEVICE int column(int i) { return sum_column(i); }
};

#if !defined(__HIP_PLATFORM_AMD__) && !defined(__HIP_DEVICE_COMPILE__)
// Four matrices of 8 rows of 16 bytes, each lane's address being that of a row; a lane gets two values of row lane / 4
// of each matrix, or of column lane / 4 where they are turned.
DEVICE void load_matrices(Words& words, const void* row) {
    u32(&w)[4] = words.w;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void load_turned_matrices(Words& words, const void* row) {
    u32(&w)[4] = words.w;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(shared_address(row))
                 : "memory");
}
#endif

// 16 rows of 32 values from `first` on, `stride` apart; rows past the `last` repeat it, so that nothing else is read.
template <class T>
struct Held {
    Words runs[HELD_RUNS];
    DEVICE void load(const T* first, i64 stride, int last) {
#pragma unroll
        for (int i = 0; i < HELD_RUNS; ++i) {
            runs[i] = load_words(first + smaller(held_row(i), last) * stride + held_run(i) * RUN);
        }
    }
    // From shared memory: run r of row i lies at place(i, r). Positions differ from those of load().
    template <class Place>
    DEVICE void load_shared(Place place) {
#pragma unroll
        for (int i = 0; i < HELD_RUNS; ++i) {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
            runs[i] = load_words(place(held_row(i), held_run(i)));
#else
            load_matrices(runs[i], place(i * 8 + lane() % 8, lane() / 8));
#endif
        }
    }
};
template <class T>
struct Rows : Held<T> {};
template <class T>
struct Columns : Held<T> {
    // From shared memory as it is seen from its other side, 32 rows of 16 values: run r of row i lies at place(i, r).
    template <class Place>
    DEVICE void load_turned(Place place) {
#pragma unroll
        for (int i = 0; i < HELD_RUNS; ++i) {
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
            Words words = {};
#pragma unroll
            for (int k = 0; k < RUN; ++k) {
                put(words, k, place(held_run(i) * RUN + k, held_row(i) / RUN)[held_row(i) % RUN]);
            }
            this->runs[i] = words;
#else
            load_turned_matrices(this->runs[i], place(lane(), i));
#endif
        }
    }
};

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)

typedef f32 Sums4 __attribute__((ext_vector_type(4)));
typedef f32 Sums8 __attribute__((ext_vector_type(8)));
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef short Short16 __attribute__((ext_vector_type(16)));
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half16 __attribute__((ext_vector_type(16)));

struct Run4 {
    u32 w[2];
};
struct Run16 {
    Words w[2];
};

#if WAVE == 64
DEVICE Sums4 product(Run4 a, Run4 b, Sums4 sums, const bf16*) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Short4, a), __builtin_bit_cast(Short4, b), sums,
                                                     0, 0, 0);
}
DEVICE Sums4 product(Run4 a, Run4 b, Sums4 sums, const f16*) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Half4, a), __builtin_bit_cast(Half4, b), sums, 0, 0,
                                                 0);
}
template <class T>
DEVICE void multiply(Sums& sums, const Rows<T>& a, const Columns<T>& b) {
    Sums4 total = __builtin_bit_cast(Sums4, sums);
    for (int s = 0; s < 4; s += 2) {
        const Run4 left = {{a.runs[0].w[s], a.runs[0].w[s + 1]}}, right = {{b.runs[0].w[s], b.runs[0].w[s + 1]}};
        total = product(left, right, total, static_cast<const T*>(nullptr));
    }
    sums = __builtin_bit_cast(Sums, total);
}
#else
DEVICE Sums8 product(Run16 a, Run16 b, Sums8 sums, const bf16*) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Short16, a), __builtin_bit_cast(Short16, b),
                                                       sums);
}
DEVICE Sums8 product(Run16 a, Run16 b, Sums8 sums, const f16*) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Half16, a), __builtin_bit_cast(Half16, b),
                                                      sums);
}
template <class T>
DEVICE void multiply(Sums& sums, const Rows<T>& a, const Columns<T>& b) {
    Sums8 total = __builtin_bit_cast(Sums8, sums);
    for (int s = 0; s < 4; s += 2) {
        const Run16 left = {{a.runs[s], a.runs[s + 1]}}, right = {{b.runs[s], b.runs[s + 1]}};
        total = product(left, right, total, static_cast<const T*>(nullptr));
    }
    sums = __builtin_bit_cast(Sums, total);
}
#endif

#else

DEVICE void product(f32* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const bf16*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void product(f32* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const f16*) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <class T>
DEVICE void multiply(Sums& sums, const Rows<T>& a, const Columns<T>& b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
            product(sums.values + 4 * half, a.runs[0].w[s], a.runs[1].w[s], a.runs[0].w[s + 1], a.runs[1].w[s + 1],
                    b.runs[half].w[s], b.runs[half].w[s + 1], static_cast<const T*>(nullptr));
        }
    }
}

#endif
#endif

// Values from row to row of shared memory, so that the lanes of a load hit different banks; `width` of them are used.
DEVICE constexpr int spread(int width) {
#if defined(OSTINATO_EMULATOR) || defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
    return width + RUN;
#else
    return width % 64 == 0 ? width + 32 : width;
#endif
}

// A value as the sum of two halves, which is as good as f32 where neither runs out of its range.
template <class T>
DEVICE void cut(f32 value, T& high, T& low) {
    narrow(value, high);
    narrow(value - widen(high), low);
}

// 16 rows of 32 sums, cut so, as rows for another product with columns that were turned. `scratch` is this wave's own
// and has CUT_VALUES values.
#if defined(OSTINATO_EMULATOR) || defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
constexpr int CUT_STRIDE = TILE_DEPTH + RUN, CUT_VALUES = TILE * CUT_STRIDE;
template <class T>
DEVICE void cut_rows(const Sums (&sums)[TILE_DEPTH / TILE], Rows<T>& high, Rows<T>& low, T* scratch) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        wave_barrier();
#pragma unroll
        for (int c = 0; c < TILE_DEPTH / TILE; ++c) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                T top, rest;
                cut(sums[c].values[i], top, rest);
                scratch[Sums::row(i) * CUT_STRIDE + c * TILE + Sums::column(i)] = part == 0 ? top : rest;
            }
        }
        wave_barrier();
        if (part == 0) high.load(scratch, CUT_STRIDE, TILE - 1);
        if (part == 1) low.load(scratch, CUT_STRIDE, TILE - 1);
    }
}
#else
constexpr int CUT_VALUES = 0;
DEVICE u32 two_halves(f32 first, f32 second, const bf16*) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
DEVICE u32 two_halves(f32 first, f32 second, const f16*) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
// A lane has the very sums that it needs: a pair of columns is a pair of values of a run.
template <class T>
DEVICE void cut_rows(const Sums (&sums)[TILE_DEPTH / TILE], Rows<T>& high, Rows<T>& low, T*) {
    constexpr const T* kind = nullptr;
#pragma unroll
    for (int c = 0; c < TILE_DEPTH / TILE; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const f32 first = sums[c].values[4 * half + 2 * r], second = sums[c].values[4 * half + 2 * r + 1];
                Words words = {};
                words.w[0] = two_halves(first, second, kind);
                high.runs[r].w[2 * c + half] = words.w[0];
                low.runs[r].w[2 * c + half] =
                    two_halves(first - value_in(words, 0, kind), second - value_in(words, 1, kind), kind);
            }
        }
    }
}
#endif
