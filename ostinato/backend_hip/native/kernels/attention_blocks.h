// Attention backwards, a block of keys against a block of queries at a time: the inner part that the causal and the
// packed form share.
//
// The probabilities of a block are made again from its scores and the log_sum of each query, transposed: a row of them
// is a key, a lane a query, so that log_sum and delta are vectors. Each block gives its part of the gradients of its
// keys, its values and its queries by the products of multiply.h. Parts of a key are added in ascending order of heads
// and then queries, those of a query in ascending order of keys, whoever computes them: however the blocks are shared
// out, every result has the same bits. Blocks of which no query sees a key are left out.
#pragma once

#include "attention.h"
#include "attention_keys.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kMaximumBackwardWidth = 512;

// Keys and queries of a block for heads of that width, so that a block and its gradients fit a worker's scratch.
OST_INLINE int64_t backward_block(int64_t width) { return width <= 128 ? 64 : width <= 256 ? 32 : 16; }

// Gradients of queries [B,T,H,D] and of keys and values [B,T,G,D]. Query t of every sequence sees keys [first[t],
// end[t]).
struct Backward {
    int64_t batches, tokens, heads, kv_heads, width;
    Scoring scoring;
    int64_t dtype;         // of q, k and v
    int64_t result_dtype;  // of the three gradients
    Strides q, k, v;
    const char* queries;
    const char* keys;
    const char* values;
    const float* gradient;  // [B,T,H,D]
    const float* log_sum;   // [B,H,T]
    const float* delta;     // [B,H,T]: the gradient of y times y
    const int32_t* first;
    const int32_t* end;
    float* q_sums;  // [B,T,H,D]: the gradient of q itself where that is float32
    char* q_gradient;
    char* k_gradient;
    char* v_gradient;

    int64_t block() const { return backward_block(width); }
    int64_t stride() const { return ceil_div(width, VW) * VW; }
    int64_t blocks() const { return ceil_div(tokens, block()); }
    int64_t block_tokens(int64_t number) const { return smaller(block(), tokens - number * block()); }

    bool sees(int64_t query_block, int64_t key_block) const {
        const int64_t from = key_block * block(), to = from + block_tokens(key_block);
        const int64_t begin = query_block * block(), stop = begin + block_tokens(query_block);
        for (int64_t t = begin; t < stop; ++t) {
            if (first[t] < to && end[t] > from) return true;
        }
        return false;
    }
};

// A worker's scratch. [n] is a block of keys or queries, D the width, rows of D padded to whole vectors.
struct BackwardBlock {
    float *keys, *values;             // [n][D]
    float *query, *upstream;          // [n][D]: queries, and the gradient of their results
    float *query_turned, *up_turned;  // [D][n]
    float *weight, *slope,
        *by_query;                    // [n][n]: probabilities and score gradients of keys by queries, the latter turned
    float *k_sums, *v_sums, *q_part;  // [n][D]
    float *log_sum, *delta;           // [n] of the queries
    int32_t *first, *end;             // [n]: what a query sees; nothing past the last query
    int64_t key_count, query_count, first_key;

    BackwardBlock(const Backward& b, void* scratch) {
        auto* next = static_cast<float*>(scratch);
        const int64_t n = b.block(), wide = n * b.stride();
        const auto take = [&next](int64_t count) {
            float* start = next;
            next += ceil_div(count, 16) * 16;
            return start;
        };
        float** const rows[] = {&keys,      &values, &query,  &upstream, &query_turned,
                                &up_turned, &k_sums, &v_sums, &q_part};
        for (float** each : rows) *each = take(wide);
        float** const squares[] = {&weight, &slope, &by_query};
        for (float** each : squares) *each = take(n * n);
        log_sum = take(n);
        delta = take(n);
        first = reinterpret_cast<int32_t*>(take(n));
        end = reinterpret_cast<int32_t*>(take(n));
        key_count = query_count = first_key = 0;
    }
};
static_assert((9 * 64 * 128 + 3 * 64 * 64 + 4 * 64 + 256) * 4 <= int64_t{kWorkerScratchBytes},
              "blocks fit the scratch");

void load_keys(const Backward& b, BackwardBlock& w, int64_t batch, int64_t kv_head, int64_t block);
void load_queries(const Backward& b, BackwardBlock& w, int64_t batch, int64_t head, int64_t block);

// Scores of the keys by the queries into `weight`, and the gradient of the probabilities into `slope`.
void score_block(const Backward& b, BackwardBlock& w);

// Shares out all blocks and writes the three gradients.
void attention_gradients(const Call& call, const Backward& b);

}  // namespace ost::OST_UNIT
