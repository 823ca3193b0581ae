#include "deferral.h"

#include <thread>
#include <type_traits>

#include "capture.h"

namespace ost::hip {

static_assert(!std::is_move_constructible_v<DeferredDeallocationScope> &&
                  !std::is_move_constructible_v<ScopedDeferredStream>,
              "scopes stay");

// The table and who may still add to it. The lock is for a scope that ends on another thread, as a collector may have
// it.
struct DeferredDeallocationScope::State {
    State(const Stream& stream, size_t capacity) : stream(stream), thread(std::this_thread::get_id()) {
        table.reserve(capacity);
    }
    const Stream& stream;  // outlives the scope, and is not touched after it
    const std::thread::id thread;
    std::mutex lock;
    std::vector<Block> table;  // of reserved capacity
    DeferralCounters counters = {};
    gpu::Error first_error = gpu::Error::kSuccess;
    bool open = true;

    // Waits and frees; the first failure stays noted.
    void drain() noexcept {
        Device& device = *stream.device();
        const gpu::RuntimeApi& api = device.gpu.runtime();
        gpu::Error error = gpu::Error::kInvalidDevice;
        {
            const Current current(device, std::nothrow);
            if (current.entered()) error = api.stream_synchronize(stream.handle());
        }
        for (const Block& block : table) {
            const gpu::Error freed = device.give_back(block, true);
            if (error == gpu::Error::kSuccess) error = freed;
        }
        if (error != gpu::Error::kSuccess) device.gpu.clear_error();
        if (first_error == gpu::Error::kSuccess) first_error = error;
        table.clear();
        counters.pending_blocks = counters.pending_bytes = 0;
    }
};

struct ScopedDeferredStream::Route {
    explicit Route(const Stream& stream) : stream(stream) {}
    const Stream& stream;
    std::atomic<bool> open{true};
};

namespace {

thread_local std::shared_ptr<DeferredDeallocationScope::State> deferring;
thread_local std::shared_ptr<ScopedDeferredStream::Route> route;

void check_usable(const Stream& stream, bool nested, const char* what) {
    if (stream.device() == nullptr) throw Failure(Kind::kInvalid, std::string(what) + " needs a stream of a GPU");
    if (nested) throw Failure(Kind::kLogic, std::string(what) + " is open on this thread already; they do not nest");
}

void refuse_in_capture() {
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; a scope is finished when the capture is over");
}

const Stream& checked(const Stream& stream) {
    check_usable(stream, route && route->open, "a deferred stream");
    return stream;
}

}  // namespace

DeferredDeallocationScope::DeferredDeallocationScope(const Stream& stream, size_t capacity) {
    check_usable(stream, deferring && deferring->open, "a deferred-deallocation scope");
    if (capacity == 0) throw Failure(Kind::kInvalid, "a deferred-deallocation scope holds at least one block");
    state_ = deferring = std::make_shared<State>(stream, capacity);
}

// A scope that is dropped while its thread captures cannot wait: the capture holds its memory instead.
DeferredDeallocationScope::~DeferredDeallocationScope() {
    const std::lock_guard<std::mutex> guard(state_->lock);
    if (!state_->open) return;
    state_->open = false;
    if (!capturing()) {
        state_->drain();
        return;
    }
    Device& device = *state_->stream.device();
    for (const Block& block : state_->table) after_capture([&device, block] { device.give_back(block, true); });
}

void DeferredDeallocationScope::finish() {
    const std::lock_guard<std::mutex> guard(state_->lock);
    if (!state_->open) return;
    refuse_in_capture();
    if (state_->thread != std::this_thread::get_id()) {
        throw Failure(Kind::kLogic, "a deferred-deallocation scope is finished on the thread that opened it");
    }
    state_->open = false;
    deferring.reset();
    state_->drain();
    state_->stream.device()->gpu.check(state_->first_error, "freeing deferred memory");
}

DeferralCounters DeferredDeallocationScope::counters() const {
    const std::lock_guard<std::mutex> guard(state_->lock);
    return state_->counters;
}

bool defer(Device& device, const Block& block) {
    if (!deferring) return false;
    DeferredDeallocationScope::State& scope = *deferring;
    const std::lock_guard<std::mutex> guard(scope.lock);
    if (!scope.open || scope.stream.device() != &device) return false;
    if (scope.table.size() == scope.table.capacity()) {
        scope.drain();
        ++scope.counters.flushes;
    }
    scope.table.push_back(block);
    ++scope.counters.pending_blocks;
    ++scope.counters.total_blocks;
    scope.counters.pending_bytes += block.bytes;
    scope.counters.total_bytes += block.bytes;
    return true;
}

ScopedDeferredStream::ScopedDeferredStream(const Stream& stream, size_t capacity)
    : memory_(checked(stream), capacity), route_(std::make_shared<Route>(stream)) {
    route = route_;
}

ScopedDeferredStream::~ScopedDeferredStream() { route_->open = false; }

void ScopedDeferredStream::finish() {
    refuse_in_capture();
    route_->open = false;
    memory_.finish();
}

const Stream* routed(const Device& device, const Stream* stream) {
    if (!route || !route->open) return stream;
    const Stream& own = route->stream;
    if (own.device() != &device) {
        throw Failure(Kind::kInvalid,
                      "work of device " + std::to_string(device.index) +
                          " was submitted while this thread sends its work to a stream of another device");
    }
    if (stream != nullptr && stream->handle() != own.handle()) {
        throw Failure(Kind::kLogic, "work names another stream than the one this thread sends its work to");
    }
    return &own;
}

const Stream* routed_stream(const Device& device) {
    return route && route->open && route->stream.device() == &device ? &route->stream : nullptr;
}

}  // namespace ost::hip
