// The optimizer: the norm of all gradients, the numbers of a step, and the updates, each one pass over its tensors. A
// step that does not apply (a loss or a norm that is not finite) leaves all bytes of parameters, moments and mirrors
// alone.
#include <math.h>

#include "work.h"

namespace ost::OST_UNIT {

KernelTable optimizer_kernels();

namespace {

constexpr int64_t kSquareRun = 4096;  // values whose sum of squares is an entry of the workspace

// float32 in four vectors within a run: 4096 squares make chains of at most 64 and, on the widest vectors, of 16.
OST_INLINE double run_squares(const float* x, int64_t count) {
    vf sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * VW <= count; i += 4 * VW) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const vf value = load(x + i + v * VW);
            sums[v] = fma(value, value, sums[v]);
        }
    }
    for (int v = 0; i < count; i += VW, ++v) {
        const vf value = load_lanes(x + i, static_cast<int>(smaller(VW, count - i)));
        sums[v] = fma(value, value, sums[v]);
    }
    double total = 0;
    for (const vf& each : sums) {
        float lanes[VW];
        store(lanes, each);
        for (const float lane : lanes) total += static_cast<double>(lane);
    }
    return total;
}

// The sum of squares in the order of the runs.
OST_INLINE double all_squares(const Call& call, const float* x, double* partial, int64_t count) {
    const int64_t runs = ceil_div(count, kSquareRun);
    for_rows(call, runs, kStreamNanoseconds * kSquareRun, [=](int64_t begin, int64_t end) {
        for (int64_t run = begin; run < end; ++run) {
            partial[run] = run_squares(x + run * kSquareRun, smaller(kSquareRun, count - run * kSquareRun));
        }
    });
    double total = 0;
    for (int64_t run = 0; run < runs; ++run) total += partial[run];
    return total;
}

// Operands x, workspace (a double for each run), total: the sum of squares, added to what is there where `adds`.
OST_INLINE void squares_kernel(const Call& call, bool adds) {
    const int64_t count = call.integer(0);
    if (count < 0) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, count, 4) || !covers(call, 1, ceil_div(count, kSquareRun), 8) || !covers(call, 2, 1, 4))
        return;
    float* total = call.pointer<float>(2);
    const double found = all_squares(call, call.pointer<const float>(0), call.pointer<double>(1), count);
    *total = static_cast<float>(adds ? static_cast<double>(*total) + found : found);
}
void square_sum(const Call& call) { squares_kernel(call, false); }
void square_sum_add(const Call& call) { squares_kernel(call, true); }

enum Factor { kRate, kBeta1, kBeta2, kEpsilon, kDecay, kFirst, kSecond, kGradientScale, kApply, kNorm, kFactors };

// Operands gradient, factors, parameter, first, second, mirror?. Params: count, decay, dtypes of first, second and
// mirror.
void adamw(const Call& call) {
    const int64_t count = call.integer(0);
    const bool decays = call.integer(1) != 0;
    if (empty(call, count)) return;
    with_float_dtype(call, call.integer(2), [&](auto first_type) {
        with_float_dtype(call, call.integer(3), [&](auto second_type) {
            with_float_dtype(call, call.integer(4), [&](auto mirror_type) {
                using First = decltype(first_type);
                using Second = decltype(second_type);
                using Mirror = decltype(mirror_type);
                Mirror* mirror = call.pointer<Mirror>(5);
                if (!covers(call, 0, count, 4) || !covers(call, 1, kFactors, 4) || !covers(call, 2, count, 4) ||
                    !covers(call, 3, count, sizeof(First)) || !covers(call, 4, count, sizeof(Second)) ||
                    (mirror != nullptr && !covers(call, 5, count, sizeof(Mirror)))) {
                    return;
                }
                const float* gradient = call.pointer<const float>(0);
                const float* f = call.pointer<const float>(1);
                if (f[kApply] == 0.0f) return;
                float* parameter = call.pointer<float>(2);
                First* first = call.pointer<First>(3);
                Second* second = call.pointer<Second>(4);
                const vf scale = splat(f[kGradientScale]), beta2 = splat(f[kBeta2]), epsilon = splat(f[kEpsilon]);
                const vf toward = splat(1.0f - f[kBeta1]), fresh = splat(1.0f - f[kBeta2]);
                const vf kept = splat(decays ? 1.0f - f[kRate] * f[kDecay] : 1.0f);
                const vf rate = splat(f[kRate] * f[kFirst]), correction = splat(f[kSecond]);
                for_elements(call, count, 6 * kStreamNanoseconds, [=](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; i += VW) {
                        const int n = static_cast<int>(smaller(VW, end - i));
                        const vf g = load_lanes(gradient + i, n) * scale;
                        const vf m = load_lanes(first + i, n), v = load_lanes(second + i, n);
                        const vf new_m = fma(toward, g - m, m), new_v = fma(beta2, v, fresh * g * g);
                        const vf p = load_lanes(parameter + i, n) * kept;
                        const vf new_p = p - rate * new_m / (square_root(new_v * correction) + epsilon);
                        store_lanes(parameter + i, new_p, n);
                        store_lanes(first + i, new_m, n);
                        store_lanes(second + i, new_v, n);
                        if (mirror != nullptr) store_lanes(mirror + i, new_p, n);
                    }
                });
            });
        });
    });
}

// A step of gradient descent: g is the scaled gradient and, with `decays`, decay times the parameter. kMomentum: along
// a velocity v = momentum v + g, or with `nesterov` along g + momentum v.
struct Descent {
    int64_t count;
    bool decays;
    bool nesterov;
};

template <bool kMomentum, class Mirror>
OST_INLINE void descend(const Call& call, const Descent& how, const float* gradient, const float* f, float* parameter,
                        float* velocity, Mirror* mirror) {
    if (f[kApply] == 0.0f) return;
    const vf scale = splat(f[kGradientScale]), rate = splat(f[kRate]), momentum = splat(f[kBeta1]);
    const vf decay = splat(how.decays ? f[kDecay] : 0.0f);
    const bool decays = how.decays, nesterov = how.nesterov;
    for_elements(call, how.count, 4 * kStreamNanoseconds, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += VW) {
            const int n = static_cast<int>(smaller(VW, end - i));
            const vf p = load_lanes(parameter + i, n);
            vf g = load_lanes(gradient + i, n) * scale;
            if (decays) g = fma(decay, p, g);
            if constexpr (kMomentum) {
                const vf v = fma(momentum, load_lanes(velocity + i, n), g);
                store_lanes(velocity + i, v, n);
                g = nesterov ? fma(momentum, v, g) : v;
            }
            const vf made = p - rate * g;
            store_lanes(parameter + i, made, n);
            if (mirror != nullptr) store_lanes(mirror + i, made, n);
        }
    });
}

// Operands gradient, factors, parameter, mirror?. Params: count, decay, dtype of mirror.
void sgd(const Call& call) {
    const Descent how = {call.integer(0), call.integer(1) != 0, false};
    if (empty(call, how.count)) return;
    with_float_dtype(call, call.integer(2), [&](auto type) {
        using Mirror = decltype(type);
        Mirror* mirror = call.pointer<Mirror>(3);
        if (!covers(call, 0, how.count, 4) || !covers(call, 1, kFactors, 4) || !covers(call, 2, how.count, 4) ||
            (mirror != nullptr && !covers(call, 3, how.count, sizeof(Mirror)))) {
            return;
        }
        descend<false>(call, how, call.pointer<const float>(0), call.pointer<const float>(1), call.pointer<float>(2),
                       nullptr, mirror);
    });
}

// Operands gradient, factors, parameter, velocity, mirror?. Params: count, decay, nesterov, dtype of mirror.
void sgd_momentum(const Call& call) {
    const Descent how = {call.integer(0), call.integer(1) != 0, call.integer(2) != 0};
    if (empty(call, how.count)) return;
    with_float_dtype(call, call.integer(3), [&](auto type) {
        using Mirror = decltype(type);
        Mirror* mirror = call.pointer<Mirror>(4);
        if (!covers(call, 0, how.count, 4) || !covers(call, 1, kFactors, 4) || !covers(call, 2, how.count, 4) ||
            !covers(call, 3, how.count, 4) || (mirror != nullptr && !covers(call, 4, how.count, sizeof(Mirror)))) {
            return;
        }
        descend<true>(call, how, call.pointer<const float>(0), call.pointer<const float>(1), call.pointer<float>(2),
                      call.pointer<float>(3), mirror);
    });
}

enum Setting { kSetRate, kSetBeta1, kSetBeta2, kSetEpsilon, kSetDecay, kClip, kWarmup, kTotal, kFinal, kSettings };
enum Schedule { kConstant, kLinear, kCosine };

// The learning rate of a step as a part of the setting (ostinato/ir/ops/optimizer.py).
OST_INLINE double ratio(int64_t schedule, double step, double warmup, double total, double final) {
    if (step <= warmup) return step / warmup;
    if (schedule == kConstant) return 1.0;
    const double share = total > warmup ? (step - warmup) / (total - warmup) : 1.0;
    const double passed = share < 1.0 ? share : 1.0;
    if (schedule == kLinear) return 1.0 + (final - 1.0) * passed;
    return final + (1.0 - final) * 0.5 * (1.0 + ::cos(M_PI * passed));
}

// Operands settings, loss, square_sum?, step (updated), factors. Param: schedule. A few scalars, in double.
void optimizer_factors(const Call& call) {
    const int64_t schedule = call.integer(0);
    if (schedule < kConstant || schedule > kCosine) return report(call, OST_INVALID_ARGUMENT);
    const float* squares = call.pointer<const float>(2);
    if (!covers(call, 0, kSettings, 4) || !covers(call, 1, 1, 4) || (squares != nullptr && !covers(call, 2, 1, 4)) ||
        !covers(call, 3, 1, 4) || !covers(call, 4, kFactors, 4)) {
        return;
    }
    const float* given = call.pointer<const float>(0);
    auto* step = call.pointer<int32_t>(3);
    float* factors = call.pointer<float>(4);
    double set[kSettings];
    for (int i = 0; i < kSettings; ++i) set[i] = static_cast<double>(given[i]);
    const double next = static_cast<double>(*step) + 1.0;
    const double norm = squares == nullptr ? 0.0 : ::sqrt(static_cast<double>(*squares));
    const float loss = *call.pointer<const float>(1);
    const bool applies = __builtin_isfinite(loss) && __builtin_isfinite(norm);
    const double clipped = set[kClip] / (norm + 1e-6);
    const double scale = set[kClip] > 0.0 && clipped < 1.0 ? clipped : 1.0;
    factors[kRate] = static_cast<float>(set[kSetRate] * ratio(schedule, next, set[kWarmup], set[kTotal], set[kFinal]));
    factors[kBeta1] = given[kSetBeta1];
    factors[kBeta2] = given[kSetBeta2];
    factors[kEpsilon] = given[kSetEpsilon];
    factors[kDecay] = given[kSetDecay];
    factors[kFirst] = static_cast<float>(1.0 / (1.0 - ::pow(set[kSetBeta1], next)));
    factors[kSecond] = static_cast<float>(1.0 / (1.0 - ::pow(set[kSetBeta2], next)));
    factors[kGradientScale] = applies ? static_cast<float>(scale) : 0.0f;
    factors[kApply] = applies ? 1.0f : 0.0f;
    factors[kNorm] = static_cast<float>(norm);
    if (applies) *step = static_cast<int32_t>(static_cast<uint32_t>(*step) + 1u);
}

constexpr KernelEntry entries[] = {
    {"square_sum", square_sum, 3, 1, 0},
    {"square_sum_add", square_sum_add, 3, 1, 0},
    {"adamw", adamw, 6, 5, 1u << 5},
    {"sgd", sgd, 4, 3, 1u << 3},
    {"sgd_momentum", sgd_momentum, 5, 4, 1u << 4},
    {"optimizer_factors", optimizer_factors, 5, 1, 1u << 2},
};

}  // namespace

KernelTable optimizer_kernels() { return {entries, sizeof entries / sizeof entries[0]}; }

}  // namespace ost::OST_UNIT
