// When to stop: every loop of the solver that may take long asks `Stop::now()` at least every few milliseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace ost::plan {

class Stop {
  public:
    // `seconds` from now (negative: no limit); `poll` is asked by the thread that makes this, about every 50 ms, and says whether the caller wants an end. Where
    // nothing is wanted any more it throws, and that comes out of the `now()` that asked, while all other threads are told to stop.
    Stop(double seconds, std::function<bool()> poll);
    // No sooner than `request` says so, and no later than `whole`, of which this is a part.
    explicit Stop(const Stop& whole) : whole_(&whole) {}

    // Whether to come back with what there is. Any thread may ask, as often as it likes: it costs one look at the clock.
    bool now() const;
    void request() const { requested_.store(true, std::memory_order_relaxed); }

  private:
    using Clock = std::chrono::steady_clock;
    const Stop* whole_ = nullptr;
    mutable std::atomic<bool> requested_{false};
    Clock::time_point deadline_;
    std::function<bool()> poll_;
    std::thread::id owner_ = std::this_thread::get_id();
    mutable Clock::time_point next_poll_;
};

}  // namespace ost::plan
