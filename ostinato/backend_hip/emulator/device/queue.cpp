// Streams and events as a graph of waiting operations. Nothing runs by itself: whoever waits makes operations run, any
// that can, in an order that the seed chooses, until the one waited for is done.
#include <algorithm>

#include "state.h"

namespace emulated {

namespace {

bool ready(const Operation& operation) {
    for (const Work& other : operation.after) {
        if (!other->done) return false;
    }
    return true;
}

// Lets those begin that may while this one runs, each behind the one before it.
void begin_followers(const Work& work) {
    for (Work front = work; front->follower; front = front->follower) {
        const Operation& next = *front->follower;
        const bool alone = std::all_of(next.after.begin(), next.after.end(),
                                       [&](const Work& other) { return other == front || other->done; });
        if (!alone || !next.begin()) break;
    }
}

// Runs one operation that can run; false when none can.
bool run_one() {
    std::vector<std::list<Work>::iterator> list;
    for (auto at = state().pending.begin(); at != state().pending.end(); ++at) {
        if (ready(**at)) list.push_back(at);
    }
    if (list.empty()) return false;
    const auto chosen = list[below(list.size())];
    const Work work = *chosen;
    state().pending.erase(chosen);
    Device& device = state().devices[work->device];
    if (device.failed == Error::kSuccess) begin_followers(work);
    // After a failure nothing runs any more, but whoever waits must come back.
    const Error error = device.failed == Error::kSuccess && work->run ? work->run() : Error::kSuccess;
    if (error != Error::kSuccess) device.failed = error;
    work->done = true;
    work->finished = ++state().ticks;
    work->after.clear();
    work->run = nullptr;
    work->begin = nullptr;
    work->follower = nullptr;
    return true;
}

}  // namespace

StreamState* stream_of(Stream stream) {
    if (stream == nullptr) {
        StreamState& own = state().devices[current_device].null_stream;
        own.device = current_device;
        return &own;
    }
    auto* const found = reinterpret_cast<StreamState*>(stream);
    return state().streams.count(found) != 0 ? found : nullptr;
}

Work enqueue(StreamState& stream, std::function<Error()> run) {
    auto work = std::make_shared<Operation>();
    work->device = stream.device;
    work->run = std::move(run);
    StreamState& null_stream = state().devices[stream.device].null_stream;
    if (stream.last) work->after.push_back(stream.last);
    if (&stream == &null_stream) {  // the default stream waits for all that wait for it
        for (const auto& entry : state().streams) {
            if (entry.first->device == stream.device && entry.first->blocking && entry.first->last) {
                work->after.push_back(entry.first->last);
            }
        }
    } else if (stream.blocking && null_stream.last) {
        work->after.push_back(null_stream.last);
    }
    stream.last = work;
    state().pending.push_back(work);
    return work;
}

void start_early(const Work& work, const Work& front, std::shared_ptr<const NodeState> node) {
    if (!front || !front->kernel || front->done) return;
    const auto execution = std::make_shared<Execution>(std::move(node));
    work->run = [execution] { return execution->run(); };
    work->begin = [execution] { return execution->begin(); };
    front->follower = work;
}

Error complete(const Work& work) {
    if (!work) return Error::kSuccess;
    while (!work->done && run_one()) {
    }
    return state().devices[work->device].failed;
}

Error complete_device(int device) {
    std::vector<Work> all;
    for (const Work& work : state().pending) {
        if (work->device == device) all.push_back(work);
    }
    for (const Work& work : all) complete(work);
    return state().devices[device].failed;
}

void run_by_chance() {
    while (!state().pending.empty() && below(100) < static_cast<size_t>(state().eagerness) && run_one()) {
    }
}

}  // namespace emulated
