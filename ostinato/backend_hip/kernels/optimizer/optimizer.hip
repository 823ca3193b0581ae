// The end of a training step: the numbers that all parameters share, by one thread, and the update of a parameter with
// all that belongs to it, in place and in one pass.
#include "runs.h"

struct Settings {
    f32 learning_rate, beta1, beta2, eps, weight_decay, clip_norm, warmup_steps, total_steps, final_ratio;
};

struct Factors {
    f32 learning_rate, beta1, beta2, eps, weight_decay, first_correction, second_correction, gradient_scale, apply, norm;
};

constexpr i64 LINEAR = 1, COSINE = 2;  // a constant learning rate is 0

// The learning rate of a step in [1, ...), as a part of the setting.
DEVICE f64 learning_ratio(i64 schedule, f64 step, const Settings& given) {
    const f64 warmup = given.warmup_steps, total = given.total_steps, last = given.final_ratio;
    if (step <= warmup) return step / warmup;
    if (schedule != LINEAR && schedule != COSINE) return 1.0;
    const f64 passed = total > warmup ? smaller((step - warmup) / (total - warmup), 1.0) : 1.0;
    if (schedule == LINEAR) return 1.0 + (last - 1.0) * passed;
    return last + (1.0 - last) * 0.5 * (1.0 + cos(3.14159265358979323846 * passed));
}

DEVICE f32 correction(f32 beta, f64 step) {
    return static_cast<f32>(1.0 / (1.0 - pow(static_cast<f64>(beta), step)));
}

DEVICE void optimizer_factors(i32* step, const Settings* settings, const f32* loss, const f32* square_sum,
                              Factors* factors, i64 schedule, Status) {
    if (first_element() != 0) return;
    const Settings given = *settings;
    const f64 next = static_cast<f64>(*step) + 1.0;
    const f64 norm = square_sum == nullptr ? 0.0 : sqrt(static_cast<f64>(*square_sum));
    const f64 distance = static_cast<f64>(*loss) - static_cast<f64>(*loss) + (norm - norm);
    const bool applies = distance == 0.0;  // NaN where one of them is no finite number
    const f64 clipped = given.clip_norm > 0.0f ? smaller(static_cast<f64>(given.clip_norm) / (norm + 1e-6), 1.0) : 1.0;
    *factors = {static_cast<f32>(static_cast<f64>(given.learning_rate) * learning_ratio(schedule, next, given)),
                given.beta1,
                given.beta2,
                given.eps,
                given.weight_decay,
                correction(given.beta1, next),
                correction(given.beta2, next),
                applies ? static_cast<f32>(clipped) : 0.0f,
                applies ? 1.0f : 0.0f,
                static_cast<f32>(norm)};
    if (applies) *step += 1;
}

// The mirror of parameters that were just made, where there is one: what is stored of them, rounded.
template <class M, int N>
DEVICE void reflect(M* mirror, i64 i, const f32 (&parameters)[N]) {
    if (mirror != nullptr) give(mirror + i, parameters);
}

// `decay`: whether the parameter decays. What one of several updates: by number, in steps of how many there are. Nothing
// is written where the step does not apply. RUNS: several neighbours at a time, where memory lies so.
template <bool RUNS, class F, class S, class M>
DEVICE void adamw_share(f32* parameter, const f32* gradient, F* first, S* second, const Factors* factors, M* mirror,
                        i64 size, i64 decay, i64 number, i64 step) {
    const Factors by = *factors;
    if (by.apply == 0.0f) return;
    const f32 kept = decay ? 1.0f - by.learning_rate * by.weight_decay : 1.0f;
    const f32 rate = by.learning_rate * by.first_correction;
    const bool whole =
        RUNS && aligned(parameter) && aligned(gradient) && aligned(first) && aligned(second) && aligned(mirror);
    share_runs(number, step, size, whole, [=](i64 i, auto n) {
        f32 parameters[n.value], gradients[n.value], firsts[n.value], seconds[n.value];
        take(parameter + i, parameters);
        take(gradient + i, gradients);
        take(first + i, firsts);
        take(second + i, seconds);
#pragma unroll
        for (int k = 0; k < n.value; ++k) {
            const f32 g = gradients[k] * by.gradient_scale;
            firsts[k] = fmaf(by.beta1, firsts[k], (1.0f - by.beta1) * g);
            seconds[k] = fmaf(by.beta2, seconds[k], (1.0f - by.beta2) * g * g);
            const f32 size = sqrtf(seconds[k] * by.second_correction) + by.eps;
            parameters[k] = parameters[k] * kept - rate * firsts[k] / size;
        }
        give(parameter + i, parameters);
        give(first + i, firsts);
        give(second + i, seconds);
        reflect(mirror, i, parameters);
    });
}

template <class F, class S, class M>
DEVICE void adamw(f32* parameter, const f32* gradient, F* first, S* second, const Factors* factors, M* mirror, i64 size,
                  i64 decay, Status) {
    adamw_share<true>(parameter, gradient, first, second, factors, mirror, size, decay, first_element(),
                      element_step());
}

// The same, an element a thread.
template <class F, class S, class M>
DEVICE void adamw_scalar(f32* parameter, const f32* gradient, F* first, S* second, const Factors* factors, M* mirror,
                         i64 size, i64 decay, Status) {
    adamw_share<false>(parameter, gradient, first, second, factors, mirror, size, decay, first_element(),
                       element_step());
}

// The same of up to 8 parameters, a row of blocks each.
template <class F, class S>
DEVICE void adamw_group(const Factors* factors, f32* p0, const f32* g0, F* f0, S* s0, f32* p1, const f32* g1, F* f1,
                        S* s1, f32* p2, const f32* g2, F* f2, S* s2, f32* p3, const f32* g3, F* f3, S* s3, f32* p4,
                        const f32* g4, F* f4, S* s4, f32* p5, const f32* g5, F* f5, S* s5, f32* p6, const f32* g6, F* f6,
                        S* s6, f32* p7, const f32* g7, F* f7, S* s7, i64 n0, i64 n1, i64 n2, i64 n3, i64 n4, i64 n5,
                        i64 n6, i64 n7, i64 decay, Status) {
    const auto update = [=](f32* parameter, const f32* gradient, F* first, S* second, i64 size) {
        bf16* const mirror = nullptr;
        adamw_share<true>(parameter, gradient, first, second, factors, mirror, size, decay, first_element(),
                          element_step());
    };
    for (u32 member = block_index_y(); member < 8; member += block_count_y()) {
        switch (member) {
            case 0: update(p0, g0, f0, s0, n0); break;
            case 1: update(p1, g1, f1, s1, n1); break;
            case 2: update(p2, g2, f2, s2, n2); break;
            case 3: update(p3, g3, f3, s3, n3); break;
            case 4: update(p4, g4, f4, s4, n4); break;
            case 5: update(p5, g5, f5, s5, n5); break;
            case 6: update(p6, g6, f6, s6, n6); break;
            default: update(p7, g7, f7, s7, n7); break;
        }
    }
}

// The gradient of SGD: that of the loss, scaled, and that of the decay.
struct Descent {
    f32 scale, decay;
    DEVICE Descent(const Factors& by, i64 decays)
        : scale(by.gradient_scale), decay(decays ? by.weight_decay : 0.0f) {}
    DEVICE f32 operator()(f32 parameter, f32 gradient) const { return fmaf(decay, parameter, gradient * scale); }
};

template <class M>
DEVICE void sgd(f32* parameter, const f32* gradient, const Factors* factors, M* mirror, i64 size, i64 decay, Status) {
    const Factors by = *factors;
    if (by.apply == 0.0f) return;
    const Descent descent(by, decay);
    const bool whole = aligned(parameter) && aligned(gradient) && aligned(mirror);
    for_runs(size, whole, [=](i64 i, auto n) {
        f32 parameters[n.value], gradients[n.value];
        take(parameter + i, parameters);
        take(gradient + i, gradients);
#pragma unroll
        for (int k = 0; k < n.value; ++k) {
            parameters[k] -= by.learning_rate * descent(parameters[k], gradients[k]);
        }
        give(parameter + i, parameters);
        reflect(mirror, i, parameters);
    });
}

// `nesterov`: whether the step looks ahead by the momentum, which is beta1.
template <class M>
DEVICE void sgd_momentum(f32* parameter, const f32* gradient, f32* velocity, const Factors* factors, M* mirror,
                         i64 size, i64 decay, i64 nesterov, Status) {
    const Factors by = *factors;
    if (by.apply == 0.0f) return;
    const Descent descent(by, decay);
    const bool whole = aligned(parameter) && aligned(gradient) && aligned(velocity) && aligned(mirror);
    for_runs(size, whole, [=](i64 i, auto n) {
        f32 parameters[n.value], gradients[n.value], velocities[n.value];
        take(parameter + i, parameters);
        take(gradient + i, gradients);
        take(velocity + i, velocities);
#pragma unroll
        for (int k = 0; k < n.value; ++k) {
            const f32 g = descent(parameters[k], gradients[k]);
            velocities[k] = fmaf(by.beta1, velocities[k], g);
            parameters[k] -= by.learning_rate * (nesterov ? fmaf(by.beta1, velocities[k], g) : velocities[k]);
        }
        give(parameter + i, parameters);
        give(velocity + i, velocities);
        reflect(mirror, i, parameters);
    });
}
