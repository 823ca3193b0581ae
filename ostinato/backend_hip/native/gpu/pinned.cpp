#include "pinned.h"

#include <cstring>
#include <type_traits>

#include "capture.h"

namespace ost::hip {

static_assert(!std::is_move_constructible_v<PinnedMemory>, "its address never changes");

PinnedMemory::PinnedMemory(Device& device, size_t bytes) : device_(device), bytes_(bytes) {
    if (bytes == 0) throw Failure(Kind::kInvalid, "pinned memory has at least one byte");
    if (capturing()) {
        throw Failure(Kind::kLogic, "this thread captures; pinned memory is allocated before",
                      "allocate before the capture");
    }
    const Current current(device);
    device.gpu.check(device.gpu.runtime().host_allocate(&address_, bytes),
                     "allocating " + std::to_string(bytes) + " bytes of pinned memory");
    std::memset(address_, 0, bytes);
}

PinnedMemory::~PinnedMemory() { release(); }

void PinnedMemory::release() noexcept {
    if (address_ == nullptr) return;
    const auto give_back = [&device = device_, address = address_] {
        const Current current(device, std::nothrow);
        if (!current.entered()) return;
        if (device.gpu.runtime().host_release(address) != gpu::Error::kSuccess) device.gpu.clear_error();
    };
    address_ = nullptr;
    if (!after_capture(give_back)) give_back();
}

}  // namespace ost::hip
