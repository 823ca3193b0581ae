// Rotation of q and k as columns of a joint product, and its gradient. A thread makes a run of one head's elements, and
// reads those that they are paired with: columns are read twice, from a cache the second time, and written in order.
#include "rope.h"
#include "runs.h"

// N elements of a head from place i on, of a head that turns by tables of `half` angles or passes; `sign` of the sine.
template <int N, class X>
DEVICE void turned(const X* head, i64 i, i64 half, const f32* cosine, const f32* sine, f32 sign, f32 (&y)[N]) {
    take(head + i, y);
    if (i >= 2 * half) return;
    const bool first = i < half;
    const i64 angle = first ? i : i - half;
    f32 other[N], c[N], s[N];
    take(head + (first ? i + half : angle), other);
    take(cosine + angle, c);
    take(sine + angle, s);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        f32 a = first ? y[n] : other[n], b = first ? other[n] : y[n];
        turn(a, b, c[n], sign * s[n]);
        y[n] = first ? a : b;
    }
}

// Heads of q, k and v among the columns of a row: which of them has column `at`, and its row in it.
template <class T>
struct Heads {
    T *q, *k, *v;
    i64 heads, groups, width;

    DEVICE i64 all() const { return heads + 2 * groups; }
    DEVICE bool turns(i64 head) const { return head < heads + groups; }
    DEVICE T* of(i64 row, i64 head) const {
        if (head < heads) return q + (row * heads + head) * width;
        const i64 shared = head - heads;
        return shared < groups ? k + (row * groups + shared) * width : v + (row * groups + shared - groups) * width;
    }
};

// x [rows, (heads + 2 groups) width].
template <class X, class Y>
DEVICE void rope_joint(const X* x, const f32* cosine, const f32* sine, Y* q, Y* k, Y* v, i64 rows, i64 heads,
                       i64 groups, i64 width, i64 half, Status) {
    const Heads<Y> parts = {q, k, v, heads, groups, width};
    const i64 columns = parts.all() * width;
    const bool whole = (width | half) % RUN == 0 && aligned(x) && aligned(cosine) && aligned(sine) && aligned(q) &&
                       aligned(k) && aligned(v);
    for_row_runs(rows, columns, whole, [=](i64 row, i64 at, auto n) {
        const i64 head = at / width, i = at - head * width, turning = parts.turns(head) ? half : 0;
        f32 values[n.value];
        turned(x + row * columns + head * width, i, turning, cosine + row * half, sine + row * half, 1.0f, values);
        give(parts.of(row, head) + i, values);
    });
}

// To y, and rounded to where `rounded` is, if it is there.
template <class Y, class Z>
DEVICE void rope_joint_backward(const f32* q, const f32* k, const f32* v, const f32* cosine, const f32* sine, Y* y,
                                Z* rounded, i64 rows, i64 heads, i64 groups, i64 width, i64 half, Status) {
    const Heads<const f32> parts = {q, k, v, heads, groups, width};
    const i64 columns = parts.all() * width;
    const bool whole = (width | half) % RUN == 0 && aligned(q) && aligned(k) && aligned(v) && aligned(cosine) &&
                       aligned(sine) && aligned(y) && aligned(rounded);
    for_row_runs(rows, columns, whole, [=](i64 row, i64 at, auto n) {
        const i64 head = at / width, i = at - head * width, turning = parts.turns(head) ? half : 0;
        f32 values[n.value];
        turned(parts.of(row, head), i, turning, cosine + row * half, sine + row * half, -1.0f, values);
        give(y + row * columns + at, values);
        if (rounded != nullptr) give(rounded + row * columns + at, values);
    });
}
