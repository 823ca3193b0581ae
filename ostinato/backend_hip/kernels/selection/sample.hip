// One token a row from its logits: temperature, top-k, top-p, min-p, then the inverse of the distribution function. A
// block a row.
//
// Nothing is sorted or moved. Top-k and top-p both ask for the shortest prefix, in order of descending value and
// ascending index, whose weight reaches a goal (a count, a probability); a search over the digits of (value, index)
// finds the last member. The workspace has an f32 a logit: (logit - largest) / temperature, then its exponential, which
// is 0 for what was dropped. Exponentials are f64 and rounded once, sums are f64: the definition of the operator.
#include "random.h"
#include "rows.h"

constexpr int THREADS = 256;
constexpr int DIGIT_BITS = 4;
constexpr int DIGITS = 1 << DIGIT_BITS;

// An order of a row's elements: by the value's own key, then by index; and what each of them weighs.
struct Order {
    bool weighted;  // values are exponentials, in [0, 1] and the largest is 1; else they are at most 0 and count 1 each
    DEVICE u64 key(i64 i, f32 value) const {
        const u32 own = weighted ? 0x3f800000u - bits_of(value) : bits_of(value) & 0x7fffffffu;
        return static_cast<u64>(own) << 32 | static_cast<u64>(i);
    }
    DEVICE f64 weight(f32 value) const { return weighted ? static_cast<f64>(value) : 1.0; }
    // What one element weighs that has this key.
    DEVICE f64 weight_of(u64 key) const {
        return weighted ? static_cast<f64>(float_of(0x3f800000u - static_cast<u32>(key >> 32))) : 1.0;
    }
};

// The last key of the shortest prefix whose weight reaches `goal`; the last key that has any weight where rounding
// keeps the goal out of reach. Digits are found from the highest on: every thread adds up the weights of its elements
// by digit in a column of its own, then columns are added in a fixed order.
DEVICE u64 find_edge(Order order, const f32* values, i64 count, f64 goal) {
    SHARED(f64, buckets, DIGITS * THREADS);
    SHARED(f64, parts, THREADS);
    SHARED(u64, found, 1);
    SHARED(f64, passed, 1);
    SHARED(f64, taken, 1);
    int index_bits = 0;
    while (index_bits < 32 && (count - 1) >> index_bits) index_bits += DIGIT_BITS;
    const int t = thread_index(), share = THREADS / DIGITS;
    u64 prefix = 0, known = index_bits == 32 ? 0 : ~0ull << index_bits & 0xffffffffull;  // these index bits are 0
    f64 before = 0.0;
    for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        if (shift < 32 && shift >= index_bits) continue;
        for (int d = 0; d < DIGITS; ++d) buckets[d * THREADS + t] = 0.0;
        for_values(values, count, [&](i64 i, f32 value) {
            const u64 k = order.key(i, value);
            if ((k & known) == prefix) buckets[(k >> shift) % DIGITS * THREADS + t] += order.weight(value);
        });
        block_barrier();
        f64 part = 0.0;
        for (int i = 0; i < share; ++i) part += buckets[t * share + i];  // of digit t / share
        parts[t] = part;
        block_barrier();
        if (t == 0) {
            int chosen = 0;
            f64 total = before;
            *passed = before;
            for (int d = 0; d < DIGITS; ++d) {
                f64 bucket = 0.0;
                for (int i = 0; i < share; ++i) bucket += parts[d * share + i];
                if (bucket == 0.0) continue;
                chosen = d;
                *passed = total;
                *taken = bucket;
                total += bucket;
                if (total >= goal) break;
            }
            *found = prefix | static_cast<u64>(chosen) << shift;
        }
        block_barrier();
        prefix = *found;
        before = *passed;
        // One element has this value: its index need not be found.
        if (shift == 32 && *taken == order.weight_of(prefix)) return prefix | 0xffffffffu;
        known |= static_cast<u64>(DIGITS - 1) << shift;
    }
    return prefix;
}

// The first token at which the running weight passes point * total; each thread adds up a run of tokens, the first one
// goes over the runs. Only rounding can leave nothing: then the last token that has any weight.
DEVICE i64 draw(const f32* weights, i64 width, f64 point) {
    SHARED(f64, sums, THREADS);
    SHARED(i64, chosen, 1);
    const i64 run = (width + THREADS - 1) / THREADS, t = thread_index();
    f64 sum = 0.0;
    for (i64 i = t * run; i < smaller(width, (t + 1) * run); ++i) sum += static_cast<f64>(weights[i]);
    sums[t] = sum;
    block_barrier();
    if (t == 0) {
        f64 total = 0.0, passed = 0.0;
        for (int i = 0; i < THREADS; ++i) total += sums[i];
        const f64 goal = point * total;
        i64 i = 0, last = -1;
        while (i < THREADS - 1 && passed + sums[i] <= goal) passed += sums[i++];
        for (i *= run; i < width && passed <= goal; ++i) {
            passed += static_cast<f64>(weights[i]);
            if (weights[i] != 0.0f) last = i;
        }
        if (last < 0) last = width - 1;
        while (weights[last] == 0.0f) --last;
        *chosen = last;
    }
    block_barrier();
    return *chosen;
}

DEVICE i64 choose(const f32* logits, i64 width, f32 peak, f32 temperature, i64 top_k, f32 top_p, f32 min_p, f64 point,
                  f32* values) {
    for_values(logits, width, [=](i64 i, f32 logit) { values[i] = (logit - peak) / temperature; });
    const Order by_value = {false}, by_weight = {true};
    const bool cut = top_k > 0 && top_k < width;
    u64 edge = cut ? find_edge(by_value, values, width, static_cast<f64>(top_k)) : ~0ull;
    f64 total = 0.0;
    for_values(values, width, [&](i64 i, f32 value) {
        const f32 weight = by_value.key(i, value) <= edge ? static_cast<f32>(exp(static_cast<f64>(value))) : 0.0f;
        values[i] = weight;
        total += static_cast<f64>(weight);
    });
    if (top_p < 1.0f) {
        edge = find_edge(by_weight, values, width, static_cast<f64>(top_p) * block_sum(total));
        for_values(values, width, [=](i64 i, f32 weight) {
            if (by_weight.key(i, weight) > edge) values[i] = 0.0f;
        });
    }
    for_values(values, width, [=](i64 i, f32 weight) {
        if (weight < smaller(min_p, 1.0f)) values[i] = 0.0f;
    });
    block_barrier();
    return draw(values, width, point);
}

DEVICE void sample(const f32* logits, const f32* temperature, const i32* top_k, const f32* top_p, const f32* min_p,
                   const i64* seed, const i32* index, const i32* count, i32* token, f32* workspace, i64 rows, i64 width,
                   Status) {
    const i64 valid = valid_rows(count, rows);
    for (i64 row = block_index(); row < valid; row += block_count()) {
        const f32* const x = logits + row * width;
        const f32 heat = temperature[row], peak = row_peak(x, width);
        const bool sensible = heat >= 0.0f && heat < infinity() && top_p[row] == top_p[row] && min_p[row] == min_p[row];
        i64 chosen = -1;
        if (usable(peak) && sensible && heat == 0.0f) {
            chosen = first_place(x, width, peak);
        } else if (usable(peak) && sensible) {
            const f64 point = random_point(seed[row], index[row]);
            chosen = choose(x, width, peak, heat, top_k[row], top_p[row], min_p[row], point, workspace + row * width);
        }
        if (thread_index() == 0) token[row] = static_cast<i32>(chosen);
        block_barrier();
    }
}
