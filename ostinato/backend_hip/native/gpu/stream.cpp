#include "stream.h"

#include <cstring>
#include <type_traits>

#include "capture.h"
#include "deferral.h"

namespace ost::hip {

static_assert(std::is_move_constructible_v<Stream> && !std::is_copy_constructible_v<Stream>, "streams are moved");
static_assert(std::is_move_constructible_v<Event> && !std::is_copy_constructible_v<Event>, "events are moved");

namespace {

std::string name_of(const Device* device) {
    return device == nullptr ? "the CPU" : "device " + std::to_string(device->index);
}

void refuse_in_capture(const char* what) {
    if (!capturing()) return;
    throw Failure(Kind::kLogic, std::string("this thread captures; ") + what + " is not part of a graph",
                  "wait before the capture begins or after it has ended");
}

}  // namespace

Stream::Stream(Device* device, bool non_blocking) : device_(device) {
    if (device == nullptr) return;
    refuse_in_capture("making a stream");
    device->before_submission();
    const Current current(*device);
    device->gpu.check(device->gpu.runtime().stream_create(&handle_, non_blocking ? gpu::kStreamNonBlocking : 0),
                      "making a stream");
    owned_ = true;
}

Stream Stream::external(Device& device, gpu::Stream handle) {
    device.before_submission();
    return {device, handle};
}

Stream::Stream(Stream&& other) noexcept : device_(other.device_), handle_(other.handle_), owned_(other.owned_) {
    other.owned_ = false;
    other.handle_ = nullptr;
}

Stream::~Stream() {
    if (!owned_) return;
    const Current current(*device_, std::nothrow);
    if (current.entered()) device_->gpu.runtime().stream_destroy(handle_);
}

void Stream::synchronize() const {
    if (device_ == nullptr) return;
    refuse_in_capture("waiting for a stream");
    const Current current(*device_);
    device_->gpu.check(device_->gpu.runtime().stream_synchronize(handle_), "waiting for a stream");
}

bool Stream::done() const {
    if (device_ == nullptr) return true;
    refuse_in_capture("asking a stream");
    const Current current(*device_);
    const gpu::Error error = device_->gpu.runtime().stream_query(handle_);
    if (error == gpu::Error::kNotReady) return false;
    device_->gpu.check(error, "asking a stream");
    return true;
}

gpu::Stream place(Device& device, const Stream* stream) {
    if (stream != nullptr && stream->device() != &device) {
        throw Failure(Kind::kInvalid,
                      "work of " + name_of(&device) + " was given a stream of " + name_of(stream->device()));
    }
    const Stream* const chosen = routed(device, stream);
    if (chosen == nullptr) return nullptr;
    if (chosen->handle() != nullptr) device.before_submission();
    return chosen->handle();
}

Event::Event(Device* device, bool timing) : device_(device), timing_(timing) {
    if (device == nullptr) return;
    const Current current(*device);
    device->gpu.check(device->gpu.runtime().event_create(&handle_, timing ? 0 : gpu::kEventDisableTiming),
                      "making an event");
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), handle_(other.handle_), timing_(other.timing_), recorded_(other.recorded_) {
    other.handle_ = nullptr;
    other.recorded_ = false;
}

Event::~Event() {
    if (handle_ == nullptr) return;
    const Current current(*device_, std::nothrow);
    if (current.entered()) device_->gpu.runtime().event_destroy(handle_);
}

void Event::check_stream(const Stream* stream, const char* what) const {
    if (stream != nullptr && stream->device() != device_) {
        throw Failure(Kind::kInvalid, std::string("an event of ") + name_of(device_) + " cannot " + what +
                                          " on a stream of " + name_of(stream->device()));
    }
    if (stream == nullptr && device_ == nullptr) {
        throw Failure(Kind::kRuntime,
                      std::string("an event of the CPU cannot ") + what + " on a default stream: the CPU has none");
    }
}

void Event::record(const Stream* stream) {
    check_stream(stream, "be recorded");
    if (device_ != nullptr) {
        const Current current(*device_);
        if (stream != nullptr && stream->handle() != nullptr) device_->before_submission();
        device_->gpu.check(device_->gpu.runtime().event_record(handle_, stream == nullptr ? nullptr : stream->handle()),
                           "recording an event");
    }
    recorded_ = true;
}

void Event::wait(const Stream* stream) const {
    check_stream(stream, "be waited for");
    if (device_ == nullptr) return;  // the CPU's streams are done when they return
    const Current current(*device_);
    if (stream != nullptr && stream->handle() != nullptr) device_->before_submission();
    device_->gpu.check(
        device_->gpu.runtime().stream_wait_event(stream == nullptr ? nullptr : stream->handle(), handle_),
        "waiting for an event on a stream");
}

bool Event::ready() const {
    if (!recorded_ || device_ == nullptr) return recorded_;
    refuse_in_capture("asking an event");
    const Current current(*device_);
    const gpu::Error error = device_->gpu.runtime().event_query(handle_);
    if (error == gpu::Error::kNotReady) return false;
    device_->gpu.check(error, "asking an event");
    return true;
}

void Event::synchronize() const {
    if (device_ == nullptr) return;
    refuse_in_capture("waiting for an event");
    const Current current(*device_);
    device_->gpu.check(device_->gpu.runtime().event_synchronize(handle_), "waiting for an event");
}

float Event::milliseconds_to(const Event& later) const {
    if (device_ == nullptr || later.device_ == nullptr) {
        throw Failure(Kind::kRuntime, "events of the CPU take no time", "time the CPU with time.perf_counter()");
    }
    if (device_ != later.device_) throw Failure(Kind::kInvalid, "time passes between events of one device");
    if (!timing_ || !later.timing_) throw Failure(Kind::kInvalid, "one of the events was made without timing");
    if (!recorded_ || !later.recorded_) throw Failure(Kind::kInvalid, "one of the events was not recorded");
    refuse_in_capture("asking events for their time");
    const Current current(*device_);
    float milliseconds = 0;
    device_->gpu.check(device_->gpu.runtime().event_elapsed(&milliseconds, handle_, later.handle_),
                       "the time between two events");
    return milliseconds;
}

void copy_async(const Place& to, const Place& from, size_t bytes, const Stream* stream) {
    if (bytes == 0) return;
    if (to.address == nullptr || from.address == nullptr)
        throw Failure(Kind::kInvalid, "a copy was given a null address");
    if (to.device != nullptr && from.device != nullptr && to.device != from.device) {
        throw Failure(Kind::kInvalid,
                      "a copy from " + name_of(from.device) + " to " + name_of(to.device) + " is none of a stream",
                      "copies between GPUs belong to the distributed runtime");
    }
    Device* const device = to.device != nullptr ? to.device : from.device;
    if (stream != nullptr && stream->device() != device) {
        throw Failure(Kind::kInvalid,
                      "a copy by " + name_of(device) + " was given a stream of " + name_of(stream->device()));
    }
    if (device == nullptr) {
        std::memmove(to.address, from.address, bytes);
        return;
    }
    const gpu::CopyKind kind = to.device == nullptr     ? gpu::CopyKind::kDeviceToHost
                               : from.device == nullptr ? gpu::CopyKind::kHostToDevice
                                                        : gpu::CopyKind::kDeviceToDevice;
    const gpu::Stream queue = place(*device, stream);
    const Current current(*device);
    device->gpu.check(device->gpu.runtime().copy_async(to.address, from.address, bytes, kind, queue),
                      "copying " + std::to_string(bytes) + " bytes");
}

void fill_async(const Place& to, int value, size_t bytes, const Stream* stream) {
    if (bytes == 0) return;
    if (to.address == nullptr) throw Failure(Kind::kInvalid, "a fill was given a null address");
    if (stream != nullptr && stream->device() != to.device) {
        throw Failure(Kind::kInvalid,
                      "a fill by " + name_of(to.device) + " was given a stream of " + name_of(stream->device()));
    }
    if (to.device == nullptr) {
        std::memset(to.address, value, bytes);
        return;
    }
    const gpu::Stream queue = place(*to.device, stream);
    const Current current(*to.device);
    to.device->gpu.check(to.device->gpu.runtime().fill_async(to.address, value, bytes, queue),
                         "filling " + std::to_string(bytes) + " bytes");
}

}  // namespace ost::hip
