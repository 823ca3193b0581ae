// The state of the made-up machine, and the handles by which a test moves it: seed, faults, counters, sizes.
#include <cstring>

#include "state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated {

thread_local int current_device = 0;
thread_local Error last_error = Error::kSuccess;
thread_local CaptureMode thread_mode = CaptureMode::kGlobal;

State& state() {
    static State& one = *new State;
    return one;
}

size_t below(size_t n) {  // xorshift64*
    unsigned long long& x = state().random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return static_cast<size_t>((x * 0x2545f4914f6cdd1dull >> 33) % n);
}

void report_problem(const std::string& text) {
    if (state().problem.empty()) state().problem = text;
}

Error injected(const std::string& name) {
    const auto found = state().faults.find(name);
    if (found == state().faults.end() || --found->second.first != 0) return Error::kSuccess;
    const Error error = found->second.second;
    state().faults.erase(found);
    return error;
}

Call::Call(const char* name) : guard_(state().lock), refused_(Error::kSuccess) {
    ++state().calls[name];
    refused_ = state().devices[current_device].failed;
    if (refused_ == Error::kSuccess) refused_ = injected(name);
}

Error Call::operator()(Error error) const {
    if (error != Error::kSuccess && error != Error::kNotReady) last_error = error;
    return error;
}

}  // namespace emulated

using emulated::state;

EXPORT void emulated_seed(unsigned long long seed, int eagerness) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    state().random = seed * 2 + 1;
    state().eagerness = eagerness;
}

EXPORT void emulated_capacity(int device, size_t bytes) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    state().devices[device].capacity = bytes;
}

// One of the vendor's algorithms is wrong from now on (-1: none), and how long each of them takes.
EXPORT void emulated_vendor(int spoilt, double first, double second, double third) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    state().spoilt = spoilt;
    const double ticks[] = {first, second, third};
    std::memcpy(state().slow, ticks, sizeof ticks);
}

// As hipRuntimeGetVersion says it; before 5.3 types of graph nodes are numbered from 1.
EXPORT void emulated_version(int version) { state().version = version; }

// The nth call of that name from now on fails with this error and has no effect. Names besides those of calls:
// "kernel", an execution, which then takes its device down for good.
EXPORT void emulated_fail(const char* call, long nth, int error) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    state().faults[call] = {nth, static_cast<ost::gpu::Error>(error)};
}

EXPORT void emulated_recover(void) {  // what only a new process can do on a real machine
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    for (auto& device : state().devices) device.failed = ost::gpu::Error::kSuccess;
    state().faults.clear();
    state().problem.clear();
    state().spoilt = -1;
    for (double& ticks : state().slow) ticks = 0;
    emulated::heal_memory();
}

// How often a call was made, or how many there are: "live streams", "live events", "live graphs", "live executables",
// "live modules", "live allocations", "live bytes", "pending", "copies 1" (executed, by kind), "kernels" (executed).
EXPORT long emulated_count(const char* what) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    const auto is = [what](const char* name) { return std::strcmp(what, name) == 0; };
    if (is("live streams")) return static_cast<long>(state().streams.size());
    if (is("live events")) return static_cast<long>(state().events.size());
    if (is("live graphs")) return static_cast<long>(state().graphs.size());
    if (is("live executables")) return static_cast<long>(state().execs.size());
    if (is("live modules")) return static_cast<long>(state().modules.size());
    if (is("live allocations")) return static_cast<long>(state().live.size());
    if (is("pending")) return static_cast<long>(state().pending.size());
    if (is("live bytes")) {
        size_t bytes = 0;
        for (const auto& entry : state().live) bytes += entry.second.bytes;
        return static_cast<long>(bytes);
    }
    const auto found = state().calls.find(what);
    return found == state().calls.end() ? 0 : found->second;
}

// The first thing found that a real device would not have told; the text lives until the next call.
EXPORT const char* emulated_problem(void) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    emulated::check_memory();
    return state().problem.c_str();
}

// Takes a block back that an injected failure left with whoever asked for it to be freed.
EXPORT void emulated_forget(void* address) {
    const std::lock_guard<std::recursive_mutex> guard(state().lock);
    emulated::release(address, false);
}
