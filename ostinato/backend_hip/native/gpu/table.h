// Steps of a plan as a GPU runs them: everything is resolved and packed when a table is made, so that submitting steps
// is a loop over calls of the driver that allocates nothing.
//
// A table has one lane: the order of its stream. One thread at a time uses a table.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "capture.h"
#include "gemm.h"
#include "launch.h"
#include "status.h"

namespace ost::hip {

struct GemmWork {
    GemmProblem problem;
    gpu::GemmChoice choice;
    GemmOperands operands;
    void* workspace;
    size_t workspace_bytes;
};
struct CopyWork {
    void* to;
    const void* from;
    size_t bytes;
};
struct FillWork {
    void* to;
    int value;
    size_t bytes;
};
struct TableStep {
    std::string node;  // what errors name
    std::variant<LaunchWork, GemmWork, CopyWork, FillWork> work;
};

class Table {
  public:
    // Throws kRuntime for a step that the device cannot run, naming its node; kLogic while this thread captures. A null
    // stream is the device's default stream. Functions and stream outlive the table.
    Table(Device& device, const Stream* stream, const std::vector<const TableStep*>& steps);
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    size_t size() const { return steps_.size(); }
    void* status() const { return status_.address(); }
    // Submits steps [first, first + count); -1 is all to the end. Failures name the node. A kernel that waits by itself
    // is started early where the device can do so and the step before it, submitted by the same call, is a kernel too:
    // kernels wait for all that was before them, copies, fills and the vendor's products are not known to.
    void enqueue(int64_t first, int64_t count);
    // Waits for what the stream has, then throws kBounds where a step met an index out of range, and forgets it.
    void finish();

  private:
    struct Kernel {
        const Function* function;
        gpu::Extent grid, block;
        uint32_t shared_bytes;
        bool early;
        size_t first_argument;
    };
    struct Gemm {
        std::unique_ptr<GemmPlan> plan;
        gpu::GemmChoice choice;
        GemmOperands operands;
        void* workspace;
        size_t workspace_bytes;
    };
    struct Step {
        std::string node;
        std::variant<Kernel, Gemm, CopyWork, FillWork> work;
    };

    Kernel pack(const LaunchWork& work, size_t index);
    Gemm pack(const GemmWork& work, size_t index);
    CopyWork pack(const CopyWork& work, size_t index);
    FillWork pack(const FillWork& work, size_t index);
    // `behind_kernel`: what was submitted last is a kernel of ours.
    void submit(const Kernel& work, gpu::Stream queue, bool behind_kernel);
    void submit(Gemm& work, gpu::Stream queue, bool behind_kernel);
    void submit(const CopyWork& work, gpu::Stream queue, bool behind_kernel);
    void submit(const FillWork& work, gpu::Stream queue, bool behind_kernel);

    Device& device_;
    const Stream* stream_;
    std::vector<Step> steps_;
    std::vector<Argument> arguments_;  // of all launches, one behind the other
    std::vector<void*> addresses_;     // of each of them, as a launch takes them
    StatusBlock status_;
};

}  // namespace ost::hip
