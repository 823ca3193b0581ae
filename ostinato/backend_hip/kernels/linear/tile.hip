// Projections on the matrix units, of halves by weights of the same dtype. A block takes 16 outputs and up to TILES
// times 16 rows of x; its PARTS waves share the columns, each every so manieth step of 32, and are joined in ascending
// order. Weights go straight from memory to the units: a block reads each of them once.
#include "group.h"
#include "projection.h"
#include "tile.h"

// This wave's part of the products of 16 rows of each of COUNT weights with TILES times 16 rows of x.
template <int COUNT, int TILES, int PARTS, class T>
DEVICE void take_products(const T* const (&weights)[COUNT], int last_output, const T* x, int last_row, i64 columns,
                          Sums (&sums)[COUNT * TILES]) {
    // Steps whose bytes are under way together.
    constexpr int AT_ONCE = COUNT * TILES > 2 ? 1 : COUNT * TILES > 1 ? 2 : 4;
    constexpr i64 step = PARTS * TILE_DEPTH;
    for (i64 k = thread_index() / WAVE * TILE_DEPTH; k < columns; k += AT_ONCE * step) {
        Rows<T> rows[AT_ONCE][COUNT];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (k + n * step >= columns) break;
            for (int w = 0; w < COUNT; ++w) rows[n][w].load(weights[w] + k + n * step, columns, last_output);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            if (k + n * step >= columns) break;
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const int row = smaller(t * TILE, last_row);
                Columns<T> from;
                from.load(x + row * columns + k + n * step, columns, last_row - row);
                for (int w = 0; w < COUNT; ++w) multiply(sums[w * TILES + t], rows[n][w], from);
                keep_order();
            }
        }
    }
}

// Sums of all waves in those of the first one; true there.
template <int PARTS, int COUNT>
DEVICE bool join_parts(Sums (&sums)[COUNT]) {
    SHARED(f32, parts, (PARTS - 1) * COUNT * TILE * TILE);
    const int part = thread_index() / WAVE;
    const auto place = [](int p, int s, int i) { return ((p * COUNT + s) * SUMS + i) * WAVE + lane(); };
    block_barrier();  // an earlier turn may still read
    for (int s = 0; part > 0 && s < COUNT; ++s) {
        for (int i = 0; i < SUMS; ++i) parts[place(part - 1, s, i)] = sums[s].values[i];
    }
    block_barrier();
    for (int p = 0; part == 0 && p < PARTS - 1; ++p) {
        for (int s = 0; s < COUNT; ++s) {
            for (int i = 0; i < SUMS; ++i) sums[s].values[i] += parts[place(p, s, i)];
        }
    }
    return part == 0;
}

// body(first output, first row) for every tile of the result; rows along the grid's second axis.
template <int TILES, class F>
DEVICE void for_tiles(i64 outputs, i64 rows, F body) {
    constexpr i64 each = TILES * TILE;
    for (i64 row = block_index_y() * each; row < rows; row += block_count_y() * each) {
        for (i64 output = static_cast<i64>(block_index()) * TILE; output < outputs; output += block_count() * TILE) {
            body(output, row);
        }
    }
}

template <int TILES, int PARTS, class T, class Y>
DEVICE void linear_tile(const T* x, const T* weight, const f32* bias, const Y* residual, const i32* count, Y* y0,
                        Y* y1, Y* y2, i64 entries, i64 inner, i64 columns, i64 n0, i64 n1, i64 n2, Status) {
    const Results<Y> results = {y0, y1, y2, n0, n1, n2, bias, residual};
    const i64 rows = valid_rows(count, entries) * inner, outputs = results.count();
    if (!aligned(x) || !aligned(weight)) {
        for_each_output(rows, outputs, [=](i64 row, i64 output) {
            results.put(row, output, plain_dot(x + row * columns, weight + output * columns, columns));
        });
        return;
    }
    for_tiles<TILES>(outputs, rows, [=](i64 output, i64 row) {
        const T* const weights[1] = {weight + output * columns};
        const int last_output = static_cast<int>(smaller<i64>(TILE, outputs - output)) - 1;
        const int last_row = static_cast<int>(smaller<i64>(TILES * TILE, rows - row)) - 1;
        Sums sums[TILES];
        take_products<1, TILES, PARTS>(weights, last_output, x + row * columns, last_row, columns, sums);
        if (!join_parts<PARTS>(sums)) return;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int at = Sums::row(i), r = t * TILE + Sums::column(i);
                if (at <= last_output && r <= last_row) results.put(row + r, output + at, sums[t].values[i]);
                keep_order();
            }
        }
    });
}

// The same for projections by weights of their own: a block takes outputs of one of them.
template <int TILES, int PARTS, class T, class Y>
DEVICE void linear_tile_group(const T* x, const T* w0, const T* w1, const T* w2, const f32* b0, const f32* b1,
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
    for_tiles<TILES>(group.units(TILE) * TILE, rows, [=](i64 output, i64 row) {
        i64 tile = output / TILE;
        const Member<T, Y> member = group.of(tile, TILE);
        const i64 first = tile * TILE;
        const T* const weights[1] = {member.weight + first * columns};
        const int last_output = static_cast<int>(smaller<i64>(TILE, member.outputs - first)) - 1;
        const int last_row = static_cast<int>(smaller<i64>(TILES * TILE, rows - row)) - 1;
        Sums sums[TILES];
        take_products<1, TILES, PARTS>(weights, last_output, x + row * columns, last_row, columns, sums);
        if (!join_parts<PARTS>(sums)) return;
        for (int t = 0; t < TILES; ++t) {
            for (int i = 0; i < SUMS; ++i) {
                const int at = Sums::row(i), r = t * TILE + Sums::column(i);
                if (at <= last_output && r <= last_row) member.put(row + r, first + at, sums[t].values[i]);
                keep_order();
            }
        }
    });
}

// Weight of gate rows, then up rows.
template <int TILES, int PARTS, class T, class Y>
DEVICE void linear_tile_swiglu(const T* x, const T* weight, const i32* count, Y* y, i64 entries, i64 inner,
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
    for_tiles<TILES>(outputs, rows, [=](i64 output, i64 row) {
        const T* const weights[2] = {weight + output * columns, weight + (outputs + output) * columns};
        const int last_output = static_cast<int>(smaller<i64>(TILE, outputs - output)) - 1;
        const int last_row = static_cast<int>(smaller<i64>(TILES * TILE, rows - row)) - 1;
        Sums sums[2 * TILES];
        take_products<2, TILES, PARTS>(weights, last_output, x + row * columns, last_row, columns, sums);
        if (!join_parts<PARTS>(sums)) return;
        for (int t = 0; t < TILES; ++t) {
            for (int i = 0; i < SUMS; ++i) {
                const int at = Sums::row(i), r = t * TILE + Sums::column(i);
                const f32 result = gated(sums[t].values[i], sums[TILES + t].values[i]);
                if (at <= last_output && r <= last_row) narrow(result, y[(row + r) * outputs + output + at]);
                keep_order();
            }
        }
    });
}
