#include "arena.h"

#include <type_traits>

#include "capture.h"

namespace ost::hip {

static_assert(!std::is_move_constructible_v<ActivationArena>, "an arena's address never changes");
static_assert(std::is_move_constructible_v<StreamOrderedBuffer> && !std::is_copy_constructible_v<StreamOrderedBuffer>,
              "moved");

namespace {

gpu::Pool pool_of(const Device& device) {
    if (!stream_ordered_supported(device)) {
        throw Failure(Kind::kUnavailable, "device " + std::to_string(device.index) + " has no stream-ordered memory");
    }
    gpu::Pool pool = nullptr;
    device.gpu.check(device.gpu.runtime().default_pool(&pool, device.index), "the default pool");
    return pool;
}

const Stream& on_gpu(const Stream& stream, size_t bytes, const char* what) {
    if (stream.device() == nullptr) throw Failure(Kind::kInvalid, std::string(what) + " needs a stream of a GPU");
    if (bytes == 0) throw Failure(Kind::kInvalid, std::string(what) + " has at least one byte");
    return stream;
}

}  // namespace

ActivationArena::ActivationArena(const Stream& stream, size_t capacity)
    : stream_(on_gpu(stream, capacity, "an activation arena")), capacity_(capacity) {
    base_ = stream.device()->allocate(capacity);
}

ActivationArena::~ActivationArena() {
    try {
        {
            const Current current(device(), std::nothrow);
            if (current.entered() && !capturing()) device().gpu.runtime().stream_synchronize(stream_.handle());
        }
        device().release(base_);
    } catch (const Failure&) {  // a device that is lost gives nothing back
    }
}

void* ActivationArena::allocate_slice(size_t bytes, size_t alignment) {
    if (bytes == 0) throw Failure(Kind::kInvalid, "a slice has at least one byte");
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        throw Failure(Kind::kInvalid, "a slice's alignment is a power of two, found " + std::to_string(alignment));
    }
    const auto base = reinterpret_cast<uintptr_t>(base_);
    const uintptr_t gap = -(base + cursor_) & (alignment - 1);
    if (gap > capacity_ - cursor_ || bytes > capacity_ - cursor_ - gap) {
        throw Failure(Kind::kCapacity, "a slice of " + std::to_string(bytes) + " bytes aligned to " +
                                           std::to_string(alignment) + " does not fit an arena of " +
                                           std::to_string(capacity_) + " with " + std::to_string(cursor_) + " planned");
    }
    cursor_ += gap + bytes;
    return static_cast<char*>(base_) + (cursor_ - bytes);
}

StreamOrderedBuffer::StreamOrderedBuffer(const Stream& stream, size_t bytes)
    : stream_(on_gpu(stream, bytes, "a stream-ordered buffer")), bytes_(bytes) {
    Device& device = *stream.device();
    if (stream.handle() == nullptr)
        throw Failure(Kind::kInvalid, "a stream-ordered buffer needs a stream of its own, not the default one");
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; a graph holds no allocations");
    const Current current(device);
    pool_of(device);
    device.before_submission();
    device.gpu.check(device.gpu.runtime().allocate_async(&address_, bytes, stream.handle()),
                     "a stream-ordered buffer of " + std::to_string(bytes) + " bytes");
}

StreamOrderedBuffer::StreamOrderedBuffer(StreamOrderedBuffer&& other) noexcept
    : stream_(other.stream_), address_(other.address_), bytes_(other.bytes_) {
    other.address_ = nullptr;
}

// In a capture the stream's order is the graph's, which must not free what it did not allocate.
StreamOrderedBuffer::~StreamOrderedBuffer() {
    if (address_ == nullptr) return;
    Device& device = *stream_.device();
    const auto free_unordered = [&device, address = address_] {
        const Current current(device, std::nothrow);
        if (!current.entered()) return;
        if (device.gpu.runtime().release(address) != gpu::Error::kSuccess) device.gpu.clear_error();
    };
    if (after_capture(free_unordered)) return;
    try {
        release();
    } catch (const Failure&) {  // nobody is left to be told
    }
}

void StreamOrderedBuffer::release() {
    if (address_ == nullptr) return;
    if (capturing()) {
        throw Failure(Kind::kLogic, "this thread captures; a graph frees nothing that it did not allocate");
    }
    Device& device = *stream_.device();
    const Current current(device);
    void* const address = address_;
    address_ = nullptr;
    device.before_submission();
    device.gpu.check(device.gpu.runtime().release_async(address, stream_.handle()), "freeing a stream-ordered buffer");
}

bool stream_ordered_supported(const Device& device) { return device.facts.memory_pools != 0; }

PoolUsage pool_usage(const Device& device) {
    const Current current(device);
    const gpu::Pool pool = pool_of(device);
    PoolUsage usage = {};
    const std::pair<gpu::PoolAttribute, uint64_t*> list[] = {
        {gpu::PoolAttribute::kReservedCurrent, &usage.reserved},
        {gpu::PoolAttribute::kReservedHigh, &usage.reserved_high},
        {gpu::PoolAttribute::kUsedCurrent, &usage.used},
        {gpu::PoolAttribute::kUsedHigh, &usage.used_high},
        {gpu::PoolAttribute::kReleaseThreshold, &usage.release_threshold},
    };
    for (const auto& [attribute, value] : list) {
        device.gpu.check(device.gpu.runtime().pool_get(pool, attribute, value), "the use of the default pool");
    }
    return usage;
}

void set_release_threshold(const Device& device, uint64_t bytes) {
    const Current current(device);
    device.gpu.check(device.gpu.runtime().pool_set(pool_of(device), gpu::PoolAttribute::kReleaseThreshold, bytes),
                     "the release threshold of the default pool");
}

void trim_stream_ordered(const Device& device, size_t keep_bytes) {
    const Current current(device);
    device.gpu.check(device.gpu.runtime().pool_trim(pool_of(device), keep_bytes), "trimming the default pool");
}

}  // namespace ost::hip
