#include "device.h"

#include <pthread.h>

#include <chrono>
#include <cstring>

#include "attribution.h"
#include "capture.h"
#include "deferral.h"

namespace ost::hip {

namespace {

std::atomic<bool> forked{false};
std::atomic<bool> opened{false};

const char* role_name(const std::string& role, gpu::Platform platform) {
    if (role == "runtime") return platform == gpu::Platform::kNvidia ? "driver" : "GPU runtime";
    if (role == "compiler") return "run-time compiler";
    return role == "blas" ? "vendor GEMM library" : "collectives library";
}

// Failures of work that was under way, after which every call of this process to the device fails the same.
bool is_lost(gpu::Error error) {
    switch (error) {
        case gpu::Error::kEccNotCorrectable:
        case gpu::Error::kIllegalAddress:
        case gpu::Error::kLaunchTimeOut:
        case gpu::Error::kContextIsDestroyed:
        case gpu::Error::kAssert:
        case gpu::Error::kHardwareStackError:
        case gpu::Error::kIllegalInstruction:
        case gpu::Error::kMisalignedAddress:
        case gpu::Error::kInvalidAddressSpace:
        case gpu::Error::kInvalidPc:
        case gpu::Error::kLaunchFailure: return true;
        default: return false;
    }
}

}  // namespace

void refuse_after_fork() {
    if (forked.load(std::memory_order_relaxed)) {
        throw Failure(Kind::kLogic, "this process was forked after the GPU was opened; its driver does not work here",
                      "start workers with the 'spawn' method, or open the GPU in the child alone");
    }
}

Gpu::Gpu(gpu::Platform platform, const gpu::Search& search) : search_(search) {
    if (platform == gpu::Platform::kAmd) {
        gpu::open_amd(api_, reports_, search);
    } else {
        gpu::open_nvidia(api_, reports_, search);
    }
}

Gpu& Gpu::open(gpu::Platform platform, const gpu::Search& search) {
    static std::mutex& lock = *new std::mutex;
    static Gpu* platforms[2] = {};
    static const int installed = pthread_atfork(nullptr, nullptr, [] { forked = opened.load(); });
    (void)installed;
    const std::lock_guard<std::mutex> guard(lock);
    Gpu*& slot = platforms[static_cast<int>(platform)];
    if (slot == nullptr) {
        slot = new Gpu(platform, search);
        if (slot->reports_.front().finding == gpu::Finding::kFound) opened = true;
    } else if (slot->search_.sealed != search.sealed || (search.sealed && slot->search_.folders != search.folders)) {
        throw Failure(Kind::kLogic, "the GPU libraries of this platform were opened from elsewhere in this process",
                      "libraries are opened once a process");
    }
    return *slot;
}

const gpu::LibraryReport& Gpu::require(const char* role) const {
    for (const gpu::LibraryReport& report : reports_) {
        if (report.role != role) continue;
        if (report.finding != gpu::Finding::kFound) {
            throw Failure(Kind::kUnavailable, std::string("no ") + role_name(role, platform()) + ": " + report.problem,
                          "`ostinato doctor` lists what was found and how to get what is missing");
        }
        return report;
    }
    throw Failure(Kind::kUnavailable, std::string("no ") + role_name(role, platform()));
}

const gpu::RuntimeApi& Gpu::runtime() const {
    require("runtime");
    return api_.runtime;
}

const gpu::CompilerApi& Gpu::compiler() const {
    require("compiler");
    return api_.compiler;
}

const gpu::BlasApi& Gpu::blas() const {
    require("blas");
    return api_.blas;
}

int Gpu::device_count() const {
    refuse_after_fork();
    int count = 0;
    const gpu::Error error = runtime().device_count(&count);
    if (error == gpu::Error::kSuccess) return count;
    runtime().last_error();
    const std::string found = reports_.front().name + " was found at " + reports_.front().path;
    if (error == gpu::Error::kNoDevice) {
        throw Failure(
            Kind::kUnavailable, "no device: " + found + ", and sees none",
            "check that the card is visible to this process and to this user (groups render and video on AMD)");
    }
    throw Failure(Kind::kUnavailable, "no driver: " + found + ", but does not start: " + describe(error),
                  "install or update the kernel driver of the card");
}

Device& Gpu::device(int index) {
    const int count = device_count();
    if (index < 0 || index >= count) {
        throw Failure(Kind::kUnavailable,
                      "device " + std::to_string(index) + " does not exist; there are " + std::to_string(count),
                      "devices are numbered from 0");
    }
    const std::lock_guard<std::mutex> guard(lock_);
    std::unique_ptr<Device>& slot = devices_[index];
    if (!slot) {
        gpu::DeviceFacts facts = {};
        check(runtime().device_facts(index, &facts), "facts of device " + std::to_string(index));
        slot = std::make_unique<Device>(*this, index, facts);
    }
    return *slot;
}

std::string Gpu::describe(gpu::Error error) const {
    const char* const name = api_.runtime.error_name(error);
    const char* const text = api_.runtime.error_text(error);
    const std::string number = std::to_string(static_cast<int>(error));
    return std::strcmp(name, text) == 0 ? std::string(name) + " (" + number + ")"
                                        : std::string(name) + " (" + number + "): " + text;
}

void Gpu::check(gpu::Error error, const std::string& what) const {
    if (error == gpu::Error::kSuccess) return;
    clear_error();
    if (is_lost(error)) {
        throw Failure(Kind::kRuntime,
                      what + ": " + describe(error) +
                          "; the device is lost to this process: something that was submitted earlier failed",
                      "start a new process");
    }
    const Kind kind = error == gpu::Error::kOutOfMemory ? Kind::kCapacity : Kind::kRuntime;
    throw Failure(kind, what + ": " + describe(error));
}

void Gpu::clear_error() const {
    if (!forked.load(std::memory_order_relaxed)) api_.runtime.last_error();
}

Current::Current(const Device& device) : device_(device) {
    refuse_after_fork();
    device.gpu.check(device.gpu.runtime().enter_device(device.index, &previous_),
                     "choosing device " + std::to_string(device.index));
    entered_ = true;
}

Current::Current(const Device& device, std::nothrow_t) noexcept : device_(device) {
    entered_ = !forked.load(std::memory_order_relaxed) &&
               device.gpu.runtime().enter_device(device.index, &previous_) == gpu::Error::kSuccess;
}

Current::~Current() {
    if (entered_) device_.gpu.runtime().leave_device(previous_);
}

void Device::note_allocation(void* address, size_t bytes, bool reused) {
    owned_.emplace(address, bytes);
    counters_.current_bytes += bytes;
    counters_.total_bytes += bytes;
    if (counters_.current_bytes > counters_.peak_bytes) counters_.peak_bytes = counters_.current_bytes;
    ++counters_.allocations;
    if (reused) {
        counters_.cached_bytes -= bytes;
        ++counters_.reuses;
    } else {
        counters_.reserved_bytes += bytes;
        ++counters_.backend_allocations;
    }
}

void* Device::take_cached(size_t bytes) {
    if (!pool_enabled_ || pool_banned()) return nullptr;
    const auto found = cached_.find(bytes);
    if (found == cached_.end() || found->second.empty()) return nullptr;
    void* const address = found->second.back();
    found->second.pop_back();
    return address;
}

void* Device::allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    if (capturing()) {
        throw Failure(Kind::kLogic,
                      "storage of " + std::to_string(bytes) + " bytes was asked for while this thread captures",
                      "allocate before the capture; a captured step takes its memory from the plan's arena");
    }
    note_request(index, bytes);
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (void* const address = take_cached(bytes)) {
            note_allocation(address, bytes, true);
            return address;
        }
    }
    const Current current(*this);
    const gpu::RuntimeApi& api = gpu.runtime();
    void* address = nullptr;
    gpu::Error error = api.allocate(&address, bytes);
    if (error == gpu::Error::kOutOfMemory && counters().cached_bytes != 0) {
        api.last_error();
        trim_pool();
        error = api.allocate(&address, bytes);
    }
    if (error == gpu::Error::kOutOfMemory) {
        api.last_error();
        size_t free = 0, total = 0;
        api.memory_info(&free, &total);
        throw Failure(Kind::kCapacity,
                      "device " + std::to_string(index) + " has no room for " + std::to_string(bytes) +
                          " bytes: " + std::to_string(free) + " of " + std::to_string(total) + " are free, " +
                          std::to_string(bytes > free ? bytes - free : 0) + " are missing",
                      "plan for fewer or shorter sequences, or free what else is on the device");
    }
    gpu.check(error, "allocating " + std::to_string(bytes) + " bytes");
    const std::lock_guard<std::mutex> guard(lock_);
    note_allocation(address, bytes, false);
    return address;
}

void Device::release(void* address) {
    if (address == nullptr) return;
    Block block = {address, 0};
    {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = owned_.find(address);
        if (found == owned_.end()) {
            throw Failure(Kind::kInvalid,
                          "an address was freed that was not allocated from this device, or is freed already");
        }
        block.bytes = found->second;
        owned_.erase(found);
        counters_.current_bytes -= block.bytes;
        ++counters_.deallocations;
        counters_.pending_bytes += block.bytes;
    }
    if (after_capture([this, block] { give_back(block, true); }) || defer(*this, block)) return;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (pool_enabled_ && !pool_banned() && counters_.cached_bytes + block.bytes <= pool_capacity_) {
            cached_[block.bytes].push_back(address);
            counters_.cached_bytes += block.bytes;
            counters_.pending_bytes -= block.bytes;
            return;
        }
    }
    gpu.check(give_back(block, true), "freeing " + std::to_string(block.bytes) + " bytes");
}

gpu::Error Device::give_back(const Block& block, bool was_pending) {
    const Current current(*this, std::nothrow);
    if (!current.entered()) return gpu::Error::kInvalidDevice;
    const gpu::Error error = gpu.runtime().release(block.address);
    if (error != gpu::Error::kSuccess) gpu.clear_error();
    const std::lock_guard<std::mutex> guard(lock_);
    if (was_pending) counters_.pending_bytes -= block.bytes;
    counters_.reserved_bytes -= block.bytes;
    ++counters_.backend_deallocations;
    return error;
}

void Device::enable_pool(bool enabled) {
    if (enabled && pool_banned()) {
        throw Failure(Kind::kLogic,
                      "the pool cannot be enabled: device " + std::to_string(index) +
                          " has work on other streams than the default one",
                      "hand_off() waits for the device and lifts the ban");
    }
    const std::lock_guard<std::mutex> guard(lock_);
    pool_enabled_ = enabled;
}

bool Device::pool_enabled() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return pool_enabled_;
}

size_t Device::pool_capacity() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return pool_capacity_;
}

void Device::set_pool_capacity(size_t bytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    pool_capacity_ = bytes;
}

void Device::trim_pool() {
    std::vector<Block> blocks;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        for (auto& entry : cached_) {
            for (void* address : entry.second) blocks.push_back({address, entry.first});
        }
        cached_.clear();
        counters_.cached_bytes = 0;
    }
    gpu::Error first = gpu::Error::kSuccess;
    for (const Block& block : blocks) {
        const gpu::Error error = give_back(block, false);
        if (first == gpu::Error::kSuccess) first = error;
    }
    gpu.check(first, "giving the pool's memory back");
}

void Device::synchronize() const {
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; waiting for the device is not part of a graph");
    const std::unique_lock<std::shared_timed_mutex> no_capture(captures_, std::chrono::seconds(2));
    if (!no_capture.owns_lock())
        throw Failure(Kind::kLogic, "another thread captures on this device, and waiting for all of it would spoil that",
                      "wait for a stream or an event instead");
    const Current current(*this);
    gpu.check(gpu.runtime().synchronize_device(), "waiting for device " + std::to_string(index));
}

void Device::hand_off() {
    synchronize();
    banned_.store(false, std::memory_order_release);
    const std::lock_guard<std::mutex> guard(lock_);
    ++counters_.handoffs;
}

Counters Device::counters() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return counters_;
}

void Device::reset_peak() {
    const std::lock_guard<std::mutex> guard(lock_);
    counters_.peak_bytes = counters_.current_bytes;
}

}  // namespace ost::hip
