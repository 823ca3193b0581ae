// Stream capture: calls become nodes, events carry the capture to other streams and back, and what would wait, allocate
// or reach outside is an error that spoils the capture, as the strictest of the real drivers has it.
#include <algorithm>

#include "state.h"

namespace emulated {

// Calls that could wait for the captured work: forbidden to the capturing thread, and under the global mode to all.
Error forbidden_call() {
    if (thread_mode == CaptureMode::kRelaxed) return Error::kSuccess;
    Error error = Error::kSuccess;
    for (const auto& capture : state().captures) {
        const bool own = capture->thread == std::this_thread::get_id() && capture->mode != CaptureMode::kRelaxed;
        const bool global = capture->mode == CaptureMode::kGlobal && thread_mode == CaptureMode::kGlobal;
        if (!own && !global) continue;
        invalidate(*capture);
        error = Error::kStreamCaptureUnsupported;
    }
    return error;
}

void invalidate(Capture& capture) { capture.invalid = true; }

Error capture_of(StreamState& stream, Capture** capture) {
    *capture = stream.capture.get();
    if (&stream == &state().devices[stream.device].null_stream) {
        // Work on the default stream would have to wait for every blocking stream, the capturing ones too.
        for (const auto& other : state().captures) {
            const bool blocking = std::any_of(other->streams.begin(), other->streams.end(), [&](const StreamState* s) {
                return s->blocking && s->device == stream.device;
            });
            const bool seen = other->mode == CaptureMode::kGlobal || other->thread == std::this_thread::get_id();
            if (!blocking || !seen) continue;
            invalidate(*other);
            return Error::kStreamCaptureImplicit;
        }
    }
    if (*capture != nullptr && (*capture)->invalid) return Error::kStreamCaptureInvalidated;
    return Error::kSuccess;
}

NodeState* add_node(StreamState& stream, NodeState&& node) {
    node.after = stream.frontier;
    node.early = node.early && node.after.size() == 1 && node.after.front()->type == NodeType::kKernel;
    GraphState& graph = *stream.capture->graph;
    graph.nodes.push_back(std::make_unique<NodeState>(std::move(node)));
    stream.frontier = {graph.nodes.back().get()};
    return stream.frontier.front();
}

Error submit(StreamState& stream, NodeState&& node) {
    Capture* capture = nullptr;
    const Error error = capture_of(stream, &capture);
    if (error != Error::kSuccess) return error;
    if (capture != nullptr) {
        add_node(stream, std::move(node));
        return Error::kSuccess;
    }
    const auto shared = std::make_shared<NodeState>(std::move(node));
    const int device = stream.device;
    const Work front = stream.last;
    const Work work = enqueue(stream, [shared, device] { return run_node(*shared, device); });
    work->kernel = shared->type == NodeType::kKernel;
    if (shared->early) start_early(work, front, shared);
    run_by_chance();
    return Error::kSuccess;
}

namespace {

Error begin(StreamState* stream, CaptureMode mode) {
    if (stream == nullptr) return Error::kInvalidHandle;
    if (stream == &state().devices[stream->device].null_stream) return Error::kStreamCaptureUnsupported;
    if (stream->capture) return Error::kIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->graph = std::make_unique<GraphState>();
    capture->graph->device = stream->device;
    capture->streams = {stream};
    stream->capture = capture;
    stream->frontier.clear();
    state().captures.push_back(capture);
    return Error::kSuccess;
}

// Every node must come before something that the origin has waited for.
bool joined(const Capture& capture) {
    std::vector<NodeState*> reached = capture.origin->frontier;
    for (size_t i = 0; i < reached.size(); ++i) {
        for (NodeState* before : reached[i]->after) {
            if (std::find(reached.begin(), reached.end(), before) == reached.end()) reached.push_back(before);
        }
    }
    return reached.size() == capture.graph->nodes.size();
}

Error end(StreamState* stream, Graph* graph) {
    *graph = nullptr;
    if (stream == nullptr) return Error::kInvalidHandle;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return Error::kIllegalState;
    if (capture->origin != stream) return Error::kStreamCaptureUnmatched;
    if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
        return Error::kStreamCaptureWrongThread;
    }
    Error error = capture->invalid ? Error::kStreamCaptureInvalidated : Error::kSuccess;
    if (error == Error::kSuccess && !joined(*capture)) error = Error::kStreamCaptureUnjoined;
    for (StreamState* member : capture->streams) {
        member->capture.reset();
        member->frontier.clear();
    }
    auto& list = state().captures;
    list.erase(std::find(list.begin(), list.end(), capture));
    capture->invalid = true;  // events recorded in it lead nowhere
    if (error != Error::kSuccess) return error;
    GraphState* const made = capture->graph.get();
    state().graphs.emplace(made, std::move(capture->graph));
    *graph = reinterpret_cast<Graph>(made);
    return Error::kSuccess;
}

}  // namespace

}  // namespace emulated

#define EXPORT extern "C" __attribute__((visibility("default")))
namespace ost::gpu {
using namespace emulated;  // NOLINT

EXPORT Error hipStreamBeginCapture(Stream stream, CaptureMode mode) {
    ENTER("hipStreamBeginCapture");
    return call(begin(stream_of(stream), mode));
}

EXPORT Error hipStreamEndCapture(Stream stream, Graph* graph) {
    const Call call("hipStreamEndCapture");
    const Error error = end(stream_of(stream), graph);
    if (call.refused() == Error::kSuccess || error != Error::kSuccess) return call(error);
    state().graphs.erase(reinterpret_cast<GraphState*>(*graph));  // it fails, and the capture is over all the same
    *graph = nullptr;
    return call(call.refused());
}

EXPORT Error hipStreamIsCapturing(Stream stream, CaptureStatus* status) {
    ENTER("hipStreamIsCapturing");
    const StreamState* const found = stream_of(stream);
    if (found == nullptr) return call(Error::kInvalidHandle);
    *status = !found->capture           ? CaptureStatus::kNone
              : found->capture->invalid ? CaptureStatus::kInvalidated
                                        : CaptureStatus::kActive;
    return Error::kSuccess;
}

EXPORT Error hipThreadExchangeStreamCaptureMode(CaptureMode* mode) {
    ENTER("hipThreadExchangeStreamCaptureMode");
    std::swap(*mode, thread_mode);
    return Error::kSuccess;
}

}  // namespace ost::gpu
