// Device memory is host memory between red zones. It is filled with NaN patterns when it is handed out and when it is
// taken back; freed blocks are kept for a while, so that a late write is seen.
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulated {

namespace {

constexpr size_t kRedZone = 256;
constexpr int kRed = 0xb7;
constexpr int kPoison = 0xff;
constexpr size_t kKeepFreed = size_t{4} << 20;

// The first is that value and each is as the one before it: every wait compares all freed memory.
bool all_bytes(const char* from, size_t bytes, int value) {
    return bytes == 0 || (static_cast<unsigned char>(*from) == value && std::memcmp(from, from + 1, bytes - 1) == 0);
}

void check(const Allocation& block) {
    if (!all_bytes(block.start - kRedZone, kRedZone, kRed)) {
        report_problem("bytes before a block of " + std::to_string(block.bytes) + " were written");
    }
    if (!all_bytes(block.start + block.bytes, kRedZone, kRed)) {
        report_problem("bytes behind a block of " + std::to_string(block.bytes) + " were written");
    }
}

void forget(const Allocation& block) {
    check(block);
    if (!all_bytes(block.start, block.bytes, kPoison)) {
        report_problem("a freed block of " + std::to_string(block.bytes) + " bytes was written");
    }
    std::free(block.base);
}

}  // namespace

Error allocate(void** address, size_t bytes, bool host) {
    *address = nullptr;
    if (bytes == 0) return Error::kSuccess;
    Device& device = state().devices[current_device];
    if (!host && bytes > device.capacity - device.used) return Error::kOutOfMemory;
    Allocation block;
    if (posix_memalign(&block.base, 256, (bytes + 2 * kRedZone + 255) / 256 * 256) != 0) return Error::kOutOfMemory;
    block.start = static_cast<char*>(block.base) + kRedZone;
    block.bytes = bytes;
    block.device = current_device;
    block.host = host;
    std::memset(block.start - kRedZone, kRed, kRedZone);
    std::memset(block.start, kPoison, bytes);
    std::memset(block.start + bytes, kRed, kRedZone);
    if (!host) device.used += bytes;
    state().live.emplace(block.start, block);
    *address = block.start;
    return Error::kSuccess;
}

Error release(void* address, bool host) {
    if (address == nullptr) return Error::kSuccess;
    const auto found = state().live.find(static_cast<char*>(address));
    if (found == state().live.end() || found->second.host != host) return Error::kInvalidValue;
    const Allocation block = found->second;
    check(block);
    state().live.erase(found);
    if (!host) state().devices[block.device].used -= block.bytes;
    std::memset(block.start, kPoison, block.bytes);
    state().freed.push_back(block);
    state().freed_bytes += block.bytes;
    while (state().freed_bytes > kKeepFreed) {
        state().freed_bytes -= state().freed.front().bytes;
        forget(state().freed.front());
        state().freed.pop_front();
    }
    return Error::kSuccess;
}

bool in_live_memory(const void* address, size_t bytes, int device) {
    auto* const at = static_cast<char*>(const_cast<void*>(address));
    auto found = state().live.upper_bound(at);
    if (found == state().live.begin()) return false;
    const Allocation& block = (--found)->second;
    const auto offset = static_cast<size_t>(at - block.start);
    if (offset > block.bytes || bytes > block.bytes - offset) return false;
    return device < 0 || block.host || block.device == device;
}

bool in_freed_memory(const void* address) {
    const auto* const at = static_cast<const char*>(address);
    for (const Allocation& block : state().freed) {
        if (at >= block.start && at < block.start + block.bytes && !in_live_memory(at, 1, -1)) return true;
    }
    return false;
}

void heal_memory() {
    for (const auto& entry : state().live) {
        std::memset(entry.second.start - kRedZone, kRed, kRedZone);
        std::memset(entry.second.start + entry.second.bytes, kRed, kRedZone);
    }
    for (const Allocation& block : state().freed) {
        std::memset(block.start - kRedZone, kRed, kRedZone);
        std::memset(block.start, kPoison, block.bytes);
        std::memset(block.start + block.bytes, kRed, kRedZone);
    }
}

void check_memory() {
    for (const auto& entry : state().live) check(entry.second);
    for (const Allocation& block : state().freed) {
        check(block);
        if (!all_bytes(block.start, block.bytes, kPoison)) {
            report_problem("a freed block of " + std::to_string(block.bytes) + " bytes was written");
        }
    }
}

}  // namespace emulated
