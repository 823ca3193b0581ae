// Scopes of a thread that hold freed memory back until a stream is done with it, and that send work to a stream.
#pragma once

#include <vector>

#include "stream.h"

namespace ost::hip {

struct DeferralCounters {
    size_t pending_blocks, pending_bytes;
    size_t total_blocks, total_bytes;
    size_t flushes;  // times the table was full
};

// Holds what this thread frees on the stream's device until the stream is done. The table has a fixed size, so that
// freeing allocates nothing and throws nothing; when it is full the stream is waited for, everything is freed and it
// goes on. Pending bytes are owned by nobody and still held: they are to be looked at beside the logical peak.
class DeferredDeallocationScope {
  public:
    DeferredDeallocationScope(const Stream& stream, size_t capacity);  // kInvalid: CPU, or no room; kLogic: nested
    ~DeferredDeallocationScope();                                      // finishes, quietly
    DeferredDeallocationScope(const DeferredDeallocationScope&) = delete;
    DeferredDeallocationScope& operator=(const DeferredDeallocationScope&) = delete;

    // Waits for the stream once and frees. Throws what a free said, after all were tried; kLogic on another thread than
    // the scope's. A second call does nothing.
    void finish();
    DeferralCounters counters() const;

    struct State;  // shared with the thread, which may outlive the scope or be outlived by it

  private:
    std::shared_ptr<State> state_;
};

bool defer(Device& device, const Block& block);  // false: no scope of this thread wants it

// Sends this thread's work of the stream's device that names no stream, strided copies included, to that stream, and
// defers what is freed meanwhile.
class ScopedDeferredStream {
  public:
    ScopedDeferredStream(const Stream& stream, size_t capacity);  // kInvalid: CPU; kLogic: nested
    ~ScopedDeferredStream();
    ScopedDeferredStream(const ScopedDeferredStream&) = delete;
    ScopedDeferredStream& operator=(const ScopedDeferredStream&) = delete;
    void finish();  // ends the routing first, then drains
    DeferralCounters counters() const { return memory_.counters(); }

    struct Route;

  private:
    DeferredDeallocationScope memory_;
    std::shared_ptr<Route> route_;
};

// The stream that work naming `stream` (null: none) goes to. Throws kLogic for another stream than the routed one and
// kInvalid for work of another device than its.
const Stream* routed(const Device& device, const Stream* stream);
const Stream* routed_stream(const Device& device);  // where work of the device that names no stream goes, null: nowhere else

}  // namespace ost::hip
