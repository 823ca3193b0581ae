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
    if (whole_ != nullptr) return requested_.load(std::memory_order_relaxed) || whole_->now();
    const bool owner = std::this_thread::get_id() == owner_;
    // the owner polls on: after the end of its time it may still be at something that has to be finished
    if (!owner && requested_.load(std::memory_order_relaxed)) return true;
    const Clock::time_point time = Clock::now();
    if (time >= deadline_) request();
    if (poll_ && owner && time >= next_poll_) {
        try {
            if (poll_()) request();
        } catch (...) {
            request();
            throw;
        }
        next_poll_ = Clock::now() + kPollInterval;
    }
    return requested_.load(std::memory_order_relaxed);
}

}  // namespace ost::plan
