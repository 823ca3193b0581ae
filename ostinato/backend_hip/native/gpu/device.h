// The opened libraries and their devices. Both live as long as the process: memory that was handed out, pools and
// driver threads may outlive every Python object, and the order of destruction at exit is nobody's.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "failure.h"
#include "gpu_api.h"
#include "library.h"

namespace ost::hip {

class Device;

// One platform's libraries.
class Gpu {
  public:
    // Opens them, once a process: the adaptors hold what they found. Throws kLogic when they were opened from
    // elsewhere.
    static Gpu& open(gpu::Platform platform, const gpu::Search& search);

    // Parts of the table; each throws kUnavailable, naming what is missing, where its library cannot be used.
    const gpu::RuntimeApi& runtime() const;
    const gpu::CompilerApi& compiler() const;
    const gpu::BlasApi& blas() const;
    const std::vector<gpu::LibraryReport>& reports() const { return reports_; }
    gpu::Platform platform() const { return api_.platform; }

    int device_count() const;  // throws kUnavailable: no driver, no device
    Device& device(int index);

    // Throws for a failure, and takes it off the thread's record, so that nobody else finds it there.
    void check(gpu::Error error, const std::string& what) const;
    void clear_error() const;
    std::string describe(gpu::Error error) const;

  private:
    Gpu(gpu::Platform platform, const gpu::Search& search);
    const gpu::LibraryReport& require(const char* role) const;

    gpu::Api api_ = {};
    gpu::Search search_;
    std::vector<gpu::LibraryReport> reports_;
    std::mutex lock_;
    std::map<int, std::unique_ptr<Device>> devices_;
};

// Throws kLogic in a child of a process that had a GPU open: drivers do not survive a fork.
void refuse_after_fork();

// Makes a device the thread's current one for a while. The second form keeps quiet about failures, for destructors.
class Current {
  public:
    explicit Current(const Device& device);
    Current(const Device& device, std::nothrow_t) noexcept;
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    bool entered() const { return entered_; }

  private:
    const Device& device_;
    int previous_ = 0;
    bool entered_ = false;
};

struct Counters {
    size_t current_bytes;  // owned by somebody
    size_t peak_bytes;
    size_t total_bytes;     // of all allocations so far
    size_t cached_bytes;    // in the pool
    size_t pending_bytes;   // owned by nobody, held until the work that may use them is done
    size_t reserved_bytes;  // taken from the backend: current + cached + pending
    uint64_t allocations;
    uint64_t deallocations;
    uint64_t backend_allocations;
    uint64_t backend_deallocations;
    uint64_t reuses;
    uint64_t handoffs;
};

struct Block {
    void* address;
    size_t bytes;
};

// One device: its facts, its memory with the exact-size pool and the counters.
//
// The pool hands a block out again without asking whether the device is done with it. That is right while all work is
// on the default stream, which runs in order, and wrong as soon as there is another stream: creating any stream bans
// the pool. A quiescent handoff lifts the ban, and the next submission anywhere but on the default stream brings it
// back.
class Device {
  public:
    Device(Gpu& gpu, int index, const gpu::DeviceFacts& facts) : gpu(gpu), index(index), facts(facts) {}

    Gpu& gpu;
    const int index;
    const gpu::DeviceFacts facts;

    // Ordinary storage. Throws kLogic while this thread captures, before the backend is touched, and kCapacity when
    // there is not enough, after the pool gave back what it held. Nothing is allocated for no bytes: the address is
    // null.
    void* allocate(size_t bytes);
    // Ends the ownership of an address of allocate. The memory goes where it may: to the capture under way, which holds
    // it, to the deferring scope of this thread, to the pool, or back. Throws kInvalid for any other address.
    void release(void* address);
    // Gives a block back to the backend; what a scope or a capture held ends here.
    gpu::Error give_back(const Block& block, bool was_pending);

    void enable_pool(bool enabled);  // throws kLogic while it is banned
    bool pool_enabled() const;
    bool pool_banned() const { return banned_.load(std::memory_order_acquire); }
    void trim_pool();
    size_t pool_capacity() const;
    void set_pool_capacity(size_t bytes);  // of blocks that are freed from now on
    void hand_off();                       // waits for the device, then lifts the ban
    void before_submission() { banned_.store(true, std::memory_order_release); }  // on any stream but the default one
    // Waits for all work, and before that for the captures that other threads have under way: a driver gives those up.
    // Throws kLogic while this thread captures, and where others do for seconds: they may wait for this thread.
    void synchronize() const;
    // Held by a capture from its beginning to its end. Captures go on side by side.
    std::shared_lock<std::shared_timed_mutex> hold_off_waits() const { return std::shared_lock(captures_); }

    Counters counters() const;
    void reset_peak();
    std::atomic<uint64_t> launches{0};  // of single kernels; steps of tables are not among them

    static constexpr size_t kPoolCapacity = size_t{8} << 30;

  private:
    void* take_cached(size_t bytes);
    void note_allocation(void* address, size_t bytes, bool reused);

    mutable std::mutex lock_;
    mutable std::shared_timed_mutex captures_;
    std::atomic<bool> banned_{false};
    bool pool_enabled_ = false;
    size_t pool_capacity_ = kPoolCapacity;
    std::unordered_map<void*, size_t> owned_;
    std::unordered_map<size_t, std::vector<void*>> cached_;  // of one size, the last in is the first out
    Counters counters_ = {};
};

}  // namespace ost::hip
