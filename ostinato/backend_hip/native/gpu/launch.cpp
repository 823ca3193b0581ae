#include "launch.h"

#include <algorithm>

namespace ost::hip {

namespace {

[[noreturn]] void refuse(const Function& function, const std::string& text, const std::string& hint = "") {
    throw Failure(Kind::kRuntime, "kernel " + function.name() + " " + text, hint);
}

LaunchWork with_status(LaunchWork work, uint32_t number) {
    work.arguments.push_back(address_argument(nullptr));
    work.arguments.push_back(number_argument(number));
    return work;
}

}  // namespace

Argument address_argument(void* address) {
    Argument argument = {};
    argument.address = address;
    return argument;
}

Argument number_argument(uint32_t number) {
    Argument argument = {};
    argument.number = number;
    return argument;
}

void check_launch(const Device& device, const LaunchWork& work) {
    const Function& function = *work.function;
    const gpu::DeviceFacts& facts = device.facts;
    if (&function.device() != &device) refuse(function, "is of another device");
    if (function.parameters() != work.letters + "pu")
        refuse(function, "takes " + function.parameters() + ", the step gives " + work.letters + "pu");
    const uint64_t threads = uint64_t{work.block.x} * work.block.y * work.block.z;
    if (threads == 0 || threads > static_cast<uint64_t>(facts.threads_per_block)) {
        refuse(function, "was given blocks of " + std::to_string(threads) + " threads",
               "a block of this device has 1 to " + std::to_string(facts.threads_per_block));
    }
    if (work.grid.x == 0 || work.grid.y == 0 || work.grid.z == 0) refuse(function, "was given a grid of no blocks");
    if (work.shared_bytes > static_cast<uint64_t>(facts.shared_bytes_per_block_limit)) {
        refuse(function, "was given " + std::to_string(work.shared_bytes) + " bytes of shared memory",
               "a block of this device has at most " + std::to_string(facts.shared_bytes_per_block_limit));
    }
}

Launch::Launch(Device& device, const LaunchWork& work, size_t operands, uint32_t number)
    : device_(device), work_(with_status(work, number)), operands_(operands) {
    check_launch(device, work);
    if (work_.arguments.size() > kMaximum) {
        refuse(*work.function, "takes " + std::to_string(work_.arguments.size()) + " arguments",
               "a launch has at most " + std::to_string(kMaximum));
    }
}

void Launch::run(const uintptr_t* operands, const StatusBlock& status, const Stream* stream) const {
    Argument arguments[kMaximum];
    void* addresses[kMaximum];
    std::copy(work_.arguments.begin(), work_.arguments.end(), arguments);
    for (size_t i = 0; i < operands_; ++i) arguments[i].address = reinterpret_cast<void*>(operands[i]);
    arguments[work_.arguments.size() - 2].address = status.address();
    for (size_t i = 0; i < work_.arguments.size(); ++i) addresses[i] = &arguments[i];
    const gpu::Stream queue = place(device_, stream);
    const Current current(device_);
    const gpu::Error error = device_.gpu.runtime().launch(work_.function->handle(), work_.grid, work_.block,
                                                          work_.shared_bytes, queue, false, addresses);
    if (error != gpu::Error::kSuccess) device_.gpu.check(error, "launching kernel " + work_.function->name());
    device_.launches.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ost::hip
