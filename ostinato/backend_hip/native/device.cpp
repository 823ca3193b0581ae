// Device life, memory and kernel lookup of the C boundary in ostinato.h. Exceptions end here.
#include "device.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

#include "isa.h"

namespace ost {

namespace {

thread_local char last_error[512] = "";

constexpr uint32_t kMaximumThreads = 1024;

const Unit* find_unit(const char* name) {
    const Unit* best = nullptr;
    const bool automatic = name == nullptr || std::strcmp(name, "auto") == 0;
    for (const Unit& unit : units()) {
        if (automatic ? unit.usable : std::strcmp(name, unit.name) == 0) best = &unit;
    }
    return best;
}

}  // namespace

ost_status fail(ost_status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

Device::Device(uint32_t threads, const char* unit_name, const KernelUnit& unit) : pool(threads), isa(unit_name) {
    for (uint32_t f = 0; f < unit.count; ++f) {
        const KernelTable table = unit.families[f]();
        for (uint32_t i = 0; i < table.count; ++i) {
            const KernelEntry& entry = table.entries[i];
            if (!by_name.emplace(entry.name, static_cast<uint32_t>(kernels.size())).second) {
                throw std::logic_error(std::string("two kernels are named ") + entry.name);
            }
            kernels.push_back(entry);
        }
    }
}

}  // namespace ost

using ost::fail;

extern "C" {

const char* ost_last_error(void) { return ost::last_error; }

ost_status ost_device_create(const ost_device_options* options, ost_device** device) {
    if (options == nullptr || device == nullptr || options->struct_size != sizeof(ost_device_options)) {
        return fail(OST_INVALID_ARGUMENT, "ost_device_create: options and device must be given, struct_size %zu",
                    sizeof(ost_device_options));
    }
    *device = nullptr;
    const char* wanted = options->isa == nullptr ? "auto" : options->isa;
    if (options->threads > ost::kMaximumThreads) {
        return fail(OST_INVALID_ARGUMENT, "threads is %u; the limit is %u", options->threads, ost::kMaximumThreads);
    }
    try {
        const ost::Unit* unit = ost::find_unit(wanted);
        if (unit == nullptr) {
            return fail(OST_NOT_FOUND, "no kernel unit is called '%s'; this build and CPU have: auto,%s", wanted,
                        ost::available_units());
        }
        if (!unit->usable) {
            return fail(OST_BACKEND, "this CPU (%s) cannot run kernel unit '%s'; it can run: auto,%s",
                        ost::processor_name(), wanted, ost::available_units());
        }
        uint32_t threads = options->threads == 0 ? ost::usable_cores() : options->threads;
        if (threads > ost::kMaximumThreads) threads = ost::kMaximumThreads;
        auto shared = std::make_shared<ost::Device>(threads, unit->name, unit->kernels());
        ost::processor_name();  // made here, so that a query cannot fail for want of memory
        ost::available_units();
        *device = new ost_device{std::move(shared)};
    } catch (const std::bad_alloc&) {
        return fail(OST_CAPACITY, "no memory for a device with %u threads", options->threads);
    } catch (const std::exception& error) {
        return fail(OST_BACKEND, "device could not be created: %s", error.what());
    }
    return OST_OK;
}

ost_status ost_device_query(const ost_device* device, ost_device_info* info) {
    if (device == nullptr || info == nullptr || info->struct_size != sizeof(ost_device_info)) {
        return fail(OST_INVALID_ARGUMENT, "ost_device_query: device and info must be given, struct_size %zu",
                    sizeof(ost_device_info));
    }
    const ost::Device& d = *device->shared;
    info->abi_version = OST_ABI_VERSION;
    info->threads = d.pool.threads();
    info->kernel_count = static_cast<uint32_t>(d.kernels.size());
    info->isa = d.isa;
    info->available = ost::available_units();
    info->cpu = ost::processor_name();
    return OST_OK;
}

void ost_device_destroy(ost_device* device) { delete device; }

ost_status ost_memory_allocate(ost_device* device, size_t bytes, size_t alignment, void** address) {
    if (device == nullptr || address == nullptr)
        return fail(OST_INVALID_ARGUMENT, "ost_memory_allocate: null argument");
    *address = nullptr;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return fail(OST_INVALID_ARGUMENT, "alignment is %zu; it must be a power of two", alignment);
    }
    *address = device->shared->memory.allocate(bytes, alignment);
    if (*address == nullptr) return fail(OST_CAPACITY, "no memory for %zu bytes aligned to %zu", bytes, alignment);
    return OST_OK;
}

ost_status ost_memory_free(ost_device* device, void* address) {
    if (device == nullptr) return fail(OST_INVALID_ARGUMENT, "ost_memory_free: no device");
    if (address == nullptr) return OST_OK;
    if (!device->shared->memory.release(address)) {
        return fail(OST_INVALID_ARGUMENT, "address %p was not allocated from this device or is already freed", address);
    }
    return OST_OK;
}

ost_status ost_kernel_find(const ost_device* device, const char* name, uint32_t* kernel) {
    if (device == nullptr || name == nullptr || kernel == nullptr) {
        return fail(OST_INVALID_ARGUMENT, "ost_kernel_find: null argument");
    }
    try {
        const auto found = device->shared->by_name.find(name);
        if (found == device->shared->by_name.end()) {
            return fail(OST_NOT_FOUND, "no kernel is called '%s' in unit '%s'", name, device->shared->isa);
        }
        *kernel = found->second;
    } catch (const std::exception& error) {
        return fail(OST_CAPACITY, "ost_kernel_find: %s", error.what());
    }
    return OST_OK;
}

}  // extern "C"
