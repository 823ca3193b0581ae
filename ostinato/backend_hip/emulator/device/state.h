// A made-up GPU behind AMD's own C interface: one library that answers as libamdhip64, libhiprtc, libhipblaslt and
// librccl, opened by the same loader and adaptors as the real ones. For tests; nothing of this is in a wheel.
//
// What a GPU leaves open is decided by a seed: work waits until somebody synchronises (or runs earlier, by chance) and
// then runs in any order that streams, events and graph edges allow, one operation after another. What a GPU leaves
// undefined is refused or reported: accesses outside of live memory, use after free, calls that a capture forbids.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../native/gpu/amd.h"

namespace emulated {

using namespace ost::gpu;  // NOLINT: the emulator speaks the table's terms throughout

constexpr int kDevices = 2;  // the first with waves of 64 lanes, the second with waves of 32

// One piece of work. It runs once everything in `after` is done.
struct Operation {
    int device = 0;
    std::vector<std::shared_ptr<Operation>> after;
    std::function<Error()> run;
    bool done = false;
    double finished = 0;  // ticks; events read it
    bool kernel = false;
    std::shared_ptr<Operation> follower;  // a kernel that starts early, and waits for this one by itself
    std::function<bool()> begin;          // of a follower: starts it; true where its own may begin too
};
using Work = std::shared_ptr<Operation>;

struct FunctionState {
    std::string name;
    void (*kernel)(void**) = nullptr;  // null: a kernel of the vendor's GEMM
    void* (*begin)(void (*)(void**), const unsigned*, const unsigned*, void**, unsigned long long, int early, char*,
                   size_t) = nullptr;
    int (*allows)(const void*) = nullptr;
    int (*finish)(void*, char*, size_t) = nullptr;
    void (*abandon)(void*) = nullptr;
    std::vector<size_t> sizes;  // of its parameters
    int dynamic_shared = 0;
};

struct NodeState {
    NodeType type = NodeType::kEmpty;
    std::vector<NodeState*> after;
    bool early = false;  // starts early: it comes after one node, a kernel
    FunctionState* function = nullptr;
    Extent grid = {}, block = {};
    uint32_t shared_bytes = 0;
    std::vector<std::vector<char>> arguments;
    std::vector<void*> argument_pointers;
    CopyNode copy = {};
    CopyKind kind = CopyKind::kDeviceToDevice;
    FillNode fill = {};
    std::function<Error()> run;
};

struct GraphState {
    int device = 0;
    std::vector<std::unique_ptr<NodeState>> nodes;
};

struct ExecState {
    int device = 0;
    std::vector<std::unique_ptr<NodeState>> nodes;  // edges point to earlier ones of these
    Work last;                                      // launches of one executable follow each other
};

struct StreamState;
struct Capture {
    StreamState* origin = nullptr;
    CaptureMode mode = CaptureMode::kGlobal;
    std::thread::id thread;
    bool invalid = false;
    std::unique_ptr<GraphState> graph;
    std::vector<StreamState*> streams;
};

struct StreamState {
    int device = 0;
    bool blocking = true;
    Work last;
    std::shared_ptr<Capture> capture;
    std::vector<NodeState*> frontier;  // what the next captured node comes after
};

struct EventState {
    int device = 0;
    bool timing = true;
    Work recorded;
    std::shared_ptr<Capture> capture;
    std::vector<NodeState*> frontier;
};

struct ModuleState {
    void* library = nullptr;
    std::map<std::string, std::unique_ptr<FunctionState>> functions;
};

struct Allocation {
    void* base = nullptr;
    char* start = nullptr;
    size_t bytes = 0;
    int device = 0;
    bool host = false;
};

struct Device {
    size_t capacity = size_t{256} << 20;
    size_t used = 0;
    Error failed = Error::kSuccess;  // sticky: every later call gives it
    StreamState null_stream;
    size_t pool_used = 0, pool_used_high = 0, pool_cached = 0, pool_reserved_high = 0;
    uint64_t pool_threshold = 0;
};

struct State {
    std::recursive_mutex lock;
    Device devices[kDevices];
    std::list<Work> pending;
    std::map<char*, Allocation> live;
    std::list<Allocation> freed;  // poisoned, kept for a while so that late writes are seen
    size_t freed_bytes = 0;
    std::map<StreamState*, std::unique_ptr<StreamState>> streams;
    std::map<EventState*, std::unique_ptr<EventState>> events;
    std::map<GraphState*, std::unique_ptr<GraphState>> graphs;
    std::map<ExecState*, std::unique_ptr<ExecState>> execs;
    std::map<ModuleState*, std::unique_ptr<ModuleState>> modules;
    std::vector<std::shared_ptr<Capture>> captures;
    std::map<std::string, long> calls;
    std::map<std::string, std::pair<long, Error>> faults;  // call -> which one from now fails, and how
    std::string problem;                                   // the first one found
    unsigned long long random = 1;
    int eagerness = 25;  // per cent: how likely work runs before somebody waits for it
    int version = 71300000;
    int spoilt = -1;               // the vendor's algorithm that leaves the last element of every sum out
    double slow[3] = {0, 0, 0};    // ticks that each of its algorithms takes besides one
    double ticks = 0;
};

State& state();
size_t below(size_t n);  // by the seed
void report_problem(const std::string& text);

// The current device of the thread, and what it may do while a capture is under way.
extern thread_local int current_device;
extern thread_local Error last_error;
extern thread_local CaptureMode thread_mode;

// A test that counts the process's allocations brings this function, by which those of the library are left out.
extern "C" void counting_pause(int more) __attribute__((weak));
struct Uncounted {
    Uncounted() { count(1); }
    ~Uncounted() { count(-1); }
    static void count(int more) {
        if (counting_pause != nullptr) counting_pause(more);
    }
};

// One call into the library: takes the lock, counts, and gives the failure that it must answer with, if any.
class Call {
  public:
    explicit Call(const char* name);
    Error refused() const { return refused_; }
    Error operator()(Error error) const;  // notes it as the thread's last error

  private:
    const Uncounted uncounted_;
    std::unique_lock<std::recursive_mutex> guard_;
    Error refused_;
};
#define ENTER(name)        \
    const Call call(name); \
    if (call.refused() != Error::kSuccess) return call(call.refused())

Error injected(const std::string& name);

// memory.cpp
Error allocate(void** address, size_t bytes, bool host);
Error release(void* address, bool host);
bool in_live_memory(const void* address, size_t bytes, int device);  // device -1: host memory or any device's
bool in_freed_memory(const void* address);
void check_memory();
void heal_memory();  // red zones and freed blocks as if nothing had been written there

// queue.cpp
StreamState* stream_of(Stream stream);  // null where the handle is none
Work enqueue(StreamState& stream, std::function<Error()> run);
void start_early(const Work& work, const Work& front, std::shared_ptr<const NodeState> node);  // where it can
Error complete(const Work& work);
Error complete_device(int device);
void run_by_chance();

// capture.cpp
Error forbidden_call();  // one that a capture under way forbids to this thread
void invalidate(Capture& capture);
Error capture_of(StreamState& stream, Capture** capture);  // null where it does not capture
NodeState* add_node(StreamState& stream, NodeState&& node);
Error submit(StreamState& stream, NodeState&& node);  // into the capture, or to run

// graph.cpp
Error run_node(const NodeState& node, int device);

// An execution of a kernel, of which some blocks may begin before the rest.
class Execution {
  public:
    explicit Execution(std::shared_ptr<const NodeState> node) : node_(std::move(node)) {}
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;
    bool begin();  // whether the next kernel may begin too
    Error run();

  private:
    void start(bool early, char* message, size_t message_size);
    const std::shared_ptr<const NodeState> node_;
    void* launch_ = nullptr;
};

}  // namespace emulated

// What the library exports, with the types that the loader expects: a definition that differs does not compile.
namespace ost::gpu::amd {
#define OST_DECLARE(name, result, parameters) extern "C" __attribute__((visibility("default"))) result name parameters;
OST_HIP_RUNTIME(OST_DECLARE)
OST_HIP_EARLY(OST_DECLARE)
OST_HIP_COMPILER(OST_DECLARE)
OST_HIP_BLAS(OST_DECLARE)
#undef OST_DECLARE
}  // namespace ost::gpu::amd
