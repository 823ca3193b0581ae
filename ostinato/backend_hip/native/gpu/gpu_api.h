// The GPU as a table of functions in HIP terms, filled at run time from whatever libraries the machine has.
//
// Own declarations, and nothing is linked: amd.cpp fills the table from libamdhip64, libhiprtc, libhipblaslt and
// librccl, nvidia.cpp from libcuda, libnvrtc, libcublasLt and libnccl. On NVIDIA the driver's own interface is used and
// not libcudart, because its symbols carry their version for ever while the runtime's change meaning between releases
// under the same name (get edges, add dependencies, capture info); both share the primary context, so frameworks in the
// same process see the same memory. Where a vendor's function is no plain alias an adaptor stands in the table.
//
// Functions return an Error and throw nothing. Which device they speak to is the calling thread's current one, set by
// enter_device and put back by leave_device: a caller's own choice of device survives ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ost::gpu {

// Numbers of hipError_t, which CUDA's driver shares wherever both have one (a test compares them). A number that is not
// listed passes through as it is; error_text names it.
enum class Error : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kDeinitialized = 4,
    kInvalidConfiguration = 9,
    kInvalidDevicePointer = 17,
    kInsufficientDriver = 35,
    kInvalidDeviceFunction = 98,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kNoBinaryForGpu = 209,
    kEccNotCorrectable = 214,
    kInvalidKernelFile = 218,
    kInvalidSource = 300,
    kFileNotFound = 301,
    kSharedObjectSymbolNotFound = 302,
    kOperatingSystem = 304,
    kInvalidHandle = 400,
    kIllegalState = 401,
    kNotFound = 500,
    kNotReady = 600,
    kIllegalAddress = 700,
    kLaunchOutOfResources = 701,
    kLaunchTimeOut = 702,
    kContextIsDestroyed = 709,
    kAssert = 710,
    kHardwareStackError = 714,
    kIllegalInstruction = 715,
    kMisalignedAddress = 716,
    kInvalidAddressSpace = 717,
    kInvalidPc = 718,
    kLaunchFailure = 719,
    kCooperativeLaunchTooLarge = 720,
    kNotSupported = 801,
    kStreamCaptureUnsupported = 900,
    kStreamCaptureInvalidated = 901,
    kStreamCaptureMerge = 902,
    kStreamCaptureUnmatched = 903,
    kStreamCaptureUnjoined = 904,
    kStreamCaptureIsolation = 905,
    kStreamCaptureImplicit = 906,
    kCapturedEvent = 907,
    kStreamCaptureWrongThread = 908,
    kGraphExecUpdateFailure = 910,
    kUnknown = 999,
};

enum class Platform : int { kAmd = 0, kNvidia = 1 };

// Opaque handles: what the vendor's library hands out.
using Stream = struct StreamHandle*;  // null: the device's default stream
using Event = struct EventHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Graph = struct GraphHandle*;
using Node = struct NodeHandle*;
using GraphExec = struct GraphExecHandle*;
using Pool = struct PoolHandle*;

enum class CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;

// Numbers of the newer HIP; the older one counts from 1 and is translated.
enum class NodeType : int {
    kKernel = 0,
    kCopy = 1,
    kFill = 2,
    kHost = 3,
    kGraph = 4,
    kEmpty = 5,
    kEventWait = 6,
    kEventRecord = 7,
    kAllocate = 10,
    kFree = 11,
    kOther = 99,
};

enum class UpdateResult : int {
    kSuccess = 0,
    kError = 1,
    kTopologyChanged = 2,
    kNodeTypeChanged = 3,
    kFunctionChanged = 4,
    kParametersChanged = 5,
    kNotSupported = 6,
    kUnsupportedFunctionChange = 7,
    kOther = 99,
};

enum class PoolAttribute : int {
    kReleaseThreshold = 4,
    kReservedCurrent = 5,
    kReservedHigh = 6,
    kUsedCurrent = 7,
    kUsedHigh = 8,
};

enum class FunctionAttribute : int {
    kMaxThreadsPerBlock = 0,
    kSharedBytes = 1,
    kConstantBytes = 2,
    kLocalBytes = 3,
    kRegisters = 4,
    kMaxDynamicSharedBytes = 8,  // the only one that can be set
};

struct Extent {
    uint32_t x, y, z;
};

struct KernelNode {
    Function function;
    Extent grid;
    Extent block;
    uint32_t shared_bytes;  // dynamic
    void** arguments;       // one address an argument; read back, they belong to the node. Null where not kept
};

struct CopyNode {
    void* to;
    const void* from;
    size_t bytes;
};

struct FillNode {
    void* to;
    uint32_t value;
    uint32_t element_bytes;
    size_t elements;  // all rows together; rows that do not touch are reported as kNotSupported
};

struct DeviceFacts {
    char name[256];
    char architecture[64];  // sm_90, gfx942
    size_t memory_bytes;
    int wave;
    int multiprocessors;
    int threads_per_block;
    int threads_per_multiprocessor;
    int registers_per_block;
    int shared_bytes_per_block;
    int shared_bytes_per_block_limit;  // what a kernel may ask for by kMaxDynamicSharedBytes
    int l2_bytes;
    int clock_khz;
    int memory_clock_khz;
    int memory_bus_bits;
    int pci_domain;
    int pci_bus;
    int pci_device;
    int integrated;
    int cooperative_launch;
    int memory_pools;
    int early_starts;  // a kernel can be started while the one before it on its stream still runs
};

struct RuntimeApi {
    Error (*versions)(int* driver, int* runtime);
    const char* (*error_name)(Error);
    const char* (*error_text)(Error);
    Error (*last_error)();  // takes the thread's last error away; NVIDIA's driver keeps none
    Error (*device_count)(int* count);
    Error (*device_facts)(int device, DeviceFacts* facts);
    Error (*enter_device)(int device, int* previous);
    Error (*leave_device)(int previous);
    Error (*synchronize_device)();
    Error (*memory_info)(size_t* free, size_t* total);

    Error (*allocate)(void** address, size_t bytes);
    Error (*release)(void* address);
    Error (*host_allocate)(void** address, size_t bytes);  // page-locked
    Error (*host_release)(void* address);
    Error (*copy_async)(void* to, const void* from, size_t bytes, CopyKind, Stream);
    Error (*fill_async)(void* to, int value, size_t bytes, Stream);
    Error (*allocate_async)(void** address, size_t bytes, Stream);
    Error (*release_async)(void* address, Stream);
    Error (*default_pool)(Pool*, int device);
    Error (*pool_get)(Pool, PoolAttribute, uint64_t* value);
    Error (*pool_set)(Pool, PoolAttribute, uint64_t value);
    Error (*pool_trim)(Pool, size_t keep_bytes);

    Error (*stream_create)(Stream*, unsigned flags);
    Error (*stream_destroy)(Stream);
    Error (*stream_query)(Stream);
    Error (*stream_synchronize)(Stream);
    Error (*stream_wait_event)(Stream, Event);
    Error (*event_create)(Event*, unsigned flags);
    Error (*event_destroy)(Event);
    Error (*event_record)(Event, Stream);
    Error (*event_query)(Event);
    Error (*event_synchronize)(Event);
    Error (*event_elapsed)(float* milliseconds, Event from, Event to);

    Error (*capture_begin)(Stream, CaptureMode);
    Error (*capture_end)(Stream, Graph*);
    Error (*capture_status)(Stream, CaptureStatus*);
    Error (*capture_exchange_mode)(CaptureMode*);
    Error (*graph_create)(Graph*);
    Error (*graph_destroy)(Graph);
    Error (*graph_add_kernel)(Node*, Graph, const Node* after, size_t after_count, const KernelNode*);
    Error (*graph_add_dependencies)(Graph, const Node* from, const Node* to, size_t count);
    Error (*graph_nodes)(Graph, Node* nodes, size_t* count);  // nodes null: only the count
    // early[i]: edge i starts the later kernel early, which waits by itself for the one before it
    Error (*graph_edges)(Graph, Node* from, Node* to, uint8_t* early, size_t* count);
    Error (*node_type)(Node, NodeType*);
    Error (*kernel_node)(Node, KernelNode*);
    Error (*copy_node)(Node, CopyNode*);
    Error (*fill_node)(Node, FillNode*);
    Error (*graph_instantiate)(GraphExec*, Graph);
    Error (*graph_update)(GraphExec, Graph, UpdateResult*);
    Error (*graph_launch)(GraphExec, Stream);
    Error (*graph_exec_destroy)(GraphExec);

    Error (*module_load)(Module*, const void* image);
    Error (*module_unload)(Module);
    Error (*module_function)(Function*, Module, const char* name);
    Error (*function_get)(int* value, FunctionAttribute, Function);
    Error (*function_set)(Function, FunctionAttribute, int value);
    Error (*occupancy)(int* blocks, Function, int threads, size_t shared_bytes);
    // early: where the device has early_starts; the kernel waits by itself
    Error (*launch)(Function, Extent grid, Extent block, uint32_t shared_bytes, Stream, bool early, void** arguments);
};

// Run-time compilation: needs no device. Numbers of hiprtcResult, which are nvrtcResult's.
using Program = struct ProgramHandle*;
struct CompilerApi {
    int (*version)(int* major, int* minor);
    const char* (*error_text)(int result);
    int (*create)(Program*, const char* source, const char* name, int header_count, const char* const* headers,
                  const char* const* header_names);
    int (*compile)(Program, int option_count, const char* const* options);
    int (*log_bytes)(Program, size_t*);
    int (*log)(Program, char*);
    int (*code_bytes)(Program, size_t*);  // machine code of the one architecture that the options name
    int (*code)(Program, char*);
    int (*destroy)(Program*);
};

// Vendor GEMM in hipBLASLt's terms. Matrices are column-major.
enum class DataType : int { kF32 = 0, kF16 = 2, kI8 = 3, kI32 = 10, kBf16 = 14 };  // hipDataType's and CUDA's numbers
enum class ComputeType : int { kF32, kF32FastTf32, kI32 };                         // translated by each adaptor
enum class GemmAttribute : int { kTransposeA, kTransposeB, kEpilogue, kBias, kBiasType };
enum class LayoutAttribute : int { kBatchCount, kBatchStride };
constexpr uint32_t kEpilogueNone = 1;  // both vendors' numbers
constexpr uint32_t kEpilogueBias = 4;
constexpr unsigned kGemmAlignment = 16;  // bytes at whose multiples every operand of a product starts
constexpr int kProposals = 8;            // of the vendor, of which one is chosen
constexpr int kMostProposals = 64;       // those that a screening looks at (MOST_CANDIDATES of vendor_screen.py)
using Blas = struct BlasHandle*;
using GemmDescription = struct GemmDescriptionHandle*;
using MatrixLayout = struct MatrixLayoutHandle*;
struct GemmChoice {
    uint64_t algorithm[8];  // opaque; the larger of the two vendors' structs
    size_t workspace_bytes;
    float waves;
};
struct BlasApi {
    const char* (*status_text)(int status);
    int (*version)(Blas, int* version);
    int (*create)(Blas*);
    int (*destroy)(Blas);
    int (*description_create)(GemmDescription*, ComputeType, DataType scale);
    int (*description_destroy)(GemmDescription);
    int (*description_set)(GemmDescription, GemmAttribute, uint64_t value);  // transposes: 0 or 1
    int (*layout_create)(MatrixLayout*, DataType, uint64_t rows, uint64_t columns, int64_t leading);
    int (*layout_destroy)(MatrixLayout);
    int (*layout_set)(MatrixLayout, LayoutAttribute, int64_t value);
    int (*choices)(Blas, GemmDescription, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
                   size_t workspace_limit, int wanted, GemmChoice* choices, int* found);
    // Whether an algorithm that was recorded is good for this problem, and the bytes it needs.
    int (*check)(Blas, GemmDescription, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
                 size_t workspace_limit, const GemmChoice*, size_t* workspace_bytes);
    int (*matmul)(Blas, GemmDescription, const void* alpha, const void* a, MatrixLayout, const void* b, MatrixLayout,
                  const void* beta, const void* c, MatrixLayout, void* d, MatrixLayout, const GemmChoice*,
                  void* workspace, size_t workspace_bytes, Stream);
};

// Collectives: only what is needed to say which library is there.
struct CollectiveApi {
    int (*version)(int*);
};

struct Api {
    Platform platform;
    RuntimeApi runtime;
    CompilerApi compiler;
    BlasApi blas;
    CollectiveApi collective;
};

}  // namespace ost::gpu
