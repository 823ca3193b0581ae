// The calls of the runtime but for capture and graphs: devices, memory, streams, events.
#include <algorithm>
#include <cstring>

#include "state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
namespace ost::gpu {
using namespace emulated;  // NOLINT

namespace {

bool known_device(int device) { return device >= 0 && device < kDevices; }

StreamState* handle(std::unique_ptr<StreamState> stream) {
    StreamState* const address = stream.get();
    state().streams.emplace(address, std::move(stream));
    return address;
}

EventState* event_of(Event event) {
    auto* const found = reinterpret_cast<EventState*>(event);
    return state().events.count(found) != 0 ? found : nullptr;
}

// Waiting for a stream that captures, or for an event in it, spoils the capture.
Error wait_refused(const std::shared_ptr<Capture>& capture, Error error) {
    if (!capture) return Error::kSuccess;
    invalidate(*capture);
    return error;
}

}  // namespace

EXPORT Error hipInit(unsigned) { return Error::kSuccess; }

EXPORT Error hipDriverGetVersion(int* version) { return *version = state().version, Error::kSuccess; }

EXPORT Error hipRuntimeGetVersion(int* version) { return *version = state().version, Error::kSuccess; }

EXPORT const char* hipGetErrorName(Error error) {
    switch (error) {
        case Error::kSuccess: return "hipSuccess";
        case Error::kInvalidValue: return "hipErrorInvalidValue";
        case Error::kOutOfMemory: return "hipErrorOutOfMemory";
        case Error::kNotReady: return "hipErrorNotReady";
        case Error::kIllegalAddress: return "hipErrorIllegalAddress";
        case Error::kLaunchFailure: return "hipErrorLaunchFailure";
        case Error::kStreamCaptureUnsupported: return "hipErrorStreamCaptureUnsupported";
        case Error::kStreamCaptureInvalidated: return "hipErrorStreamCaptureInvalidated";
        case Error::kStreamCaptureUnjoined: return "hipErrorStreamCaptureUnjoined";
        case Error::kStreamCaptureImplicit: return "hipErrorStreamCaptureImplicit";
        case Error::kGraphExecUpdateFailure: return "hipErrorGraphExecUpdateFailure";
        default: return "hipErrorUnknown";
    }
}

EXPORT const char* hipGetErrorString(Error error) { return hipGetErrorName(error); }

EXPORT Error hipGetLastError() {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    ++state().calls["hipGetLastError"];
    const Error failed = state().devices[current_device].failed;
    const Error error = failed != Error::kSuccess ? failed : last_error;
    last_error = Error::kSuccess;
    return error;
}

EXPORT Error hipGetDeviceCount(int* count) { return *count = kDevices, Error::kSuccess; }

EXPORT Error hipGetDevice(int* device) { return *device = current_device, Error::kSuccess; }

EXPORT Error hipSetDevice(int device) {
    if (!known_device(device)) return last_error = Error::kInvalidDevice;
    current_device = device;
    return Error::kSuccess;
}

EXPORT Error hipDeviceGetName(char* name, int length, int device) {
    if (!known_device(device)) return Error::kInvalidDevice;
    std::strncpy(name, device == 0 ? "emulated, waves of 64" : "emulated, waves of 32", static_cast<size_t>(length));
    return Error::kSuccess;
}

EXPORT Error hipDeviceTotalMem(size_t* bytes, int device) {
    if (!known_device(device)) return Error::kInvalidDevice;
    *bytes = state().devices[device].capacity;
    return Error::kSuccess;
}

EXPORT Error hipDeviceGetAttribute(int* value, amd::Attribute attribute, int device) {
    if (!known_device(device)) return Error::kInvalidDevice;
    switch (attribute) {
        case amd::kWarpSize: *value = device == 0 ? 64 : 32; break;
        case amd::kMultiprocessorCount: *value = 4; break;
        case amd::kMaxThreadsPerBlock: *value = 1024; break;
        case amd::kMaxThreadsPerMultiprocessor: *value = 2048; break;
        case amd::kMaxRegistersPerBlock: *value = 65536; break;
        case amd::kMaxSharedMemoryPerBlock: *value = 65536; break;
        case amd::kL2CacheSize: *value = 1 << 20; break;
        case amd::kMemoryPoolsSupported: *value = 1; break;
        default: *value = 1; break;
    }
    return Error::kSuccess;
}

EXPORT Error hipGetDevicePropertiesR0600(void* properties, int device) {
    if (!known_device(device)) return Error::kInvalidDevice;
    std::memset(properties, 0, amd::kPropertiesSizeNew);
    std::strcpy(static_cast<char*>(properties) + amd::kArchitectureOffsetNew,
                device == 0 ? "gfx942:sramecc+:xnack-" : "gfx1100");
    return Error::kSuccess;
}

EXPORT Error hipDeviceSynchronize() {
    ENTER("hipDeviceSynchronize");
    Error error = forbidden_call();
    for (const auto& capture : state().captures) {  // CUDA gives every capture of the device up, whoever's
        if (capture->origin->device != current_device) continue;
        invalidate(*capture);
        error = Error::kStreamCaptureUnsupported;
    }
    if (error != Error::kSuccess) return call(error);
    check_memory();
    return call(complete_device(current_device));
}

EXPORT Error hipMemGetInfo(size_t* free, size_t* total) {
    ENTER("hipMemGetInfo");
    const Device& device = state().devices[current_device];
    *total = device.capacity;
    *free = device.capacity - device.used;
    return Error::kSuccess;
}

EXPORT Error hipMalloc(void** address, size_t bytes) {
    ENTER("hipMalloc");
    const Error error = forbidden_call();
    return call(error != Error::kSuccess ? error : allocate(address, bytes, false));
}

EXPORT Error hipFree(void* address) {
    ENTER("hipFree");
    Error error = forbidden_call();
    if (error == Error::kSuccess) error = complete_device(current_device);  // as the real one waits
    return call(error != Error::kSuccess ? error : release(address, false));
}

EXPORT Error hipHostMalloc(void** address, size_t bytes, unsigned) {
    ENTER("hipHostMalloc");
    const Error error = forbidden_call();
    return call(error != Error::kSuccess ? error : allocate(address, bytes, true));
}

EXPORT Error hipHostFree(void* address) {
    ENTER("hipHostFree");
    Error error = forbidden_call();
    if (error == Error::kSuccess) error = complete_device(current_device);
    return call(error != Error::kSuccess ? error : release(address, true));
}

EXPORT Error hipMemcpyAsync(void* to, const void* from, size_t bytes, CopyKind kind, Stream stream) {
    ENTER("hipMemcpyAsync");
    StreamState* const queue = stream_of(stream);
    if (queue == nullptr) return call(Error::kInvalidHandle);
    if (to == nullptr || from == nullptr) return call(Error::kInvalidValue);
    NodeState node;
    node.type = NodeType::kCopy;
    node.copy = {to, from, bytes};
    node.kind = kind;
    return call(submit(*queue, std::move(node)));
}

EXPORT Error hipMemsetAsync(void* to, int value, size_t bytes, Stream stream) {
    ENTER("hipMemsetAsync");
    StreamState* const queue = stream_of(stream);
    if (queue == nullptr) return call(Error::kInvalidHandle);
    NodeState node;
    node.type = NodeType::kFill;
    node.fill = {to, static_cast<uint32_t>(value & 0xff), 1, bytes};
    return call(submit(*queue, std::move(node)));
}

// Stream-ordered memory. An address is known at once; its bytes count as used from the moment of the call.
EXPORT Error hipMallocAsync(void** address, size_t bytes, Stream stream) {
    ENTER("hipMallocAsync");
    StreamState* const queue = stream_of(stream);
    if (queue == nullptr) return call(Error::kInvalidHandle);
    Device& device = state().devices[queue->device];
    const int previous = current_device;
    current_device = queue->device;
    const Error error = allocate(address, bytes, false);
    current_device = previous;
    if (error != Error::kSuccess) return call(error);
    device.pool_cached -= std::min(device.pool_cached, bytes);
    device.pool_used += bytes;
    device.pool_used_high = std::max(device.pool_used_high, device.pool_used);
    device.pool_reserved_high = std::max(device.pool_reserved_high, device.pool_used + device.pool_cached);
    enqueue(*queue, nullptr);
    return Error::kSuccess;
}

EXPORT Error hipFreeAsync(void* address, Stream stream) {
    ENTER("hipFreeAsync");
    StreamState* const queue = stream_of(stream);
    const auto found = state().live.find(static_cast<char*>(address));
    if (queue == nullptr || found == state().live.end()) return call(Error::kInvalidValue);
    Device& device = state().devices[queue->device];
    device.pool_used -= found->second.bytes;
    device.pool_cached += found->second.bytes;
    enqueue(*queue, [address] { return release(address, false); });
    return Error::kSuccess;
}

EXPORT Error hipDeviceGetDefaultMemPool(Pool* pool, int device) {
    ENTER("hipDeviceGetDefaultMemPool");
    if (!known_device(device)) return call(Error::kInvalidDevice);
    *pool = reinterpret_cast<Pool>(&state().devices[device]);
    return Error::kSuccess;
}

EXPORT Error hipMemPoolGetAttribute(Pool pool, PoolAttribute attribute, void* value) {
    ENTER("hipMemPoolGetAttribute");
    const Device& device = *reinterpret_cast<Device*>(pool);
    const uint64_t reserved = device.pool_used + device.pool_cached;
    uint64_t found = device.pool_threshold;
    if (attribute == PoolAttribute::kReservedCurrent) found = reserved;
    if (attribute == PoolAttribute::kReservedHigh) found = device.pool_reserved_high;
    if (attribute == PoolAttribute::kUsedCurrent) found = device.pool_used;
    if (attribute == PoolAttribute::kUsedHigh) found = device.pool_used_high;
    std::memcpy(value, &found, sizeof found);
    return Error::kSuccess;
}

EXPORT Error hipMemPoolSetAttribute(Pool pool, PoolAttribute attribute, void* value) {
    ENTER("hipMemPoolSetAttribute");
    if (attribute != PoolAttribute::kReleaseThreshold) return call(Error::kInvalidValue);
    std::memcpy(&reinterpret_cast<Device*>(pool)->pool_threshold, value, sizeof(uint64_t));
    return Error::kSuccess;
}

EXPORT Error hipMemPoolTrimTo(Pool pool, size_t keep) {
    ENTER("hipMemPoolTrimTo");
    Device& device = *reinterpret_cast<Device*>(pool);
    const size_t used = device.pool_used;
    device.pool_cached = std::min(device.pool_cached, keep > used ? keep - used : 0);
    return Error::kSuccess;
}

EXPORT Error hipStreamCreateWithFlags(Stream* stream, unsigned flags) {
    ENTER("hipStreamCreateWithFlags");
    auto made = std::make_unique<StreamState>();
    made->device = current_device;
    made->blocking = (flags & kStreamNonBlocking) == 0;
    *stream = reinterpret_cast<Stream>(handle(std::move(made)));
    return Error::kSuccess;
}

EXPORT Error hipStreamDestroy(Stream stream) {
    ENTER("hipStreamDestroy");
    StreamState* const found = stream_of(stream);
    if (found == nullptr || stream == nullptr) return call(Error::kInvalidHandle);
    if (found->capture) {
        invalidate(*found->capture);
        auto& members = found->capture->streams;
        members.erase(std::find(members.begin(), members.end(), found));
        if (found->capture->origin == found) {
            for (StreamState* member : members) member->capture.reset();
            auto& list = state().captures;
            list.erase(std::find(list.begin(), list.end(), found->capture));
        }
    }
    state().streams.erase(found);  // its work stays where it is
    return Error::kSuccess;
}

EXPORT Error hipStreamQuery(Stream stream) {
    ENTER("hipStreamQuery");
    const StreamState* const found = stream_of(stream);
    if (found == nullptr) return call(Error::kInvalidHandle);
    const Error error = wait_refused(found->capture, Error::kStreamCaptureUnsupported);
    if (error != Error::kSuccess) return call(error);
    run_by_chance();
    return !found->last || found->last->done ? Error::kSuccess : Error::kNotReady;
}

EXPORT Error hipStreamSynchronize(Stream stream) {
    ENTER("hipStreamSynchronize");
    StreamState* const found = stream_of(stream);
    if (found == nullptr) return call(Error::kInvalidHandle);
    Error error = wait_refused(found->capture, Error::kStreamCaptureUnsupported);
    Capture* capture = nullptr;
    if (error == Error::kSuccess) error = capture_of(*found, &capture);
    if (error != Error::kSuccess) return call(error);
    return call(complete(found->last));
}

// In a capture an event carries its place to the waiting stream, which joins the capture by it.
EXPORT Error hipStreamWaitEvent(Stream stream, Event event, unsigned) {
    ENTER("hipStreamWaitEvent");
    StreamState* const queue = stream_of(stream);
    EventState* const found = event_of(event);
    if (queue == nullptr || found == nullptr) return call(Error::kInvalidHandle);
    if (found->capture) {
        if (found->capture->invalid) return call(Error::kStreamCaptureInvalidated);
        if (queue->capture && queue->capture != found->capture) return call(Error::kStreamCaptureMerge);
        if (!queue->capture) {
            queue->capture = found->capture;
            found->capture->streams.push_back(queue);
        }
        for (NodeState* node : found->frontier) {
            auto& list = queue->frontier;
            if (std::find(list.begin(), list.end(), node) == list.end()) list.push_back(node);
        }
        return Error::kSuccess;
    }
    if (queue->capture) {
        if (!found->recorded) return Error::kSuccess;
        invalidate(*queue->capture);
        return call(Error::kStreamCaptureIsolation);
    }
    const Work wait = enqueue(*queue, nullptr);
    if (found->recorded) wait->after.push_back(found->recorded);
    return Error::kSuccess;
}

EXPORT Error hipEventCreateWithFlags(Event* event, unsigned flags) {
    ENTER("hipEventCreateWithFlags");
    auto made = std::make_unique<EventState>();
    made->device = current_device;
    made->timing = (flags & kEventDisableTiming) == 0;
    *event = reinterpret_cast<Event>(made.get());
    state().events.emplace(made.get(), std::move(made));
    return Error::kSuccess;
}

EXPORT Error hipEventDestroy(Event event) {
    ENTER("hipEventDestroy");
    return call(state().events.erase(event_of(event)) == 1 ? Error::kSuccess : Error::kInvalidHandle);
}

EXPORT Error hipEventRecord(Event event, Stream stream) {
    ENTER("hipEventRecord");
    StreamState* const queue = stream_of(stream);
    EventState* const found = event_of(event);
    if (queue == nullptr || found == nullptr || queue->device != found->device) return call(Error::kInvalidHandle);
    Capture* capture = nullptr;
    const Error error = capture_of(*queue, &capture);
    if (error != Error::kSuccess) return call(error);
    if (capture != nullptr) {
        found->capture = queue->capture;
        found->frontier = queue->frontier;
        return Error::kSuccess;
    }
    found->capture.reset();
    found->frontier.clear();
    found->recorded = enqueue(*queue, nullptr);
    run_by_chance();
    return Error::kSuccess;
}

EXPORT Error hipEventQuery(Event event) {
    ENTER("hipEventQuery");
    const EventState* const found = event_of(event);
    if (found == nullptr) return call(Error::kInvalidHandle);
    const Error error = wait_refused(found->capture, Error::kCapturedEvent);
    if (error != Error::kSuccess) return call(error);
    run_by_chance();
    return !found->recorded || found->recorded->done ? Error::kSuccess : Error::kNotReady;
}

EXPORT Error hipEventSynchronize(Event event) {
    ENTER("hipEventSynchronize");
    const EventState* const found = event_of(event);
    if (found == nullptr) return call(Error::kInvalidHandle);
    const Error error = wait_refused(found->capture, Error::kCapturedEvent);
    return call(error != Error::kSuccess ? error : complete(found->recorded));
}

EXPORT Error hipEventElapsedTime(float* milliseconds, Event from, Event to) {
    ENTER("hipEventElapsedTime");
    const EventState *const a = event_of(from), *const b = event_of(to);
    if (a == nullptr || b == nullptr || !a->timing || !b->timing || !a->recorded || !b->recorded) {
        return call(Error::kInvalidHandle);
    }
    if (!a->recorded->done || !b->recorded->done) return call(Error::kNotReady);
    *milliseconds = static_cast<float>((b->recorded->finished - a->recorded->finished) * 0.001);
    return Error::kSuccess;
}

}  // namespace ost::gpu
