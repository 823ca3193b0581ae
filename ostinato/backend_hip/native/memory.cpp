// Large blocks are mapped by themselves, zero on first touch, and on huge pages where the system offers them: weights
// are streamed at memory speed, and 4 KiB pages cost a tenth of it in translation misses.
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "device.h"

namespace ost {

namespace {
constexpr size_t kMapFrom = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

// One lock for the blocks of all devices, held while the process forks: a child never finds it taken, or a map half
// changed, by a thread that it does not have.
std::mutex& blocks_lock() {
    static std::mutex& lock = *new std::mutex;
    return lock;
}
void take_blocks() { blocks_lock().lock(); }
void release_blocks() { blocks_lock().unlock(); }
}  // namespace

Memory::Memory() {
    static const int installed = pthread_atfork(take_blocks, release_blocks, release_blocks);
    (void)installed;
}

Memory::~Memory() {
    for (const auto& entry : blocks_) give_back(entry.second);
}

void Memory::give_back(const Block& block) {
    if (block.mapped != 0) {
        munmap(block.base, block.mapped);
    } else {
        std::free(block.base);
    }
}

void* Memory::allocate(size_t bytes, size_t alignment) {
    if (bytes == 0) bytes = 1;
    Block block{nullptr, 0};
    void* address = nullptr;
    if (bytes >= kMapFrom || alignment >= kMapFrom) {  // of what alignment adds, nothing is touched
        if (alignment < kHugePage) alignment = kHugePage;
        if (bytes > SIZE_MAX - alignment) return nullptr;
        block.mapped = bytes + alignment;
        block.base = mmap(nullptr, block.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block.base == MAP_FAILED) return nullptr;
        const auto start = reinterpret_cast<uintptr_t>(block.base);
        address = reinterpret_cast<void*>((start + alignment - 1) & ~(alignment - 1));
#if defined(MADV_HUGEPAGE)
        madvise(address, bytes, MADV_HUGEPAGE);  // a hint: without it everything still works
#endif
    } else {
        if (alignment < 64) alignment = 64;
        const size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
        if (rounded < bytes) return nullptr;
        block.base = std::aligned_alloc(alignment, rounded);
        if (block.base == nullptr) return nullptr;
        std::memset(block.base, 0, rounded);
        address = block.base;
    }
    try {
        const std::lock_guard<std::mutex> guard(blocks_lock());
        blocks_.emplace(address, block);
    } catch (...) {
        give_back(block);
        return nullptr;
    }
    return address;
}

bool Memory::release(void* address) {
    Block block{};
    {
        const std::lock_guard<std::mutex> guard(blocks_lock());
        const auto found = blocks_.find(address);
        if (found == blocks_.end()) return false;
        block = found->second;
        blocks_.erase(found);
    }
    give_back(block);
    return true;
}

}  // namespace ost
