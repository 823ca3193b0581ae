// Who asked for memory, and which layouts were copied: aggregates by source, for whoever turned them on. A source is a
// tag of the thread, set for a scope. While both diagnostics are off a scope is one branch and nothing is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ost::hip {

enum class Source : int {
    kUnspecified,
    kModelEmbedding,
    kModelFinalNorm,
    kModelOutput,
    kAttentionNorm,
    kAttentionProjection,
    kAttentionLayout,
    kAttentionCore,
    kAttentionOutput,
    kAttentionResidual,
    kFfnNorm,
    kFfn,
    kFfnResidual,
};
constexpr int kSources = 13;
const char* source_name(Source source);

void set_allocation_diagnostics(bool enabled);
void set_copy_diagnostics(bool enabled);
void clear_diagnostics();

class SourceScope {
  public:
    explicit SourceScope(Source source);
    ~SourceScope();
    SourceScope(const SourceScope&) = delete;
    SourceScope& operator=(const SourceScope&) = delete;

  private:
    bool set_ = false;
    Source previous_ = Source::kUnspecified;
};
Source current_source();

struct AllocationRecord {
    Source source;
    int device;
    size_t bytes;  // of each
    uint64_t requests;
};
struct CopyRecord {
    Source source;
    size_t element_bytes;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;  // of the source, in elements
    uint64_t calls;
    uint64_t elements;
    uint64_t bytes;
};

// A request for storage, served by the backend or by the pool alike.
void note_request(int device, size_t bytes);
// A copy that changes layout. Throws kCapacity for a shape whose elements or bytes do not fit 64 bits, kInvalid for a
// negative extent or shape and strides of different length.
void note_strided_copy(size_t element_bytes, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

std::vector<AllocationRecord> allocation_records();  // in the order of their keys
std::vector<CopyRecord> copy_records();

}  // namespace ost::hip
