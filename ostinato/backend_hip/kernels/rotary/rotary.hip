// Rotary embedding: cosine and sine tables of a batch of positions, and the rotation in both pairings of elements.
#include "rope.h"

// The angle is the f32 product that models were trained with; cosine and sine are taken in f64 and rounded once.
DEVICE void turn_at(i32 position, f32 frequency, f32 scale, f32& cosine, f32& sine) {
    const f64 angle = static_cast<f64>(static_cast<f32>(position) * frequency);
    cosine = static_cast<f32>(cos(angle)) * scale;
    sine = static_cast<f32>(sin(angle)) * scale;
}

// Tables [entries * inner, half]; a thread an angle.
template <class F>
DEVICE void make_tables(const i32* position, const i32* count, f32* cosine, f32* sine, i64 entries, i64 inner,
                        i64 half, f64 scale, F frequency) {
    const i64 end = valid_rows(count, entries) * inner * half;
    for (i64 i = first_element(); i < end; i += element_step()) {
        turn_at(position[i / half], frequency(i / half, i % half), static_cast<f32>(scale), cosine[i], sine[i]);
    }
}

DEVICE void rotary_table(const i32* position, const f32* inverse, const i32* count, f32* cosine, f32* sine, i64 entries,
                         i64 inner, i64 half, f64 scale, Status) {
    make_tables(position, count, cosine, sine, entries, inner, half, scale, [=](i64, i64 i) { return inverse[i]; });
}

// The base grows with the length of the token's row past the positions that the model was trained with.
DEVICE void rotary_table_dynamic(const i32* position, const i32* length, const i32* count, f32* cosine, f32* sine,
                                 i64 entries, i64 inner, i64 half, f64 theta, f64 factor, i64 original, f64 scale,
                                 Status) {
    const f64 width = static_cast<f64>(2 * half);
    make_tables(position, count, cosine, sine, entries, inner, half, scale, [=](i64 row, i64 i) {
        const f64 longest = static_cast<f64>(larger<i64>(length[row], original));
        const f64 growth = factor * longest / static_cast<f64>(original) - (factor - 1.0);
        const f64 base = theta * pow(growth, width / (width - 2.0));
        return static_cast<f32>(pow(base, static_cast<f64>(-2 * i) / width));
    });
}

// One set of frequencies up to the positions that the model was trained with, another past them.
DEVICE void rotary_table_longrope(const i32* position, const i32* length, const f32* near, const f32* far,
                                  const i32* count, f32* cosine, f32* sine, i64 entries, i64 inner, i64 half,
                                  i64 original, f64 scale, Status) {
    make_tables(position, count, cosine, sine, entries, inner, half, scale,
                [=](i64 row, i64 i) { return length[row] > original ? far[i] : near[i]; });
}

// x [.., heads, width], a row of heads every `step` elements; `items` = width - half units of work a head: a pair each,
// then an element each of those that pass. Head h of token t of batch b goes to b * batch_stride + t * token_stride +
// h * head_stride. An entry of the first axis of x is `inner` units.
template <class T, class Place>
DEVICE void rope(const T* x, const f32* cosine, const f32* sine, const i32* count, T* y, i64 entries, i64 inner,
                 i64 heads, i64 width, i64 half, i64 tokens, i64 batch_stride, i64 token_stride, i64 head_stride,
                 i64 step, Place place) {
    const i64 items = width - half, end = valid_rows(count, entries) * inner;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 item = i % items, head = i / items % heads, row = i / items / heads;
        const T* const from = x + row * step + head * width;
        T* const to = y + row / tokens * batch_stride + row % tokens * token_stride + head * head_stride;
        if (item >= half) {
            to[half + item] = from[half + item];
            continue;
        }
        const i64 first = place.first(item, half), second = place.second(item, half);
        f32 a = widen(from[first]), b = widen(from[second]);
        turn(a, b, cosine[row * half + item], sine[row * half + item]);
        narrow(a, to[first]);
        narrow(b, to[second]);
    }
}

struct SplitHalf {
    DEVICE i64 first(i64 item, i64) const { return item; }
    DEVICE i64 second(i64 item, i64 half) const { return half + item; }
};
struct Interleaved {
    DEVICE i64 first(i64 item, i64) const { return 2 * item; }
    DEVICE i64 second(i64 item, i64) const { return 2 * item + 1; }
};

// The same by words: 16 bytes of the first halves with those of the second ones, or of what passes.
template <class T>
DEVICE void rope_words(const T* x, const f32* cosine, const f32* sine, T* y, u32 units, u32 heads, u32 width, u32 half,
                       u32 tokens, i64 batch_stride, i64 token_stride, i64 head_stride, i64 row_step) {
    constexpr u32 RUN = Packed<T>::size;
    const u32 items = (width - half) / RUN, step = static_cast<u32>(element_step());
    for (u32 i = static_cast<u32>(first_element()); i < units; i += step) {
        const u32 item = i % items * RUN, place = i / items, head = place % heads, row = place / heads;
        const T* const from = x + row * row_step + head * width;
        T* const to = y + row / tokens * batch_stride + row % tokens * token_stride + head * head_stride + half + item;
        const Words second = load_words(from + half + item);
        if (item >= half) {
            *reinterpret_cast<Words*>(to) = second;
            continue;
        }
        const Words first = load_words(from + item);
        const i64 angle = static_cast<i64>(row) * half + item;
        f32 c[RUN], s[RUN], a[RUN], b[RUN];
        load_values(cosine + angle, true, c);
        load_values(sine + angle, true, s);
#pragma unroll
        for (u32 n = 0; n < RUN; ++n) {
            a[n] = value_in(first, n, x);
            b[n] = value_in(second, n, x);
            turn(a[n], b[n], c[n], s[n]);
        }
        store_values(to - half, a);
        store_values(to, b);
    }
}

template <class T>
DEVICE void rope_split_half(const T* x, const f32* cosine, const f32* sine, const i32* count, T* y, i64 entries,
                            i64 inner, i64 heads, i64 width, i64 half, i64 tokens, i64 batch_stride, i64 token_stride,
                            i64 head_stride, i64 step, Status) {
    constexpr i64 RUN = Packed<T>::size;
    const i64 units = valid_rows(count, entries) * inner / RUN;
    const bool whole = (width | half | batch_stride | token_stride | head_stride | step) % RUN == 0 && aligned(x) &&
                       aligned(y) && aligned(cosine) && aligned(sine);
    if (whole && units + element_step() < 0xffffffffll) {
        rope_words(x, cosine, sine, y, static_cast<u32>(units), static_cast<u32>(heads), static_cast<u32>(width),
                   static_cast<u32>(half), static_cast<u32>(tokens), batch_stride, token_stride, head_stride, step);
        return;
    }
    rope(x, cosine, sine, count, y, entries, inner, heads, width, half, tokens, batch_stride, token_stride, head_stride,
         step, SplitHalf());
}

template <class T>
DEVICE void rope_interleaved(const T* x, const f32* cosine, const f32* sine, const i32* count, T* y, i64 entries,
                             i64 inner, i64 heads, i64 width, i64 half, i64 tokens, i64 batch_stride, i64 token_stride,
                             i64 head_stride, i64 step, Status) {
    rope(x, cosine, sine, count, y, entries, inner, heads, width, half, tokens, batch_stride, token_stride, head_stride,
         step, Interleaved());
}

// x [batches, tokens, heads, width] plus bias, split-half, to [batches, heads, tokens, width]. Units as above; elements
// that pass only get their bias.
template <class X, class Y>
DEVICE void rope_bias(const X* x, const f32* bias, const f32* cosine, const f32* sine, const i32* count, Y* y,
                      i64 batches, i64 tokens, i64 heads, i64 width, i64 half, Status) {
    const i64 items = width - half, end = valid_rows(count, batches) * tokens * heads * items;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 item = i % items, head = i / items % heads, row = i / items / heads;
        const X* const from = x + (row * heads + head) * width;
        const f32* const shift = bias + head * width;
        Y* const to = y + ((row / tokens * heads + head) * tokens + row % tokens) * width;
        f32 b = widen(from[half + item]) + shift[half + item];
        if (item < half) {
            f32 a = widen(from[item]) + shift[item];
            turn(a, b, cosine[row * half + item], sine[row * half + item]);
            narrow(a, to[item]);
        }
        narrow(b, to[half + item]);
    }
}

// Gradients: what turned a pair turns it back with the sine's other sign. gradient and y [.., heads, width]; units as
// above.
template <class Y, class Place>
DEVICE void rope_back(const f32* gradient, const f32* cosine, const f32* sine, const i32* count, Y* y, i64 entries,
                      i64 inner, i64 heads, i64 width, i64 half, Place place) {
    const i64 items = width - half, end = valid_rows(count, entries) * inner;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 item = i % items, head = i / items, row = head / heads;
        const f32* const from = gradient + head * width;
        Y* const to = y + head * width;
        if (item >= half) {
            narrow(from[half + item], to[half + item]);
            continue;
        }
        const i64 first = place.first(item, half), second = place.second(item, half);
        f32 a = from[first], b = from[second];
        turn(a, b, cosine[row * half + item], -sine[row * half + item]);
        narrow(a, to[first]);
        narrow(b, to[second]);
    }
}

template <class Y>
DEVICE void rope_split_half_backward(const f32* gradient, const f32* cosine, const f32* sine, const i32* count, Y* y,
                                     i64 entries, i64 inner, i64 heads, i64 width, i64 half, Status) {
    rope_back(gradient, cosine, sine, count, y, entries, inner, heads, width, half, SplitHalf());
}

template <class Y>
DEVICE void rope_interleaved_backward(const f32* gradient, const f32* cosine, const f32* sine, const i32* count, Y* y,
                                      i64 entries, i64 inner, i64 heads, i64 width, i64 half, Status) {
    rope_back(gradient, cosine, sine, count, y, entries, inner, heads, width, half, Interleaved());
}

// gradient [batches, heads, tokens, width], split-half, to [batches, tokens, heads, width].
template <class Y>
DEVICE void rope_bias_backward(const f32* gradient, const f32* cosine, const f32* sine, const i32* count, Y* y,
                               i64 batches, i64 heads, i64 tokens, i64 width, i64 half, Status) {
    const i64 items = width - half, end = valid_rows(count, batches) * tokens * heads * items;
    for (i64 i = first_element(); i < end; i += element_step()) {
        const i64 item = i % items, head = i / items % heads, row = i / items / heads;
        const f32* const from = gradient + ((row / tokens * heads + head) * tokens + row % tokens) * width;
        Y* const to = y + (row * heads + head) * width;
        f32 b = from[half + item];
        if (item < half) {
            f32 a = from[item];
            turn(a, b, cosine[row * half + item], -sine[row * half + item]);
            narrow(a, to[item]);
        }
        narrow(b, to[half + item]);
    }
}
