// Phases: what one kernel does, as a function of (worker, workers, wait), so that one text serves a launch, a launch
// that starts early, and a kernel that goes through many phases. A phase may read what no step of the run writes before
// it calls `wait`, which gives the status word, and reads and writes everything else after it.
//
// Here is the phase of projections of a few rows by float weights, with what stands around them in a decoder inside:
// the norm of x before, bias, residual, rotation or gate behind. Every weight is read once, 16 bytes at a time, for all
// rows, and the first ones before the wait. x lies in shared memory where there is room for it.
//
// Outputs go in pairs: SPLIT groups of lanes take one pair, or several in turn, the next one under way while one is
// summed up. An output's products are taken by lane in ascending steps, then by a tree, then group by group: its bits
// depend on its row and weights, and on SPLIT and THREADS, which follow from the number of columns.
#pragma once
#include "projection.h"

struct Worker {
    u32 index, count;
    // The first of this worker's share of so many units: shares differ by one at most, larger ones come first.
    DEVICE u32 first(u32 units) const { return units / count * index + smaller(index, units % count); }
    DEVICE u32 end(u32 units) const { return first(units) + units / count + (index < units % count ? 1 : 0); }
};
DEVICE Worker this_block() { return {block_index(), block_count()}; }

// Four neighbours as f32, at once where `whole` says that the address is a multiple of their bytes.
DEVICE void load_four(const f32* at, bool whole, f32 (&values)[4]) { load_values(at, whole, values); }
template <class T>
DEVICE void load_four(const T* at, bool whole, f32 (&values)[4]) {
    struct alignas(8) Half {
        u32 w[2];
    };
    if (whole) {
        const Half half = *reinterpret_cast<const Half*>(at);
        const Words words = {{half.w[0], half.w[1], 0u, 0u}};
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = value_in(words, i, at);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = widen(at[i]);
    }
}

// Sums of N values over the lanes of a group, N a power of two: lane l gets that of number l / (32 / N), with the bits
// of group_sum, by about N exchanges.
template <int N>
DEVICE f32 group_sums(f32 (&values)[N]) {
    int left = N;
#pragma unroll
    for (int n = GROUP / 2; n > 0; n /= 2) {
        if (left > 1) {
            left /= 2;
            const bool upper = (group_lane() & n) != 0;
#pragma unroll
            for (int i = 0; i < left; ++i) {
                const f32 kept = upper ? values[left + i] : values[i], sent = upper ? values[i] : values[left + i];
                values[i] = kept + shuffle_xor(sent, n);
            }
        } else {
            values[0] += shuffle_xor(values[0], n);
        }
    }
    return values[0];
}

// ROWS: room for rows of x. STEPS: runs of 16 bytes that a lane takes of a row of the weight. ROOM: KiB of x in shared
// memory, 0 where it stays where it is. NORMED: whether there is a gain.
template <int ROWS_, int STEPS_, int SPLIT_, int ROOM_, int NORMED_, int THREADS_>
struct Form {
    static constexpr int ROWS = ROWS_, STEPS = STEPS_, SPLIT = SPLIT_, THREADS = THREADS_;
    static constexpr bool NORMED = NORMED_ != 0;
    static constexpr int GROUPS = THREADS / GROUP, TEAMS = GROUPS / SPLIT, SUMS = 2 * ROWS;
    static constexpr bool STAGED = ROOM_ > 0;
    static constexpr int WORDS = STAGED ? ROOM_ * 64 : 1;  // of x in shared memory
    static constexpr int HELD = STAGED ? (ROOM_ * 64 / ROWS + THREADS - 1) / THREADS : 1;  // of a row, by a thread
    static constexpr int SHARE = GROUP / SUMS;     // lanes that have one sum
    static constexpr int BETWEEN = SPLIT * GROUP;  // runs between two steps of a lane
};

template <class X, class W>
struct Product {
    const X* x;
    const W* weight;
    const f32 *bias, *gain;  // each may be absent, the gain by its form
    const i32* count;
    i64 entries, inner, columns;
    f32 eps;
};

#if defined(OSTINATO_EMULATOR)
DEVICE f32 reciprocal_root(f32 x) { return 1.0f / sqrtf(x); }
#else
DEVICE f32 reciprocal_root(f32 x) { return rsqrtf(x); }
#endif

// The sum of one output by one thread, for weights that are not aligned to 16 bytes, which only odd views are.
template <class X, class W>
DEVICE f32 plain_output(const Product<X, W>& p, i64 row, i64 place) {
    const X* const x = p.x + row * p.columns;
    const W* const weight = p.weight + place * p.columns;
    f32 sum = 0.0f, squares = 0.0f;
#pragma unroll 1
    for (i64 k = 0; k < p.columns; ++k) {
        const f32 value = widen(x[k]);
        squares = fmaf(value, value, squares);
        sum = fmaf(p.gain == nullptr ? value : value * p.gain[k], widen(weight[k]), sum);
    }
    if (p.gain != nullptr) sum *= reciprocal_root(squares / static_cast<f32>(p.columns) + p.eps);
    return p.bias == nullptr ? sum : sum + p.bias[place];
}

// Brings x, times its gain, to shared memory, and leaves the sums of its squares by groups; run r of four values of the
// weight's words is in plane r % RUNS.
template <class F, class X, class W>
DEVICE void stage(const Product<X, W>& p, int rows, bool whole, const Words (&gains)[F::HELD], Words* staged,
                  f32* squares) {
    constexpr int RUNS = Packed<W>::size / 4;
    const u32 columns = static_cast<u32>(p.columns), steps = columns / Packed<W>::size;
    f32 sums[F::ROWS] = {};
    if (F::STAGED) {
        f32 values[F::HELD][F::ROWS][4] = {};
#pragma unroll
        for (int h = 0; h < F::HELD; ++h) {
            const u32 run = h * F::THREADS + thread_index();
#pragma unroll
            for (int r = 0; r < F::ROWS; ++r) {
                if (run * 4 < columns && r < rows) load_four(p.x + r * p.columns + run * 4, whole, values[h][r]);
            }
        }
#pragma unroll
        for (int h = 0; h < F::HELD; ++h) {
            const u32 run = h * F::THREADS + thread_index();
            if (run * 4 >= columns) break;
#pragma unroll
            for (int r = 0; r < F::ROWS; ++r) {
                Words taken;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const f32 value = values[h][r][i];
                    if (F::NORMED) sums[r] = fmaf(value, value, sums[r]);
                    put(taken, i, F::NORMED ? value * value_in(gains[h], i, p.gain) : value);
                }
                staged[(r * RUNS + run % RUNS) * steps + run / RUNS] = taken;
            }
        }
    } else if (F::NORMED) {
        for (u32 run = thread_index(); run * 4 < columns; run += F::THREADS) {
#pragma unroll
            for (int r = 0; r < F::ROWS; ++r) {
                f32 values[4] = {};
                if (r < rows) load_four(p.x + r * p.columns + run * 4, whole, values);
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[r] = fmaf(values[i], values[i], sums[r]);
            }
        }
    }
    if (F::NORMED) {
#pragma unroll
        for (int r = 0; r < F::ROWS; ++r) {
            const f32 sum = group_sum(sums[r]);
            if (group_lane() == 0) squares[r * F::GROUPS + group_index()] = sum;
        }
    }
}

// `finish` says of pair u which rows of the weight it is, place(u, 0) and place(u, 1), and gets what becomes of it:
// ahead(u, o, row) is read before the wait, before(u, o, row) after it and before the products, and put(u, o, row, own,
// other, ahead, before) is told the sum of output o and that of the other one of its pair.
template <class F, class X, class W, class Wait, class Finish>
DEVICE void project(Worker worker, Wait wait, const Product<X, W>& p, u32 pairs, Finish finish) {
    constexpr int SIZE = Packed<W>::size, RUNS = SIZE / 4;  // runs of four values of x in a step of a lane
    SHARED(Words, staged, F::WORDS);
    SHARED(f32, squares, F::GROUPS * F::ROWS);
    SHARED(f32, parts, F::SPLIT > 1 ? 2 * F::GROUPS * F::SUMS : 1);
    const u32 first = worker.first(pairs), end = worker.end(pairs);
    const u32 columns = static_cast<u32>(p.columns), steps = columns / SIZE;
    const int part = group_index() % F::SPLIT, team = group_index() / F::SPLIT;
    const int rows = static_cast<int>(valid_rows(p.count, p.entries) * p.inner);

    // Of the sums of a pair this lane has one: that of output `own` and row `row`.
    const int number = group_lane() / F::SHARE, own = number / F::ROWS, row = number % F::ROWS;
    const bool leads = group_lane() % F::SHARE == 0 && row < rows && part == 0;

    if (!aligned(p.weight)) {
        wait();
        const u32 each = 2 * static_cast<u32>(rows), sums = (end - first) * each;
        for (u32 i = thread_index(); i < sums; i += F::THREADS) {
            const u32 pair = first + i / each;
            const int o = i % each / rows, at = i % rows;
            const f32 mine = plain_output(p, at, finish.place(pair, o));
            const f32 other = plain_output(p, at, finish.place(pair, 1 - o));
            finish.put(pair, o, at, mine, other, finish.ahead(pair, o, at), finish.before(pair, o, at));
        }
        return;
    }

    // All steps of a lane but the last one are within the columns.
    const u32 own_step = part * GROUP + group_lane();
    const auto within = [&](int s) { return s < F::STEPS - 1 || own_step + s * F::BETWEEN < steps; };
    const WeightLoads load_weights;
    Words words[F::STEPS][2];
    f32 bias;
    typename Finish::Ahead ahead;
    const auto load = [&](u32 pair) {
        if (pair >= end) return;
#pragma unroll
        for (int o = 0; o < 2; ++o) {
            const W* const from = p.weight + (finish.place(pair, o) * p.columns + own_step * SIZE);
#pragma unroll
            for (int s = 0; s < F::STEPS; ++s) {
                if (within(s)) words[s][o] = load_weights(from + s * F::BETWEEN * SIZE);
            }
        }
        if (leads) {
            if (p.bias != nullptr) bias = p.bias[finish.place(pair, own)];
            ahead = finish.ahead(pair, own, row);
        }
    };
    load(first + team);
    Words gains[F::HELD];
    const bool whole_gain = aligned(p.gain);
    if (F::STAGED && F::NORMED) {
#pragma unroll
        for (int h = 0; h < F::HELD; ++h) {
            const u32 run = h * F::THREADS + thread_index();
            if (run * 4 < columns) gains[h] = load_words(p.gain + run * 4, whole_gain);
        }
    }

    const f32 inverse = 1.0f / static_cast<f32>(columns);

    wait();

    typename Finish::Before before;
    if (leads && first + team < end) before = finish.before(first + team, own, row);
    const bool whole = reinterpret_cast<u64>(p.x) % (4 * sizeof(X)) == 0;
    stage<F>(p, rows, whole, gains, staged, squares);
    block_barrier();
    f32 factor = 1.0f;
    if (F::NORMED) {
        f32 total = 0.0f;
#pragma unroll
        for (int g = 0; g < F::GROUPS; ++g) total += squares[row * F::GROUPS + g];
        factor = reciprocal_root(fmaf(total, inverse, p.eps));
    }

    const Words* planes[F::STAGED ? F::ROWS * RUNS : 1];  // this lane's steps of x
#pragma unroll
    for (int i = 0; F::STAGED && i < F::ROWS * RUNS; ++i) planes[i] = staged + (i * steps + own_step);

    // All groups go through as many turns, some of them past the last pair.
    const u32 turns = rows > 0 ? (end - first + F::TEAMS - 1) / F::TEAMS : 0;
    for (u32 turn = 0; turn < turns; ++turn) {
        const u32 pair = first + team + turn * F::TEAMS;
        f32 dots[F::SUMS] = {};
        if (pair < end) {
#pragma unroll
            for (int s = 0; s < F::STEPS; ++s) {
                if (!within(s)) break;
#pragma unroll
                for (int r = 0; r < F::ROWS; ++r) {
                    f32 values[SIZE];
                    if (F::STAGED) {
#pragma unroll
                        for (int i = 0; i < SIZE; i += 4) {
                            const Words taken = planes[r * RUNS + i / 4][s * F::BETWEEN];
#pragma unroll
                            for (int j = 0; j < 4; ++j) values[i + j] = value_in(taken, j, p.bias);
                        }
                    } else {
                        const i64 at = static_cast<i64>(own_step + s * F::BETWEEN) * SIZE;
#pragma unroll
                        for (int i = 0; i < SIZE; i += 4) {
                            f32 four[4] = {}, scale[4];
                            if (r < rows) load_four(p.x + r * p.columns + at + i, whole, four);
                            if (F::NORMED) load_four(p.gain + at + i, whole_gain, scale);
#pragma unroll
                            for (int j = 0; j < 4; ++j) values[i + j] = F::NORMED ? four[j] * scale[j] : four[j];
                        }
                    }
#pragma unroll
                    for (int o = 0; o < 2; ++o) {
#pragma unroll
                        for (int i = 0; i < SIZE; ++i) {
                            const f32 w = value_in(words[s][o], i, p.weight);
                            dots[o * F::ROWS + r] = fmaf(values[i], w, dots[o * F::ROWS + r]);
                        }
                    }
                }
            }
        }
        const f32 shift = bias;
        const auto known = ahead;
        const auto added = before;
        load(pair + F::TEAMS);
        if (leads && pair + F::TEAMS < end) before = finish.before(pair + F::TEAMS, own, row);
        f32 sum = group_sums(dots);
        if (F::SPLIT > 1) {
            f32* const here = parts + turn % 2 * F::GROUPS * F::SUMS;
            if (group_lane() % F::SHARE == 0) here[group_index() * F::SUMS + number] = sum;
            block_barrier();
            sum = here[team * F::SPLIT * F::SUMS + number];
            for (int other = 1; other < F::SPLIT; ++other) {
                sum += here[(team * F::SPLIT + other) * F::SUMS + number];
            }
        }
        if (F::NORMED) sum *= factor;
        if (p.bias != nullptr) sum += shift;
        const f32 other = shuffle_xor(sum, GROUP / 2);
        if (leads && pair < end) finish.put(pair, own, row, sum, other, known, added);
    }
}
