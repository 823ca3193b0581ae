#include "table.h"

#include <type_traits>

namespace ost::hip {

static_assert(!std::is_move_constructible_v<Table>, "arguments and the status word stay where they are");

namespace {

[[noreturn]] void refuse(const std::string& text) { throw Failure(Kind::kRuntime, text); }

// The same failure with the step it belongs to.
[[noreturn]] void rethrow(const Failure& failure, size_t index, const std::string& node) {
    throw Failure(failure.kind, "step " + std::to_string(index) + ": " + failure.what(), failure.hint, node);
}

bool overlap(const void* a, const void* b, size_t bytes) {
    const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
    return first < second + bytes && second < first + bytes;
}

}  // namespace

Table::Table(Device& device, const Stream* stream, const std::vector<const TableStep*>& steps)
    : device_(device), stream_(stream), status_(device, stream) {
    for (const TableStep* const step : steps) {
        const size_t index = steps_.size();
        try {
            std::visit([&](const auto& work) { steps_.push_back({step->node, pack(work, index)}); }, step->work);
        } catch (const Failure& failure) {
            rethrow(failure, index, step->node);
        }
    }
    for (Argument& argument : arguments_) addresses_.push_back(&argument);  // only now do they stay where they are
}

Table::Kernel Table::pack(const LaunchWork& work, size_t index) {
    check_launch(device_, work);
    const size_t first = arguments_.size();
    arguments_.insert(arguments_.end(), work.arguments.begin(), work.arguments.end());
    arguments_.push_back(address_argument(status_.address()));
    arguments_.push_back(number_argument(static_cast<uint32_t>(index)));
    return {work.function, work.grid, work.block, work.shared_bytes, work.early && device_.facts.early_starts != 0, first};
}

Table::Gemm Table::pack(const GemmWork& work, size_t) {
    if (work.workspace_bytes < work.choice.workspace_bytes) {
        refuse("the algorithm needs a workspace of " + std::to_string(work.choice.workspace_bytes) + " bytes, found " +
               std::to_string(work.workspace_bytes));
    }
    const Current current(device_);
    return {std::make_unique<GemmPlan>(device_, work.problem), work.choice, work.operands, work.workspace,
            work.workspace_bytes};
}

CopyWork Table::pack(const CopyWork& work, size_t) {
    if (work.bytes == 0) return work;
    if (work.to == nullptr || work.from == nullptr) refuse("a copy was given a null address");
    if (work.to != work.from && overlap(work.to, work.from, work.bytes)) {
        refuse("source and destination of a copy of " + std::to_string(work.bytes) + " bytes overlap");
    }
    return work;
}

FillWork Table::pack(const FillWork& work, size_t) {
    if (work.bytes != 0 && work.to == nullptr) refuse("a fill was given a null address");
    if (work.value < 0 || work.value > 255) refuse("a fill is of one byte, found " + std::to_string(work.value));
    return work;
}

void Table::submit(const Kernel& work, gpu::Stream queue, bool behind_kernel) {
    const gpu::Error error =
        device_.gpu.runtime().launch(work.function->handle(), work.grid, work.block, work.shared_bytes, queue,
                                     work.early && behind_kernel, addresses_.data() + work.first_argument);
    if (error != gpu::Error::kSuccess) device_.gpu.check(error, "launching kernel " + work.function->name());
}

void Table::submit(Gemm& work, gpu::Stream queue, bool) {
    work.plan->submit(work.choice, work.operands, work.workspace, work.workspace_bytes, queue);
}

void Table::submit(const CopyWork& work, gpu::Stream queue, bool) {
    if (work.bytes == 0 || work.to == work.from) return;
    const gpu::Error error =
        device_.gpu.runtime().copy_async(work.to, work.from, work.bytes, gpu::CopyKind::kDeviceToDevice, queue);
    if (error != gpu::Error::kSuccess)
        device_.gpu.check(error, "copying " + std::to_string(work.bytes) + " bytes");
}

void Table::submit(const FillWork& work, gpu::Stream queue, bool) {
    if (work.bytes == 0) return;
    const gpu::Error error = device_.gpu.runtime().fill_async(work.to, work.value, work.bytes, queue);
    if (error != gpu::Error::kSuccess)
        device_.gpu.check(error, "filling " + std::to_string(work.bytes) + " bytes");
}

void Table::enqueue(int64_t first, int64_t count) {
    const auto size = static_cast<int64_t>(steps_.size());
    if (first < 0 || first > size || count < -1 || count > size - first) {
        throw Failure(Kind::kBounds, "steps [" + std::to_string(first) + ", " + std::to_string(first) + " + " +
                                         std::to_string(count) + ") are outside of a table of " +
                                         std::to_string(size));
    }
    const int64_t stop = count < 0 ? size : first + count;
    const gpu::Stream queue = place(device_, stream_);
    const Current current(device_);
    bool behind_kernel = false;
    for (int64_t i = first; i < stop; ++i) {
        Step& step = steps_[static_cast<size_t>(i)];
        try {
            std::visit([&](auto& work) { submit(work, queue, behind_kernel); }, step.work);
        } catch (const Failure& failure) {
            rethrow(failure, static_cast<size_t>(i), step.node);
        }
        behind_kernel = std::holds_alternative<Kernel>(step.work);
    }
}

void Table::finish() {
    const uint32_t word = status_.take();
    if (word == 0) return;
    const size_t index = word - 1;
    throw Failure(Kind::kBounds, "step " + std::to_string(index) + ": an index in device memory was out of range",
                  "a token id, row, position or block index given to this run is out of range",
                  index < steps_.size() ? steps_[index].node : "");
}

}  // namespace ost::hip
