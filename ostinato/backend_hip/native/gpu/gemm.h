// Vendor GEMM: handles of a thread and device, made before any capture; plans, which are descriptors and layouts, kept
// by each thread; choices of algorithm, which are data.
#pragma once

#include "stream.h"

namespace ost::hip {

// d = alpha * op(a) op(b) + beta * c (+ bias along the rows of d), column-major as the vendors have it: op(a) is m x k,
// op(b) k x n, c and d are m x n. Strides between matrices of a batch are in elements.
struct GemmProblem {
    int64_t m, n, k, batches;
    int transpose_a, transpose_b, bias;
    gpu::DataType a_type, b_type, c_type, d_type, bias_type;
    gpu::ComputeType compute;
    int64_t a_leading, b_leading, c_leading, d_leading;
    int64_t a_stride, b_stride, c_stride, d_stride;
};
bool operator<(const GemmProblem& left, const GemmProblem& right);

struct GemmOperands {
    const void* a;
    const void* b;
    const void* c;
    void* d;
    const void* bias;
    float alpha, beta;
};

// Makes this thread's handle for the device, if it has none. Throws kLogic while the thread captures.
void warm_vendor(Device& device);
bool vendor_is_warm(const Device& device);
// The version of the vendor's library, as it numbers itself; warms the thread's handle.
int vendor_version(Device& device);

// One thread at a time uses it.
class GemmPlan {
  public:
    GemmPlan(Device& device, const GemmProblem& problem);  // kInvalid: extents; kRuntime: the vendor refuses
    ~GemmPlan();
    GemmPlan(const GemmPlan&) = delete;
    GemmPlan& operator=(const GemmPlan&) = delete;

    // The vendor's proposals, best first, with at most that much workspace. Throws kLogic while the thread captures.
    std::vector<gpu::GemmChoice> choices(size_t workspace_limit, int wanted);
    // Whether a choice from elsewhere is good for this problem in a workspace of that size, as the vendor says. Throws
    // kLogic while the thread captures.
    bool accepts(const gpu::GemmChoice& choice, size_t workspace_limit);
    // Whether this thread ran the choice, by this plan or another one of the same problem.
    bool is_warm(const gpu::GemmChoice& choice) const;
    // Throws kInvalid for a workspace smaller than the choice's and for operands off `gpu::kGemmAlignment`, kLogic in a
    // capture for a choice that is not warm: the vendor loads kernels when they are first used. Allocates nothing for a
    // choice that is.
    void run(const gpu::GemmChoice& choice, const GemmOperands& operands, void* workspace, size_t workspace_bytes,
             const Stream* stream);
    // The same, where the device is the thread's current one and the queue is known.
    void submit(const gpu::GemmChoice& choice, const GemmOperands& operands, void* workspace, size_t workspace_bytes,
                gpu::Stream queue);

  private:
    void check(int status, const char* what) const;
    void describe();
    void destroy() noexcept;
    Device& device_;
    const GemmProblem problem_;
    gpu::GemmDescription description_ = nullptr;
    gpu::MatrixLayout layouts_[4] = {};
};

struct PlanCacheCounters {
    uint64_t hits, misses, plans;
};
GemmPlan& cached_plan(Device& device, const GemmProblem& problem);  // of this thread
PlanCacheCounters plan_cache_counters();
void clear_plan_cache();  // plans and counters of this thread

}  // namespace ost::hip
