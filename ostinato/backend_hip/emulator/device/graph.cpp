// Graphs: nodes, edges and parameters as they can be read back; executables; and what a node does when it runs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "state.h"

namespace emulated {

namespace {

GraphState* graph_of(Graph graph) {
    auto* const found = reinterpret_cast<GraphState*>(graph);
    return state().graphs.count(found) != 0 ? found : nullptr;
}

ExecState* exec_of(GraphExec exec) {
    auto* const found = reinterpret_cast<ExecState*>(exec);
    return state().execs.count(found) != 0 ? found : nullptr;
}

// Of an executable, which outlives its launches.
std::shared_ptr<const NodeState> unowned(const NodeState& node) { return {std::shared_ptr<void>(), &node}; }

NodeState* node_of(Node node) { return reinterpret_cast<NodeState*>(node); }

Error run_copy(const NodeState& node, int device) {
    ++state().calls["copies " + std::to_string(static_cast<int>(node.kind))];
    const bool from_device = node.kind == CopyKind::kDeviceToHost || node.kind == CopyKind::kDeviceToDevice;
    const bool to_device = node.kind == CopyKind::kHostToDevice || node.kind == CopyKind::kDeviceToDevice;
    if ((from_device && !in_live_memory(node.copy.from, node.copy.bytes, device)) ||
        (to_device && !in_live_memory(node.copy.to, node.copy.bytes, device))) {
        report_problem("a copy of " + std::to_string(node.copy.bytes) + " bytes reaches outside of live memory");
        return Error::kIllegalAddress;
    }
    std::memcpy(node.copy.to, node.copy.from, node.copy.bytes);
    return Error::kSuccess;
}

Error run_fill(const NodeState& node, int device) {
    const size_t bytes = node.fill.elements * node.fill.element_bytes;
    if (!in_live_memory(node.fill.to, bytes, device)) {
        report_problem("a fill of " + std::to_string(bytes) + " bytes reaches outside of live memory");
        return Error::kIllegalAddress;
    }
    std::memset(node.fill.to, static_cast<int>(node.fill.value), bytes);
    return Error::kSuccess;
}

// Copies of nodes with their edges, edges first: captured nodes only ever come after earlier ones, added ones may not.
std::vector<std::unique_ptr<NodeState>> copied(const GraphState& graph, bool* cyclic) {
    std::vector<NodeState*> order;
    std::map<const NodeState*, NodeState*> twin;
    std::vector<std::unique_ptr<NodeState>> made;
    while (made.size() < graph.nodes.size()) {
        const size_t before = made.size();
        for (const auto& node : graph.nodes) {
            const bool ready = std::all_of(node->after.begin(), node->after.end(),
                                           [&](const NodeState* other) { return twin.count(other) != 0; });
            if (!ready || twin.count(node.get()) != 0) continue;
            made.push_back(std::make_unique<NodeState>(*node));
            NodeState& copy = *made.back();
            for (NodeState*& other : copy.after) other = twin[other];
            copy.argument_pointers.clear();
            for (auto& argument : copy.arguments) copy.argument_pointers.push_back(argument.data());
            twin[node.get()] = &copy;
        }
        if (made.size() == before) break;
    }
    *cyclic = made.size() < graph.nodes.size();
    return made;
}

UpdateResult compare(const ExecState& exec, const std::vector<std::unique_ptr<NodeState>>& nodes) {
    if (exec.nodes.size() != nodes.size()) return UpdateResult::kTopologyChanged;
    for (size_t i = 0; i < nodes.size(); ++i) {
        const NodeState &a = *exec.nodes[i], &b = *nodes[i];
        if (a.type != b.type) return UpdateResult::kNodeTypeChanged;
        if (a.after.size() != b.after.size() || a.early != b.early) return UpdateResult::kTopologyChanged;
        if (a.function != b.function) return UpdateResult::kUnsupportedFunctionChange;
    }
    return UpdateResult::kSuccess;
}

}  // namespace

Execution::~Execution() {
    if (launch_ != nullptr) node_->function->abandon(launch_);
}

void Execution::start(bool early, char* message, size_t message_size) {
    const FunctionState& function = *node_->function;
    const unsigned grid[] = {node_->grid.x, node_->grid.y, node_->grid.z};
    const unsigned block[] = {node_->block.x, node_->block.y, node_->block.z};
    const auto seed = state().random ^ static_cast<unsigned long long>(state().ticks);
    launch_ = function.begin(function.kernel, grid, block, const_cast<void**>(node_->argument_pointers.data()), seed,
                             early ? 1 : 0, message, message_size);
}

bool Execution::begin() {
    ++state().calls["early starts"];
    char message[512] = "";
    if (launch_ == nullptr) start(true, message, sizeof message);
    return launch_ != nullptr && node_->function->allows(launch_) != 0;
}

Error Execution::run() {
    ++state().calls["kernels"];
    const Error injection = injected("kernel");
    if (injection != Error::kSuccess) return injection;
    const FunctionState& function = *node_->function;
    for (size_t i = 0; i < node_->arguments.size(); ++i) {
        void* pointer = nullptr;
        if (node_->arguments[i].size() != sizeof pointer) continue;
        std::memcpy(&pointer, node_->arguments[i].data(), sizeof pointer);
        if (!in_freed_memory(pointer)) continue;
        report_problem("kernel " + function.name + " runs with freed memory as argument " + std::to_string(i));
        return Error::kIllegalAddress;
    }
    char message[512] = "";
    if (launch_ == nullptr) start(false, message, sizeof message);
    void* const begun = std::exchange(launch_, nullptr);
    if (begun != nullptr && function.finish(begun, message, sizeof message) == 0) return Error::kSuccess;
    report_problem("kernel " + function.name + ": " + message);
    return Error::kLaunchFailure;
}

Error run_node(const NodeState& node, int device) {
    switch (node.type) {
        case NodeType::kKernel: return node.run ? node.run() : Execution(unowned(node)).run();
        case NodeType::kCopy: return run_copy(node, device);
        case NodeType::kFill: return run_fill(node, device);
        default: return node.run ? node.run() : Error::kSuccess;
    }
}

}  // namespace emulated

#define EXPORT extern "C" __attribute__((visibility("default")))
namespace ost::gpu {
using namespace emulated;  // NOLINT

EXPORT Error hipGraphCreate(Graph* graph, unsigned) {
    ENTER("hipGraphCreate");
    auto made = std::make_unique<GraphState>();
    made->device = current_device;
    *graph = reinterpret_cast<Graph>(made.get());
    state().graphs.emplace(made.get(), std::move(made));
    return Error::kSuccess;
}

EXPORT Error hipGraphDestroy(Graph graph) {
    ENTER("hipGraphDestroy");
    return call(state().graphs.erase(graph_of(graph)) == 1 ? Error::kSuccess : Error::kInvalidValue);
}

EXPORT Error hipGraphAddKernelNode(Node* node, Graph graph, const Node* after, size_t count,
                                   const amd::KernelNodeParams* params) {
    ENTER("hipGraphAddKernelNode");
    GraphState* const found = graph_of(graph);
    auto* const function = static_cast<FunctionState*>(params->function);
    if (found == nullptr || function == nullptr || function->kernel == nullptr) return call(Error::kInvalidValue);
    auto made = std::make_unique<NodeState>();
    made->type = NodeType::kKernel;
    made->function = function;
    made->grid = {params->grid.x, params->grid.y, params->grid.z};
    made->block = {params->block.x, params->block.y, params->block.z};
    made->shared_bytes = params->shared_bytes;
    for (size_t i = 0; i < function->sizes.size(); ++i) {
        const auto* const bytes = static_cast<const char*>(params->arguments[i]);
        made->arguments.emplace_back(bytes, bytes + function->sizes[i]);
    }
    for (auto& argument : made->arguments) made->argument_pointers.push_back(argument.data());
    for (size_t i = 0; i < count; ++i) made->after.push_back(node_of(after[i]));
    found->nodes.push_back(std::move(made));
    *node = reinterpret_cast<Node>(found->nodes.back().get());
    return Error::kSuccess;
}

EXPORT Error hipGraphAddEmptyNode(Node* node, Graph graph, const Node* after, size_t count) {
    ENTER("hipGraphAddEmptyNode");
    GraphState* const found = graph_of(graph);
    if (found == nullptr) return call(Error::kInvalidValue);
    found->nodes.push_back(std::make_unique<NodeState>());
    for (size_t i = 0; i < count; ++i) found->nodes.back()->after.push_back(node_of(after[i]));
    *node = reinterpret_cast<Node>(found->nodes.back().get());
    return Error::kSuccess;
}

EXPORT Error hipGraphAddDependencies(Graph graph, const Node* from, const Node* to, size_t count) {
    ENTER("hipGraphAddDependencies");
    if (graph_of(graph) == nullptr) return call(Error::kInvalidValue);
    for (size_t i = 0; i < count; ++i) {
        auto& list = node_of(to[i])->after;
        if (std::find(list.begin(), list.end(), node_of(from[i])) != list.end()) return call(Error::kInvalidValue);
        list.push_back(node_of(from[i]));
    }
    return Error::kSuccess;
}

EXPORT Error hipGraphGetNodes(Graph graph, Node* nodes, size_t* count) {
    ENTER("hipGraphGetNodes");
    const GraphState* const found = graph_of(graph);
    if (found == nullptr || count == nullptr) return call(Error::kInvalidValue);
    const size_t size = found->nodes.size();
    if (nodes != nullptr) {
        for (size_t i = 0; i < std::min(*count, size); ++i) nodes[i] = reinterpret_cast<Node>(found->nodes[i].get());
    }
    *count = nodes == nullptr ? size : std::min(*count, size);
    return Error::kSuccess;
}

EXPORT Error hipGraphGetEdges(Graph graph, Node* from, Node* to, size_t* count) {
    return amd::emulatedGraphGetEdges(graph, from, to, nullptr, count);
}

EXPORT Error emulatedGraphGetEdges(Graph graph, Node* from, Node* to, uint8_t* early, size_t* count) {
    ENTER("hipGraphGetEdges");
    const GraphState* const found = graph_of(graph);
    if (found == nullptr || count == nullptr) return call(Error::kInvalidValue);
    size_t edges = 0;
    for (const auto& node : found->nodes) {
        for (NodeState* before : node->after) {
            if (from != nullptr && edges < *count) {
                from[edges] = reinterpret_cast<Node>(before);
                to[edges] = reinterpret_cast<Node>(node.get());
                if (early != nullptr) early[edges] = node->early ? 1 : 0;
            }
            ++edges;
        }
    }
    *count = from == nullptr ? edges : std::min(*count, edges);
    return Error::kSuccess;
}

EXPORT Error hipGraphNodeGetType(Node node, int* type) {
    ENTER("hipGraphNodeGetType");
    *type = static_cast<int>(node_of(node)->type) + (state().version < 50300000 ? 1 : 0);
    return Error::kSuccess;
}

EXPORT Error hipGraphKernelNodeGetParams(Node node, amd::KernelNodeParams* params) {
    ENTER("hipGraphKernelNodeGetParams");
    NodeState& found = *node_of(node);
    if (found.type != NodeType::kKernel) return call(Error::kInvalidValue);
    *params = {{found.block.x, found.block.y, found.block.z},
               nullptr,
               found.function,
               {found.grid.x, found.grid.y, found.grid.z},
               found.argument_pointers.empty() ? nullptr : found.argument_pointers.data(),
               found.shared_bytes};
    return Error::kSuccess;
}

EXPORT Error hipGraphMemcpyNodeGetParams(Node node, amd::CopyNodeParams* params) {
    ENTER("hipGraphMemcpyNodeGetParams");
    const NodeState& found = *node_of(node);
    if (found.type != NodeType::kCopy) return call(Error::kInvalidValue);
    *params = {};
    params->from = {const_cast<void*>(found.copy.from), found.copy.bytes, found.copy.bytes, 1};
    params->to = {found.copy.to, found.copy.bytes, found.copy.bytes, 1};
    params->extent = {found.copy.bytes, 1, 1};
    params->kind = found.kind;
    return Error::kSuccess;
}

EXPORT Error hipGraphMemsetNodeGetParams(Node node, amd::FillNodeParams* params) {
    ENTER("hipGraphMemsetNodeGetParams");
    const NodeState& found = *node_of(node);
    if (found.type != NodeType::kFill) return call(Error::kInvalidValue);
    *params = {found.fill.to, found.fill.element_bytes, 1, found.fill.elements, found.fill.value, found.fill.elements};
    return Error::kSuccess;
}

EXPORT Error hipGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long flags) {
    ENTER("hipGraphInstantiateWithFlags");
    const GraphState* const found = graph_of(graph);
    if (found == nullptr || flags != 0) return call(Error::kInvalidValue);
    auto made = std::make_unique<ExecState>();
    bool cyclic = false;
    made->device = found->device;
    made->nodes = copied(*found, &cyclic);
    if (cyclic) return call(Error::kInvalidValue);
    *exec = reinterpret_cast<GraphExec>(made.get());
    state().execs.emplace(made.get(), std::move(made));
    return Error::kSuccess;
}

EXPORT Error hipGraphExecUpdate(GraphExec exec, Graph graph, Node* failed, UpdateResult* result) {
    ENTER("hipGraphExecUpdate");
    ExecState* const found = exec_of(exec);
    const GraphState* const source = graph_of(graph);
    if (found == nullptr || source == nullptr) return call(Error::kInvalidValue);
    bool cyclic = false;
    auto nodes = copied(*source, &cyclic);
    *failed = nullptr;
    *result = cyclic ? UpdateResult::kError : compare(*found, nodes);
    if (*result != UpdateResult::kSuccess) return call(Error::kGraphExecUpdateFailure);
    complete(found->last);  // launches under way keep the old parameters
    found->nodes = std::move(nodes);
    return Error::kSuccess;
}

// A launch enters behind what the stream holds, runs its nodes as their edges allow, and leaves when all are done.
EXPORT Error hipGraphLaunch(GraphExec exec, Stream stream) {
    ENTER("hipGraphLaunch");
    ExecState* const found = exec_of(exec);
    StreamState* const queue = stream_of(stream);
    if (found == nullptr || queue == nullptr || queue->device != found->device) return call(Error::kInvalidValue);
    Capture* capture = nullptr;
    const Error error = capture_of(*queue, &capture);
    if (error != Error::kSuccess) return call(error);
    if (capture != nullptr) {
        invalidate(*capture);
        return call(Error::kStreamCaptureUnsupported);
    }
    const Work enter = enqueue(*queue, nullptr);
    if (found->last) enter->after.push_back(found->last);
    std::map<const NodeState*, Work> works;
    std::vector<Work> all;
    for (const auto& node : found->nodes) {
        auto work = std::make_shared<Operation>();
        const NodeState* const one = node.get();
        const int device = found->device;
        work->device = device;
        work->after.push_back(enter);
        for (const NodeState* before : node->after) work->after.push_back(works.at(before));
        work->kernel = one->type == NodeType::kKernel;
        work->run = [one, device] { return run_node(*one, device); };
        if (one->early) start_early(work, works.at(one->after.front()), unowned(*one));
        works.emplace(one, work);
        state().pending.push_back(work);
        all.push_back(std::move(work));
    }
    const Work leave = enqueue(*queue, nullptr);
    leave->after.insert(leave->after.end(), all.begin(), all.end());
    found->last = leave;
    run_by_chance();
    return Error::kSuccess;
}

EXPORT Error hipGraphExecDestroy(GraphExec exec) {
    ENTER("hipGraphExecDestroy");
    ExecState* const found = exec_of(exec);
    if (found == nullptr) return call(Error::kInvalidValue);
    complete(found->last);
    state().execs.erase(found);
    return Error::kSuccess;
}

}  // namespace ost::gpu
