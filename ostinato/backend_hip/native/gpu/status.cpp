#include "status.h"

#include "capture.h"

namespace ost::hip {

StatusBlock::StatusBlock(Device& device, const Stream* stream)
    : device_(device), queue_(place(device, stream)), seen_(device, sizeof(uint32_t)) {
    address_ = device.allocate(kStatusBytes);
    const Current current(device);
    const gpu::Error error = device.gpu.runtime().fill_async(address_, 0, kStatusBytes, queue_);
    if (error == gpu::Error::kSuccess) return;
    device.release(address_);
    device.gpu.check(error, "clearing the status word");
}

StatusBlock::~StatusBlock() {
    try {
        device_.release(address_);
    } catch (const Failure&) {  // a device that is lost gives nothing back
    }
}

uint32_t StatusBlock::take() {
    if (capturing()) throw Failure(Kind::kLogic, "this thread captures; waiting for a stream is not part of a graph");
    const gpu::RuntimeApi& api = device_.gpu.runtime();
    const Current current(device_);
    gpu::Error error =
        api.copy_async(seen_.address(), address_, sizeof(uint32_t), gpu::CopyKind::kDeviceToHost, queue_);
    if (error == gpu::Error::kSuccess) error = api.stream_synchronize(queue_);
    if (error != gpu::Error::kSuccess) device_.gpu.check(error, "waiting for a stream");
    const uint32_t word = *static_cast<const volatile uint32_t*>(seen_.address());
    if (word != 0)
        device_.gpu.check(api.fill_async(address_, 0, sizeof(uint32_t), queue_), "clearing the status word");
    return word;
}

}  // namespace ost::hip
