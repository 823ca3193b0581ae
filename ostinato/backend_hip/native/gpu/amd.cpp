// The table from AMD's runtime. Most lines are aliases; adaptors stand where versions differ (properties, node types),
// where one call needs two (devices, facts) and where HIP asks for more than we mean (pool values, extra arguments).
#include "amd.h"

#include <atomic>
#include <cstring>

#include "library.h"

namespace ost::gpu {

void open_amd_compiler(CompilerApi& api, std::vector<LibraryReport>& reports, const Search& search,
                       const Library& runtime);
void open_amd_blas(BlasApi& api, std::vector<LibraryReport>& reports, const Search& search, int runtime_version);

namespace {

amd::RuntimeFunctions hip;
Error (*get_properties)(void*, int) = nullptr;
size_t architecture_offset = 0;
const std::vector<std::string> kVersions = {".7", ".6", ".5", ""};

Error first(Error a, Error b) { return a != Error::kSuccess ? a : b; }

Error versions(int* driver, int* runtime) {
    return first(hip.hipDriverGetVersion(driver), hip.hipRuntimeGetVersion(runtime));
}

Error device_count(int* count) {
    *count = 0;
    const Error error = hip.hipGetDeviceCount(count);
    return error == Error::kSuccess && *count == 0 ? Error::kNoDevice : error;
}

Error device_facts(int device, DeviceFacts* facts) {
    *facts = {};
    Error error = hip.hipDeviceGetName(facts->name, sizeof facts->name, device);
    error = first(error, hip.hipDeviceTotalMem(&facts->memory_bytes, device));
    const struct {
        amd::Attribute attribute;
        int* value;
    } list[] = {
        {amd::kWarpSize, &facts->wave},
        {amd::kMultiprocessorCount, &facts->multiprocessors},
        {amd::kMaxThreadsPerBlock, &facts->threads_per_block},
        {amd::kMaxThreadsPerMultiprocessor, &facts->threads_per_multiprocessor},
        {amd::kMaxRegistersPerBlock, &facts->registers_per_block},
        {amd::kMaxSharedMemoryPerBlock, &facts->shared_bytes_per_block},
        {amd::kL2CacheSize, &facts->l2_bytes},
        {amd::kClockRate, &facts->clock_khz},
        {amd::kMemoryClockRate, &facts->memory_clock_khz},
        {amd::kMemoryBusWidth, &facts->memory_bus_bits},
        {amd::kPciDomainId, &facts->pci_domain},
        {amd::kPciBusId, &facts->pci_bus},
        {amd::kPciDeviceId, &facts->pci_device},
        {amd::kIntegrated, &facts->integrated},
        {amd::kCooperativeLaunch, &facts->cooperative_launch},
    };
    for (const auto& entry : list) {
        error = first(error, hip.hipDeviceGetAttribute(entry.value, entry.attribute, device));
    }
    facts->shared_bytes_per_block_limit = facts->shared_bytes_per_block;
    // Not known to the oldest runtimes: without an answer there are no pools.
    if (hip.hipDeviceGetAttribute(&facts->memory_pools, amd::kMemoryPoolsSupported, device) != Error::kSuccess) {
        hip.hipGetLastError();
        facts->memory_pools = 0;
    }
    char properties[amd::kPropertiesBytes] = {};
    error = first(error, get_properties(properties, device));
    if (error != Error::kSuccess) return error;
    facts->early_starts = hip.emulatedLaunchEarly != nullptr ? 1 : 0;
    const char* architecture = properties + architecture_offset;  // gfx942:sramecc+:xnack-
    const size_t length = strcspn(architecture, ":");
    std::memcpy(facts->architecture, architecture, length < sizeof facts->architecture ? length : 0);
    return Error::kSuccess;
}

Error enter_device(int device, int* previous) {
    const Error error = hip.hipGetDevice(previous);
    return error != Error::kSuccess || *previous == device ? error : hip.hipSetDevice(device);
}

Error leave_device(int previous) { return hip.hipSetDevice(previous); }

Error host_allocate(void** address, size_t bytes) { return hip.hipHostMalloc(address, bytes, 0); }

Error pool_get(Pool pool, PoolAttribute attribute, uint64_t* value) {
    return hip.hipMemPoolGetAttribute(pool, attribute, value);
}

Error pool_set(Pool pool, PoolAttribute attribute, uint64_t value) {
    return hip.hipMemPoolSetAttribute(pool, attribute, &value);
}

Error stream_wait_event(Stream stream, Event event) { return hip.hipStreamWaitEvent(stream, event, 0); }

Error graph_create(Graph* graph) { return hip.hipGraphCreate(graph, 0); }

Error graph_add_kernel(Node* node, Graph graph, const Node* after, size_t count, const KernelNode* kernel) {
    const amd::KernelNodeParams params = {
        {kernel->block.x, kernel->block.y, kernel->block.z}, nullptr,           kernel->function,
        {kernel->grid.x, kernel->grid.y, kernel->grid.z},    kernel->arguments, kernel->shared_bytes};
    return hip.hipGraphAddKernelNode(node, graph, after, count, &params);
}

// Numbers of node types start at 1 up to HIP 5.2 and at 0 later. The library itself says which by the type it gives
// the empty node, sixth in either order.
Error first_node_type(int* number) {
    static std::atomic<int> known{-1};
    *number = known.load(std::memory_order_relaxed);
    if (*number >= 0) return Error::kSuccess;
    Graph graph = nullptr;
    Error error = hip.hipGraphCreate(&graph, 0);
    if (error != Error::kSuccess) return error;
    Node node = nullptr;
    int type = 0;
    error = hip.hipGraphAddEmptyNode(&node, graph, nullptr, 0);
    if (error == Error::kSuccess) error = hip.hipGraphNodeGetType(node, &type);
    error = first(error, hip.hipGraphDestroy(graph));
    if (error != Error::kSuccess) return error;
    *number = type - static_cast<int>(NodeType::kEmpty);
    if (*number != 0 && *number != 1) return Error::kNotSupported;
    known.store(*number, std::memory_order_relaxed);
    return Error::kSuccess;
}

Error node_type(Node node, NodeType* type) {
    *type = NodeType::kOther;
    int start = 0, number = 0;
    const Error error = first(first_node_type(&start), hip.hipGraphNodeGetType(node, &number));
    if (error != Error::kSuccess) return error;
    number -= start;
    if (number >= 0 && number <= static_cast<int>(NodeType::kEventRecord)) *type = static_cast<NodeType>(number);
    if (start == 1) {
        if (number >= 8 && number <= 10) *type = NodeType::kCopy;  // one-dimensional, from a symbol, to a symbol
    } else if (number == 10 || number == 11) {
        *type = static_cast<NodeType>(number);
    } else if (number == 12 || number == 13) {
        *type = NodeType::kCopy;  // from a symbol, to a symbol
    }
    return Error::kSuccess;
}

Error kernel_node(Node node, KernelNode* kernel) {
    amd::KernelNodeParams params = {};
    const Error error = hip.hipGraphKernelNodeGetParams(node, &params);
    *kernel = {static_cast<Function>(params.function),
               {params.grid.x, params.grid.y, params.grid.z},
               {params.block.x, params.block.y, params.block.z},
               params.shared_bytes,
               params.arguments};
    return error;
}

Error copy_node(Node node, CopyNode* copy) {
    amd::CopyNodeParams params = {};
    const Error error = hip.hipGraphMemcpyNodeGetParams(node, &params);
    if (error != Error::kSuccess) return error;
    if (params.from_array != nullptr || params.to_array != nullptr || params.extent.height > 1 ||
        params.extent.depth > 1) {
        return Error::kNotSupported;
    }
    *copy = {static_cast<char*>(params.to.pointer) + params.to_position.x,
             static_cast<const char*>(params.from.pointer) + params.from_position.x, params.extent.width};
    return Error::kSuccess;
}

Error fill_node(Node node, FillNode* fill) {
    amd::FillNodeParams params = {};
    const Error error = hip.hipGraphMemsetNodeGetParams(node, &params);
    if (error != Error::kSuccess) return error;
    if (params.height > 1 && params.pitch != params.width * params.element_bytes) return Error::kNotSupported;
    *fill = {params.to, params.value, params.element_bytes, params.width * (params.height > 1 ? params.height : 1)};
    return Error::kSuccess;
}

Error graph_edges(Graph graph, Node* from, Node* to, uint8_t* early, size_t* count) {
    if (hip.emulatedGraphGetEdges != nullptr) return hip.emulatedGraphGetEdges(graph, from, to, early, count);
    if (from != nullptr) std::memset(early, 0, *count);
    return hip.hipGraphGetEdges(graph, from, to, count);
}

Error graph_instantiate(GraphExec* exec, Graph graph) { return hip.hipGraphInstantiateWithFlags(exec, graph, 0); }

Error graph_update(GraphExec exec, Graph graph, UpdateResult* result) {
    Node failed = nullptr;
    *result = UpdateResult::kError;
    const Error error = hip.hipGraphExecUpdate(exec, graph, &failed, result);
    if (*result > UpdateResult::kUnsupportedFunctionChange) *result = UpdateResult::kOther;
    return error;
}

// A block's shared memory needs no permission here, only to be there.
Error function_set(Function, FunctionAttribute attribute, int value) {
    if (attribute != FunctionAttribute::kMaxDynamicSharedBytes) return Error::kInvalidValue;
    int device = 0, limit = 0;
    const Error error =
        first(hip.hipGetDevice(&device), hip.hipDeviceGetAttribute(&limit, amd::kMaxSharedMemoryPerBlock, device));
    return error != Error::kSuccess || value <= limit ? error : Error::kInvalidValue;
}

Error launch(Function function, Extent grid, Extent block, uint32_t shared_bytes, Stream stream, bool early,
             void** arguments) {
    if (early) {
        return hip.emulatedLaunchEarly(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                                       stream, arguments);
    }
    return hip.hipModuleLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream,
                                     arguments, nullptr);
}

void fill(RuntimeApi& api) {
    api = {versions,
           hip.hipGetErrorName,
           hip.hipGetErrorString,
           hip.hipGetLastError,
           device_count,
           device_facts,
           enter_device,
           leave_device,
           hip.hipDeviceSynchronize,
           hip.hipMemGetInfo,
           hip.hipMalloc,
           hip.hipFree,
           host_allocate,
           hip.hipHostFree,
           hip.hipMemcpyAsync,
           hip.hipMemsetAsync,
           hip.hipMallocAsync,
           hip.hipFreeAsync,
           hip.hipDeviceGetDefaultMemPool,
           pool_get,
           pool_set,
           hip.hipMemPoolTrimTo,
           hip.hipStreamCreateWithFlags,
           hip.hipStreamDestroy,
           hip.hipStreamQuery,
           hip.hipStreamSynchronize,
           stream_wait_event,
           hip.hipEventCreateWithFlags,
           hip.hipEventDestroy,
           hip.hipEventRecord,
           hip.hipEventQuery,
           hip.hipEventSynchronize,
           hip.hipEventElapsedTime,
           hip.hipStreamBeginCapture,
           hip.hipStreamEndCapture,
           hip.hipStreamIsCapturing,
           hip.hipThreadExchangeStreamCaptureMode,
           graph_create,
           hip.hipGraphDestroy,
           graph_add_kernel,
           hip.hipGraphAddDependencies,
           hip.hipGraphGetNodes,
           graph_edges,
           node_type,
           kernel_node,
           copy_node,
           fill_node,
           graph_instantiate,
           graph_update,
           hip.hipGraphLaunch,
           hip.hipGraphExecDestroy,
           hip.hipModuleLoadData,
           hip.hipModuleUnload,
           hip.hipModuleGetFunction,
           hip.hipFuncGetAttribute,
           function_set,
           hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
           launch};
}

}  // namespace

void open_amd(Api& api, std::vector<LibraryReport>& reports, const Search& search) {
    api.platform = Platform::kAmd;
    LibraryReport report;
    report.role = "runtime";
    const Library library("libamdhip64", search, kVersions, report);
#define OST_LOAD(name, result, parameters) \
    hip.name = reinterpret_cast<decltype(hip.name)>(library.required(#name, report));
    OST_HIP_RUNTIME(OST_LOAD)
#undef OST_LOAD
#define OST_LOAD(name, result, parameters) hip.name = reinterpret_cast<decltype(hip.name)>(library.symbol(#name));
    OST_HIP_EARLY(OST_LOAD)
#undef OST_LOAD
    void* properties = library.symbol("hipGetDevicePropertiesR0600");
    architecture_offset = properties != nullptr ? amd::kArchitectureOffsetNew : amd::kArchitectureOffsetOld;
    if (properties == nullptr) properties = library.required("hipGetDeviceProperties", report);
    get_properties = reinterpret_cast<Error (*)(void*, int)>(properties);
    int version = 0;  // 50221153: 5.2.21153
    if (report.finding == Finding::kFound) {
        fill(api.runtime);
        if (hip.hipRuntimeGetVersion(&version) == Error::kSuccess) {
            report.version = std::to_string(version / 10000000) + "." + std::to_string(version / 100000 % 100) + "." +
                             std::to_string(version % 100000);
        }
    }
    reports.push_back(report);
    open_amd_compiler(api.compiler, reports, search, library);
    open_amd_blas(api.blas, reports, search, version);
    open_collective(api.collective, reports, search, "librccl", {".1", ""});
}

}  // namespace ost::gpu
