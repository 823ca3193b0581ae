// What kernels report to: a word of device memory that takes the number of the first step which met an index out of
// range, and behind it the tickets by which blocks of one kernel find out who is last. Work that may run at the same
// time needs blocks of its own.
#pragma once

#include "pinned.h"
#include "stream.h"

namespace ost::hip {

constexpr size_t kStatusBytes = 4096;  // STATUS_BYTES of kernel_source.py

class StatusBlock {
  public:
    // Zeroed in the order of the stream (null: the default one). Throws kLogic while this thread captures, kCapacity
    // where there is no room.
    StatusBlock(Device& device, const Stream* stream);
    ~StatusBlock();  // the driver waits for what may still report; the stream may be gone
    StatusBlock(const StatusBlock&) = delete;
    StatusBlock& operator=(const StatusBlock&) = delete;

    void* address() const { return address_; }
    // Waits for the stream, which must be there; 0, or one more than the number of a step, which is forgotten. Throws
    // kRuntime for a device that failed, kLogic while this thread captures.
    uint32_t take();

  private:
    Device& device_;
    const gpu::Stream queue_;
    PinnedMemory seen_;  // the host's copy of the word
    void* address_ = nullptr;
};

}  // namespace ost::hip
