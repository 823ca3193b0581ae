// Capture of what a callback submits, as an executable that is launched again and again.
#pragma once

#include <functional>
#include <vector>

#include "stream.h"

namespace ost::hip {

bool capturing();  // whether this thread is within GraphExecutable::capture

// While this thread captures, what would spoil the capture and cannot be refused (an owner of memory or of kernels may
// go away at any moment) is done when the capture is over. False, and nothing kept, when the thread does not capture.
bool after_capture(std::function<void()> work);

// What a captured graph holds, as plain data: it is read back before the template is destroyed.
struct CapturedNode {
    gpu::NodeType type;
    gpu::Function function;  // kernels
    gpu::Extent grid, block;
    uint32_t shared_bytes;
    bool arguments_known;  // kernels whose parameters are ours to know
    std::vector<std::vector<char>> arguments;
    gpu::CopyNode copy;
    gpu::FillNode fill;
};
struct CapturedGraph {
    std::vector<CapturedNode> nodes;
    std::vector<std::pair<size_t, size_t>> edges;  // from, to
    std::vector<std::pair<size_t, size_t>> early;  // those that start the later kernel early
};

// How many bytes each parameter of a kernel has, for reading nodes back; told by whoever loads the kernel.
void remember_parameters(gpu::Function function, const std::vector<size_t>& sizes);
void forget_parameters(gpu::Function function);

class GraphExecutable {
  public:
    // Runs the callback with the stream capturing, in the thread-local mode, instantiates once and destroys the
    // template. `graph` (may be null) receives what was captured. Throws kInvalid without a callback or when it submits
    // nothing, kRuntime for a stream of the CPU, kLogic within another capture, and whatever the callback throws, after
    // the abandoned capture is ended and destroyed and the backend's error taken away: the stream captures again at
    // once.
    static GraphExecutable capture(const Stream& stream, const std::function<void()>& callback, CapturedGraph* graph);
    ~GraphExecutable();
    GraphExecutable(GraphExecutable&& other) noexcept;  // leaves the other undefined
    GraphExecutable& operator=(GraphExecutable&&) = delete;
    GraphExecutable(const GraphExecutable&) = delete;

    bool defined() const { return exec_ != nullptr; }
    // These three throw kLogic when undefined.
    Device& device() const;
    size_t node_count() const;
    void launch(const Stream& stream) const;  // kInvalid for a stream of another device
    // Captures again and puts the new parameters into this executable. False, and unchanged, when more than they
    // changed.
    bool update(const Stream& stream, const std::function<void()>& callback);
    void release() noexcept;  // undefined afterwards; a second call does nothing

  private:
    GraphExecutable(Device& device, gpu::GraphExec exec, size_t nodes) : device_(&device), exec_(exec), nodes_(nodes) {}
    Device* device_;
    gpu::GraphExec exec_;
    size_t nodes_;
};

}  // namespace ost::hip
