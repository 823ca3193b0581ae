// A kernel with the arguments of a step: checked once, launched again and again.
#pragma once

#include <vector>

#include "module.h"
#include "status.h"

namespace ost::hip {

// A kernel with the row's arguments; the address of the status word and the number of the step follow them.
struct LaunchWork {
    const Function* function;
    gpu::Extent grid, block;
    uint32_t shared_bytes;
    bool early;           // the kernel waits by itself
    std::string letters;  // of the arguments: what the kernel must take
    std::vector<Argument> arguments;
};

// Throws kRuntime for a launch that the device cannot run, or a kernel that takes something else.
void check_launch(const Device& device, const LaunchWork& work);
Argument address_argument(void* address);
Argument number_argument(uint32_t number);

// A kernel on operands that differ from call to call. Threads may share it.
class Launch {
  public:
    // The work's operands, which come first, stand for those of the calls. The function outlives the launch.
    Launch(Device& device, const LaunchWork& work, size_t operands, uint32_t number);
    size_t operands() const { return operands_; }
    // Launches on a stream, or where the thread's routing sends it, with the status block of that stream. Allocates
    // nothing.
    void run(const uintptr_t* operands, const StatusBlock& status, const Stream* stream) const;

    static constexpr size_t kMaximum = 64;  // arguments

  private:
    Device& device_;
    const LaunchWork work_;
    const size_t operands_;
};

}  // namespace ost::hip
