// Gradients of the products of attention one by one: each is products of matrices where they lie, heads that share keys
// added one after the other.
#include "attention.h"
#include "product.h"

namespace ost::OST_UNIT {

namespace {

struct Sizes {
    int64_t batches, heads, groups, queries, keys, width;
    int64_t shared() const { return heads / groups; }
    int64_t scores() const { return area(batches, heads, queries, keys); }
    int64_t of_queries() const { return area(batches, queries, heads, width); }
    int64_t of_keys() const { return area(batches, keys, groups, width); }
};

// Params 0 .. 5. False, and reported where that is wrong, when there is nothing to do.
bool read_sizes(const Call& call, Sizes& s) {
    s = {call.integer(0), call.integer(1), call.integer(2), call.integer(3), call.integer(4), call.integer(5)};
    const bool usable = s.groups > 0 && s.heads >= 0 && s.heads % s.groups == 0 && s.batches >= 0 && s.queries >= 0 &&
                        s.keys >= 0 && s.width >= 0;
    if (!usable) report(call, OST_INVALID_ARGUMENT);
    return usable;
}

DenseProduct product_of(const Call& call, int64_t entries, int64_t each, int64_t shared, int64_t m, int64_t k,
                        int64_t n, const Stacked& a, const Stacked& b, float scale, void* y, const Steps& y_steps,
                        bool adds) {
    return {call.pool, entries, each, shared, m, k, n, a, b, scale, nullptr, adds ? y : nullptr, y, OST_F32, y_steps};
}

}  // namespace

// Operands gradient [B,H,T,S], q, k, q_gradient, k_gradient. Params: B, H, G, T, S, D, scale, dtype of q and k.
void attention_scores_backward(const Call& call) {
    Sizes s{};
    if (!read_sizes(call, s)) return;
    const auto scale = static_cast<float>(call.real(6));
    const int64_t dtype = call.integer(7), size = element_bytes(dtype);
    if (!is_float(dtype)) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, s.scores(), 4) || !covers(call, 1, s.of_queries(), size) ||
        !covers(call, 2, s.of_keys(), size) || !covers(call, 3, s.of_queries(), 4) ||
        !covers(call, 4, s.of_keys(), 4)) {
        return;
    }
    const int64_t square = s.queries * s.keys, query = s.queries * s.width, key = s.keys * s.width;
    const void* const gradient = call.pointer<const void>(0);
    if (s.of_queries() > 0) {
        multiply_dense(product_of(call, s.batches, s.heads, s.shared(), s.queries, s.keys, s.width,
                                  {gradient, OST_F32, {s.heads * square, square, s.keys}, false},
                                  {call.pointer<const void>(2), dtype, {s.groups * key, key, s.width}, false}, scale,
                                  call.pointer<void>(3), {s.heads * query, query, s.width}, false));
    }
    for (int64_t i = 0; i < s.shared() && s.of_keys() > 0; ++i) {  // heads that share keys one after the other
        multiply_dense(product_of(
            call, s.batches, s.groups, 1, s.keys, s.queries, s.width,
            {call.pointer<const float>(0) + i * square, OST_F32, {s.heads * square, s.shared() * square, s.keys}, true},
            {call.pointer<const char>(1) + i * query * size, dtype, {s.heads * query, s.shared() * query, s.width}, false},
            scale, call.pointer<void>(4), {s.groups * key, key, s.width}, i > 0));
    }
}

// Operands gradient [B,T,H,D], v [B,S,G,D], y [B,H,T,S]. Params: B, H, G, T, S, D, dtype of v.
void attention_probability_gradient(const Call& call) {
    Sizes s{};
    if (!read_sizes(call, s) || s.scores() == 0) return;
    const int64_t dtype = call.integer(6);
    if (!is_float(dtype)) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, s.of_queries(), 4) || !covers(call, 1, s.of_keys(), element_bytes(dtype)) ||
        !covers(call, 2, s.scores(), 4)) {
        return;
    }
    const int64_t token = s.heads * s.width, key = s.groups * s.width, square = s.queries * s.keys;
    multiply_dense(product_of(call, s.batches, s.heads, s.shared(), s.queries, s.width, s.keys,
                              {call.pointer<const void>(0), OST_F32, {s.queries * token, s.width, token}, false},
                              {call.pointer<const void>(1), dtype, {s.keys * key, s.width, key}, true}, 1.0f,
                              call.pointer<void>(2), {s.heads * square, square, s.keys}, false));
}

// Operands p [B,H,T,S], gradient [B,T,H,D], y [B,S,G,D]. Params: B, H, G, T, S, D, dtype of p.
void attention_value_gradient(const Call& call) {
    Sizes s{};
    if (!read_sizes(call, s) || s.of_keys() == 0) return;
    const int64_t dtype = call.integer(6), size = element_bytes(dtype);
    if (!is_float(dtype)) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, s.scores(), size) || !covers(call, 1, s.of_queries(), 4) || !covers(call, 2, s.of_keys(), 4)) {
        return;
    }
    const int64_t token = s.heads * s.width, key = s.groups * s.width, square = s.queries * s.keys;
    const int64_t each = s.shared();
    for (int64_t i = 0; i < each; ++i) {
        multiply_dense(product_of(
            call, s.batches, s.groups, 1, s.keys, s.queries, s.width,
            {call.pointer<const char>(0) + i * square * size, dtype, {s.heads * square, each * square, s.keys}, true},
            {call.pointer<const float>(1) + i * s.width, OST_F32, {s.queries * token, each * s.width, token}, false},
            1.0f, call.pointer<void>(2), {s.keys * key, s.width, key}, i > 0));
    }
}

}  // namespace ost::OST_UNIT
