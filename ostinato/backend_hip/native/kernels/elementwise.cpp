// Kernels that treat every element alone: arithmetic and activations. Inputs are widened to float32, the result is
// rounded once. A result may be stored over an input: each vector is read before it is written.
#include "elementwise.h"

#include "gelu.h"

namespace ost::OST_UNIT {

namespace {

// y = f(x...) over the flat range [begin, end).
template <class X, class Y, class F>
OST_INLINE void map_one(const X* x, Y* y, int64_t begin, int64_t end, const F& f) {
    int64_t i = begin;
    for (; i + VW <= end; i += VW) store(y + i, f(load(x + i)));
    if (i < end) store_n(y + i, f(load_n(x + i, static_cast<int>(end - i))), static_cast<int>(end - i));
}
template <class A, class B, class Y, class F>
OST_INLINE void map_two(const A* a, const B* b, Y* y, int64_t begin, int64_t end, const F& f) {
    int64_t i = begin;
    for (; i + VW <= end; i += VW) store(y + i, f(load(a + i), load(b + i)));
    if (i < end) {
        const int n = static_cast<int>(end - i);
        store_n(y + i, f(load_n(a + i, n), load_n(b + i, n)), n);
    }
}

// Operands x, count?, y; rows and width in params 0 and 1.
template <class F>
OST_INLINE void unary(const Call& call, int64_t dtype, int64_t y_dtype, double nanoseconds, const F& f) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 1, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, dtype, [&](auto type) {
        with_float_dtype(call, y_dtype, [&](auto y_type) {
            using X = decltype(type);
            using Y = decltype(y_type);
            const int64_t count = area(capacity, width);
            if (!covers(call, 0, count, sizeof(X)) || !covers(call, 2, count, sizeof(Y))) return;
            const X* x = call.pointer<const X>(0);
            Y* y = call.pointer<Y>(2);
            for_elements(call, rows * width, nanoseconds,
                         [=](int64_t begin, int64_t end) { map_one(x, y, begin, end, f); });
        });
    });
}

// Operands a, b, count?, y.
template <class F>
OST_INLINE void binary(const Call& call, const F& f) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using T = decltype(type);
        const int64_t count = area(capacity, width);
        if (!covers(call, 0, count, sizeof(T)) || !covers(call, 1, count, sizeof(T)) ||
            !covers(call, 3, count, sizeof(T))) {
            return;
        }
        const T* a = call.pointer<const T>(0);
        const T* b = call.pointer<const T>(1);
        T* y = call.pointer<T>(3);
        for_elements(call, rows * width, kStreamNanoseconds,
                     [=](int64_t begin, int64_t end) { map_two(a, b, y, begin, end, f); });
    });
}

void silu_kernel(const Call& call) {
    const int64_t dtype = call.integer(2);
    unary(call, dtype, dtype, kExponentialNanoseconds, [](vf x) { return silu(x); });
}

void tanh_kernel(const Call& call) {
    const int64_t dtype = call.integer(2);
    unary(call, dtype, dtype, kExponentialNanoseconds, [](vf x) { return tanh(x); });
}

// Param 4: 0 for the exact form, 1 for the approximation by tanh.
void gelu_kernel(const Call& call) {
    const int64_t dtype = call.integer(2), y_dtype = call.integer(3), form = call.integer(4);
    switch (form) {
        case 0: return unary(call, dtype, y_dtype, 2 * kExponentialNanoseconds, [](vf x) { return gelu(x); });
        case 1: return unary(call, dtype, y_dtype, kExponentialNanoseconds, [](vf x) { return gelu_tanh(x); });
        default: return report(call, OST_INVALID_ARGUMENT);
    }
}

void scale(const Call& call) {
    const auto factor = static_cast<float>(call.real(2));
    const int64_t dtype = call.integer(3);
    unary(call, dtype, dtype, kStreamNanoseconds, [factor](vf x) { return x * splat(factor); });
}

// Operand 0 only gives the shape and is not read.
void fill(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 1, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(3), [&](auto type) {
        using T = decltype(type);
        if (!covers(call, 2, area(capacity, width), sizeof(T))) return;
        const T value = narrowed<T>(static_cast<float>(call.real(2)));
        T* y = call.pointer<T>(2);
        for_elements(call, rows * width, kStreamNanoseconds, [=](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) y[i] = value;
        });
    });
}

// Operands x, bias (float32, one a column), count?, y.
void add_bias(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, width)) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using T = decltype(type);
        const int64_t count = area(capacity, width);
        if (!covers(call, 0, count, sizeof(T)) || !covers(call, 1, width, 4) || !covers(call, 3, count, sizeof(T))) {
            return;
        }
        const T* x = call.pointer<const T>(0);
        const float* bias = call.pointer<const float>(1);
        T* y = call.pointer<T>(3);
        for_rows(call, rows, kStreamNanoseconds * static_cast<double>(width), [=](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                map_two(x + row * width, bias, y + row * width, 0, width, [](vf a, vf b) { return a + b; });
            }
        });
    });
}

// Operands gate, up, count?, y; rows, runs in each, their width, elements from one run of gate, and of up, to the next.
void swiglu(const Call& call) {
    const int64_t capacity = call.integer(0), runs = call.integer(1), width = call.integer(2);
    const int64_t gate_stride = call.integer(3), up_stride = call.integer(4);
    const int64_t rows = valid_rows(call, 2, capacity);
    if (empty(call, rows, runs, width)) return;
    with_float_dtype(call, call.integer(5), [&](auto type) {
        with_float_dtype(call, call.integer(6), [&](auto y_type) {
            using X = decltype(type);
            using Y = decltype(y_type);
            const int64_t count = area(capacity, runs);
            if (!covers(call, 0, plus(area(count - 1, gate_stride), width), sizeof(X)) ||
                !covers(call, 1, plus(area(count - 1, up_stride), width), sizeof(X)) ||
                !covers(call, 3, area(count, width), sizeof(Y))) {
                return;
            }
            const X* gate = call.pointer<const X>(0);
            const X* up = call.pointer<const X>(1);
            Y* y = call.pointer<Y>(3);
            const auto gated = [](vf g, vf u) __attribute__((always_inline)) { return silu(g) * u; };
            if (gate_stride == width && up_stride == width) {
                return for_elements(call, rows * runs * width, kExponentialNanoseconds,
                                    [=](int64_t begin, int64_t end) { map_two(gate, up, y, begin, end, gated); });
            }
            const double cost = kExponentialNanoseconds * static_cast<double>(width);
            for_rows(call, rows * runs, cost, [=](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    map_two(gate + row * gate_stride, up + row * up_stride, y + row * width, 0, width, gated);
                }
            });
        });
    });
}

void add(const Call& call) {
    binary(call, [](vf a, vf b) { return a + b; });
}

void mul(const Call& call) {
    binary(call, [](vf a, vf b) { return a * b; });
}

constexpr KernelEntry entries[] = {
    {"silu", silu_kernel, 3, 3, 1u << 1},
    {"swiglu", swiglu, 4, 7, 1u << 2},
    {"add", add, 4, 3, 1u << 2},
    {"mul", mul, 4, 3, 1u << 2},
    {"tanh", tanh_kernel, 3, 3, 1u << 1},
    {"gelu", gelu_kernel, 3, 5, 1u << 1},
    {"scale", scale, 3, 4, 1u << 1},
    {"fill", fill, 3, 4, 1u << 1},
    {"add_bias", add_bias, 4, 3, 1u << 2},
    {"cast", cast, 3, 4, 1u << 1},
    {"copy", copy, 2, 14, 0},
    {"gather_rows", gather_rows, 4, 4, 1u << 2},
    {"concat", concat, 10, 10, (0x3fu << 2) | (1u << 8)},
    {"repeat_pair", repeat_pair, 5, 7, 1u << 2},
};

}  // namespace

KernelTable elementwise_kernels();
KernelTable elementwise_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
