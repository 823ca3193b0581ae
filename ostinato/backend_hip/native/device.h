// The host device behind the opaque handles: kernels of one ISA unit, worker threads, memory. Internal to the
// extension.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel.h"
#include "ostinato.h"
#include "thread_pool.h"

namespace ost {

// Blocks handed out by ost_memory_allocate, freed at the latest with the device.
class Memory {
  public:
    Memory();
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* allocate(size_t bytes, size_t alignment);  // zeroed; null when the system has none left
    bool release(void* address);                     // false: not an address of this device

  private:
    struct Block {
        void* base;
        size_t mapped;  // 0: from the C allocator
    };
    static void give_back(const Block& block);
    std::unordered_map<void*, Block> blocks_;
};

struct Device {
    Device(uint32_t threads, const char* unit_name, const KernelUnit& unit);
    ThreadPool pool;
    Memory memory;
    const char* isa;
    std::vector<KernelEntry> kernels;
    std::unordered_map<std::string, uint32_t> by_name;
    std::atomic<uint64_t> steps_run{0};  // by ost_step_run
};

// Notes the text for ost_last_error on this thread and returns the status. printf's format.
ost_status fail(ost_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace ost

// Tables share the device, so that the order of destruction does not matter.
struct ost_device {
    std::shared_ptr<ost::Device> shared;
};
