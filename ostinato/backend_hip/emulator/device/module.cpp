// Code objects are shared libraries that the emulator of kernels compiled, with a line before them that says how long
// they are. The run-time compiler hands sources to whoever set it: a test, which compiles them that way.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated {

namespace {

constexpr char kMark[16] = "emulated code\n";

struct Header {
    char mark[16];
    uint64_t bytes;
};

// Compiles `source` for the options; code and log are handed back by emulated_compiled. Not 0: it failed.
using Compiler = int (*)(const char* source, int option_count, const char* const* options);
Compiler compiler = nullptr;
int compiler_version = 0;
thread_local std::string compiled_code, compiled_log;

struct ProgramState {
    std::string source, code, log;
};

Error open_library(const void* image, void** library) {
    Header header;
    std::memcpy(&header, image, sizeof header);
    if (std::memcmp(header.mark, kMark, sizeof kMark) != 0) return Error::kInvalidImage;
    // a path of its own for each: dlopen takes one that it knows for the library that it has already
    std::string path = P_tmpdir "/ostinato-kernels-XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return Error::kOperatingSystem;
    const auto* at = static_cast<const char*>(image) + sizeof header;
    for (size_t left = header.bytes; left != 0;) {
        const ssize_t written = write(file, at, left);
        if (written <= 0) break;
        at += written;
        left -= static_cast<size_t>(written);
    }
    close(file);
    *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* const problem = *library == nullptr ? dlerror() : nullptr;
    unlink(path.c_str());
    if (problem == nullptr) return Error::kSuccess;
    report_problem(problem);
    return Error::kInvalidImage;
}

FunctionState* function_of(Function function) { return reinterpret_cast<FunctionState*>(function); }

Error launch_kernel(Function function, Extent grid, Extent block, unsigned shared_bytes, Stream stream, bool early,
                    void** arguments) {
    StreamState* const queue = stream_of(stream);
    FunctionState* const found = function_of(function);
    if (queue == nullptr || found == nullptr) return Error::kInvalidHandle;
    const size_t threads = size_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || shared_bytes > 65536) {
        return Error::kInvalidConfiguration;
    }
    NodeState node;
    node.type = NodeType::kKernel;
    node.early = early;
    node.function = found;
    node.grid = grid;
    node.block = block;
    node.shared_bytes = shared_bytes;
    for (size_t i = 0; i < found->sizes.size(); ++i) {
        const auto* const bytes = static_cast<const char*>(arguments[i]);
        node.arguments.emplace_back(bytes, bytes + found->sizes[i]);
    }
    for (auto& argument : node.arguments) node.argument_pointers.push_back(argument.data());
    return submit(*queue, std::move(node));
}

}  // namespace

}  // namespace emulated

EXPORT void emulated_set_compiler(emulated::Compiler compiler, int version) {
    emulated::compiler = compiler;
    emulated::compiler_version = version;
}

EXPORT void emulated_compiled(const char* code, size_t bytes, const char* log) {
    emulated::Header header = {};
    std::memcpy(header.mark, emulated::kMark, sizeof header.mark);
    header.bytes = bytes;
    emulated::compiled_code.assign(reinterpret_cast<const char*>(&header), sizeof header);
    emulated::compiled_code.append(code, bytes);
    emulated::compiled_log = log;
}

namespace ost::gpu {
using namespace emulated;  // NOLINT

EXPORT Error hipModuleLoadData(Module* module, const void* image) {
    ENTER("hipModuleLoadData");
    Error error = forbidden_call();
    auto made = std::make_unique<ModuleState>();
    if (error == Error::kSuccess) error = open_library(image, &made->library);
    if (error != Error::kSuccess) return call(error);
    *module = reinterpret_cast<Module>(made.get());
    state().modules.emplace(made.get(), std::move(made));
    return Error::kSuccess;
}

EXPORT Error hipModuleUnload(Module module) {
    ENTER("hipModuleUnload");
    const auto found = state().modules.find(reinterpret_cast<ModuleState*>(module));
    if (found == state().modules.end()) return call(Error::kInvalidHandle);
    for (int device = 0; device < kDevices; ++device) complete_device(device);
    dlclose(found->second->library);
    state().modules.erase(found);
    return Error::kSuccess;
}

EXPORT Error hipModuleGetFunction(Function* function, Module module, const char* name) {
    ENTER("hipModuleGetFunction");
    const auto found = state().modules.find(reinterpret_cast<ModuleState*>(module));
    if (found == state().modules.end()) return call(Error::kInvalidHandle);
    auto& slot = found->second->functions[name];
    if (!slot) {
        void* const library = found->second->library;
        auto made = std::make_unique<FunctionState>();
        made->name = name;
        made->kernel = reinterpret_cast<void (*)(void**)>(dlsym(library, name));
        made->begin = reinterpret_cast<decltype(made->begin)>(dlsym(library, "ostinato_emulator_begin"));
        made->allows = reinterpret_cast<decltype(made->allows)>(dlsym(library, "ostinato_emulator_allows"));
        made->finish = reinterpret_cast<decltype(made->finish)>(dlsym(library, "ostinato_emulator_finish"));
        made->abandon = reinterpret_cast<decltype(made->abandon)>(dlsym(library, "ostinato_emulator_abandon"));
        const auto parameters =
            reinterpret_cast<size_t (*)(size_t*)>(dlsym(library, (made->name + "_parameters").c_str()));
        if (made->kernel == nullptr || made->begin == nullptr || parameters == nullptr) {
            found->second->functions.erase(name);
            return call(Error::kNotFound);
        }
        made->sizes.resize(parameters(nullptr));
        parameters(made->sizes.data());
        slot = std::move(made);
    }
    *function = reinterpret_cast<Function>(slot.get());
    return Error::kSuccess;
}

EXPORT Error hipFuncGetAttribute(int* value, FunctionAttribute attribute, Function function) {
    ENTER("hipFuncGetAttribute");
    if (function == nullptr) return call(Error::kInvalidHandle);
    *value = attribute == FunctionAttribute::kMaxThreadsPerBlock ? 1024
             : attribute == FunctionAttribute::kRegisters        ? 32
                                                                 : 0;
    return Error::kSuccess;
}

EXPORT Error hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int threads, size_t) {
    ENTER("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor");
    if (threads <= 0) return call(Error::kInvalidValue);
    *blocks = 2048 / threads;
    return Error::kSuccess;
}

EXPORT Error hipModuleLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                   Stream stream, void** arguments, void** extra) {
    ENTER("hipModuleLaunchKernel");
    if (extra != nullptr) return call(Error::kInvalidConfiguration);
    return call(launch_kernel(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream,
                              false, arguments));
}

EXPORT Error emulatedLaunchEarly(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                                 void** arguments) {
    ENTER("hipModuleLaunchKernel");
    return call(launch_kernel(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream,
                              true, arguments));
}

EXPORT int hiprtcVersion(int* major, int* minor) { return *major = 9, *minor = compiler_version, 0; }

EXPORT const char* hiprtcGetErrorString(int result) {
    return result == 0 ? "HIPRTC_SUCCESS" : result == 6 ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR_INVALID_INPUT";
}

EXPORT int hiprtcCreateProgram(Program* program, const char* source, const char*, int header_count, const char* const*,
                               const char* const*) {
    if (program == nullptr || source == nullptr || header_count != 0) return 3;
    *program = reinterpret_cast<Program>(new ProgramState{source, "", ""});
    return 0;
}

EXPORT int hiprtcCompileProgram(Program program, int option_count, const char* const* options) {
    {
        const Call call("hiprtcCompileProgram");
        if (call.refused() != Error::kSuccess) return 6;
    }
    auto& found = *reinterpret_cast<ProgramState*>(program);
    if (compiler == nullptr) {
        found.log = "no compiler was set";
        return 6;
    }
    const int failed = compiler(found.source.c_str(), option_count, options);
    found.log = compiled_log;
    if (failed == 0) found.code = compiled_code;
    return failed == 0 ? 0 : 6;
}

EXPORT int hiprtcGetProgramLogSize(Program program, size_t* bytes) {
    *bytes = reinterpret_cast<ProgramState*>(program)->log.size() + 1;
    return 0;
}

EXPORT int hiprtcGetProgramLog(Program program, char* text) {
    const std::string& log = reinterpret_cast<ProgramState*>(program)->log;
    std::memcpy(text, log.c_str(), log.size() + 1);
    return 0;
}

EXPORT int hiprtcGetCodeSize(Program program, size_t* bytes) {
    *bytes = reinterpret_cast<ProgramState*>(program)->code.size();
    return 0;
}

EXPORT int hiprtcGetCode(Program program, char* code) {
    const std::string& found = reinterpret_cast<ProgramState*>(program)->code;
    std::memcpy(code, found.data(), found.size());
    return 0;
}

EXPORT int hiprtcDestroyProgram(Program* program) {
    delete reinterpret_cast<ProgramState*>(*program);
    *program = nullptr;
    return 0;
}

}  // namespace ost::gpu
