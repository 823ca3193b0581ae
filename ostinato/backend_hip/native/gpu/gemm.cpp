#include "gemm.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "capture.h"

namespace ost::hip {

namespace {

auto key(const GemmProblem& p) {
    return std::tie(p.m, p.n, p.k, p.batches, p.transpose_a, p.transpose_b, p.bias, p.a_type, p.b_type, p.c_type,
                    p.d_type, p.bias_type, p.compute, p.a_leading, p.b_leading, p.c_leading, p.d_leading, p.a_stride,
                    p.b_stride, p.c_stride, p.d_stride);
}

}  // namespace

bool operator<(const GemmProblem& left, const GemmProblem& right) { return key(left) < key(right); }

namespace {

// A choice of algorithm for a problem. Looked up at each run, so it allocates nothing.
struct Ran {
    const Device* device;
    GemmProblem problem;
    std::array<uint64_t, 8> algorithm;
    bool operator<(const Ran& other) const {
        return std::tie(device, algorithm, problem) < std::tie(other.device, other.algorithm, other.problem);
    }
};

Ran ran(const Device& device, const GemmProblem& problem, const gpu::GemmChoice& choice) {
    Ran made = {&device, problem, {}};
    std::copy(std::begin(choice.algorithm), std::end(choice.algorithm), made.algorithm.begin());
    return made;
}

std::mutex& idle_lock() {
    static std::mutex& one = *new std::mutex;
    return one;
}

// Handles of threads that ended. They are given to new threads and never destroyed, which at exit nobody could do
// safely.
auto& idle_handles() {
    static auto& handles = *new std::map<const Device*, std::vector<gpu::Blas>>;
    return handles;
}

struct ThreadVendor {
    std::map<const Device*, gpu::Blas> handles;
    std::map<std::pair<const Device*, GemmProblem>, std::unique_ptr<GemmPlan>> plans;
    std::set<Ran> ran;
    PlanCacheCounters counters = {};
    ~ThreadVendor() {
        const std::lock_guard<std::mutex> guard(idle_lock());
        for (const auto& [device, handle] : handles) idle_handles()[device].push_back(handle);
    }
};

ThreadVendor& thread_vendor() {
    thread_local ThreadVendor vendor;
    return vendor;
}

gpu::Blas handle_of(Device& device) {
    warm_vendor(device);
    return thread_vendor().handles.at(&device);
}

}  // namespace

bool vendor_is_warm(const Device& device) { return thread_vendor().handles.count(&device) != 0; }

void warm_vendor(Device& device) {
    if (vendor_is_warm(device)) return;
    const gpu::BlasApi& api = device.gpu.blas();
    gpu::Blas handle = nullptr;
    {
        const std::lock_guard<std::mutex> guard(idle_lock());
        auto& idle = idle_handles()[&device];
        if (!idle.empty()) {
            handle = idle.back();
            idle.pop_back();
        }
    }
    if (handle == nullptr) {
        if (capturing()) {
            throw Failure(Kind::kLogic, "this thread has no handle of the vendor's GEMM and captures already",
                          "warm it on the capturing thread before the capture");
        }
        const Current current(device);
        const int status = api.create(&handle);
        if (status != 0)
            throw Failure(Kind::kRuntime, std::string("a handle of the vendor's GEMM: ") + api.status_text(status));
    }
    thread_vendor().handles[&device] = handle;
}

int vendor_version(Device& device) {
    const gpu::Blas handle = handle_of(device);
    int version = 0;
    const int status = device.gpu.blas().version(handle, &version);
    if (status != 0)
        throw Failure(Kind::kRuntime,
                      std::string("the version of the vendor's GEMM: ") + device.gpu.blas().status_text(status));
    return version;
}

void GemmPlan::check(int status, const char* what) const {
    if (status == 0) return;
    throw Failure(Kind::kRuntime, std::string(what) + " of a matrix product of " + std::to_string(problem_.m) + " x " +
                                      std::to_string(problem_.n) + " x " + std::to_string(problem_.k) + ": " +
                                      device_.gpu.blas().status_text(status));
}

GemmPlan::GemmPlan(Device& device, const GemmProblem& problem) : device_(device), problem_(problem) {
    if (problem.m <= 0 || problem.n <= 0 || problem.k <= 0 || problem.batches <= 0) {
        throw Failure(Kind::kInvalid, "a matrix product has positive extents", "nothing to multiply needs no launch");
    }
    try {
        describe();
    } catch (const Failure&) {
        destroy();
        throw;
    }
}

GemmPlan::~GemmPlan() { destroy(); }

void GemmPlan::describe() {
    const GemmProblem& p = problem_;
    const gpu::BlasApi& api = device_.gpu.blas();
    const gpu::DataType scale = p.compute == gpu::ComputeType::kI32 ? gpu::DataType::kI32 : gpu::DataType::kF32;
    check(api.description_create(&description_, p.compute, scale), "the description");
    const std::pair<gpu::GemmAttribute, uint64_t> attributes[] = {
        {gpu::GemmAttribute::kTransposeA, p.transpose_a},
        {gpu::GemmAttribute::kTransposeB, p.transpose_b},
        {gpu::GemmAttribute::kEpilogue, p.bias != 0 ? gpu::kEpilogueBias : gpu::kEpilogueNone},
    };
    for (const auto& [attribute, value] : attributes)
        check(api.description_set(description_, attribute, value), "an attribute");
    if (p.bias != 0) {
        check(api.description_set(description_, gpu::GemmAttribute::kBiasType, static_cast<uint64_t>(p.bias_type)),
              "the bias type");
        // only its alignment means something before a run
        check(api.description_set(description_, gpu::GemmAttribute::kBias, gpu::kGemmAlignment), "the bias");
    }
    const struct {
        gpu::DataType type;
        int64_t rows, columns, leading, stride;
    } list[] = {{p.a_type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_leading, p.a_stride},
                {p.b_type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_leading, p.b_stride},
                {p.c_type, p.m, p.n, p.c_leading, p.c_stride},
                {p.d_type, p.m, p.n, p.d_leading, p.d_stride}};
    for (int i = 0; i < 4; ++i) {
        const auto& matrix = list[i];
        check(api.layout_create(&layouts_[i], matrix.type, static_cast<uint64_t>(matrix.rows),
                                static_cast<uint64_t>(matrix.columns), matrix.leading),
              "a layout");
        if (p.batches == 1) continue;
        check(api.layout_set(layouts_[i], gpu::LayoutAttribute::kBatchCount, p.batches), "the batches");
        check(api.layout_set(layouts_[i], gpu::LayoutAttribute::kBatchStride, matrix.stride), "a batch stride");
    }
}

void GemmPlan::destroy() noexcept {
    const gpu::BlasApi& api = device_.gpu.blas();
    for (const gpu::MatrixLayout layout : layouts_) {
        if (layout != nullptr) api.layout_destroy(layout);
    }
    if (description_ != nullptr) api.description_destroy(description_);
}

std::vector<gpu::GemmChoice> GemmPlan::choices(size_t workspace_limit, int wanted) {
    if (wanted <= 0) throw Failure(Kind::kInvalid, "at least one choice is wanted");
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; algorithms are chosen before");
    const gpu::Blas handle = handle_of(device_);
    const Current current(device_);
    std::vector<gpu::GemmChoice> found(static_cast<size_t>(wanted));
    int count = 0;
    check(device_.gpu.blas().choices(handle, description_, layouts_[0], layouts_[1], layouts_[2], layouts_[3],
                                     workspace_limit, wanted, found.data(), &count),
          "choices");
    found.resize(static_cast<size_t>(count));
    return found;
}

bool GemmPlan::accepts(const gpu::GemmChoice& choice, size_t workspace_limit) {
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; algorithms are looked at before");
    const gpu::Blas handle = handle_of(device_);
    const Current current(device_);
    size_t needed = 0;
    const int status = device_.gpu.blas().check(handle, description_, layouts_[0], layouts_[1], layouts_[2],
                                                layouts_[3], workspace_limit, &choice, &needed);
    return status == 0 && needed <= choice.workspace_bytes && choice.workspace_bytes <= workspace_limit;
}

bool GemmPlan::is_warm(const gpu::GemmChoice& choice) const {
    return vendor_is_warm(device_) && thread_vendor().ran.count(ran(device_, problem_, choice)) != 0;
}

void GemmPlan::run(const gpu::GemmChoice& choice, const GemmOperands& o, void* workspace, size_t workspace_bytes,
                   const Stream* stream) {
    const gpu::Stream queue = place(device_, stream);
    const Current current(device_);
    submit(choice, o, workspace, workspace_bytes, queue);
}

void GemmPlan::submit(const gpu::GemmChoice& choice, const GemmOperands& o, void* workspace, size_t workspace_bytes,
                      gpu::Stream queue) {
    if (workspace_bytes < choice.workspace_bytes) {
        throw Failure(Kind::kInvalid, "the algorithm needs a workspace of " + std::to_string(choice.workspace_bytes) +
                                          " bytes, found " + std::to_string(workspace_bytes));
    }
    for (const void* operand : {o.a, o.b, o.c, static_cast<const void*>(o.d), o.bias}) {
        if (reinterpret_cast<uintptr_t>(operand) % gpu::kGemmAlignment != 0) {
            throw Failure(Kind::kInvalid, "the vendor's GEMM takes operands that start at multiples of " +
                                              std::to_string(gpu::kGemmAlignment) + " bytes");
        }
    }
    const bool warm = is_warm(choice);
    if (capturing() && !warm) {
        throw Failure(Kind::kLogic, "this thread captures a matrix product that it did not run before",
                      "run it once on the capturing thread before the capture");
    }
    const gpu::Blas handle = handle_of(device_);
    const gpu::BlasApi& api = device_.gpu.blas();
    if (problem_.bias)
        check(api.description_set(description_, gpu::GemmAttribute::kBias, reinterpret_cast<uint64_t>(o.bias)),
              "the bias");
    check(api.matmul(handle, description_, &o.alpha, o.a, layouts_[0], o.b, layouts_[1], &o.beta, o.c, layouts_[2], o.d,
                     layouts_[3], &choice, workspace, workspace_bytes, queue),
          "the run");
    if (!warm) thread_vendor().ran.insert(ran(device_, problem_, choice));
}

GemmPlan& cached_plan(Device& device, const GemmProblem& problem) {
    ThreadVendor& vendor = thread_vendor();
    std::unique_ptr<GemmPlan>& slot = vendor.plans[{&device, problem}];
    if (slot) {
        ++vendor.counters.hits;
        return *slot;
    }
    ++vendor.counters.misses;
    try {
        slot = std::make_unique<GemmPlan>(device, problem);
    } catch (...) {
        vendor.plans.erase({&device, problem});
        throw;
    }
    return *slot;
}

PlanCacheCounters plan_cache_counters() {
    PlanCacheCounters counters = thread_vendor().counters;
    counters.plans = thread_vendor().plans.size();
    return counters;
}

void clear_plan_cache() {
    thread_vendor().plans.clear();
    thread_vendor().counters = {};
}

}  // namespace ost::hip
