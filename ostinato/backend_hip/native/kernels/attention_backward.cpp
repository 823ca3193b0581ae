// Gradients of attention over whole sequences, causal and of an encoder: what is needed of each query before the blocks
// of attention_blocks.h, and the kernels.
#include "attention_blocks.h"

namespace ost::OST_UNIT {

namespace {

// Parts of the workspace, one after another.
struct Parts {
    char* next;
    char* stop;
    template <class T>
    T* take(int64_t count) {
        char* start = next;
        next += ceil_div(count * static_cast<int64_t>(sizeof(T)), 64) * 64;
        return reinterpret_cast<T*>(start);
    }
    bool fits() const { return next <= stop; }
};
Parts parts_of(const Call& call, uint32_t operand) {
    const ost_operand& o = call.operands[operand];
    char* start = static_cast<char*>(o.address);
    return {start, start + o.bytes};
}

bool usable_sizes(const Backward& b) {
    return b.kv_heads > 0 && b.heads >= 0 && b.heads % b.kv_heads == 0 && b.width <= kMaximumBackwardWidth &&
           b.tokens <= INT32_MAX && usable(0, b.scoring.soft_cap) && is_float(b.dtype) && is_float(b.result_dtype);
}

// Operands gradient, q, k, v at 0 .. 3 and the three gradients from `result` on.
bool covers_all(const Call& call, const Backward& b, uint32_t result) {
    const int64_t size = element_bytes(b.dtype), made = element_bytes(b.result_dtype);
    const int64_t queries = area(b.batches, b.tokens, b.heads, b.width);
    const int64_t shared = area(b.batches, b.tokens, b.kv_heads, b.width);
    return covers(call, 0, queries, 4) && covers(call, 1, extent(b.q, b.batches, b.tokens, b.heads, b.width), size) &&
           covers(call, 2, extent(b.k, b.batches, b.tokens, b.kv_heads, b.width), size) &&
           covers(call, 3, extent(b.v, b.batches, b.tokens, b.kv_heads, b.width), size) &&
           covers(call, result, queries, made) && covers(call, result + 1, shared, made) &&
           covers(call, result + 2, shared, made);
}

// Without query heads nobody reads keys and values.
void clear_shared(const Call& call, const Backward& b, uint32_t result) {
    const int64_t shared = area(b.batches, b.tokens, b.kv_heads, b.width), size = element_bytes(b.result_dtype);
    for (uint32_t i = 1; i < 3; ++i) {
        if (covers(call, result + i, shared, size)) {
            std::memset(call.pointer<char>(result + i), 0, static_cast<size_t>(shared * size));
        }
    }
}

void take_operands(const Call& call, Backward& b, uint32_t result, Parts& parts) {
    b.gradient = call.pointer<const float>(0);
    b.queries = call.pointer<const char>(1);
    b.keys = call.pointer<const char>(2);
    b.values = call.pointer<const char>(3);
    b.q_gradient = call.pointer<char>(result);
    b.k_gradient = call.pointer<char>(result + 1);
    b.v_gradient = call.pointer<char>(result + 2);
    b.q_sums = b.result_dtype == OST_F32 ? call.pointer<float>(result)
                                         : parts.take<float>(b.batches * b.tokens * b.heads * b.width);
}

// delta[b,h,t] = the gradient of y times y.
template <class Y>
void make_delta(const Call& call, const Backward& b, const Y* y, float* delta) {
    const double cost = 2 * kStreamNanoseconds * static_cast<double>(b.heads * b.width);
    for_rows(call, b.batches * b.tokens, cost, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t h = 0; h < b.heads; ++h) {
                const int64_t from = (row * b.heads + h) * b.width;
                vf sums = zero();
                for (int64_t d = 0; d < b.width; d += VW) {
                    const int n = static_cast<int>(smaller(VW, b.width - d));
                    sums = fma(load_lanes(b.gradient + from + d, n), load_lanes(y + from + d, n), sums);
                }
                delta[(row / b.tokens * b.heads + h) * b.tokens + row % b.tokens] = sum(sums);
            }
        }
    });
}

// log_sum and delta of a block of queries from the keys that they see, by online softmax: sums of the exponentials and
// of their products with the gradient of the probabilities, rescaled where a block has a larger score.
void sums_of_queries(const Backward& b, BackwardBlock& w, int64_t head, int64_t block, float* log_sum, float* delta) {
    const int64_t n = b.block(), row = head * b.tokens + block * n;
    float* const top = w.k_sums;  // free here
    float* const total = top + n;
    float* const along = total + n;
    load_queries(b, w, 0, head, block);
    for (int64_t i = 0; i < n; ++i) {
        top[i] = -kInfinity;
        total[i] = along[i] = 0.0f;
    }
    const vf scale = splat(b.scoring.scale), lowest = splat(-kInfinity);
    for (int64_t k = 0; k < b.blocks(); ++k) {
        if (!b.sees(block, k)) continue;
        load_keys(b, w, 0, head / (b.heads / b.kv_heads), k);
        score_block(b, w);
        for (int64_t j = 0; j < w.query_count; j += VW) {
            const vi first = load_i(w.first + j), end = load_i(w.end + j);
            const auto score_of = [&](int64_t r) __attribute__((always_inline)) {
                const vi key = splat_i(static_cast<int32_t>(w.first_key + r));
                return select((key >= first) & (key < end), load(w.weight + r * n + j) * scale, lowest);
            };
            const vf before = load(top + j);
            vf best = before;
            for (int64_t r = 0; r < w.key_count; ++r) best = maximum(score_of(r), best);
            const vf shift = select(best == lowest, zero(), best), keep = exp(before - shift);
            vf sums = zero(), products = zero();
            for (int64_t r = 0; r < w.key_count; ++r) {
                const vf score = score_of(r), power = exp(score - shift);
                sums = sums + power;
                products = fma(power, select(score == lowest, zero(), load(w.slope + r * n + j)), products);
            }
            store(top + j, best);
            store(total + j, fma(load(total + j), keep, sums));
            store(along + j, fma(load(along + j), keep, products));
        }
    }
    for (int64_t i = 0; i < w.query_count; ++i) {
        const bool sees = total[i] > 0.0f;
        log_sum[row + i] = sees ? top[i] + static_cast<float>(__builtin_log(static_cast<double>(total[i]))) : 0.0f;
        delta[row + i] = sees ? along[i] / total[i] : 0.0f;
    }
}

}  // namespace

// Operands gradient, q, k, v, y, log_sum, workspace, the three gradients. Params: batches, tokens, heads, kv heads,
// width, scale, window, soft cap, dtypes of q, of y and of the gradients, then the strides of q, k and v.
void attention_causal_backward(const Call& call) {
    const auto strides = [&](uint32_t first) {
        return Strides{call.integer(first), call.integer(first + 1), call.integer(first + 2)};
    };
    Backward b{};
    b.batches = call.integer(0);
    b.tokens = call.integer(1);
    b.heads = call.integer(2);
    b.kv_heads = call.integer(3);
    b.width = call.integer(4);
    b.scoring = {static_cast<float>(call.real(5)), static_cast<float>(call.real(7))};
    b.dtype = call.integer(8);
    b.result_dtype = call.integer(10);
    b.q = strides(11);
    b.k = strides(14);
    b.v = strides(17);
    const int64_t window = call.integer(6), y_dtype = call.integer(9);
    if (empty(call, b.batches, b.tokens, b.width)) return;
    if (!usable_sizes(b) || window < 0 || !is_float(y_dtype)) return report(call, OST_INVALID_ARGUMENT);
    if (b.heads == 0) return clear_shared(call, b, 7);
    const int64_t queries = area(b.batches, b.tokens, b.heads);
    if (!covers_all(call, b, 7) || !covers(call, 4, area(queries, b.width), element_bytes(y_dtype)) ||
        !covers(call, 5, queries, 4)) {
        return;
    }
    Parts parts = parts_of(call, 6);
    auto* first = parts.take<int32_t>(b.tokens);
    auto* end = parts.take<int32_t>(b.tokens);
    float* delta = parts.take<float>(queries);
    take_operands(call, b, 7, parts);
    if (!parts.fits()) return report(call, OST_INVALID_ARGUMENT);
    for (int64_t t = 0; t < b.tokens; ++t) {
        const KeyRange seen = keys_of(t, t + 1, window);
        first[t] = static_cast<int32_t>(seen.first);
        end[t] = static_cast<int32_t>(seen.end);
    }
    with_known_float(y_dtype, [&](auto type) { make_delta(call, b, call.pointer<const decltype(type)>(4), delta); });
    b.first = first;
    b.end = end;
    b.log_sum = call.pointer<const float>(5);
    b.delta = delta;
    attention_gradients(call, b);
}

// Operands gradient, q, k, v, row_of_token, start, length, workspace, the three gradients. Params: tokens, heads, kv
// heads, width, rows, scale, dtypes of q and of the gradients, then the strides of a token and a head of q, k and v.
void attention_bidirectional_backward(const Call& call) {
    const auto strides = [&](uint32_t first) { return Strides{0, call.integer(first), call.integer(first + 1)}; };
    Backward b{};
    b.batches = 1;
    b.tokens = call.integer(0);
    b.heads = call.integer(1);
    b.kv_heads = call.integer(2);
    b.width = call.integer(3);
    b.scoring = {static_cast<float>(call.real(5)), 0.0f};
    b.dtype = call.integer(6);
    b.result_dtype = call.integer(7);
    b.q = strides(8);
    b.k = strides(10);
    b.v = strides(12);
    const int64_t rows = call.integer(4);
    if (empty(call, b.tokens, b.width)) return;
    if (!usable_sizes(b) || rows < 0) return report(call, OST_INVALID_ARGUMENT);
    if (b.heads == 0) return clear_shared(call, b, 8);
    if (!covers_all(call, b, 8) || !covers(call, 4, b.tokens, 4) || !covers(call, 5, rows, 4) ||
        !covers(call, 6, rows, 4)) {
        return;
    }
    Parts parts = parts_of(call, 7);
    auto* first = parts.take<int32_t>(b.tokens);
    auto* end = parts.take<int32_t>(b.tokens);
    float* delta = parts.take<float>(b.heads * b.tokens);
    float* log_sum = parts.take<float>(b.heads * b.tokens);
    take_operands(call, b, 8, parts);
    if (!parts.fits()) return report(call, OST_INVALID_ARGUMENT);
    const auto* row_of_token = call.pointer<const int32_t>(4);
    const auto* start = call.pointer<const int32_t>(5);
    const auto* length = call.pointer<const int32_t>(6);
    for (int64_t t = 0; t < b.tokens; ++t) {
        const int64_t row = row_of_token[t];
        first[t] = end[t] = 0;
        if (row < 0 || (row < rows && length[row] <= 0)) continue;
        if (row >= rows || start[row] < 0 || start[row] > b.tokens - length[row]) {
            report(call, OST_OUT_OF_RANGE);
            continue;
        }
        first[t] = start[row];
        end[t] = start[row] + length[row];
    }
    b.first = first;
    b.end = end;
    b.log_sum = log_sum;
    b.delta = delta;
    const int64_t blocks = b.blocks();
    for (int64_t i = 0; i < b.heads * b.tokens; ++i) log_sum[i] = delta[i] = 0.0f;  // load_queries reads them
    call.pool->parallel(b.heads * blocks, [&](int64_t unit, void* scratch) {
        BackwardBlock w(b, scratch);
        sums_of_queries(b, w, unit / blocks, unit % blocks, log_sum, delta);
    });
    attention_gradients(call, b);
}

}  // namespace ost::OST_UNIT
