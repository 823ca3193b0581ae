// Memory of the host that is page-locked: copies to and from it go on beside other work, and a captured copy may name
// it.
#pragma once

#include "device.h"

namespace ost::hip {

class PinnedMemory {
  public:
    PinnedMemory(Device& device, size_t bytes);  // zeroed; kInvalid: no bytes; kLogic: capturing; kCapacity: no room
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    // Gives the memory back now, or when the capture under way is over. The driver waits for what may use it.
    void release() noexcept;
    void* address() const { return address_; }
    size_t bytes() const { return bytes_; }

  private:
    Device& device_;
    void* address_ = nullptr;
    size_t bytes_;
};

}  // namespace ost::hip
