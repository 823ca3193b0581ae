// softmax(scale q k) v over the keys that a token sees: packed tokens over a block cache, whole sequences, and packed
// sequences of an encoder. A block a token and query head. What differs is how a block goes over keys:
//
// - tiles_N, for any head: tiles of 128 keys that begin at multiples of 128, in ascending order. In a tile a thread has
//   a key, then N elements of the output.
// - lanes_N, for heads of N times 16 bytes: teams of N lanes take every so manieth key, 16 bytes of it each, and are
//   joined at the end, those of a group in a tree and groups in ascending order.
//
// Either way a result depends on the token and its keys alone, and not on where the keys lie or who else is in the
// batch. Keys that are not seen are not read; a token that sees none gives zeros.
#include "keys.h"
#include "words.h"

// Where key and value j begin, in elements, and whether all of them begin at multiples of 16 bytes if the first do.
struct Evenly {
    i64 key_step, value_step;
    DEVICE bool whole(int size) const { return key_step * size % 16 == 0 && value_step * size % 16 == 0; }
    DEVICE i64 key(i64 j) const { return j * key_step; }
    DEVICE i64 value(i64 j) const { return j * value_step; }
};

// Each of these calls put(d, peak, sum, output) for d of [0, width) of one query over keys [first, end), by all threads
// of a block.

template <int HELD>
struct Tiles {
    static constexpr int TILE = 128;  // keys, and threads of a block
    static constexpr int WIDEST = 1024;

    template <class Q, class K, class Place, class Put>
    static DEVICE void attend(const Q* q, const K* keys, const K* values, i64 first, i64 end, int width, Scoring score,
                              Place place, Put put) {
        SHARED(f32, query, WIDEST);
        SHARED(f32, weights, TILE);
        const int t = thread_index();
        block_barrier();  // an earlier call may still read
        for (int d = t; d < width; d += TILE) query[d] = widen(q[d]);
        block_barrier();
        f32 peak = -infinity(), sum = 0.0f, output[HELD] = {};
        for (i64 tile = first / TILE * TILE; tile < end; tile += TILE) {
            const i64 j = tile + t;
            f32 value = -infinity();
            if (j >= first && j < end) {
                const K* const key = keys + place.key(j);
                f32 product = 0.0f;
                for (int d = 0; d < width; ++d) product = fmaf(query[d], widen(key[d]), product);
                value = score(product);
            }
            const f32 top = Largest()(peak, block_largest(value)), old = shifted(peak, top);
            const f32 own = j >= first && j < end ? shifted(value, top) : 0.0f;
            weights[t] = own;
            sum = fmaf(sum, old, block_sum(own));
            peak = top;
            const i64 begin = larger(first, tile), stop = smaller(end, tile + TILE);
            for (int i = 0; i < HELD; ++i) {
                const int d = i * TILE + t;
                output[i] *= old;
                for (i64 k = begin; d < width && k < stop; ++k) {
                    output[i] = fmaf(weights[k - tile], widen(values[place.value(k) + d]), output[i]);
                }
            }
        }
        for (int i = 0; i < HELD; ++i) {
            const int d = i * TILE + t;
            if (d < width) put(d, peak, sum, output[i]);
        }
    }
};
using tiles_1 = Tiles<1>;
using tiles_2 = Tiles<2>;
using tiles_8 = Tiles<8>;

template <int LANES>
struct Lanes {
    static constexpr int THREADS = 256;
    static constexpr int GROUPS = THREADS / GROUP;
    static constexpr int TEAMS = THREADS / LANES;
    static constexpr int AT_ONCE = 4;  // keys of a team whose bytes are under way together

    template <class Q, class K, class Place, class Put>
    static DEVICE void attend(const Q* q, const K* keys, const K* values, i64 first, i64 end, int width, Scoring score,
                              Place place, Put put) {
        constexpr int size = Packed<K>::size;
        SHARED(f32, peaks, GROUPS);
        SHARED(f32, sums, GROUPS);
        SHARED(f32, outputs, GROUPS * LANES * size);
        const int team = thread_index() / LANES, own = thread_index() % LANES * size;
        const bool whole = aligned(keys) && aligned(values) && place.whole(static_cast<int>(sizeof(K)));
        f32 query[size], output[size] = {}, peak = -infinity(), sum = 0.0f;
        load_values(q + own, aligned(q), query);
        for (i64 turn = first / TEAMS * TEAMS; turn < end; turn += AT_ONCE * TEAMS) {
            Words key[AT_ONCE] = {}, value[AT_ONCE] = {};
            f32 scores[AT_ONCE], top = peak;
            for (int n = 0; n < AT_ONCE; ++n) {
                const i64 j = turn + n * TEAMS + team;
                if (j < first || j >= end) continue;
                key[n] = load_words(keys + place.key(j) + own, whole);
                value[n] = load_words(values + place.value(j) + own, whole);
            }
            for (int n = 0; n < AT_ONCE; ++n) {
                const i64 j = turn + n * TEAMS + team;
                f32 product = 0.0f;
                for (int i = 0; i < size; ++i) product = fmaf(query[i], value_in(key[n], i, keys), product);
                for (int lanes = LANES / 2; lanes > 0; lanes /= 2) product += shuffle_xor(product, lanes);
                scores[n] = j < first || j >= end ? -infinity() : score(product);
                top = Largest()(top, scores[n]);
            }
            const f32 old = shifted(peak, top);
            peak = top;
            sum *= old;
            for (int i = 0; i < size; ++i) output[i] *= old;
            for (int n = 0; n < AT_ONCE; ++n) {
                const i64 j = turn + n * TEAMS + team;
                const f32 weight = j < first || j >= end ? 0.0f : shifted(scores[n], top);
                sum += weight;
                for (int i = 0; i < size; ++i) output[i] = fmaf(weight, value_in(value[n], i, values), output[i]);
            }
        }
        f32 top = peak;  // of the teams of this group, which are joined in a tree
        for (int n = LANES; n < GROUP; n *= 2) top = Largest()(top, shuffle_xor(top, n));
        const f32 factor = shifted(peak, top);
        sum *= factor;
        for (int i = 0; i < size; ++i) output[i] *= factor;
        for (int n = LANES; n < GROUP; n *= 2) {
            sum += shuffle_xor(sum, n);
            for (int i = 0; i < size; ++i) output[i] += shuffle_xor(output[i], n);
        }
        block_barrier();  // an earlier call may still read
        if (group_lane() < LANES) {
            for (int i = 0; i < size; ++i) outputs[group_index() * LANES * size + own + i] = output[i];
        }
        if (group_lane() == 0) {
            peaks[group_index()] = top;
            sums[group_index()] = sum;
        }
        block_barrier();
        const int d = thread_index();
        for (int g = 0; g < GROUPS; ++g) top = Largest()(top, peaks[g]);
        f32 total = 0.0f, joined = 0.0f;
        for (int g = 0; d < width && g < GROUPS; ++g) {
            const f32 share = shifted(peaks[g], top);
            total = fmaf(sums[g], share, total);
            joined = fmaf(outputs[g * width + d], share, joined);
        }
        if (d < width) put(d, top, total, joined);
    }
};
using lanes_4 = Lanes<4>;
using lanes_8 = Lanes<8>;
using lanes_16 = Lanes<16>;
using lanes_32 = Lanes<32>;

template <class Y, class Sums = NoLogSums>
struct Finished {
    Y* y;
    i64 token = 0, head = 0;
    Sums log_sums = {};
    DEVICE void operator()(int d, f32 peak, f32 sum, f32 output) const {
        narrow(quotient(output, sum), y[d]);
        if (d == 0) log_sums.put(token, head, peak, sum);
    }
};

// q, y [tokens, heads, width]; caches [blocks, kv_heads, block_size, width] through the block table.
template <class Way, class Q, class C, class Y>
DEVICE void attention_packed(const Q* q, const C* k_cache, const C* v_cache, const i32* row_of_token,
                             const i32* position, const i32* block_table, const i32* length, const i32* count, Y* y,
                             i64 tokens, i64 heads, i64 kv_heads, i64 width, i64 blocks, i64 block_size, i64 table_rows,
                             i64 table_width, f64 scale, i64 window, f64 cap, Status status) {
    const Scoring score = {static_cast<f32>(scale), static_cast<f32>(cap)};
    const i64 units = valid_rows(count, tokens) * heads;
    for (i64 unit = block_index(); unit < units; unit += block_count()) {
        const i64 token = unit / heads, kv = unit % heads / (heads / kv_heads);
        const i64 row = row_of_token[token];
        const bool known = row >= 0 && row < table_rows;
        const i32* const table = block_table + (known ? row : 0) * table_width;
        const Sight seen = sight_of(row, position[token], known ? length[row] : 0, table_rows, table_width * block_size,
                                    window);
        const bool bad = blocks_missing(table, seen.start, seen.end, blocks, block_size) || seen.bad;
        if (bad && thread_index() == 0) status.out_of_range();
        Way::attend(q + unit * width, k_cache, v_cache, seen.start, bad ? 0 : seen.end, static_cast<int>(width), score,
                    InBlocks{table, kv_heads, kv, static_cast<u32>(block_size), width},
                    Finished<Y>{y + unit * width});
    }
}

// q, y [batches, time, heads, width], k and v [batches, time, kv_heads, width]: token t sees the keys up to t.
template <class Way, class T, class Y, class Sums>
DEVICE void whole_sequences(const T* q, const T* k, const T* v, const i32* count, Y* y, Sums log_sums, i64 batches,
                            i64 time, i64 heads, i64 kv_heads, i64 width, f64 scale, i64 window, f64 cap, i64 q_batch,
                            i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch, i64 v_token,
                            i64 v_head) {
    const Scoring score = {static_cast<f32>(scale), static_cast<f32>(cap)};
    const i64 units = valid_rows(count, batches) * time * heads;
    for (i64 unit = block_index(); unit < units; unit += block_count()) {
        const i64 head = unit % heads, token = unit / heads % time, batch = unit / heads / time;
        const i64 kv = head / (heads / kv_heads);
        Way::attend(q + (batch * q_batch + token * q_token + head * q_head), k + (batch * k_batch + kv * k_head),
                    v + (batch * v_batch + kv * v_head), window_start(token, window), token + 1,
                    static_cast<int>(width), score, Evenly{k_token, v_token},
                    Finished<Y, Sums>{y + unit * width, batch * time + token, head, log_sums});
    }
}

template <class Way, class T, class Y>
DEVICE void attention_causal(const T* q, const T* k, const T* v, const i32* count, Y* y, i64 batches, i64 time,
                             i64 heads, i64 kv_heads, i64 width, f64 scale, i64 window, f64 cap, i64 q_batch,
                             i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head, i64 v_batch, i64 v_token,
                             i64 v_head, Status) {
    whole_sequences<Way>(q, k, v, count, y, NoLogSums{}, batches, time, heads, kv_heads, width, scale, window, cap,
                         q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head);
}

template <class Way, class T, class Y>
DEVICE void attention_causal_saved(const T* q, const T* k, const T* v, const i32* count, Y* y, f32* log_sum,
                                   i64 batches, i64 time, i64 heads, i64 kv_heads, i64 width, f64 scale, i64 window,
                                   f64 cap, i64 q_batch, i64 q_token, i64 q_head, i64 k_batch, i64 k_token, i64 k_head,
                                   i64 v_batch, i64 v_token, i64 v_head, Status) {
    whole_sequences<Way>(q, k, v, count, y, LogSums{log_sum, time, heads}, batches, time, heads, kv_heads, width, scale,
                         window, cap, q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head);
}

// q, y [tokens, heads, width], k and v [tokens, kv_heads, width]: a token of row r sees tokens start[r] .. start[r] +
// length[r] - 1, which must be valid ones.
template <class Way, class T, class Y>
DEVICE void attention_bidirectional(const T* q, const T* k, const T* v, const i32* row_of_token, const i32* start,
                                    const i32* length, const i32* count, Y* y, i64 tokens, i64 heads, i64 kv_heads,
                                    i64 width, i64 rows, f64 scale, i64 q_token, i64 q_head, i64 k_token, i64 k_head,
                                    i64 v_token, i64 v_head, Status status) {
    const Scoring score = {static_cast<f32>(scale), 0.0f};
    const i64 valid = valid_rows(count, tokens);
    for (i64 unit = block_index(); unit < valid * heads; unit += block_count()) {
        const i64 token = unit / heads, head = unit % heads, kv = head / (heads / kv_heads), row = row_of_token[token];
        const bool known = row >= 0 && row < rows;
        const i64 first = known ? start[row] : 0, size = known ? larger<i64>(0, length[row]) : 0;
        const bool inside = size == 0 || (first >= 0 && first + size <= valid);
        if (thread_index() == 0 && (!inside || row >= rows)) status.out_of_range();
        const i64 begin = inside && size > 0 ? first : 0;
        Way::attend(q + (token * q_token + head * q_head), k + (begin * k_token + kv * k_head),
                    v + (begin * v_token + kv * v_head), 0, inside ? size : 0, static_cast<int>(width), score,
                    Evenly{k_token, v_token}, Finished<Y>{y + unit * width});
    }
}
