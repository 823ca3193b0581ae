// Attention of tiles of queries over tiles of keys: what queries see, where keys lie, and how they come into shared memory.
// Queries of one block may be of several sequences, which are taken one after the other.
#pragma once
#include "scoring.h"
#include "words.h"

constexpr i32 NOBODY = -1;

// What a query sees: keys [start, end) of a sequence.
struct Seen {
    i32 sequence, start, end;
};

// Where key and value j of a sequence begin, in elements; false where the block table is wrong.
struct EvenPlaces {
    i64 key, key_step, value, value_step;
    DEVICE bool find(i32 j, i64& k, i64& v) const {
        k = key + j * key_step;
        v = value + j * value_step;
        return true;
    }
};
struct BlockPlaces {
    const i32* table;
    u32 blocks, kv_heads, kv, block_size, width;
    DEVICE bool find(i32 j, i64& k, i64& v) const {
        const u32 block = static_cast<u32>(j) / block_size, found = static_cast<u32>(table[block]);
        if (found >= blocks) return false;
        const u32 row = (found * kv_heads + kv) * block_size + (static_cast<u32>(j) - block * block_size);
        k = v = static_cast<i64>(static_cast<u64>(row) * width);
        return true;
    }
};

// Which of SPAN keys from `tile` on [start, end) has; at most 64.
template <int SPAN>
DEVICE u64 bits_seen(i32 start, i32 end, i32 tile) {
    const i32 from = larger(start - tile, 0), to = smaller(end - tile, SPAN);
    if (from >= to) return 0;
    return ~u64(0) >> (64 - (to - from)) << from;
}

// Rows of WIDTH values in shared memory, 16 bytes apart so that what lanes read together is in different banks.
template <int WIDTH, class T>
struct Staged {
    static constexpr int SIZE = Packed<T>::size, STRIDE = WIDTH + SIZE;
    T* first;
    DEVICE T* operator()(int row, int run) const { return first + row * STRIDE + run * SIZE; }
    DEVICE Words* words(int row, int run) const { return reinterpret_cast<Words*>((*this)(row, run)); }
};

// Sends a tile's keys or values, those that somebody sees, to shared memory, the others as zeros.
template <int SPAN, int THREADS, int WIDTH, class T, class Places>
DEVICE void send(Staged<WIDTH, T> to, const T* from, bool values, Places places, i32 tile, u64 seen, bool whole,
                 Status status) {
    constexpr int RUNS = WIDTH / Packed<T>::size;
    static_assert(THREADS % RUNS == 0, "a thread always has the same run");
    const int run = thread_index() % RUNS;
    from += run * Packed<T>::size;
#pragma unroll
    for (int e = 0; e < SPAN * RUNS / THREADS; ++e) {
        const int j = e * (THREADS / RUNS) + thread_index() / RUNS;
        i64 key, value;
        const T* source = nullptr;
        if (seen >> j & 1u) {
            if (places.find(tile + j, key, value)) {
                source = from + (values ? value : key);
            } else {
                status.out_of_range();
            }
        }
        if (whole || source == nullptr) {
            copy_words(to.words(j, run), source);
        } else {
            *to.words(j, run) = load_words(source, false);
        }
    }
}

// Of queries [from, to): the keys [begin, stop) of a sequence that hold all that some of them see. The same in all lanes.
DEVICE void range_seen(const Seen* seen, int from, int to, i32 sequence, i32& begin, i32& stop) {
    begin = 0x7fffffff, stop = 0;
    for (int query = from + lane(); query < to; query += WAVE) {
        const Seen found = seen[query];
        if (found.sequence != sequence) continue;
        begin = smaller(begin, found.start);
        stop = larger(stop, found.end);
    }
    for (int n = 1; n < WAVE; n *= 2) {
        begin = smaller(begin, shuffle_xor(begin, n));
        stop = larger(stop, shuffle_xor(stop, n));
    }
}

// The keys that some of so many queries see of the first tile from `tile` on that has any, which it becomes.
template <int QUERIES, int SPAN>
DEVICE u64 next_seen(const Seen* seen, i32 sequence, i32 stop, i32& tile) {
    for (; tile < stop; tile += SPAN) {
        u64 bits = 0;
        for (int query = lane(); query < QUERIES; query += WAVE) {
            const Seen found = seen[query];
            if (found.sequence == sequence) bits |= bits_seen<SPAN>(found.start, found.end, tile);
        }
        for (int n = 1; n < WAVE; n *= 2) bits |= shuffle_xor(bits, n);
        if (bits != 0) return bits;
    }
    return 0;
}

// Which queries are the first ones of their sequences in a block. All threads take part.
template <int QUERIES, class Problem>
DEVICE void look(Seen* seen, i32* first_of, i32 first, i32 tokens, i32 group, Problem problem, Status status) {
    const int t = thread_index();
    if (t < QUERIES) {
        const i32 token = (first + t) / group;
        seen[t] = token < tokens ? problem.seen(token, status) : Seen{NOBODY, 0, 0};
        if (seen[t].start >= seen[t].end) seen[t].sequence = NOBODY;
    }
    block_barrier();
    if (t < QUERIES) {
        i32 before = t > 0 && seen[t - 1].sequence == seen[t].sequence ? 1 : 0;
        for (int other = 0; !before && other < t; ++other) before |= seen[other].sequence == seen[t].sequence;
        first_of[t] = before || seen[t].sequence == NOBODY ? 0 : 1;
    }
}

struct PackedTokens {
    const i32 *row_of_token, *position, *table, *length;
    i64 heads, kv_heads, width, blocks, block_size, table_rows, table_width, window;
    DEVICE bool whole(const void* q, const void* k, const void* v) const { return aligned(q) && aligned(k) && aligned(v); }
    DEVICE i64 query(i64 token, i64 head) const { return (token * heads + head) * width; }
    DEVICE Seen seen(i64 token, Status status) const {
        const i32 row = row_of_token[token];
        const i64 at = position[token];
        if (row < 0) return {NOBODY, 0, 0};
        bool bad = row >= table_rows;
        const i64 start = window_start(at, window), end = bad ? 0 : smaller<i64>(at + 1, length[row]);
        bad = bad || (end > start && end > table_width * block_size);
        if (bad) status.out_of_range();
        return bad || end <= start ? Seen{NOBODY, 0, 0} : Seen{row, static_cast<i32>(start), static_cast<i32>(end)};
    }
    DEVICE BlockPlaces places(i32 sequence, i64 kv) const {
        return {table + sequence * table_width, static_cast<u32>(blocks), static_cast<u32>(kv_heads),
                static_cast<u32>(kv), static_cast<u32>(block_size), static_cast<u32>(width)};
    }
};

// Strides of q, k and v.
struct Steps {
    i64 q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head;
    // Whether all runs of 8 halves, or of 4 f32, begin at multiples of 16 bytes.
    DEVICE bool whole(const void* q, const void* k, const void* v) const {
        const i64 all = q_batch | q_token | q_head | k_batch | k_token | k_head | v_batch | v_token | v_head;
        return aligned(q) && aligned(k) && aligned(v) && all % 8 == 0;
    }
};

struct CausalTokens {
    Steps steps;
    i64 time, window;
    DEVICE bool whole(const void* q, const void* k, const void* v) const { return steps.whole(q, k, v); }
    DEVICE i64 query(i64 token, i64 head) const {
        return token / time * steps.q_batch + token % time * steps.q_token + head * steps.q_head;
    }
    DEVICE Seen seen(i64 token, Status) const {
        const i64 at = token % time;
        return {static_cast<i32>(token / time), static_cast<i32>(window_start(at, window)), static_cast<i32>(at + 1)};
    }
    DEVICE EvenPlaces places(i32 sequence, i64 kv) const {
        return {sequence * steps.k_batch + kv * steps.k_head, steps.k_token,
                sequence * steps.v_batch + kv * steps.v_head, steps.v_token};
    }
};

struct EncoderTokens {
    Steps steps;
    const i32 *row_of_token, *first_token, *length;
    i64 tokens, rows;
    DEVICE bool whole(const void* q, const void* k, const void* v) const { return steps.whole(q, k, v); }
    DEVICE i64 query(i64 token, i64 head) const { return token * steps.q_token + head * steps.q_head; }
    DEVICE Seen seen(i64 token, Status status) const {
        const i32 row = row_of_token[token];
        const bool known = row >= 0 && row < rows;
        const i64 first = known ? first_token[row] : 0, size = known ? larger<i64>(0, length[row]) : 0;
        const bool inside = size == 0 || (first >= 0 && first + size <= tokens);
        if (!inside || row >= rows) status.out_of_range();
        return inside && size > 0 ? Seen{row, 0, static_cast<i32>(size)} : Seen{NOBODY, 0, 0};
    }
    DEVICE EvenPlaces places(i32 sequence, i64 kv) const {
        const i64 first = first_token[sequence];
        return {first * steps.k_token + kv * steps.k_head, steps.k_token, first * steps.v_token + kv * steps.v_head,
                steps.v_token};
    }
};
