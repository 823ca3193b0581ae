// Products of two activations, in tiles of 16 x 16 outputs: a thread an output, which adds up sums of 16 neighbours of K
// in ascending order, so that long sums lose less.
#include "device.h"

// A matrix in memory, lines of it `line` elements apart: rows, or columns where it is turned. Zeros outside.
template <class T>
struct Matrix {
    const T* values;
    i64 rows, columns, line;
    bool turned;
    DEVICE f32 at(i64 row, i64 column) const {
        if (row >= rows || column >= columns) return 0.0f;
        return widen(values[turned ? column * line + row : row * line + column]);
    }
};

// y = scale * a b for batches of matrices: `entries` of the first batch axis with `inner` matrices each, `shared` of
// which read one of b; a matrix of y is the sum of `summed` such products. Entries, matrices and lines of a, b and y are
// so many elements apart. A count is of the entries, or of the rows of the only matrix. `put` is given each value with
// its place in y.
template <class A, class B, class Y, class Put>
DEVICE void products(const A* a, const B* b, const i32* count, Y* y, i64 entries, i64 inner, i64 m, i64 k, i64 n,
                     i64 turned_a, i64 turned_b, i64 counts_rows, f64 scale, i64 shared, i64 a_entry, i64 a_matrix,
                     i64 a_line, i64 b_entry, i64 b_matrix, i64 b_line, i64 y_entry, i64 y_matrix, i64 y_line, Put put,
                     i64 summed = 1) {
    constexpr int tile = 16;
    SHARED(f32, left, tile * tile);
    SHARED(f32, right, tile * tile);
    const i64 batches = counts_rows ? entries * inner : valid_rows(count, entries) * inner;
    const i64 rows = counts_rows ? valid_rows(count, m) : m;
    const int row = thread_index() / tile, column = thread_index() % tile;
    const i64 across = (n + tile - 1) / tile, tiles = (rows + tile - 1) / tile * across;
    for (i64 batch = block_index_y(); batch < batches; batch += block_count_y()) {
        const i64 entry = batch / inner, matrix = batch % inner;
        Y* const to = y + entry * y_entry + matrix * y_matrix;
        for (i64 t = block_index(); t < tiles; t += block_count()) {
            const i64 top = t / across * tile, edge = t % across * tile;
            f32 sum = 0.0f;
            for (i64 part = matrix * summed; part < (matrix + 1) * summed; ++part) {
                const Matrix<A> first{a + entry * a_entry + part * a_matrix, m, k, a_line, turned_a != 0};
                const Matrix<B> second{b + entry * b_entry + part / shared * b_matrix, k, n, b_line, turned_b != 0};
                for (i64 at = 0; at < k; at += tile) {
                    left[thread_index()] = top + row < rows ? first.at(top + row, at + column) : 0.0f;
                    right[thread_index()] = second.at(at + row, edge + column);
                    block_barrier();
                    f32 near = 0.0f;
                    for (int i = 0; i < tile; ++i) near = fmaf(left[row * tile + i], right[i * tile + column], near);
                    sum += near;
                    block_barrier();
                }
            }
            if (top + row < rows && edge + column < n) {
                put(sum * static_cast<f32>(scale), to[(top + row) * y_line + edge + column]);
            }
        }
    }
}

template <class T, class Y>
DEVICE void matmul(const T* a, const T* b, const i32* count, Y* y, i64 entries, i64 inner, i64 m, i64 k, i64 n,
                   i64 turned_a, i64 turned_b, i64 counts_rows, f64 scale, i64 shared, i64 a_entry, i64 a_matrix,
                   i64 a_line, i64 b_entry, i64 b_matrix, i64 b_line, i64 y_entry, i64 y_matrix, i64 y_line, Status) {
    products(a, b, count, y, entries, inner, m, k, n, turned_a, turned_b, counts_rows, scale, shared, a_entry, a_matrix,
             a_line, b_entry, b_matrix, b_line, y_entry, y_matrix, y_line, [](f32 value, Y& to) { narrow(value, to); });
}

// y is c, which the products are added to.
template <class T, class Y>
DEVICE void matmul_add(const T* a, const T* b, const i32* count, Y* y, i64 entries, i64 inner, i64 m, i64 k, i64 n,
                       i64 turned_a, i64 turned_b, i64 counts_rows, f64 scale, i64 shared, i64 a_entry, i64 a_matrix,
                       i64 a_line, i64 b_entry, i64 b_matrix, i64 b_line, i64 y_entry, i64 y_matrix, i64 y_line,
                       Status) {
    products(a, b, count, y, entries, inner, m, k, n, turned_a, turned_b, counts_rows, scale, shared, a_entry, a_matrix,
             a_line, b_entry, b_matrix, b_line, y_entry, y_matrix, y_line, [](f32 value, Y& to) { to += value; });
}

// Gradients of the products of attention over whole sequences, with keys and values that `group` heads share; scores are
// [batches, heads, time, keys].

// y = gradient v^T of gradient [batches, time, heads, width] and v [batches, keys, kv_heads, width].
template <class T>
DEVICE void probability_gradient(const f32* gradient, const T* v, const i32* count, f32* y, i64 batches, i64 heads,
                                 i64 group, i64 time, i64 keys, i64 width, Status) {
    const i64 kv_heads = heads / group;
    products(gradient, v, count, y, batches, heads, time, width, keys, 0, 1, 0, 1.0, group, time * heads * width, width,
             heads * width, keys * kv_heads * width, width, kv_heads * width, heads * time * keys, time * keys, keys,
             [](f32 value, f32& to) { to = value; });
}

// y [batches, keys, kv_heads, width] = the sum over heads of p^T gradient, of gradient [batches, time, heads, width].
template <class T>
DEVICE void value_gradient(const T* p, const f32* gradient, const i32* count, f32* y, i64 batches, i64 heads, i64 group,
                           i64 time, i64 keys, i64 width, Status) {
    const i64 kv_heads = heads / group;
    products(p, gradient, count, y, batches, kv_heads, keys, time, width, 1, 0, 0, 1.0, 1, heads * time * keys,
             time * keys, keys, time * heads * width, width, heads * width, keys * kv_heads * width, width,
             kv_heads * width, [](f32 value, f32& to) { to = value; }, group);
}

// Of gradient, a score each, with q [batches, heads, time, width] and k [batches, kv_heads, keys, width]: to_q like q,
// gradient k, and to_k like k, the sum over heads of gradient^T q.
template <class T>
DEVICE void scores_backward(const f32* gradient, const T* q, const T* k, const i32* count, f32* to_q, f32* to_k,
                            i64 batches, i64 heads, i64 group, i64 time, i64 keys, i64 width, f64 scale, Status) {
    const i64 kv_heads = heads / group;
    const auto put = [](f32 value, f32& to) { to = value; };
    products(gradient, k, count, to_q, batches, heads, time, keys, width, 0, 0, 0, scale, group, heads * time * keys,
             time * keys, keys, kv_heads * keys * width, keys * width, width, heads * time * width, time * width, width,
             put);
    products(gradient, q, count, to_k, batches, kv_heads, keys, time, width, 1, 0, 0, scale, 1, heads * time * keys,
             time * keys, keys, heads * time * width, time * width, width, kv_heads * keys * width, keys * width, width,
             put, group);
}
