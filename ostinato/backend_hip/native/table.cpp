// The step table: a deep copy of the steps with everything resolved, and the loop that runs it.
//
// All checks that need no data are made once, when a table is created. A run takes the device's lock, allocates
// nothing and calls one function a step. One lane exists, so order in the table is the happens-before order; waits and
// signals are checked for sense (an event must be signalled before it is waited for) and need no action.
#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <vector>

#include "device.h"

namespace ost {

namespace {

constexpr int64_t kCopyChunk = int64_t{1} << 20;

struct Step {
    KernelFunction run;  // null: a call of function number `function` of the host language
    uint32_t function;
    const char* name;
    size_t first_operand;
    size_t first_param;
    Call call;
};

const char* explain(int32_t status) {
    switch (status) {
        case OST_OUT_OF_RANGE: return "an index in device memory (token id, row, position or block) was out of range";
        case OST_INVALID_ARGUMENT:
            return "the kernel does not take these parameters: a dtype or layout it does not know, or an operand with "
                   "fewer bytes than its extents need";
        default: return "the kernel reported a failure";
    }
}

void copy_bytes(const Call& call) {
    const auto* from = call.pointer<const char>(0);
    auto* to = call.pointer<char>(1);
    const auto bytes = static_cast<int64_t>(call.operands[0].bytes);
    if (from == to) return;
    call.pool->parallel((bytes + kCopyChunk - 1) / kCopyChunk, [=](int64_t chunk, void*) {
        const int64_t at = chunk * kCopyChunk;
        std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at < kCopyChunk ? bytes - at : kCopyChunk));
    });
}

void fill_bytes(const Call& call) {
    auto* to = call.pointer<char>(0);
    const auto bytes = static_cast<int64_t>(call.operands[0].bytes);
    const auto value = static_cast<int>(call.integer(0));
    call.pool->parallel((bytes + kCopyChunk - 1) / kCopyChunk, [=](int64_t chunk, void*) {
        const int64_t at = chunk * kCopyChunk;
        std::memset(to + at, value, static_cast<size_t>(bytes - at < kCopyChunk ? bytes - at : kCopyChunk));
    });
}

constexpr KernelEntry kCopy = {"copy of bytes", copy_bytes, 2, 0, 0};
constexpr KernelEntry kFill = {"fill of bytes", fill_bytes, 1, 1, 0};
constexpr KernelEntry kHostCall = {"call of the host language", nullptr, 0, 0, 0};

}  // namespace

struct Table {
    std::shared_ptr<Device> device;
    std::vector<Step> steps;
    std::vector<ost_operand> operands;
    std::vector<ost_param> params;
    std::atomic<bool> interrupted{false};
    int32_t status = OST_OK;
};

namespace {

// Finds the entry a step runs, or says what is wrong with the step.
ost_status check_step(const Device& device, const ost_step& step, size_t index, std::set<uint32_t>& signalled,
                      const KernelEntry*& entry) {
    if (step.struct_size != sizeof(ost_step)) {
        return fail(OST_INVALID_ARGUMENT, "step %zu: struct_size is %u, this library's is %zu", index, step.struct_size,
                    sizeof(ost_step));
    }
    switch (step.kind) {
        case OST_STEP_LAUNCH:
            if (step.kernel >= device.kernels.size()) {
                return fail(OST_NOT_FOUND, "step %zu: kernel number %u, the device has %zu kernels", index, step.kernel,
                            device.kernels.size());
            }
            entry = &device.kernels[step.kernel];
            break;
        case OST_STEP_COPY: entry = &kCopy; break;
        case OST_STEP_FILL: entry = &kFill; break;
        case OST_STEP_CALL: entry = &kHostCall; break;
        default:
            return fail(OST_INVALID_ARGUMENT,
                        "step %zu: step kind %u is not one the host device runs (launch, copy, fill, call)", index,
                        step.kind);
    }
    if (step.lane != 0) {
        return fail(OST_INVALID_ARGUMENT, "step %zu (%s): lane %u, the host device has lane 0 only", index, entry->name,
                    step.lane);
    }
    if (step.operand_count != entry->operand_count || step.param_count != entry->param_count) {
        return fail(OST_INVALID_ARGUMENT, "step %zu (%s): %u operands and %u params given, %u and %u expected", index,
                    entry->name, step.operand_count, step.param_count, entry->operand_count, entry->param_count);
    }
    if ((step.operand_count != 0 && step.operands == nullptr) || (step.param_count != 0 && step.params == nullptr) ||
        (step.wait_count != 0 && step.waits == nullptr) || (step.signal_count != 0 && step.signals == nullptr)) {
        return fail(OST_INVALID_ARGUMENT, "step %zu (%s): a count is not zero but its array is null", index,
                    entry->name);
    }
    for (uint32_t i = 0; i < step.operand_count; ++i) {
        const bool optional = i < 32 && ((entry->optional_operands >> i) & 1u) != 0;
        if (step.operands[i].address == nullptr && !optional) {
            return fail(OST_INVALID_ARGUMENT, "step %zu (%s): operand %u is null and not optional", index, entry->name,
                        i);
        }
        if (step.operands[i].bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(step.operands[i].address)) {
            return fail(OST_INVALID_ARGUMENT, "step %zu (%s): operand %u at %p cannot have %" PRIu64 " bytes", index,
                        entry->name, i, step.operands[i].address, step.operands[i].bytes);
        }
    }
    if (step.kind == OST_STEP_COPY) {
        const ost_operand& from = step.operands[0];
        const ost_operand& to = step.operands[1];
        const auto a = reinterpret_cast<uintptr_t>(from.address);
        const auto b = reinterpret_cast<uintptr_t>(to.address);
        if (from.bytes != to.bytes) {
            return fail(OST_INVALID_ARGUMENT, "step %zu (copy): %" PRIu64 " bytes to %" PRIu64 " bytes", index,
                        from.bytes, to.bytes);
        }
        if (a != b && a < b + to.bytes && b < a + from.bytes) {
            return fail(OST_INVALID_ARGUMENT, "step %zu (copy): source and destination overlap", index);
        }
    }
    for (uint32_t i = 0; i < step.wait_count; ++i) {
        if (signalled.count(step.waits[i]) == 0) {
            return fail(OST_INVALID_ARGUMENT, "step %zu (%s): waits for event %u, which no earlier step signals", index,
                        entry->name, step.waits[i]);
        }
    }
    for (uint32_t i = 0; i < step.signal_count; ++i) signalled.insert(step.signals[i]);
    return OST_OK;
}

ost_status build(Table& table, const ost_step* steps, size_t count, size_t& failed) {
    std::set<uint32_t> signalled;
    for (size_t i = 0; i < count; ++i) {
        const ost_step& step = steps[i];
        const KernelEntry* entry = nullptr;
        const ost_status status = check_step(*table.device, step, i, signalled, entry);
        if (status != OST_OK) {
            failed = i;
            return status;
        }
        const Call call = {nullptr, nullptr, step.operand_count, step.param_count, &table.device->pool, &table.status};
        table.steps.push_back({entry->run, step.kernel, entry->name, table.operands.size(), table.params.size(), call});
        table.operands.insert(table.operands.end(), step.operands, step.operands + step.operand_count);
        table.params.insert(table.params.end(), step.params, step.params + step.param_count);
    }
    for (Step& step : table.steps) {  // only now do the copies stay where they are
        step.call.operands = table.operands.data() + step.first_operand;
        step.call.params = table.params.data() + step.first_param;
    }
    return OST_OK;
}

ost_status refuse_nested_run() {
    return fail(OST_LIFECYCLE, "a run on this device is in progress on this thread (a signal handler runs within it)");
}

ost_status run_step(Device& device, const ost_step& step) {
    if (step.wait_count != 0 || step.signal_count != 0) {
        return fail(OST_INVALID_ARGUMENT, "a step on its own neither waits nor signals: only tables have an order");
    }
    if (step.kind == OST_STEP_CALL) {
        return fail(OST_INVALID_ARGUMENT, "a call on its own is for the host language to make");
    }
    std::set<uint32_t> signalled;  // stays empty, and then allocates nothing
    const KernelEntry* entry = nullptr;
    const ost_status status = check_step(device, step, 0, signalled, entry);
    if (status != OST_OK) return status;
    if (device.pool.held_here()) return refuse_nested_run();
    const std::lock_guard<ThreadPool> guard(device.pool);
    device.steps_run.fetch_add(1, std::memory_order_relaxed);
    int32_t met = OST_OK;
    entry->run({step.operands, step.params, step.operand_count, step.param_count, &device.pool, &met});
    const int32_t found = __atomic_load_n(&met, __ATOMIC_RELAXED);
    if (found == OST_OK) return OST_OK;
    return fail(static_cast<ost_status>(found), "%s: %s", entry->name, explain(found));
}

ost_status run(Table& table, size_t first, size_t count, const ost_host& host, size_t* failed_step) {
    const size_t size = table.steps.size();
    if (failed_step != nullptr) *failed_step = OST_NO_STEP;
    if (first > size || count > size - first) {
        return fail(OST_INVALID_ARGUMENT, "steps [%zu, %zu + %zu) asked for, the table has %zu", first, first, count,
                    size);
    }
    if (table.device->pool.held_here()) return refuse_nested_run();
    const std::lock_guard<ThreadPool> guard(table.device->pool);
    int32_t status = OST_OK;
    size_t failed = 0;
    for (size_t i = first; i < first + count; ++i) {
        if (table.interrupted.exchange(false, std::memory_order_relaxed) || (host.poll != nullptr && host.poll(host.context) != 0)) {
            if (failed_step != nullptr) *failed_step = i;
            return fail(OST_INTERRUPTED, "interrupted before step %zu (%s)", i, table.steps[i].name);
        }
        const Step& step = table.steps[i];
        if (step.run == nullptr) {
            if (host.call != nullptr && host.call(host.context, step.function) == 0) continue;
            if (failed_step != nullptr) *failed_step = i;
            return fail(OST_HOST, "step %zu (%s): %s", i, step.name,
                        host.call == nullptr ? "the run was started without a host language" : "it failed");
        }
        __atomic_store_n(&table.status, static_cast<int32_t>(OST_OK), __ATOMIC_RELAXED);
        step.run(step.call);
        const int32_t met = __atomic_load_n(&table.status, __ATOMIC_RELAXED);
        if (met == OST_OK) continue;
        if (status == OST_OK) {
            status = met;
            failed = i;
        }
        if (met != OST_OUT_OF_RANGE) break;  // later steps would read what was never written
    }
    if (status == OST_OK) return OST_OK;
    if (failed_step != nullptr) *failed_step = failed;
    return fail(static_cast<ost_status>(status), "step %zu (%s): %s", failed, table.steps[failed].name,
                explain(status));
}

}  // namespace

}  // namespace ost

struct ost_table {
    ost::Table table;
};

using ost::fail;

extern "C" {

ost_status ost_table_create(ost_device* device, const ost_step* steps, size_t count, ost_table** table,
                            size_t* failed_step) {
    if (failed_step != nullptr) *failed_step = OST_NO_STEP;
    if (device == nullptr || table == nullptr || (steps == nullptr && count != 0)) {
        return fail(OST_INVALID_ARGUMENT, "ost_table_create: null argument");
    }
    *table = nullptr;
    try {
        auto made = std::make_unique<ost_table>();
        made->table.device = device->shared;
        size_t failed = OST_NO_STEP;
        const ost_status status = ost::build(made->table, steps, count, failed);
        if (failed_step != nullptr) *failed_step = failed;
        if (status != OST_OK) return status;
        *table = made.release();
    } catch (const std::exception& error) {
        return fail(OST_CAPACITY, "table of %zu steps could not be created: %s", count, error.what());
    }
    return OST_OK;
}

void ost_table_destroy(ost_table* table) { delete table; }

ost_status ost_table_run(ost_table* table, size_t first, size_t count, size_t* failed_step) {
    const ost_host nobody = {sizeof(ost_host), nullptr, nullptr, nullptr};
    return ost_table_run_hosted(table, first, count, &nobody, failed_step);
}

ost_status ost_table_run_hosted(ost_table* table, size_t first, size_t count, const ost_host* host,
                                size_t* failed_step) {
    if (table == nullptr) return fail(OST_INVALID_ARGUMENT, "ost_table_run: no table");
    if (host == nullptr || host->struct_size != sizeof(ost_host)) {
        return fail(OST_INVALID_ARGUMENT, "ost_table_run_hosted: a host must be given, struct_size %zu",
                    sizeof(ost_host));
    }
    return ost::run(table->table, first, count, *host, failed_step);
}

ost_status ost_step_run(ost_device* device, const ost_step* step) {
    if (device == nullptr || step == nullptr) return fail(OST_INVALID_ARGUMENT, "ost_step_run: null argument");
    return ost::run_step(*device->shared, *step);
}

uint64_t ost_device_steps_run(const ost_device* device) {
    return device == nullptr ? 0 : device->shared->steps_run.load(std::memory_order_relaxed);
}

ost_status ost_table_interrupt(ost_table* table) {
    if (table == nullptr) return fail(OST_INVALID_ARGUMENT, "ost_table_interrupt: no table");
    table->table.interrupted.store(true, std::memory_order_relaxed);
    return OST_OK;
}

}  // extern "C"
