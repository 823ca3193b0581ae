// Projections of many rows on the matrix units, of halves by weights of the same dtype, with the very bits that tile.hip
// has for few of them. A block takes 64 outputs (of a gate and of its up) of 64 rows of x, so that what it reads
// serves many products: lines of 32 columns come into shared memory some steps ahead, and each of its four waves
// multiplies a quarter of the tiles.
//
// An output's sum is that of PARTS parts in ascending order. A part is every so manieth step of 32 columns, summed from
// zero by the matrix units: what a wave of tile.hip has. Here a wave makes all parts of its tiles one after the other.
#include "group.h"
#include "projection.h"
#include "tile.h"

constexpr int SIDES = 2;  // waves along the outputs, and along the rows
constexpr int THREADS = SIDES * SIDES * WAVE;
constexpr int OUTPUT_TILES = 2, ROW_TILES = 2;  // of a wave, by each weight
constexpr int OUTPUTS = SIDES * OUTPUT_TILES * TILE, ROWS = SIDES * ROW_TILES * TILE;
constexpr int RUNS = TILE_DEPTH / RUN;      // of a line
constexpr int RESULT_STRIDE = OUTPUTS + 4;  // sums from row to row, which are written by columns

// Values from line to line, so that the lanes of a load hit different banks: here a load is Held::load, whose positions
// are those of tile.hip.
#if defined(OSTINATO_EMULATOR) || defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__)
constexpr int STRIDE = TILE_DEPTH + RUN;
#else
constexpr int STRIDE = TILE_DEPTH;
#endif

// Lines of a step on their way to shared memory. Where copies run beside the units, several steps of them are under way;
// elsewhere a thread holds its words of the next step while this one is multiplied.
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIP_DEVICE_COMPILE__) || (defined(OSTINATO_EMULATOR) && WAVE == 64)
constexpr int MOST_STAGED = 0;
template <int COUNT>
struct Sent {
    u32 words[4 * COUNT];
    DEVICE void begin(int i, Words*, const void* from) {
        const Words found = *static_cast<const Words*>(from);
        for (int w = 0; w < 4; ++w) words[4 * i + w] = found.w[w];
    }
    DEVICE void end(int i, Words* to) { *to = {{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}}; }
};
DEVICE void end_batch() {}
template <int COUNT>
DEVICE void batches_done() {}
#else
constexpr int MOST_STAGED = 45 * 1024;  // bytes
// What was sent since the last one is a batch; all but the last COUNT of them are there, for the thread that sent them.
#if defined(OSTINATO_EMULATOR)
DEVICE void send_words(Words* to, const void* from) { copy_words(to, from); }
DEVICE void end_batch() {}
template <int COUNT>
DEVICE void batches_done() {}
#else
DEVICE void send_words(Words* to, const void* from) {  // copy_words() of what is there
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void end_batch() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int COUNT>
DEVICE void batches_done() {
    asm volatile("cp.async.wait_group %0;" : : "n"(COUNT) : "memory");
}
#endif
template <int COUNT>
struct Sent {
    DEVICE void begin(int, Words* to, const void* from) { send_words(to, from); }
    DEVICE void end(int, Words*) {}
};
#endif

// Weights that were loaded into registers side by side, which NVIDIA's products want in another order: made anew once by
// an operation with a zero that the compiler does not know, they lie as wanted, and are not moved before every product.
template <class T>
DEVICE void settle(Rows<T>& rows, u32 zero) {
#if !defined(OSTINATO_EMULATOR) && !defined(__HIP_PLATFORM_AMD__) && !defined(__HIP_DEVICE_COMPILE__)
#pragma unroll
    for (int i = 0; i < HELD_RUNS; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) rows.runs[i].w[w] |= zero;
    }
#endif
}

// Steps in the order of the sums: all of the first part, all of the second one, ...
template <int PARTS>
struct Walk {
    int columns, k = 0, part = 0;
    DEVICE bool ends_part() const { return k + PARTS * TILE_DEPTH >= columns; }
    DEVICE void go_on() {
        part += ends_part();
        k = ends_part() ? part * TILE_DEPTH : k + PARTS * TILE_DEPTH;
    }
};

// What a block has of 64 outputs of each of so many weights, and of its rows of x.
template <int WEIGHTS, class T>
struct Panel {
    static constexpr int LINES = WEIGHTS * OUTPUTS + ROWS;  // of each weight, then of x
    static constexpr int STEP = LINES * STRIDE;             // values
    static constexpr int ABLE = MOST_STAGED / (STEP * static_cast<int>(sizeof(T))), STAGES = ABLE < 2 ? 2 : ABLE;
    static constexpr int COPIES = LINES * RUNS / THREADS;  // of a thread and step
    static constexpr int TILES = WEIGHTS * OUTPUT_TILES;
    static constexpr int STAGED = STAGES * STEP / RUN, RESULTS = ROWS * RESULT_STRIDE / 4;
    static constexpr int WORDS = STAGED < RESULTS ? RESULTS : STAGED;
    static_assert(LINES * RUNS % THREADS == 0, "every thread has as many copies");

    // The products of a step with this wave's tiles.
    static DEVICE void add(const T* lines, u32 zero, Sums (&sums)[TILES * ROW_TILES]) {
        const int wave = thread_index() / WAVE, output = wave % SIDES * OUTPUT_TILES, row = wave / SIDES * ROW_TILES;
        Rows<T> rows[TILES];
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            const int line = n / OUTPUT_TILES * OUTPUTS + (output + n % OUTPUT_TILES) * TILE;
            rows[n].load(lines + line * STRIDE, STRIDE, TILE - 1);
            settle(rows[n], zero);
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            Columns<T> from;
            from.load(lines + (WEIGHTS * OUTPUTS + (row + r) * TILE) * STRIDE, STRIDE, TILE - 1);
#pragma unroll
            for (int n = 0; n < TILES; ++n) multiply(sums[n * ROW_TILES + r], rows[n], from);
            keep_order();
        }
    }
};

// put(row, output, sum) for every output, and where there are two weights for the second one's as the gate's up.
template <int WEIGHTS, int PARTS, class T, class Put>
DEVICE void multiply_panel(const T* const (&weights)[WEIGHTS], int last_output, const T* x, int last_row, i64 columns,
                           Put put) {
    using Own = Panel<WEIGHTS, T>;
    constexpr int STAGES = Own::STAGES, COUNT = Own::TILES * ROW_TILES;
    SHARED(Words, memory, Own::WORDS);
    T* const staged = reinterpret_cast<T*>(memory);
    const int t = thread_index(), run = t % RUNS * RUN, steps = static_cast<int>(columns / TILE_DEPTH);
    const T* from[Own::COPIES];  // lines past the last repeat it, so that nothing else is read
#pragma unroll
    for (int e = 0; e < Own::COPIES; ++e) {
        const int line = e * (THREADS / RUNS) + t / RUNS, row = line - WEIGHTS * OUTPUTS;
        const T* const weight = line < OUTPUTS ? weights[0] : weights[WEIGHTS - 1];
        const T* const first = row < 0 ? weight : x;
        from[e] = first + (row < 0 ? smaller(line % OUTPUTS, last_output) : smaller(row, last_row)) * columns + run;
    }
    T* const own = staged + t / RUNS * STRIDE + run;  // where this thread's first copy goes in the first stage
    const auto place = [=](int stage, int e) {
        return reinterpret_cast<Words*>(own + stage * Own::STEP + e * (THREADS / RUNS) * STRIDE);
    };
    Walk<PARTS> sent = {static_cast<int>(columns)}, added = sent;
    Sent<Own::COPIES> copies;
    block_barrier();  // results of an earlier panel may still be read
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) {
#pragma unroll
            for (int e = 0; e < Own::COPIES; ++e) copies.begin(e, place(step, e), from[e] + sent.k);
#pragma unroll
            for (int e = 0; e < Own::COPIES; ++e) copies.end(e, place(step, e));
            sent.go_on();
        }
        end_batch();
    }
    Sums sums[COUNT], totals[COUNT];
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) totals[s].values[i] = -0.0f;  // which the first part's sums leave as they are
    }
#pragma unroll 1
    for (int step = 0, stage = 0, empty = STAGES - 1; step < steps; ++step) {
        const bool more = step + STAGES - 1 < steps;
        batches_done<STAGES - 2>();
        block_barrier();  // all lines of this step are there, and those of the one before are read
        if (more) {
#pragma unroll
            for (int e = 0; e < Own::COPIES; ++e) copies.begin(e, place(empty, e), from[e] + sent.k);
            sent.go_on();
        }
        end_batch();
        Own::add(staged + stage * Own::STEP, static_cast<u32>(columns) % TILE_DEPTH, sums);
        if (more) {
#pragma unroll
            for (int e = 0; e < Own::COPIES; ++e) copies.end(e, place(empty, e));
        }
        empty = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (added.ends_part()) {
#pragma unroll
            for (int s = 0; s < COUNT; ++s) {
#pragma unroll
                for (int i = 0; i < SUMS; ++i) {
                    totals[s].values[i] += sums[s].values[i];
                    sums[s].values[i] = 0.0f;
                }
            }
        }
        added.go_on();
    }
    f32* const results = reinterpret_cast<f32*>(memory);
    const int wave = t / WAVE, first_output = wave % SIDES * OUTPUT_TILES, first_row = wave / SIDES * ROW_TILES;
    const f32 rest = steps < PARTS ? 0.0f : -0.0f;  // parts without a step are zeros, added like any other
    block_barrier();
#pragma unroll
    for (int n = 0; n < OUTPUT_TILES; ++n) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int s = n * ROW_TILES + r;
                f32 sum = totals[s].values[i] + rest;
                if constexpr (WEIGHTS == 2) sum = gated(sum, totals[OUTPUT_TILES * ROW_TILES + s].values[i] + rest);
                const int row = (first_row + r) * TILE + Sums::column(i);
                results[row * RESULT_STRIDE + (first_output + n) * TILE + Sums::row(i)] = sum;
                keep_order();
            }
        }
    }
    block_barrier();
    static_assert(THREADS % OUTPUTS == 0, "a thread always has the same output");
    const int output = t % OUTPUTS;
    for (int row = t / OUTPUTS; output <= last_output && row <= last_row; row += THREADS / OUTPUTS) {
        put(row, output, results[row * RESULT_STRIDE + output]);
    }
}

// body(unit of outputs, first row) for every panel; those that share outputs one after the other.
template <class F>
DEVICE void for_panels(i64 units, i64 rows, F body) {
    const i64 down = (rows + ROWS - 1) / ROWS;
    for (i64 panel = block_index(); panel < units * down; panel += block_count()) {
        body(panel / down, panel % down * ROWS);
    }
}

// The last one of up to `most` from `first` on.
DEVICE int last_of(i64 first, i64 end, int most) { return static_cast<int>(smaller<i64>(most, end - first)) - 1; }

template <int PARTS, class T, class Y>
DEVICE void linear_panel(const T* x, const T* weight, const f32* bias, const Y* residual, const i32* count, Y* y0,
                         Y* y1, Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    const Results<Y> results = {y0, y1, y2, n0, n1, n2, bias, residual};
    const i64 rows = valid_rows(count, entries) * inner, outputs = results.count();
    if (!aligned(x) || !aligned(weight)) {
        for_each_output(rows, outputs, [=](i64 row, i64 output) {
            results.put(row, output, plain_dot(x + row * columns, weight + output * columns, columns));
        });
        return;
    }
    for_panels((outputs + OUTPUTS - 1) / OUTPUTS, rows, [=](i64 unit, i64 row) {
        const i64 output = unit * OUTPUTS;
        const T* const weights[1] = {weight + output * columns};
        const int last_row = last_of(row, rows, ROWS);
        multiply_panel<1, PARTS>(
            weights, last_of(output, outputs, OUTPUTS), x + row * columns, last_row, columns,
            [=](int r, int at, f32 sum) { results.put(row + r, output + at, sum); });
    });
}

// The same for projections by weights of their own: a block takes outputs of one of them.
template <int PARTS, class T, class Y>
DEVICE void linear_panel_group(const T* x, const T* w0, const T* w1, const T* w2, const f32* b0, const f32* b1,
                               const f32* b2, const i32* count, Y* y0, Y* y1, Y* y2, i64 entries, i64 inner,
                               i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    const Group<T, Y> group = {{w0, b0, y0, n0}, {w1, b1, y1, n1}, {w2, b2, y2, n2}};
    const i64 rows = valid_rows(count, entries) * inner;
    if (!aligned(x) || !aligned(w0) || !aligned(w1) || !aligned(w2)) {
        for_each_output(rows, group.units(1), [=](i64 row, i64 output) {
            const Member<T, Y> member = group.of(output, 1);
            member.put(row, output, plain_dot(x + row * columns, member.weight + output * columns, columns));
        });
        return;
    }
    for_panels(group.units(OUTPUTS), rows, [=](i64 unit, i64 row) {
        const Member<T, Y> member = group.of(unit, OUTPUTS);
        const i64 output = unit * OUTPUTS;
        const T* const weights[1] = {member.weight + output * columns};
        const int last_row = last_of(row, rows, ROWS);
        multiply_panel<1, PARTS>(
            weights, last_of(output, member.outputs, OUTPUTS), x + row * columns, last_row, columns,
            [=](int r, int at, f32 sum) { member.put(row + r, output + at, sum); });
    });
}

// Weight of gate rows, then up rows.
template <int PARTS, class T, class Y>
DEVICE void linear_panel_swiglu(const T* x, const T* weight, const i32* count, Y* y, i64 entries, i64 inner,
                                i64 columns, i64 outputs, Status) {
    const i64 rows = valid_rows(count, entries) * inner;
    if (!aligned(x) || !aligned(weight)) {
        for_each_output(rows, outputs, [=](i64 row, i64 output) {
            const f32 gate = plain_dot(x + row * columns, weight + output * columns, columns);
            const f32 up = plain_dot(x + row * columns, weight + (outputs + output) * columns, columns);
            narrow(gated(gate, up), y[row * outputs + output]);
        });
        return;
    }
    for_panels((outputs + OUTPUTS - 1) / OUTPUTS, rows, [=](i64 unit, i64 row) {
        const i64 output = unit * OUTPUTS;
        const T* const weights[2] = {weight + output * columns, weight + (outputs + output) * columns};
        const int last_row = last_of(row, rows, ROWS);
        multiply_panel<2, PARTS>(
            weights, last_of(output, outputs, OUTPUTS), x + row * columns, last_row, columns,
            [=](int r, int at, f32 sum) { narrow(sum, y[(row + r) * outputs + output + at]); });
    });
}
