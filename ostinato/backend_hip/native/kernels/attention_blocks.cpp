#include "attention_blocks.h"

namespace ost::OST_UNIT {

namespace {

constexpr int64_t kDotBlock = 16;  // head elements of a dot product, and keys or queries of a weighted sum, in a run
constexpr int64_t kSumBlock = 32;

constexpr float kOnes[] = {1, 1, 1, 1, 1, 1};
static_assert(kTileRows <= sizeof kOnes / sizeof *kOnes, "a factor for each row of a register tile");

struct Rows {
    float* at;
    int64_t stride;
};

// c = a b, or c += a b, with `rows` rows of c and `columns` completed to whole vectors.
void multiply(int64_t rows, int64_t columns, int64_t depth, int64_t block, Rows a, Rows b, Rows c, bool adds) {
    Stream none(nullptr, 0, 0);
    for_tiles(0, rows, [&](int64_t row, int64_t count) {
        multiply_rows(count, ceil_div(columns, VW),
                      {a.at + row * a.stride, a.stride, b.at, b.stride, c.at + row * c.stride, c.stride, depth, block,
                       adds ? kOnes : nullptr, &none});
    });
}

void load_rows(int64_t dtype, const char* from, int64_t step, int64_t count, int64_t width, float* to, int64_t stride) {
    with_known_float(dtype, [&](auto type) {
        using T = decltype(type);
        for (int64_t i = 0; i < count; ++i) {
            widen_row(reinterpret_cast<const T*>(from) + i * step, to + i * stride, width, splat(1.0f));
        }
    });
}

// to[j][i] = from[i][j] for whole vectors that hold `rows` rows and `columns` columns.
void turn_over(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
    for (int64_t r = 0; r < rows; r += VW) {
        for (int64_t c = 0; c < columns; c += VW) {
            vf square[VW];
#pragma GCC unroll 16
            for (int i = 0; i < VW; ++i) square[i] = load(from + (r + i) * from_stride + c);
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < VW; ++i) store(to + (c + i) * to_stride + r, square[i]);
        }
    }
}

// What a query does not see becomes zero, whatever lies there.
template <bool kCapped>
void probabilities(const Backward& b, BackwardBlock& w) {
    const int64_t n = b.block();
    const vf scale = splat(b.scoring.scale), cap = splat(b.scoring.soft_cap);
    const vf reciprocal = splat(1.0f / b.scoring.soft_cap), one = splat(1.0f);
    for (int64_t j = 0; j < w.query_count; j += VW) {
        const vi first = load_i(w.first + j), end = load_i(w.end + j);
        const vf log_sum = load(w.log_sum + j), delta = load(w.delta + j);
        for (int64_t r = 0; r < w.key_count; ++r) {
            float* const weight = w.weight + r * n + j;
            float* const slope = w.slope + r * n + j;
            const vi key = splat_i(static_cast<int32_t>(w.first_key + r));
            const vi seen = (key >= first) & (key < end);
            vf score = load(weight) * scale, bend = scale;
            if (kCapped) {
                score = soft_cap(score, cap, reciprocal);
                const vf part = score * reciprocal;
                bend = scale * ((one - part) * (one + part));
            }
            const vf p = exp(score - log_sum);
            store(slope, select(seen, p * (load(slope) - delta) * bend, zero()));
            store(weight, select(seen, p, zero()));
        }
    }
}

enum Wanted { kKeys = 1, kQueries = 2 };

// The parts of a block: added to k_sums and v_sums, and q_part.
void block_gradients(const Backward& b, BackwardBlock& w, int wanted) {
    const int64_t n = b.block(), stride = b.stride();
    score_block(b, w);
    if (b.scoring.soft_cap > 0) {
        probabilities<true>(b, w);
    } else {
        probabilities<false>(b, w);
    }
    if ((wanted & kKeys) != 0) {
        multiply(w.key_count, stride, w.query_count, kSumBlock, {w.weight, n}, {w.upstream, stride}, {w.v_sums, stride},
                 true);
        multiply(w.key_count, stride, w.query_count, kSumBlock, {w.slope, n}, {w.query, stride}, {w.k_sums, stride},
                 true);
    }
    if ((wanted & kQueries) != 0) {
        turn_over(w.slope, n, w.key_count, w.query_count, w.by_query, n);
        multiply(w.query_count, stride, w.key_count, kSumBlock, {w.by_query, n}, {w.keys, stride}, {w.q_part, stride},
                 false);
    }
}

void write_rows(int64_t dtype, const float* from, int64_t from_stride, int64_t count, int64_t width, char* to,
                int64_t step) {
    with_known_float(dtype, [&](auto type) {
        using Y = decltype(type);
        for (int64_t i = 0; i < count; ++i) {
            convert_run(from + i * from_stride, reinterpret_cast<Y*>(to) + i * step, width);
        }
    });
}

void clear(float* sums, int64_t count) { std::memset(sums, 0, static_cast<size_t>(count) * sizeof *sums); }

void add_part(const float* part, float* sums, int64_t width) {
    for (int64_t d = 0; d < width; d += VW) {
        const int count = static_cast<int>(smaller(VW, width - d));
        store_lanes(sums + d, load_lanes(sums + d, count) + load_lanes(part + d, count), count);
    }
}

// The gradients of one block of keys and values from all queries of its group; with kQueries also those queries' parts.
void keys_of_block(const Backward& b, BackwardBlock& w, int64_t batch, int64_t kv_head, int64_t block, int wanted) {
    const int64_t n = b.block(), stride = b.stride(), group = b.heads / b.kv_heads;
    load_keys(b, w, batch, kv_head, block);
    clear(w.k_sums, n * stride);
    clear(w.v_sums, n * stride);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int64_t q = 0; q < b.blocks(); ++q) {
            if (!b.sees(q, block)) continue;
            load_queries(b, w, batch, head, q);
            block_gradients(b, w, wanted);
            if ((wanted & kQueries) == 0) continue;
            for (int64_t i = 0; i < w.query_count; ++i) {
                const int64_t row = (batch * b.tokens + q * n + i) * b.heads + head;
                add_part(w.q_part + i * stride, b.q_sums + row * b.width, b.width);
            }
        }
    }
    const int64_t row = (batch * b.tokens + block * n) * b.kv_heads + kv_head, step = b.kv_heads * b.width;
    const int64_t size = element_bytes(b.result_dtype);
    write_rows(b.result_dtype, w.k_sums, stride, w.key_count, b.width, at(b.k_gradient, row * b.width, size), step);
    write_rows(b.result_dtype, w.v_sums, stride, w.key_count, b.width, at(b.v_gradient, row * b.width, size), step);
}

// All of one group of heads by one worker, which makes the scores of a block once.
void whole_group(const Backward& b, BackwardBlock& w, int64_t batch, int64_t kv_head) {
    const int64_t group = b.heads / b.kv_heads, run = group * b.width, step = b.heads * b.width;
    float* const sums = b.q_sums + batch * b.tokens * step + kv_head * run;
    for (int64_t t = 0; t < b.tokens; ++t) clear(sums + t * step, run);
    for (int64_t block = 0; block < b.blocks(); ++block) {
        keys_of_block(b, w, batch, kv_head, block, kKeys | kQueries);
    }
    if (b.result_dtype == OST_F32) return;  // q_sums is the result
    const int64_t at_group = batch * b.tokens * step + kv_head * run;
    write_rows(b.result_dtype, sums, step, b.tokens, run, at(b.q_gradient, at_group, element_bytes(b.result_dtype)),
               step);
}

// The gradient of one block of queries from all keys that they see.
void queries_of_block(const Backward& b, BackwardBlock& w, int64_t batch, int64_t head, int64_t block) {
    const int64_t n = b.block(), stride = b.stride();
    load_queries(b, w, batch, head, block);
    float* const sums = w.k_sums;  // free here
    clear(sums, n * stride);
    for (int64_t k = 0; k < b.blocks(); ++k) {
        if (!b.sees(block, k)) continue;
        load_keys(b, w, batch, head / (b.heads / b.kv_heads), k);
        block_gradients(b, w, kQueries);
        for (int64_t i = 0; i < w.query_count; ++i) add_part(w.q_part + i * stride, sums + i * stride, b.width);
    }
    const int64_t row = (batch * b.tokens + block * n) * b.heads + head;
    write_rows(b.result_dtype, sums, stride, w.query_count, b.width,
               at(b.q_gradient, row * b.width, element_bytes(b.result_dtype)), b.heads * b.width);
}

}  // namespace

void load_keys(const Backward& b, BackwardBlock& w, int64_t batch, int64_t kv_head, int64_t block) {
    const int64_t size = element_bytes(b.dtype);
    w.first_key = block * b.block();
    w.key_count = b.block_tokens(block);
    const auto place = [&](const char* base, const Strides& s) {
        return at(base, batch * s.batch + w.first_key * s.token + kv_head * s.head, size);
    };
    load_rows(b.dtype, place(b.keys, b.k), b.k.token, w.key_count, b.width, w.keys, b.stride());
    load_rows(b.dtype, place(b.values, b.v), b.v.token, w.key_count, b.width, w.values, b.stride());
}

void load_queries(const Backward& b, BackwardBlock& w, int64_t batch, int64_t head, int64_t block) {
    const int64_t n = b.block(), stride = b.stride(), t = block * n;
    w.query_count = b.block_tokens(block);
    const int64_t from = batch * b.q.batch + t * b.q.token + head * b.q.head;
    load_rows(b.dtype, at(b.queries, from, element_bytes(b.dtype)), b.q.token, w.query_count, b.width, w.query, stride);
    const float* const upstream = b.gradient + ((batch * b.tokens + t) * b.heads + head) * b.width;
    load_rows(OST_F32, reinterpret_cast<const char*>(upstream), b.heads * b.width, w.query_count, b.width, w.upstream,
              stride);
    turn_over(w.query, stride, w.query_count, stride, w.query_turned, n);
    turn_over(w.upstream, stride, w.query_count, stride, w.up_turned, n);
    const int64_t row = (batch * b.heads + head) * b.tokens + t;
    for (int64_t i = 0; i < n; ++i) {
        const bool there = i < w.query_count;
        w.log_sum[i] = there ? b.log_sum[row + i] : 0.0f;
        w.delta[i] = there ? b.delta[row + i] : 0.0f;
        w.first[i] = there ? b.first[t + i] : 0;
        w.end[i] = there ? b.end[t + i] : 0;
    }
}

void score_block(const Backward& b, BackwardBlock& w) {
    const int64_t n = b.block(), stride = b.stride();
    multiply(w.key_count, w.query_count, b.width, kDotBlock, {w.keys, stride}, {w.query_turned, n}, {w.weight, n},
             false);
    multiply(w.key_count, w.query_count, b.width, kDotBlock, {w.values, stride}, {w.up_turned, n}, {w.slope, n}, false);
}

void attention_gradients(const Call& call, const Backward& b) {
    const int64_t groups = b.batches * b.kv_heads, blocks = b.blocks();
    if (groups >= static_cast<int64_t>(call.pool->threads())) {
        return call.pool->parallel(groups, [&](int64_t unit, void* scratch) {
            BackwardBlock w(b, scratch);
            whole_group(b, w, unit / b.kv_heads, unit % b.kv_heads);
        });
    }
    // Fewer groups than workers: blocks of keys, then blocks of queries, for which the scores are made again.
    call.pool->parallel(groups * blocks, [&](int64_t unit, void* scratch) {
        BackwardBlock w(b, scratch);
        keys_of_block(b, w, unit / blocks / b.kv_heads, unit / blocks % b.kv_heads, unit % blocks, kKeys);
    });
    call.pool->parallel(b.batches * b.heads * blocks, [&](int64_t unit, void* scratch) {
        BackwardBlock w(b, scratch);
        queries_of_block(b, w, unit / blocks / b.heads, unit / blocks % b.heads, unit % blocks);
    });
}

}  // namespace ost::OST_UNIT
