#include "capture.h"

#include <algorithm>
#include <type_traits>
#include <unordered_map>

namespace ost::hip {

static_assert(std::is_move_constructible_v<GraphExecutable> && !std::is_copy_constructible_v<GraphExecutable>,
              "graphs are moved");

namespace {

// What a capture of this thread puts off until it is over.
struct Capturing {
    std::vector<std::function<void()>> afterwards;
};
thread_local Capturing* under_way = nullptr;

std::mutex& parameters_lock() {
    static std::mutex& one = *new std::mutex;
    return one;
}
auto& parameters() {
    static auto& sizes = *new std::unordered_map<gpu::Function, std::vector<size_t>>;
    return sizes;
}

// A captured template graph, destroyed with the scope.
struct Template {
    Template(const Device& device, gpu::Graph graph) : device(device), graph(graph) {}
    ~Template() { device.gpu.runtime().graph_destroy(graph); }
    Template(const Template&) = delete;
    Template& operator=(const Template&) = delete;
    const Device& device;
    const gpu::Graph graph;
};

// Ends a capture whose result nobody wants, and leaves no error behind.
void abandon(const gpu::RuntimeApi& api, gpu::Stream stream) {
    gpu::Graph graph = nullptr;
    api.capture_end(stream, &graph);
    if (graph != nullptr) api.graph_destroy(graph);
    api.last_error();
}

// The thread captures as long as this lives; then what was put off is done.
class Scope {
  public:
    Scope() { under_way = &state_; }
    ~Scope() {
        under_way = nullptr;
        for (const auto& work : state_.afterwards) work();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    Capturing state_;
};

gpu::Graph run_captured(const Stream& stream, const std::function<void()>& callback) {
    if (!callback) throw Failure(Kind::kInvalid, "a capture needs a callback");
    if (stream.device() == nullptr) throw Failure(Kind::kRuntime, "a stream of the CPU captures nothing");
    Device& device = *stream.device();
    const gpu::RuntimeApi& api = device.gpu.runtime();
    gpu::CaptureStatus status = gpu::CaptureStatus::kNone;
    if (!capturing())
        device.gpu.check(api.capture_status(stream.handle(), &status), "asking whether a stream captures");
    if (capturing() || status != gpu::CaptureStatus::kNone) {
        throw Failure(Kind::kLogic,
                      capturing() ? "this thread captures already; captures do not nest"
                                  : "the stream captures already, for somebody else; captures do not nest",
                      "capture on a stream of your own");
    }
    device.before_submission();
    const Scope scope;  // what was put off is done when waits are let go on
    const auto no_waits = device.hold_off_waits();
    device.gpu.check(api.capture_begin(stream.handle(), gpu::CaptureMode::kThreadLocal), "beginning a capture");
    try {
        callback();
    } catch (...) {
        abandon(api, stream.handle());
        throw;
    }
    gpu::Graph graph = nullptr;
    const gpu::Error error = api.capture_end(stream.handle(), &graph);
    if (error != gpu::Error::kSuccess || graph == nullptr) {
        abandon(api, stream.handle());
        device.gpu.check(error == gpu::Error::kSuccess ? gpu::Error::kStreamCaptureInvalidated : error,
                         "ending a capture");
    }
    return graph;
}

std::vector<gpu::Node> nodes_of(const Device& device, gpu::Graph graph) {
    const gpu::RuntimeApi& api = device.gpu.runtime();
    size_t count = 0;
    device.gpu.check(api.graph_nodes(graph, nullptr, &count), "counting the nodes of a graph");
    std::vector<gpu::Node> nodes(count);
    if (count != 0) device.gpu.check(api.graph_nodes(graph, nodes.data(), &count), "listing the nodes of a graph");
    if (count == 0)
        throw Failure(Kind::kInvalid, "the callback submitted nothing: the captured graph has no device nodes");
    return nodes;
}

CapturedNode read_node(const Device& device, gpu::Node node) {
    const gpu::RuntimeApi& api = device.gpu.runtime();
    CapturedNode read = {};
    device.gpu.check(api.node_type(node, &read.type), "the type of a node");
    if (read.type == gpu::NodeType::kCopy) {
        device.gpu.check(api.copy_node(node, &read.copy), "the parameters of a copy");
    } else if (read.type == gpu::NodeType::kFill) {
        device.gpu.check(api.fill_node(node, &read.fill), "the parameters of a fill");
    } else if (read.type == gpu::NodeType::kKernel) {
        gpu::KernelNode kernel = {};
        device.gpu.check(api.kernel_node(node, &kernel), "the parameters of a kernel");
        read.function = kernel.function;
        read.grid = kernel.grid;
        read.block = kernel.block;
        read.shared_bytes = kernel.shared_bytes;
        const std::lock_guard<std::mutex> guard(parameters_lock());
        const auto sizes = parameters().find(kernel.function);
        read.arguments_known = kernel.arguments != nullptr && sizes != parameters().end();
        for (size_t i = 0; read.arguments_known && i < sizes->second.size(); ++i) {
            const auto* const bytes = static_cast<const char*>(kernel.arguments[i]);
            read.arguments.emplace_back(bytes, bytes + sizes->second[i]);
        }
    }
    return read;
}

CapturedGraph read_graph(const Device& device, gpu::Graph graph, const std::vector<gpu::Node>& nodes) {
    const gpu::RuntimeApi& api = device.gpu.runtime();
    CapturedGraph read;
    for (const gpu::Node node : nodes) read.nodes.push_back(read_node(device, node));
    size_t count = 0;
    device.gpu.check(api.graph_edges(graph, nullptr, nullptr, nullptr, &count), "counting the edges of a graph");
    std::vector<gpu::Node> from(count), to(count);
    std::vector<uint8_t> early(count);
    if (count != 0)
        device.gpu.check(api.graph_edges(graph, from.data(), to.data(), early.data(), &count),
                         "listing the edges of a graph");
    std::unordered_map<gpu::Node, size_t> number;
    for (size_t i = 0; i < nodes.size(); ++i) number[nodes[i]] = i;
    for (size_t i = 0; i < count; ++i) {
        read.edges.emplace_back(number.at(from[i]), number.at(to[i]));
        if (early[i] != 0) read.early.push_back(read.edges.back());
    }
    std::sort(read.edges.begin(), read.edges.end());
    std::sort(read.early.begin(), read.early.end());
    return read;
}

}  // namespace

bool capturing() { return under_way != nullptr; }

bool after_capture(std::function<void()> work) {
    if (under_way == nullptr) return false;
    under_way->afterwards.push_back(std::move(work));
    return true;
}

void remember_parameters(gpu::Function function, const std::vector<size_t>& sizes) {
    const std::lock_guard<std::mutex> guard(parameters_lock());
    parameters()[function] = sizes;
}

void forget_parameters(gpu::Function function) {
    const std::lock_guard<std::mutex> guard(parameters_lock());
    parameters().erase(function);
}

GraphExecutable GraphExecutable::capture(const Stream& stream, const std::function<void()>& callback,
                                         CapturedGraph* graph) {
    const std::unique_ptr<Current> current(stream.device() == nullptr ? nullptr : new Current(*stream.device()));
    const gpu::Graph captured = run_captured(stream, callback);
    Device& device = *stream.device();
    const Template held(device, captured);
    const std::vector<gpu::Node> nodes = nodes_of(device, captured);
    if (graph != nullptr) *graph = read_graph(device, captured, nodes);
    gpu::GraphExec exec = nullptr;
    device.gpu.check(device.gpu.runtime().graph_instantiate(&exec, captured),
                     "instantiating a graph of " + std::to_string(nodes.size()) + " nodes");
    return {device, exec, nodes.size()};
}

GraphExecutable::GraphExecutable(GraphExecutable&& other) noexcept
    : device_(other.device_), exec_(other.exec_), nodes_(other.nodes_) {
    other.exec_ = nullptr;
}

GraphExecutable::~GraphExecutable() { release(); }

void GraphExecutable::release() noexcept {
    if (exec_ == nullptr) return;
    const Current current(*device_, std::nothrow);
    if (current.entered()) device_->gpu.runtime().graph_exec_destroy(exec_);
    exec_ = nullptr;
}

Device& GraphExecutable::device() const {
    if (!defined()) throw Failure(Kind::kLogic, "the graph is undefined: it was moved from or released");
    return *device_;
}

size_t GraphExecutable::node_count() const {
    device();
    return nodes_;
}

void GraphExecutable::launch(const Stream& stream) const {
    Device& own = device();
    if (stream.device() != &own)
        throw Failure(Kind::kInvalid,
                      "a graph of device " + std::to_string(own.index) + " was launched on a stream of another one");
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; launching a graph is not part of another one");
    if (stream.handle() != nullptr) own.before_submission();
    const Current current(own);
    own.gpu.check(own.gpu.runtime().graph_launch(exec_, stream.handle()), "launching a graph");
}

bool GraphExecutable::update(const Stream& stream, const std::function<void()>& callback) {
    Device& own = device();
    if (stream.device() != &own)
        throw Failure(Kind::kInvalid,
                      "a graph of device " + std::to_string(own.index) + " was captured on a stream of another one");
    const Current current(own);
    const Template held(own, run_captured(stream, callback));
    nodes_of(own, held.graph);
    gpu::UpdateResult result = gpu::UpdateResult::kError;
    const gpu::Error error = own.gpu.runtime().graph_update(exec_, held.graph, &result);
    if (error == gpu::Error::kGraphExecUpdateFailure) {
        own.gpu.runtime().last_error();
        return false;
    }
    own.gpu.check(error, "updating a graph");
    return true;
}

}  // namespace ost::hip
