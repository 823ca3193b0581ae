// One token a row from its logits, by several blocks a row: temperature, top-k, top-p, min-p, then the inverse of the
// distribution function.
//
// Greedy rows take the largest logit. Of other rows every block finds it by itself. Then blocks share the slices of the
// row: values are scaled, or weighed where there is no top-k, and a histogram of each slice goes to the workspace. The
// last block that is done adds histograms up, which says in which bin top-k or top-p ends. Where it has a thread for
// every element up to there, which is the rule, those are gathered and each of them finds its own place. Else the bin
// is divided until the last element is known.
//
// Exponentials are f64 and rounded once, sums are f64: the definition of the operator. The workspace of a row has an
// f32 a logit, then two u32 a bin and an f64 for each slice.
#include "prefix.h"
#include "random.h"

constexpr i64 UNIT = GROUP * 4;  // elements whose weights a group of lanes adds up at a time

// The first thread at which the running weight passes the goal, and what runs before it; the last one that has any
// weight where only rounding keeps the goal out of reach.
struct Pick {
    i64 thread;
    f64 before;
};
DEVICE Pick pick(f64 weight, f64 passed, f64 goal) {
    SHARED(f64, before, 1);
    const i64 t = thread_index();
    const f64 running = passed + block_running_sum(weight);
    const i64 nearest = block_reduce(weight > 0.0 && running > goal ? t : THREADS, Smallest());
    const i64 chosen = nearest < THREADS ? nearest : block_reduce(weight > 0.0 ? t : -1, Largest());
    if (t == chosen) *before = running - weight;
    block_barrier();
    const Pick made = {chosen, *before};
    block_barrier();
    return made;
}

struct Settings {
    f32 temperature;
    i64 top_k;
    f32 top_p, min_p;
    f64 point;
    DEVICE bool heavy(f32 weight) const { return weight > 0.0f && weight >= smaller(min_p, 1.0f); }
};

DEVICE f32 weight_of(f32 scaled) { return static_cast<f32>(exp(static_cast<f64>(scaled))); }

// The token, from the elements whose keys are below `end`, of which there are at most as many as threads; `total` is
// what the row weighs where there is no top-k.
DEVICE i64 choose_from_few(Order order, u64 end, const f32* values, i64 width, const Settings& settings, f64 total) {
    SHARED(u32, length, 1);
    SHARED(u32, places, THREADS);
    SHARED(f32, found, THREADS);
    SHARED(u32, tokens, THREADS);
    SHARED(f32, weights, THREADS);
    const int t = thread_index();
    if (t == 0) *length = 0;
    block_barrier();
    for_words<4>(values, 0, width, [&](u32 i, f32 value) {
        if (order.key(i, value) >= end) return;
        const u32 slot = atomic_add(length, 1u);
        places[slot] = i;
        found[slot] = value;
    });
    block_barrier();
    const int count = static_cast<int>(*length);
    if (t < count) {
        int at = 0;
        for (int j = 0; j < count; ++j) at += places[j] < places[t];
        tokens[at] = places[t];
        weights[at] = found[t];
    }
    block_barrier();
    f32 own = t < count ? weights[t] : 0.0f;
    if (!order.weighted) {
        const u32 key = order.own(own);
        int ahead = 0;
        for (int j = 0; t < count && j < count; ++j) {
            const u32 other = order.own(weights[j]);
            ahead += other < key || (other == key && j < t);
        }
        own = t < count && ahead < settings.top_k ? weight_of(own) : 0.0f;
        block_barrier();
        if (t < count) weights[t] = own;
        total = block_sum(static_cast<f64>(own));  // a barrier, too
    }
    if (settings.top_p < 1.0f) {
        const f64 goal = static_cast<f64>(settings.top_p) * total;
        f64 before = 0.0;
        bool first = true;
        for (int j = 0; t < count && j < count; ++j) {
            if (!(weights[j] > own || (weights[j] == own && j < t))) continue;
            before += static_cast<f64>(weights[j]);
            first = false;
        }
        if (!first && before >= goal) own = 0.0f;
    }
    const f64 weight = settings.heavy(own) ? static_cast<f64>(own) : 0.0;
    const i64 chosen = pick(weight, 0.0, settings.point * block_sum(weight)).thread;
    return tokens[chosen];
}

// What each unit of [first, end) weighs, at most a slice; `first` is a multiple of a unit.
DEVICE void weigh_units(const f32* weights, i64 first, i64 end, const Settings& settings, f64* units) {
    for (i64 turn = first; turn < end; turn += group_count() * UNIT) {
        const i64 unit = turn + group_index() * UNIT;
        f64 sum = 0.0;
        for (int i = 0; i < UNIT / GROUP; ++i) {
            const i64 at = unit + i * GROUP + group_lane();
            const f32 weight = at < end ? weights[at] : 0.0f;
            if (settings.heavy(weight)) sum += static_cast<f64>(weight);
        }
        sum = group_sum(sum);
        if (group_lane() == 0 && unit < end) units[unit / UNIT] = sum;
    }
}

// The token, from what the units weigh.
DEVICE i64 choose_from_units(const f32* weights, i64 width, const Settings& settings, const f64* units) {
    SHARED(i64, unit, 1);
    SHARED(f64, before, 1);
    const i64 t = thread_index(), count = (width + UNIT - 1) / UNIT, run = (count + THREADS - 1) / THREADS;
    f64 own = 0.0;
    for (i64 u = t * run; u < smaller(count, (t + 1) * run); ++u) own += units[u];
    const f64 goal = settings.point * block_sum(own);
    const Pick at = pick(own, 0.0, goal);
    if (t == at.thread) {  // the same over its own units
        f64 passed = at.before;
        for (i64 u = t * run; u < smaller(count, (t + 1) * run) && passed <= goal; ++u) {
            if (units[u] == 0.0) continue;
            *unit = u;
            *before = passed;
            passed += units[u];
        }
    }
    block_barrier();
    const i64 first = *unit * UNIT;
    const f32 weight = t < UNIT && first + t < width ? weights[first + t] : 0.0f;
    return first + pick(settings.heavy(weight) ? static_cast<f64>(weight) : 0.0, *before, goal).thread;
}

// The workspace of a row.
struct Space {
    f32* values;
    u32* counts;  // of each slice, then as many distances; where nothing is cut, an f64 a unit instead
    f64* rests;
    i64 slices;
    DEVICE f64* units() const { return reinterpret_cast<f64*>(counts); }
};
DEVICE Space space_of(u8* workspace, i64 row, i64 width) {
    const i64 slices = (width + SLICE - 1) / SLICE, values = (width + 3) / 4 * 16, bins = slices * BINS * 8;
    u8* const first = workspace + row * (values + bins + (slices + 1) / 2 * 16);
    return {reinterpret_cast<f32*>(first), reinterpret_cast<u32*>(first + values),
            reinterpret_cast<f64*>(first + values + bins), slices};
}

// A block's share: values of a slice, and their histogram or what their units weigh.
DEVICE void take_slice(Order order, bool cut, const f32* logits, i64 width, f32 peak, const Settings& settings,
                       Space space, i64 slice) {
    const i64 first = slice * SLICE, end = smaller(width, first + SLICE);
    f32* const values = space.values;
    for_words<2>(logits, first, end, [&](u32 i, f32 logit) {
        const f32 scaled = (logit - peak) / settings.temperature;
        values[i] = order.weighted ? weight_of(scaled) : scaled;
    });
    block_barrier();
    if (!cut) {
        weigh_units(values, first, end, settings, space.units());
        return;
    }
    Bins bins = {};
    f64 rest = 0.0;
    add_all(order, values, first, end, bins, rest);
    u32* const counts = space.counts + slice * 2 * BINS;
    for (int i = 0; i < OWN_BINS; ++i) {
        counts[thread_index() * OWN_BINS + i] = static_cast<u32>(bins.counts[i]);
        counts[BINS + thread_index() * OWN_BINS + i] = static_cast<u32>(bins.distances[i]);
    }
    rest = block_sum(rest);
    if (thread_index() == 0) space.rests[slice] = rest;
}

// The end of the prefix whose weight reaches `share` of the row, or of `top_k` elements, from the bins of all slices;
// `total` becomes what the row weighs.
DEVICE End end_of(Order order, Bins bins, f64 rest, f64& goal, f64& total) {
    const End start = {first_range(order), 0, 0, 0.0};
    if (order.weighted) {
        f64 own = 0.0;
        for (int i = 0; i < OWN_BINS; ++i) {
            own += mass(order, start.range, thread_index() * OWN_BINS + i, bins.counts[i], bins.distances[i]);
        }
        total = block_sum(own) + rest;
        goal *= total;
    }
    return narrowed(order, start, bins, goal);
}

// The token, where more elements than threads are kept.
DEVICE i64 choose_from_many(Order order, End end, f64 goal, i64 width, const Settings& settings, const Space& space) {
    f32* const values = space.values;
    u64 last = last_key(order, end, values, width, goal);
    block_barrier();
    if (!order.weighted) {  // top-k is done, now top-p of what is left
        for_words<2>(values, 0, width, [&](u32 i, f32 value) {
            values[i] = order.key(i, value) <= last ? weight_of(value) : 0.0f;
        });
        block_barrier();
        order.weighted = true;
        last = ~0ull;
        if (settings.top_p < 1.0f) {
            Bins bins = {};
            f64 rest = 0.0, total = 0.0;
            for (i64 at = 0; at < width; at += SLICE) {
                add_all(order, values, at, smaller(width, at + SLICE), bins, rest);
            }
            goal = static_cast<f64>(settings.top_p);
            end = end_of(order, bins, block_sum(rest), goal, total);
            last = last_key(order, end, values, width, goal);
        }
    }
    block_barrier();
    for_words<2>(values, 0, width, [&](u32 i, f32 value) {
        if (order.key(i, value) > last) values[i] = 0.0f;
    });
    block_barrier();
    weigh_units(values, 0, width, settings, space.units());
    block_barrier();
    return choose_from_units(values, width, settings, space.units());
}

// By one block, after all slices are taken.
DEVICE i64 choose(Order order, bool cut, i64 width, const Settings& settings, Space space) {
    f32* const values = space.values;
    if (!cut) return choose_from_units(values, width, settings, space.units());
    const int own = thread_index() * OWN_BINS;
    Bins bins = {};
    f64 rest = 0.0, total = 0.0;
    for (i64 slice = 0; slice < space.slices; ++slice) {
        const u32* const counts = space.counts + slice * 2 * BINS;
        for (int i = 0; i < OWN_BINS; ++i) {
            bins.counts[i] += counts[own + i];
            bins.distances[i] += counts[BINS + own + i];
        }
        rest += space.rests[slice];
    }
    f64 goal = order.weighted ? static_cast<f64>(settings.top_p) : static_cast<f64>(settings.top_k);
    End end = end_of(order, bins, rest, goal, total);
    if (end.before + end.members <= THREADS) {
        return choose_from_few(order, end.range.end, values, width, settings, total);
    }
    return choose_from_many(order, end, goal, width, settings, space);
}

// Blocks of a row along the grid's first axis, rows along the second one.
DEVICE void sample_blocks(const f32* logits, const f32* temperature, const i32* top_k, const f32* top_p,
                          const f32* min_p, const i64* seed, const i32* index, const i32* count, i32* token,
                          u8* workspace, i64 rows, i64 width, Status status) {
    const i64 valid = valid_rows(count, rows);
    int index_bits = 0;
    while ((width - 1) >> index_bits) ++index_bits;
    for (i64 row = block_index_y(); row < valid; row += block_count_y()) {
        const f32* const x = logits + row * width;
        Settings settings = {temperature[row], top_k[row], top_p[row], min_p[row], 0.0};
        const f32 heat = settings.temperature;
        const bool sensible = heat >= 0.0f && heat < infinity() && settings.top_p == settings.top_p &&
                              settings.min_p == settings.min_p;
        const Space space = space_of(workspace, row, width);
        Best best = {0.0f, -1};
        if (sensible && heat == 0.0f) {
            if (!best_of_blocks<4>(x, width, reinterpret_cast<u64*>(space.values), row, status, best)) continue;
        } else if (sensible) {
            best = best_of(best_pair<4>(x, 0, width));
        }
        i64 chosen = best.place;
        if (heat > 0.0f && chosen >= 0) {
            settings.point = random_point(seed[row], index[row]);
            const bool few = settings.top_k > 0 && settings.top_k < width, cut = few || settings.top_p < 1.0f;
            const Order order = {!few, index_bits};
            for (i64 slice = block_index(); slice < space.slices; slice += block_count()) {
                take_slice(order, cut, x, width, best.value, settings, space, slice);
            }
            if (block_count() > 1 && !status.last_of(block_count(), row)) continue;
            block_barrier();
            chosen = choose(order, cut, width, settings, space);
        } else if (!(sensible && heat == 0.0f) && block_index() != 0) {
            continue;
        }
        if (thread_index() == 0) token[row] = static_cast<i32>(chosen);
        block_barrier();
    }
}
