#include "attribution.h"

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

#include "failure.h"

namespace ost::hip {

namespace {

constexpr unsigned kAllocations = 1;
constexpr unsigned kCopies = 2;
std::atomic<unsigned> enabled{0};  // both switches in one word: one branch
thread_local Source source = Source::kUnspecified;

std::mutex& lock() {
    static std::mutex& one = *new std::mutex;
    return one;
}
auto& allocations() {
    static auto& records = *new std::map<std::tuple<Source, int, size_t>, uint64_t>;
    return records;
}
auto& copies() {
    using Key = std::tuple<Source, size_t, std::vector<int64_t>, std::vector<int64_t>>;
    static auto& records = *new std::map<Key, std::tuple<uint64_t, uint64_t, uint64_t>>;
    return records;
}

void set(unsigned bit, bool on) {
    if (on) {
        enabled.fetch_or(bit);
    } else {
        enabled.fetch_and(~bit);
    }
}

}  // namespace

const char* source_name(Source source) {
    static const char* const names[kSources] = {"unspecified",        "model_embedding", "model_final_norm",
                                                "model_output",       "attention_norm",  "attention_projection",
                                                "attention_layout",   "attention_core",  "attention_output",
                                                "attention_residual", "ffn_norm",        "ffn",
                                                "ffn_residual"};
    return names[static_cast<int>(source)];
}

void set_allocation_diagnostics(bool on) { set(kAllocations, on); }
void set_copy_diagnostics(bool on) { set(kCopies, on); }

void clear_diagnostics() {
    const std::lock_guard<std::mutex> guard(lock());
    allocations().clear();
    copies().clear();
}

SourceScope::SourceScope(Source wanted) {
    if (enabled.load(std::memory_order_relaxed) == 0) return;
    set_ = true;
    previous_ = source;
    source = wanted;
}

SourceScope::~SourceScope() {
    if (set_) source = previous_;
}

Source current_source() { return source; }

void note_request(int device, size_t bytes) {
    if ((enabled.load(std::memory_order_relaxed) & kAllocations) == 0) return;
    const std::lock_guard<std::mutex> guard(lock());
    ++allocations()[{source, device, bytes}];
}

void note_strided_copy(size_t element_bytes, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
    if (shape.size() != strides.size()) throw Failure(Kind::kInvalid, "a strided copy has as many strides as extents");
    uint64_t elements = 1, bytes = 0;
    for (const int64_t extent : shape) {
        if (extent < 0) throw Failure(Kind::kInvalid, "a strided copy has no negative extent");
        if (__builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements)) {
            throw Failure(Kind::kCapacity, "the elements of a strided copy do not fit 64 bits");
        }
    }
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(element_bytes), &bytes)) {
        throw Failure(Kind::kCapacity, "the bytes of a strided copy do not fit 64 bits");
    }
    if ((enabled.load(std::memory_order_relaxed) & kCopies) == 0) return;
    const std::lock_guard<std::mutex> guard(lock());
    auto& record = copies()[{source, element_bytes, shape, strides}];
    std::get<0>(record) += 1;
    std::get<1>(record) += elements;
    std::get<2>(record) += bytes;
}

std::vector<AllocationRecord> allocation_records() {
    const std::lock_guard<std::mutex> guard(lock());
    std::vector<AllocationRecord> records;
    for (const auto& entry : allocations()) {
        records.push_back({std::get<0>(entry.first), std::get<1>(entry.first), std::get<2>(entry.first), entry.second});
    }
    return records;
}

std::vector<CopyRecord> copy_records() {
    const std::lock_guard<std::mutex> guard(lock());
    std::vector<CopyRecord> records;
    for (const auto& [key, sums] : copies()) {
        records.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), std::get<0>(sums),
                           std::get<1>(sums), std::get<2>(sums)});
    }
    return records;
}

}  // namespace ost::hip
