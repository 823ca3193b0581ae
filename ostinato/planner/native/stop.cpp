#include "stop.h"

#include <utility>

namespace ost::plan {

namespace {
constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr double kForever = 1e9;  // seconds: beyond it a limit is none
}  // namespace

Stop::Stop(double seconds, std::function<bool()> poll) : poll_(std::move(poll)) {
    const Clock::time_point begin = Clock::now();
    const bool limited = seconds >= 0 && seconds < kForever;
    deadline_ = limited ? begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))
                        : Clock::time_point::max();
    next_poll_ = begin + kPollInterval;
}

bool Stop::now() const {
    if (requested_.load(std::memory_order_relaxed)) return true;
    if (whole_ != nullptr) return whole_->now();
    const Clock::time_point time = Clock::now();
    if (time >= deadline_) {
        request();
        return true;
    }
    if (poll_ && time >= next_poll_ && std::this_thread::get_id() == owner_) {
        if (poll_()) request();
        next_poll_ = Clock::now() + kPollInterval;
    }
    return requested_.load(std::memory_order_relaxed);
}

}  // namespace ost::plan
