// Memory of one step: an arena whose address never changes, and buffers whose life is part of a stream's order.
#pragma once

#include "stream.h"

namespace ost::hip {

// One backing allocation bound to one stream. Slices are handed out one behind the other and own nothing. Whether their
// lives allow reuse is not known here: that is the planner's proof.
class ActivationArena {
  public:
    ActivationArena(const Stream& stream, size_t capacity);  // kInvalid: a stream of the CPU, no capacity
    ~ActivationArena();                                      // waits for the stream, then frees
    ActivationArena(const ActivationArena&) = delete;
    ActivationArena& operator=(const ActivationArena&) = delete;

    // The address of `bytes` at a multiple of `alignment`. Throws kInvalid for no bytes or an alignment that is no
    // power of two, kCapacity when the rest does not suffice; the cursor then stays where it was.
    void* allocate_slice(size_t bytes, size_t alignment);
    void reset_plan() { cursor_ = 0; }  // the host's cursor alone
    void* address() const { return base_; }
    size_t planned_bytes() const { return cursor_; }
    size_t capacity_bytes() const { return capacity_; }
    Device& device() const { return *stream_.device(); }

  private:
    const Stream& stream_;
    void* base_ = nullptr;
    size_t capacity_;
    size_t cursor_ = 0;
};

// A buffer that its stream allocates and frees in order. Never used for ordinary storage.
class StreamOrderedBuffer {
  public:
    StreamOrderedBuffer(const Stream& stream, size_t bytes);  // kInvalid: CPU, no bytes; kUnavailable: no such pools
    ~StreamOrderedBuffer();
    StreamOrderedBuffer(StreamOrderedBuffer&& other) noexcept;
    StreamOrderedBuffer& operator=(StreamOrderedBuffer&&) = delete;
    StreamOrderedBuffer(const StreamOrderedBuffer&) = delete;
    void release();  // queues the free now
    void* address() const { return address_; }
    size_t bytes() const { return bytes_; }

  private:
    const Stream& stream_;  // must outlive the buffer
    void* address_ = nullptr;
    size_t bytes_;
};

// The device's default pool behind those buffers.
struct PoolUsage {
    uint64_t reserved, reserved_high, used, used_high, release_threshold;
};
bool stream_ordered_supported(const Device& device);
PoolUsage pool_usage(const Device& device);
void set_release_threshold(const Device& device, uint64_t bytes);
void trim_stream_ordered(const Device& device, size_t keep_bytes);

}  // namespace ost::hip
