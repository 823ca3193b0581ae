// Compiled kernels: from source to code, from code to a module of a device, and launches.
#pragma once

#include <map>

#include "stream.h"

namespace ost::hip {

// Machine code of one source; needs no device. Throws kRuntime with the compiler's words.
std::string compile(Gpu& gpu, const std::string& source, const std::string& name,
                    const std::vector<std::string>& options);
std::pair<int, int> compiler_version(Gpu& gpu);

struct FunctionFacts {
    int threads_per_block, registers, local_bytes, shared_bytes, constant_bytes;
};

// A kernel and what its parameters are: a letter each, "p" address, "i" 64-bit integer, "d" double, "u" 32-bit
// unsigned.
class Function {
  public:
    Function(Device& device, gpu::Function handle, std::string name, std::string parameters);
    Device& device() const { return device_; }
    gpu::Function handle() const { return handle_; }
    const std::string& name() const { return name_; }
    const std::string& parameters() const { return parameters_; }
    FunctionFacts facts() const;
    int blocks_per_multiprocessor(int threads, size_t shared_bytes) const;

  private:
    Device& device_;
    gpu::Function handle_;
    std::string name_;
    std::string parameters_;
};

// Arguments as they lie in memory for a launch: eight bytes each, whatever they hold.
union Argument {
    void* address;
    int64_t integer;
    double real;
    uint32_t number;
};

// Launches on a stream, or where the thread's routing sends it. Throws kInvalid for a wrong number of arguments and for
// a grid or block of nothing.
void launch(const Function& function, gpu::Extent grid, gpu::Extent block, uint32_t shared_bytes,
            const std::vector<Argument>& arguments, const Stream* stream);

class Module {
  public:
    Module(Device& device, const std::string& code);  // kLogic while this thread captures
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;
    Device& device() const { return device_; }
    // Throws kRuntime for a name that the module does not have; allows more dynamic shared memory where asked.
    Function& function(const std::string& name, const std::string& parameters, int dynamic_shared_bytes);

  private:
    Device& device_;
    gpu::Module handle_ = nullptr;
    std::map<std::string, std::unique_ptr<Function>> functions_;
};

}  // namespace ost::hip
