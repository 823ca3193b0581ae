// The table from NVIDIA's driver. A device's primary context, which frameworks share, is pushed by enter_device and
// popped by leave_device; addresses are integers there and pointers here; kernel nodes, updates and copies have other
// shapes than HIP's.
#include "nvidia.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "library.h"

namespace ost::gpu {

void open_nvidia_compiler(CompilerApi& api, std::vector<LibraryReport>& reports, const Search& search);
void open_nvidia_blas(BlasApi& api, std::vector<LibraryReport>& reports, const Search& search);

namespace {

nvidia::RuntimeFunctions cuda;
constexpr int kMaximumDevices = 64;
nvidia::Context contexts[kMaximumDevices] = {};

nvidia::Address address_of(const void* pointer) { return reinterpret_cast<nvidia::Address>(pointer); }
void* pointer_to(nvidia::Address address) { return reinterpret_cast<void*>(address); }

// Failures of the driver as a whole have numbers that HIP does not know; they all mean that it does not fit.
Error typed(int result) {
    switch (result) {
        case 34:   // a stub library
        case 36:   // needs a newer driver
        case 803:  // driver and library differ
        case 804:  // compatibility mode without the hardware for it
            return Error::kInsufficientDriver;
        default: return static_cast<Error>(result);
    }
}

Error versions(int* driver, int* runtime) {
    const Error error = typed(cuda.cuDriverGetVersion(driver));
    *runtime = *driver;
    return error;
}

const char* error_name(Error error) {
    const char* text = nullptr;
    return cuda.cuGetErrorName(static_cast<int>(error), &text) == 0 && text != nullptr ? text : "unknown error";
}

const char* error_text(Error error) {
    if (error == Error::kInsufficientDriver)
        return "the driver does not fit: too old, a stub, or other than its library";
    const char* text = nullptr;
    return cuda.cuGetErrorString(static_cast<int>(error), &text) == 0 && text != nullptr ? text : "unknown error";
}

Error last_error() { return Error::kSuccess; }

Error device_count(int* count) {
    *count = 0;
    Error error = typed(cuda.cuInit(0));
    if (error == Error::kSuccess) error = typed(cuda.cuDeviceGetCount(count));
    return error == Error::kSuccess && *count == 0 ? Error::kNoDevice : error;
}

Error device_facts(int device, DeviceFacts* facts) {
    *facts = {};
    int result = cuda.cuInit(0);
    if (result == 0) result = cuda.cuDeviceGetName(facts->name, sizeof facts->name, device);
    if (result == 0) result = cuda.cuDeviceTotalMem_v2(&facts->memory_bytes, device);
    int major = 0, minor = 0;
    const struct {
        nvidia::Attribute attribute;
        int* value;
    } list[] = {
        {nvidia::kWarpSize, &facts->wave},
        {nvidia::kMultiprocessorCount, &facts->multiprocessors},
        {nvidia::kMaxThreadsPerBlock, &facts->threads_per_block},
        {nvidia::kMaxThreadsPerMultiprocessor, &facts->threads_per_multiprocessor},
        {nvidia::kMaxRegistersPerBlock, &facts->registers_per_block},
        {nvidia::kMaxSharedMemoryPerBlock, &facts->shared_bytes_per_block},
        {nvidia::kMaxSharedMemoryPerBlockOptIn, &facts->shared_bytes_per_block_limit},
        {nvidia::kL2CacheSize, &facts->l2_bytes},
        {nvidia::kClockRate, &facts->clock_khz},
        {nvidia::kMemoryClockRate, &facts->memory_clock_khz},
        {nvidia::kMemoryBusWidth, &facts->memory_bus_bits},
        {nvidia::kPciDomainId, &facts->pci_domain},
        {nvidia::kPciBusId, &facts->pci_bus},
        {nvidia::kPciDeviceId, &facts->pci_device},
        {nvidia::kIntegrated, &facts->integrated},
        {nvidia::kCooperativeLaunch, &facts->cooperative_launch},
        {nvidia::kMemoryPoolsSupported, &facts->memory_pools},
        {nvidia::kCapabilityMajor, &major},
        {nvidia::kCapabilityMinor, &minor},
    };
    for (const auto& entry : list) {
        if (result == 0) result = cuda.cuDeviceGetAttribute(entry.value, entry.attribute, device);
    }
    std::snprintf(facts->architecture, sizeof facts->architecture, "sm_%d%d", major, minor);
    // a driver that does not tell early edges from others could not be held to them
    facts->early_starts = major >= nvidia::kEarlyCapability && cuda.cuGraphGetEdges_v2 != nullptr ? 1 : 0;
    return typed(result);
}

Error enter_device(int device, int* previous) {
    *previous = 0;
    if (device < 0 || device >= kMaximumDevices) return Error::kInvalidDevice;
    nvidia::Context context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
    if (context == nullptr) {
        static std::mutex& lock = *new std::mutex;
        const std::lock_guard<std::mutex> guard(lock);
        int result = cuda.cuInit(0);
        if (result == 0 && contexts[device] == nullptr) {
            result = cuda.cuDevicePrimaryCtxRetain(&context, device);
            if (result == 0) __atomic_store_n(&contexts[device], context, __ATOMIC_RELEASE);
        }
        if (result != 0) return typed(result);
        context = contexts[device];
    }
    return typed(cuda.cuCtxPushCurrent_v2(context));
}

Error leave_device(int) {
    nvidia::Context context = nullptr;
    return typed(cuda.cuCtxPopCurrent_v2(&context));
}

Error synchronize_device() { return typed(cuda.cuCtxSynchronize()); }
Error memory_info(size_t* free, size_t* total) { return typed(cuda.cuMemGetInfo_v2(free, total)); }

Error allocate(void** address, size_t bytes) {
    nvidia::Address found = 0;
    const int result = cuda.cuMemAlloc_v2(&found, bytes);
    *address = pointer_to(found);
    return typed(result);
}
Error release(void* address) { return typed(cuda.cuMemFree_v2(address_of(address))); }
Error host_allocate(void** address, size_t bytes) { return typed(cuda.cuMemHostAlloc(address, bytes, 0)); }
Error host_release(void* address) { return typed(cuda.cuMemFreeHost(address)); }

Error copy_async(void* to, const void* from, size_t bytes, CopyKind kind, Stream stream) {
    switch (kind) {
        case CopyKind::kHostToDevice: return typed(cuda.cuMemcpyHtoDAsync_v2(address_of(to), from, bytes, stream));
        case CopyKind::kDeviceToHost: return typed(cuda.cuMemcpyDtoHAsync_v2(to, address_of(from), bytes, stream));
        case CopyKind::kDeviceToDevice:
            return typed(cuda.cuMemcpyDtoDAsync_v2(address_of(to), address_of(from), bytes, stream));
        case CopyKind::kHostToHost: return typed(cuda.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
    }
    return Error::kInvalidValue;
}
Error fill_async(void* to, int value, size_t bytes, Stream stream) {
    return typed(cuda.cuMemsetD8Async(address_of(to), static_cast<unsigned char>(value), bytes, stream));
}
Error allocate_async(void** address, size_t bytes, Stream stream) {
    nvidia::Address found = 0;
    const int result = cuda.cuMemAllocAsync(&found, bytes, stream);
    *address = pointer_to(found);
    return typed(result);
}
Error release_async(void* address, Stream stream) { return typed(cuda.cuMemFreeAsync(address_of(address), stream)); }
Error default_pool(Pool* pool, int device) { return typed(cuda.cuDeviceGetDefaultMemPool(pool, device)); }
Error pool_get(Pool pool, PoolAttribute attribute, uint64_t* value) {
    return typed(cuda.cuMemPoolGetAttribute(pool, attribute, value));
}
Error pool_set(Pool pool, PoolAttribute attribute, uint64_t value) {
    return typed(cuda.cuMemPoolSetAttribute(pool, attribute, &value));
}
Error pool_trim(Pool pool, size_t keep) { return typed(cuda.cuMemPoolTrimTo(pool, keep)); }

Error stream_create(Stream* stream, unsigned flags) { return typed(cuda.cuStreamCreate(stream, flags)); }
Error stream_destroy(Stream stream) { return typed(cuda.cuStreamDestroy_v2(stream)); }
Error stream_query(Stream stream) { return typed(cuda.cuStreamQuery(stream)); }
Error stream_synchronize(Stream stream) { return typed(cuda.cuStreamSynchronize(stream)); }
Error stream_wait_event(Stream stream, Event event) { return typed(cuda.cuStreamWaitEvent(stream, event, 0)); }
Error event_create(Event* event, unsigned flags) { return typed(cuda.cuEventCreate(event, flags)); }
Error event_destroy(Event event) { return typed(cuda.cuEventDestroy_v2(event)); }
Error event_record(Event event, Stream stream) { return typed(cuda.cuEventRecord(event, stream)); }
Error event_query(Event event) { return typed(cuda.cuEventQuery(event)); }
Error event_synchronize(Event event) { return typed(cuda.cuEventSynchronize(event)); }
Error event_elapsed(float* ms, Event from, Event to) { return typed(cuda.cuEventElapsedTime(ms, from, to)); }

Error capture_begin(Stream stream, CaptureMode mode) { return typed(cuda.cuStreamBeginCapture_v2(stream, mode)); }
Error capture_end(Stream stream, Graph* graph) { return typed(cuda.cuStreamEndCapture(stream, graph)); }
Error capture_status(Stream stream, CaptureStatus* status) { return typed(cuda.cuStreamIsCapturing(stream, status)); }
Error capture_exchange_mode(CaptureMode* mode) { return typed(cuda.cuThreadExchangeStreamCaptureMode(mode)); }

Error graph_create(Graph* graph) { return typed(cuda.cuGraphCreate(graph, 0)); }
Error graph_destroy(Graph graph) { return typed(cuda.cuGraphDestroy(graph)); }
Error graph_add_kernel(Node* node, Graph graph, const Node* after, size_t count, const KernelNode* kernel) {
    const nvidia::KernelNodeParams params = {kernel->function,  kernel->grid.x,  kernel->grid.y,  kernel->grid.z,
                                             kernel->block.x,   kernel->block.y, kernel->block.z, kernel->shared_bytes,
                                             kernel->arguments, nullptr,         nullptr,         nullptr};
    return typed(cuda.cuGraphAddKernelNode_v2(node, graph, after, count, &params));
}
Error graph_add_dependencies(Graph graph, const Node* from, const Node* to, size_t count) {
    return typed(cuda.cuGraphAddDependencies(graph, from, to, count));
}
Error graph_nodes(Graph graph, Node* nodes, size_t* count) { return typed(cuda.cuGraphGetNodes(graph, nodes, count)); }
Error graph_edges(Graph graph, Node* from, Node* to, uint8_t* early, size_t* count) {
    std::vector<nvidia::EdgeData> data(from == nullptr ? 0 : *count);
    // the older call refuses graphs with an early start
    const int result = cuda.cuGraphGetEdges_v2 == nullptr
                           ? cuda.cuGraphGetEdges(graph, from, to, count)
                           : cuda.cuGraphGetEdges_v2(graph, from, to, data.empty() ? nullptr : data.data(), count);
    for (size_t i = 0; i < data.size(); ++i) early[i] = data[i].type == nvidia::kEarlyEdge ? 1 : 0;
    return typed(result);
}
Error node_type(Node node, NodeType* type) {
    int number = 0;
    const int result = cuda.cuGraphNodeGetType(node, &number);
    const bool known = number <= static_cast<int>(NodeType::kEventRecord) || number == 10 || number == 11;
    *type = known ? static_cast<NodeType>(number) : NodeType::kOther;
    return typed(result);
}
Error kernel_node(Node node, KernelNode* kernel) {
    nvidia::KernelNodeParams p = {};
    const int result = cuda.cuGraphKernelNodeGetParams_v2(node, &p);
    *kernel = {
        p.function, {p.grid_x, p.grid_y, p.grid_z}, {p.block_x, p.block_y, p.block_z}, p.shared_bytes, p.arguments};
    return typed(result);
}
Error copy_node(Node node, CopyNode* copy) {
    nvidia::CopyNodeParams p = {};
    const int result = cuda.cuGraphMemcpyNodeGetParams(node, &p);
    if (result != 0) return typed(result);
    if (p.from_type == nvidia::kMemoryArray || p.to_type == nvidia::kMemoryArray || p.height > 1 || p.depth > 1) {
        return Error::kNotSupported;
    }
    const void* from = p.from_type == nvidia::kMemoryHost ? p.from_host : pointer_to(p.from_device);
    void* to = p.to_type == nvidia::kMemoryHost ? p.to_host : pointer_to(p.to_device);
    *copy = {static_cast<char*>(to) + p.to_x, static_cast<const char*>(from) + p.from_x, p.width_bytes};
    return Error::kSuccess;
}
Error fill_node(Node node, FillNode* fill) {
    nvidia::FillNodeParams p = {};
    const int result = cuda.cuGraphMemsetNodeGetParams(node, &p);
    if (result != 0) return typed(result);
    if (p.height > 1 && p.pitch != p.width * p.element_bytes) return Error::kNotSupported;
    *fill = {pointer_to(p.to), p.value, p.element_bytes, p.width * (p.height > 1 ? p.height : 1)};
    return Error::kSuccess;
}
Error graph_instantiate(GraphExec* exec, Graph graph) {
    return typed(cuda.cuGraphInstantiateWithFlags(exec, graph, 0));
}
Error graph_update(GraphExec exec, Graph graph, UpdateResult* update) {
    nvidia::UpdateInfo info = {UpdateResult::kError, nullptr, nullptr};
    const int result = cuda.cuGraphExecUpdate_v2(exec, graph, &info);
    *update = info.result > UpdateResult::kUnsupportedFunctionChange ? UpdateResult::kOther : info.result;
    return typed(result);
}
Error graph_launch(GraphExec exec, Stream stream) { return typed(cuda.cuGraphLaunch(exec, stream)); }
Error graph_exec_destroy(GraphExec exec) { return typed(cuda.cuGraphExecDestroy(exec)); }

Error module_load(Module* module, const void* image) { return typed(cuda.cuModuleLoadData(module, image)); }
Error module_unload(Module module) { return typed(cuda.cuModuleUnload(module)); }
Error module_function(Function* function, Module module, const char* name) {
    return typed(cuda.cuModuleGetFunction(function, module, name));
}
Error function_get(int* value, FunctionAttribute attribute, Function function) {
    return typed(cuda.cuFuncGetAttribute(value, attribute, function));
}
Error function_set(Function function, FunctionAttribute attribute, int value) {
    return typed(cuda.cuFuncSetAttribute(function, attribute, value));
}
Error occupancy(int* blocks, Function function, int threads, size_t shared_bytes) {
    return typed(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes));
}
Error launch(Function f, Extent grid, Extent block, uint32_t shared_bytes, Stream stream, bool early,
             void** arguments) {
    if (early) {
        nvidia::LaunchAttribute attribute = {nvidia::kEarlyLaunch, {}, 1, {}};
        const nvidia::LaunchConfiguration launch = {grid.x,  grid.y,       grid.z, block.x,    block.y,
                                                    block.z, shared_bytes, stream, &attribute, 1};
        return typed(cuda.cuLaunchKernelEx(&launch, f, arguments, nullptr));
    }
    return typed(cuda.cuLaunchKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream,
                                     arguments, nullptr));
}

}  // namespace

void open_nvidia(Api& api, std::vector<LibraryReport>& reports, const Search& search) {
    api.platform = Platform::kNvidia;
    LibraryReport report;
    report.role = "runtime";
    const Library library("libcuda", search, {".1", ""}, report);
#define OST_LOAD(name, result, parameters) \
    cuda.name = reinterpret_cast<decltype(cuda.name)>(library.required(#name, report));
    OST_CUDA_RUNTIME(OST_LOAD)
#undef OST_LOAD
#define OST_LOAD(name, result, parameters) cuda.name = reinterpret_cast<decltype(cuda.name)>(library.symbol(#name));
    OST_CUDA_RUNTIME_12_3(OST_LOAD)
#undef OST_LOAD
    if (report.finding == Finding::kFound) {
        api.runtime = {versions,
                       error_name,
                       error_text,
                       last_error,
                       device_count,
                       device_facts,
                       enter_device,
                       leave_device,
                       synchronize_device,
                       memory_info,
                       allocate,
                       release,
                       host_allocate,
                       host_release,
                       copy_async,
                       fill_async,
                       allocate_async,
                       release_async,
                       default_pool,
                       pool_get,
                       pool_set,
                       pool_trim,
                       stream_create,
                       stream_destroy,
                       stream_query,
                       stream_synchronize,
                       stream_wait_event,
                       event_create,
                       event_destroy,
                       event_record,
                       event_query,
                       event_synchronize,
                       event_elapsed,
                       capture_begin,
                       capture_end,
                       capture_status,
                       capture_exchange_mode,
                       graph_create,
                       graph_destroy,
                       graph_add_kernel,
                       graph_add_dependencies,
                       graph_nodes,
                       graph_edges,
                       node_type,
                       kernel_node,
                       copy_node,
                       fill_node,
                       graph_instantiate,
                       graph_update,
                       graph_launch,
                       graph_exec_destroy,
                       module_load,
                       module_unload,
                       module_function,
                       function_get,
                       function_set,
                       occupancy,
                       launch};
        int version = 0;  // 13000: 13.0
        if (cuda.cuDriverGetVersion(&version) == 0) {
            report.version = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
        }
        if (version < nvidia::kOldestDriver) {
            report.finding = Finding::kIncomplete;
            report.problem = "libcuda is of CUDA " + report.version + "; 12.0 or newer is needed";
        }
    }
    reports.push_back(report);
    open_nvidia_compiler(api.compiler, reports, search);
    open_nvidia_blas(api.blas, reports, search);
    open_collective(api.collective, reports, search, "libnccl", {".2", ""});
}

}  // namespace ost::gpu
