// One token a row from its logits: temperature, top-k, top-p, min-p, then the inverse of the distribution function.
//
// Nothing is sorted. Top-k and top-p both ask for the shortest prefix, in order of descending value and ascending
// index, whose weight reaches a goal (a count, a probability). Three histogram passes over the bits of the value find
// the value at the edge exactly; ties there are taken by index. Survivors are moved together, in token order, in the
// workspace: V floats (values, later weights) and V int32 (their tokens) a row.
// Values are (logit - largest) / temperature: softmax does not see the difference, and a tiny temperature cannot
// overflow.
#include "double_sum.h"
#include "selection.h"

namespace ost::OST_UNIT {

namespace {

// First word of Philox4x32-10.
uint32_t philox(uint64_t key, uint32_t counter) {
    uint32_t c0 = counter, c1 = 0, c2 = 0, c3 = 0;
    auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = static_cast<uint64_t>(c0) * 0xd2511f53u;
        const uint64_t b = static_cast<uint64_t>(c2) * 0xcd9e8d57u;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(b);
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

// A row's survivors: values[i] belongs to tokens[i]; without tokens, to token i.
struct Survivors {
    float* values;
    int32_t* tokens;
    int64_t count;
    bool whole;  // nothing was dropped yet, tokens is not filled

    int32_t token(int64_t i) const { return whole ? static_cast<int32_t>(i) : tokens[i]; }

    template <class Keep>
    void keep_if(const Keep& keep) {
        int64_t kept = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (!keep(i)) continue;
            tokens[kept] = token(i);
            values[kept++] = values[i];
        }
        count = kept;
        whole = false;
    }
};

// Where a prefix ends: keys below `key` and, of those equal to it, the first up to `last`.
struct Edge {
    uint32_t key;
    int64_t last;
    bool holds(uint32_t k, int64_t i) const { return k < key || (k == key && i <= last); }
};

// The shortest prefix of [0, count), ordered by key (31 bits) and then index, whose weight reaches `goal`.
template <class Key, class Weight>
Edge find_edge(int64_t count, double goal, const Key& key, const Weight& weight) {
    constexpr int kShift[3] = {21, 10, 0};
    constexpr int kBits[3] = {10, 11, 10};
    double buckets[1 << 11];
    uint32_t prefix = 0, known = 0;
    double before = 0;
    for (int pass = 0; pass < 3; ++pass) {
        const uint32_t size = 1u << kBits[pass];
        std::memset(buckets, 0, sizeof buckets);
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t k = key(i);
            if ((k & known) == prefix) buckets[(k >> kShift[pass]) & (size - 1)] += weight(i);
        }
        uint32_t chosen = 0;
        double passed = before;
        for (uint32_t b = 0; b < size; ++b) {
            if (buckets[b] == 0) continue;
            chosen = b;  // the last one in use, if rounding keeps the goal out of reach
            before = passed;
            passed += buckets[b];
            if (passed >= goal) break;
        }
        prefix |= chosen << kShift[pass];
        known |= (size - 1) << kShift[pass];
    }
    int64_t last = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (key(i) != prefix) continue;
        last = i;
        before += weight(i);
        if (before >= goal) break;
    }
    return {prefix, last};
}

void exponentiate(float* values, int64_t count) {
    int64_t i = 0;
    for (; i + VW <= count; i += VW) store(values + i, exp(load(values + i)));
    if (i < count) {
        const int n = static_cast<int>(count - i);
        store_n(values + i, exp(load_n(values + i, n)), n);
    }
}

constexpr int64_t kBlock = 256;

double total_weight(const float* values, int64_t count) {
    double total = 0;
    for (int64_t i = 0; i < count; i += kBlock) total += double_sum(values + i, smaller(kBlock, count - i));
    return total;
}

// The first survivor at which the running weight passes `goal`: whole blocks, then one by one.
int32_t draw(const Survivors& s, double goal) {
    double passed = 0;
    int64_t first = 0;
    for (; first + kBlock < s.count; first += kBlock) {
        const double more = double_sum(s.values + first, kBlock);
        if (passed + more > goal) break;
        passed += more;
    }
    int64_t chosen = -1;
    for (int64_t i = first; i < s.count; ++i) {
        if (s.values[i] == 0.0f) continue;
        chosen = i;
        passed += static_cast<double>(s.values[i]);
        if (passed > goal) break;
    }
    // Only rounding can leave nothing here: then the last survivor that has any weight.
    for (int64_t i = first; chosen < 0; --i) {
        if (s.values[i] != 0.0f) chosen = i;
    }
    return s.token(chosen);
}

struct Request {
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
    uint64_t seed;
    uint32_t index;
};

int32_t sample_row(const float* logits, int64_t width, const Request& request, float* workspace) {
    const RowPeak peak = row_peak(logits, width);
    const bool sensible = request.temperature >= 0 && request.temperature < kInfinity &&
                          request.top_p == request.top_p && request.min_p == request.min_p;
    if (!peak.usable || !sensible) return -1;  // NaN among them is not sensible
    if (request.temperature == 0) return first_place(logits, width, peak.value);

    Survivors s{workspace, reinterpret_cast<int32_t*>(workspace + width), width, true};
    const vf top = splat(peak.value), temperature = splat(request.temperature);
    int64_t i = 0;
    for (; i + VW <= width; i += VW) store(s.values + i, (load(logits + i) - top) / temperature);
    if (i < width) {
        const int n = static_cast<int>(width - i);
        store_n(s.values + i, (load_n(logits + i, n) - top) / temperature, n);
    }
    if (request.top_k > 0 && request.top_k < width) {
        // Values are at most 0: the bits of their magnitude ascend while they descend.
        const auto key = [&s](int64_t at) { return bit_cast<uint32_t>(s.values[at]) & 0x7fffffffu; };
        const Edge edge = find_edge(s.count, request.top_k, key, [](int64_t) { return 1.0; });
        s.keep_if([&](int64_t at) { return edge.holds(key(at), at); });
    }
    exponentiate(s.values, s.count);
    if (request.top_p < 1) {
        constexpr uint32_t one = 0x3f800000u;  // weights lie in [0, 1], and the largest is 1
        const auto key = [&s](int64_t at) { return one - bit_cast<uint32_t>(s.values[at]); };
        const double goal = static_cast<double>(request.top_p) * total_weight(s.values, s.count);
        const Edge edge = find_edge(s.count, goal, key, [&s](int64_t at) { return static_cast<double>(s.values[at]); });
        s.keep_if([&](int64_t at) { return edge.holds(key(at), at); });
    }
    if (request.min_p > 0) {
        const float least = request.min_p < 1 ? request.min_p : 1.0f;
        s.keep_if([&](int64_t at) { return s.values[at] >= least; });
    }
    const double uniform = (static_cast<double>(philox(request.seed, request.index)) + 0.5) * 0x1p-32;
    return draw(s, uniform * total_weight(s.values, s.count));
}

}  // namespace

void sample(const Call& call) {
    const int64_t capacity = call.integer(0), width = call.integer(1);
    const int64_t rows = valid_rows(call, 7, capacity);
    if (empty(call, rows)) return;
    if (width < 0 || width > INT32_MAX) return report(call, OST_INVALID_ARGUMENT);
    if (!covers(call, 0, area(capacity, width), 4) || !covers(call, 1, capacity, 4) || !covers(call, 2, capacity, 4) ||
        !covers(call, 3, capacity, 4) || !covers(call, 4, capacity, 4) || !covers(call, 5, capacity, 8) ||
        !covers(call, 6, capacity, 4) || !covers(call, 8, capacity, 4) || !covers(call, 9, area(capacity, width), 8)) {
        return;
    }
    const float* logits = call.pointer<const float>(0);
    const float* temperature = call.pointer<const float>(1);
    const auto* top_k = call.pointer<const int32_t>(2);
    const float* top_p = call.pointer<const float>(3);
    const float* min_p = call.pointer<const float>(4);
    const auto* seed = call.pointer<const int64_t>(5);
    const auto* index = call.pointer<const int32_t>(6);
    auto* token = call.pointer<int32_t>(8);
    float* workspace = call.pointer<float>(9);
    for_rows(call, rows, 4.0 * static_cast<double>(width), [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            Request request{temperature[row], top_k[row], top_p[row], min_p[row], 0, 0};
            request.seed = static_cast<uint64_t>(seed[row]);
            request.index = static_cast<uint32_t>(index[row]);
            token[row] = sample_row(logits + row * width, width, request, workspace + row * 2 * width);
        }
    });
}

}  // namespace ost::OST_UNIT
