#include "module.h"

#include "capture.h"

namespace ost::hip {

namespace {

size_t size_of(char letter) {
    switch (letter) {
        case 'p':
        case 'i':
        case 'd': return 8;
        case 'u': return 4;
        default:
            throw Failure(Kind::kInvalid, std::string("a kernel's parameter is one of p, i, d, u; found ") + letter);
    }
}

}  // namespace

std::pair<int, int> compiler_version(Gpu& gpu) {
    int major = 0, minor = 0;
    if (gpu.compiler().version(&major, &minor) != 0)
        throw Failure(Kind::kRuntime, "the run-time compiler does not say its version");
    return {major, minor};
}

std::string compile(Gpu& gpu, const std::string& source, const std::string& name,
                    const std::vector<std::string>& options) {
    refuse_after_fork();
    const gpu::CompilerApi& api = gpu.compiler();
    const auto check = [&](int result, const char* what) {
        if (result != 0) throw Failure(Kind::kRuntime, std::string(what) + " " + name + ": " + api.error_text(result));
    };
    gpu::Program program = nullptr;
    check(api.create(&program, source.c_str(), name.c_str(), 0, nullptr, nullptr), "taking the source of");
    struct Destroy {
        const gpu::CompilerApi& api;
        gpu::Program& program;
        ~Destroy() { api.destroy(&program); }
    } const destroy{api, program};
    std::vector<const char*> list;
    for (const std::string& option : options) list.push_back(option.c_str());
    const int result = api.compile(program, static_cast<int>(list.size()), list.data());
    size_t bytes = 0;
    if (result != 0) {
        std::string log;
        if (api.log_bytes(program, &bytes) == 0 && bytes > 1) {
            log.resize(bytes);
            api.log(program, log.data());
            log.resize(bytes - 1);
        }
        throw Failure(Kind::kRuntime, "compiling " + name + ": " + api.error_text(result) + "\n" + log);
    }
    check(api.code_bytes(program, &bytes), "the size of the code of");
    if (bytes == 0) {
        throw Failure(Kind::kRuntime, "compiling " + name + " gave no machine code",
                      "the options must name one architecture of machine code, as in sm_90 or gfx942");
    }
    std::string code(bytes, '\0');
    check(api.code(program, code.data()), "the code of");
    return code;
}

Function::Function(Device& device, gpu::Function handle, std::string name, std::string parameters)
    : device_(device), handle_(handle), name_(std::move(name)), parameters_(std::move(parameters)) {
    std::vector<size_t> sizes;
    for (const char letter : parameters_) sizes.push_back(size_of(letter));
    remember_parameters(handle, sizes);
}

FunctionFacts Function::facts() const {
    const Current current(device_);
    FunctionFacts facts = {};
    const std::pair<gpu::FunctionAttribute, int*> list[] = {
        {gpu::FunctionAttribute::kMaxThreadsPerBlock, &facts.threads_per_block},
        {gpu::FunctionAttribute::kRegisters, &facts.registers},
        {gpu::FunctionAttribute::kLocalBytes, &facts.local_bytes},
        {gpu::FunctionAttribute::kSharedBytes, &facts.shared_bytes},
        {gpu::FunctionAttribute::kConstantBytes, &facts.constant_bytes},
    };
    for (const auto& [attribute, value] : list) {
        device_.gpu.check(device_.gpu.runtime().function_get(value, attribute, handle_),
                          "an attribute of kernel " + name_);
    }
    return facts;
}

int Function::blocks_per_multiprocessor(int threads, size_t shared_bytes) const {
    const Current current(device_);
    int blocks = 0;
    device_.gpu.check(device_.gpu.runtime().occupancy(&blocks, handle_, threads, shared_bytes),
                      "the occupancy of kernel " + name_);
    return blocks;
}

void launch(const Function& function, gpu::Extent grid, gpu::Extent block, uint32_t shared_bytes,
            const std::vector<Argument>& arguments, const Stream* stream) {
    if (arguments.size() != function.parameters().size()) {
        throw Failure(Kind::kInvalid, "kernel " + function.name() + " takes " +
                                          std::to_string(function.parameters().size()) + " arguments, found " +
                                          std::to_string(arguments.size()));
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0) {
        throw Failure(Kind::kInvalid, "kernel " + function.name() + " was launched over nothing",
                      "nothing to do needs no launch");
    }
    Device& device = function.device();
    const gpu::Stream queue = place(device, stream);
    std::vector<void*> addresses;
    for (const Argument& argument : arguments) addresses.push_back(const_cast<Argument*>(&argument));
    const Current current(device);
    device.gpu.check(device.gpu.runtime().launch(function.handle(), grid, block, shared_bytes, queue, false, addresses.data()),
                     "launching kernel " + function.name());
}

Module::Module(Device& device, const std::string& code) : device_(device) {
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; kernels are loaded before");
    if (code.empty()) throw Failure(Kind::kInvalid, "a module has some code");
    const Current current(device);
    device.gpu.check(device.gpu.runtime().module_load(&handle_, code.data()), "loading kernels");
}

Module::~Module() {
    for (const auto& entry : functions_) forget_parameters(entry.second->handle());
    const auto unload = [&device = device_, handle = handle_] {
        const Current current(device, std::nothrow);
        if (current.entered()) device.gpu.runtime().module_unload(handle);
    };
    if (!after_capture(unload)) unload();
}

Function& Module::function(const std::string& name, const std::string& parameters, int dynamic_shared_bytes) {
    std::unique_ptr<Function>& slot = functions_[name];
    if (slot && slot->parameters() != parameters) {
        throw Failure(Kind::kInvalid, "kernel " + name + " takes " + slot->parameters() + ", not " + parameters);
    }
    if (!slot) {
        const Current current(device_);
        gpu::Function handle = nullptr;
        const gpu::Error error = device_.gpu.runtime().module_function(&handle, handle_, name.c_str());
        if (error != gpu::Error::kSuccess) functions_.erase(name);
        device_.gpu.check(error, "finding kernel " + name);
        functions_[name] = std::make_unique<Function>(device_, handle, name, parameters);
    }
    Function& found = *functions_[name];
    if (dynamic_shared_bytes > device_.facts.shared_bytes_per_block) {
        const Current current(device_);
        device_.gpu.check(device_.gpu.runtime().function_set(
                              found.handle(), gpu::FunctionAttribute::kMaxDynamicSharedBytes, dynamic_shared_bytes),
                          "shared memory of " + std::to_string(dynamic_shared_bytes) + " bytes for kernel " + name);
    }
    return found;
}

}  // namespace ost::hip
