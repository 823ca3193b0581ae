// Streams, events and copies. A device that is null is the CPU, whose streams are legal and synchronous.
#pragma once

#include "device.h"

namespace ost::hip {

class Stream {
  public:
    // Throws what the backend says. Bans the device's pool, whether or not anything is ever submitted.
    Stream(Device* device, bool non_blocking);
    // A stream that somebody else made and keeps; nothing is owned.
    static Stream external(Device& device, gpu::Stream handle);
    ~Stream();
    Stream(Stream&& other) noexcept;
    Stream& operator=(Stream&&) = delete;
    Stream(const Stream&) = delete;

    Device* device() const { return device_; }
    gpu::Stream handle() const { return handle_; }
    void synchronize() const;
    bool done() const;  // everything submitted so far

  private:
    Stream(Device& device, gpu::Stream handle) : device_(&device), handle_(handle) {}
    Device* device_;
    gpu::Stream handle_ = nullptr;
    bool owned_ = false;
};

// Where work of a device goes that names this stream, or none: the thread's routing decides for it. Bans the pool when
// it is not the default stream. Throws kLogic for another stream than the routed one, kInvalid for one of another
// device.
gpu::Stream place(Device& device, const Stream* stream);

class Event {
  public:
    Event(Device* device, bool timing);
    ~Event();
    Event(Event&& other) noexcept;
    Event& operator=(Event&&) = delete;
    Event(const Event&) = delete;

    Device* device() const { return device_; }
    void record(const Stream* stream);  // null: the device's default stream
    void wait(const Stream* stream) const;
    bool ready() const;  // recorded, and what was before it is done
    void synchronize() const;
    float milliseconds_to(const Event& later) const;

  private:
    void check_stream(const Stream* stream, const char* what) const;
    Device* device_;
    gpu::Event handle_ = nullptr;
    bool timing_;
    bool recorded_ = false;
};

// A range of memory: an address of a device, or of the host where it is null.
struct Place {
    void* address;
    Device* device;
};

// Copies on a stream, or on the default stream of the device that copies. No bytes: nothing is asked and nothing
// checked. Throws kInvalid for null addresses, for two different GPUs, and for a stream of another device than the
// copying one.
void copy_async(const Place& to, const Place& from, size_t bytes, const Stream* stream);
void fill_async(const Place& to, int value, size_t bytes, const Stream* stream);

}  // namespace ost::hip
